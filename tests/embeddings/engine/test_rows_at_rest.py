"""Flushing, reading and saving rows, also while batches are in flight: nothing is lost and nothing is disturbed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.helpers import (
    LFU,
    LFUOnHost,
    Scattered,
    ScatteredOnHost,
    Trainee,
    after_sums,
    bags,
    featured,
    one_table,
    planner_of,
    random_batches,
    resident,
    snapshot,
    step_all,
    sum_of,
    train,
    train_slowly,
    wait_for_look_ahead,
)

from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.kernels.planning.books import DIRTY
from adaptive.optim import Adagrad, RowOptimizer
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lru import LRU
from adaptive.policy import Policy

TABLES = (
    TableConfig(name="a", num_embeddings=30, embedding_dim=4, features=("x", "y")),
    TableConfig(name="b", num_embeddings=40, embedding_dim=16, pooling="none"),
)
BATCHES = random_batches(TABLES, 24, seed=7, samples=4)


def build(
    policy: type[Policy] = Scattered,
    *,
    device_rows: str = "80%",
    optimizer: RowOptimizer = Adagrad(lr=0.1),  # noqa: B008 (immutable)
    host: str = "memory",
) -> TieredEmbeddingBag:
    tier = TierConfig(device_rows=device_rows, poison=True, when_full="reduce_lookahead", host=host)
    return TieredEmbeddingBag(TABLES, tier, policy=policy, optimizer=optimizer)


# --- flush ---------------------------------------------------------------------------------------------------------


def test_flush_writes_every_changed_row_back() -> None:
    embeddings = one_table(device_rows="4")
    batches = [bags([1, 2]), bags([2, 3])]
    initial = embeddings.rows.table_weights("t")
    step_all(embeddings, batches)
    before = resident(embeddings)
    for _ in range(2):  # flushing twice is flushing once
        embeddings.rows.flush()
        assert resident(embeddings) == before
        host = embeddings.runtime.pipeline.tiered_groups[0].host.weights[[1, 2, 3]]
        assert np.array_equal(host, after_sums(initial, batches)[[1, 2, 3]])
        assert planner_of(embeddings).slots.dirty().tolist() == []


def test_flush_keeps_rows_of_batches_in_flight_dirty() -> None:
    """Row 1 is flushed before batch 1 updates it; if it then counted as clean, that update would be lost."""
    embeddings = one_table(device_rows="3")
    batches = [bags([1]), bags([1]), bags([2]), bags([3]), bags([4]), bags([5]), bags([1])]
    initial = embeddings.rows.table_weights("t")
    for planned in embeddings.look_ahead(batches, depth=1):
        wait_for_look_ahead(embeddings, planned, 1, len(batches))
        if planned.number == 0:
            embeddings.rows.flush()
            assert planner_of(embeddings).slots.flags[resident(embeddings)[1]] & DIRTY
        sum_of(embeddings(planned)).backward()
        embeddings.step()
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, batches))


@pytest.mark.parametrize("policy", [Scattered, ScatteredOnHost, LFU, LFUOnHost])
@pytest.mark.parametrize("depth", [0, 3])
def test_flushing_all_the_time_changes_nothing(policy: type[Policy], depth: int) -> None:
    embeddings, trainee = build(policy), Trainee(TABLES)
    for planned in embeddings.look_ahead(BATCHES, depth=depth):
        embeddings.rows.flush()
        vectors = embeddings(planned)
        if planned.number % 2:
            embeddings.rows.flush()
        trainee.learn(vectors, planned.batch)
        embeddings.rows.flush()
        embeddings.step()
        if planned.number % 3:
            embeddings.rows.flush()
    snapshot(embeddings, trainee).assert_equals(train_slowly(TABLES, BATCHES, Adagrad(lr=0.1)))


# --- read ----------------------------------------------------------------------------------------------------------


def books(embeddings: TieredEmbeddingBag) -> list[NDArray[Any]]:
    arrays = []
    for tiered in embeddings.runtime.pipeline.tiered_groups:
        slots, records = tiered.planner.slots, tiered.planner.tracker.records
        arrays += [records.copy(), slots.rows.copy(), slots.used.copy(), slots.flags.copy(), slots.free.copy()]
        arrays += [tiered.device.read(np.arange(len(slots)))[0], tiered.device.read(np.arange(len(slots)))[1]]
    return arrays


def same(left: list[NDArray[Any]], right: list[NDArray[Any]]) -> bool:
    return all(
        a.tobytes() == b.tobytes() if a.dtype.names else np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("policy", [LFU, LFUOnHost, Hybrid])
def test_reading_gives_the_tables_values_and_touches_nothing(policy: type[Policy]) -> None:
    embeddings = build(policy, device_rows="auto" if policy is Hybrid else "80%")
    train(embeddings, TABLES, BATCHES[:6], 2)
    before = books(embeddings)
    vectors = embeddings(embeddings.read(BATCHES[10]))
    assert same(books(embeddings), before)
    ids = BATCHES[10].ids[BATCHES[10].offsets[8] :]
    assert np.array_equal(vectors["b"].detach().numpy(), embeddings.rows.table_weights("b")[ids])


@pytest.mark.parametrize("policy", [LFU, LFUOnHost])
@pytest.mark.parametrize("depth", [0, 3])
def test_evaluation_during_training_changes_no_bit_and_no_count(policy: type[Policy], depth: int) -> None:
    def run(evaluates: bool) -> tuple[Any, ...]:
        embeddings, trainee = build(policy), Trainee(TABLES)
        for planned in embeddings.look_ahead(BATCHES, depth=depth):
            wait_for_look_ahead(embeddings, planned, min(depth, 1), len(BATCHES))
            if evaluates:
                # Rows of batches that are planned and not trained are read with the values they have now.
                read = embeddings(embeddings.read(BATCHES[(planned.number * 5) % len(BATCHES)]))
                assert all(np.isfinite(tensor.detach().numpy()).all() for tensor in read.values())
                sum_of(read).backward()  # gradients of what is only read go nowhere
            trainee.learn(embeddings(planned), planned.batch)
            embeddings.step()
        counts = embeddings.statistics.take().counts
        return snapshot(embeddings, trainee), books(embeddings), counts

    (plain, plain_books, plain_counts), (read, read_books, read_counts) = run(False), run(True)
    read.assert_equals(plain)
    assert same(read_books, plain_books)
    assert np.array_equal(read_counts, plain_counts)


def test_what_was_read_keeps_its_values() -> None:
    embeddings = one_table(device_rows="2")
    read = embeddings.read(bags([1]))
    before = embeddings.rows.table_weights("t")[1]
    step_all(embeddings, [bags([1]), bags([2, 3])])
    assert np.array_equal(embeddings(read)["t"].detach().numpy()[0], before)


def test_a_read_batch_has_no_number_and_cannot_be_stepped() -> None:
    embeddings = one_table()
    read = embeddings.read(bags([1]))
    assert not read.trainable
    with pytest.raises(ValueError, match=r"got one from read\(\), which has no number"):
        _ = read.number
    sum_of(embeddings(read)).backward()
    with pytest.raises(ValueError, match="expected gradients of the current batch, got none"):
        embeddings.step()


# --- state ---------------------------------------------------------------------------------------------------------


def test_arrays_may_lie_in_memory_in_any_way() -> None:
    first = build()
    train(first, TABLES, BATCHES[:12], 2)
    arrays = first.rows.state_arrays()
    for arrange in (np.asfortranarray, lambda array: np.repeat(array, 2, axis=-1)[..., ::2]):
        second = build()
        second.rows.load_state_arrays({name: arrange(array) for name, array in arrays.items()})
        again = second.rows.state_arrays()
        assert all(np.array_equal(again[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize("depth", [0, 3])
def test_saving_between_batches_while_others_are_in_flight(depth: int) -> None:
    """Saved after a batch's step is the state after that batch, however far ahead rows have moved."""
    embeddings, trainee, other = build(), Trainee(TABLES), Trainee(TABLES)
    for planned in embeddings.look_ahead(BATCHES, depth=depth):
        wait_for_look_ahead(embeddings, planned, min(depth, 1), len(BATCHES))
        trainee.learn(embeddings(planned), planned.batch)
        embeddings.step()
        if planned.number == 9:
            arrays = {name: array.copy() for name, array in embeddings.rows.state_arrays().items()}
    restored = build(LRU, device_rows="100%")
    restored.rows.load_state_arrays(arrays)
    slow = train_slowly(TABLES, BATCHES[:10], Adagrad(lr=0.1))
    saved = snapshot(restored, other)
    assert all(np.array_equal(saved.weights[name], slow.weights[name]) for name in slow.weights)
    assert all(np.array_equal(saved.state[name], slow.state[name]) for name in slow.state)


def test_loading_replaces_all_that_was_there() -> None:
    embeddings = build()
    blank = {name: array.copy() for name, array in embeddings.rows.state_arrays().items()}
    initial = embeddings.rows.table_weights("a")
    train(embeddings, TABLES, BATCHES, 2)
    embeddings.statistics.take()
    embeddings.rows.load_state_arrays(blank)
    assert np.array_equal(embeddings.rows.table_weights("a"), initial)
    assert embeddings.statistics.take().resident_rows.tolist() == [0, 0]
    train(embeddings, TABLES, BATCHES, 2).assert_equals(train_slowly(TABLES, BATCHES, Adagrad(lr=0.1)))
    fresh = build()
    train(fresh, TABLES, BATCHES, 2)
    loaded = embeddings.rows.state_arrays()
    assert all(np.array_equal(loaded[name], array) for name, array in fresh.rows.state_arrays().items())


# --- host tier on disk ---------------------------------------------------------------------------------------------


def test_two_embeddings_may_share_a_directory(tmp_path: Path) -> None:
    first = one_table(device_rows="2", host=f"mmap:{tmp_path}")
    step_all(first, [bags([1, 2]), bags([3, 4]), bags([5])])
    before = first.rows.table_weights("t")
    second = one_table(device_rows="2", host=f"mmap:{tmp_path}")
    step_all(second, [bags([1]), bags([2]), bags([3])])
    assert np.array_equal(first.rows.table_weights("t"), before)


# --- view ----------------------------------------------------------------------------------------------------------


def test_a_policys_view_of_the_rows() -> None:
    tables = [
        TableConfig(name="a", num_embeddings=10, embedding_dim=4, features=("x", "y")),
        TableConfig(name="b", num_embeddings=5, embedding_dim=16),
        TableConfig(name="c", num_embeddings=7, embedding_dim=4),
    ]
    embeddings = TieredEmbeddingBag(tables, TierConfig(device_rows="50%", poison=True))
    view = embeddings.runtime.view
    # Tables are ordered by width: a, c, b.
    assert view.table_starts.tolist() == [0, 10, 17, 22]
    assert (view.num_rows, view.device_rows) == (22, 9 + 3)
    batch = featured([[1, 2], []], [[3], [1]], [[4], [0]], [[6], [5]])
    assert view.rows(batch).tolist() == [1, 2, 3, 1, 17 + 4, 17 + 0, 10 + 6, 10 + 5]
    step_all(embeddings, [batch])
    assert np.flatnonzero(view.resident(np.arange(22))).tolist() == [1, 2, 3, 15, 16, 17, 21]
    assert view.accesses(np.array([1, 3, 0, 16, 21])).tolist() == [2, 1, 0, 1, 1]
    assert not view.saturated(np.arange(22)).any()
