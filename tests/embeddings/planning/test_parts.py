"""Batches in parts: one plan, one update; a part that lacks no row starts while the rows of the others are coming.

Losses here take every vector's gradient from that vector alone, so it has the same bits with and without parts, and
tables and optimizer state must be equal bit for bit.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contract import LRUOnHost, RandomScores
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.helpers import (
    Fixed,
    bags,
    least_rows,
    look_ahead_threads,
    one_table,
    random_batches,
    resident,
    step_all,
    sum_of,
    table_states,
)

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.engine import lookahead
from adaptive.embeddings.engine.pipeline import Pipeline, ReadyBatch
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.cpu_device import CpuDevice
from adaptive.errors import StorageError
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lru import LRU
from adaptive.policy import Policy


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    yield
    assert look_ahead_threads() == []


def in_parts(batch: Batch, *sizes: int) -> Batch:
    return replace(batch, part_sizes=sizes)


# --- the same numbers ------------------------------------------------------------------------------------------------


def learn(embeddings: TieredEmbeddingBag, planned: Planned) -> None:
    """The gradient of a number in a vector is twice that number, whatever else is in the batch."""
    loss = sum(vectors.square().sum() for vectors in embeddings(planned).values())
    loss.backward()  # type: ignore[union-attr, no-untyped-call]


def trained(
    tables: Sequence[TableConfig],
    batches: Sequence[Batch],
    optimizer: RowOptimizer,
    policy: type[Policy],
    tier: TierConfig,
    depth: int,
) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    with TieredEmbeddingBag(tables, tier, policy=policy, optimizer=optimizer) as embeddings:
        for planned in embeddings.look_ahead(batches, depth=depth):
            for part in planned.parts():
                learn(embeddings, part)
            embeddings.step()
        states = table_states(embeddings)
        return {table.name: (embeddings.rows.table_weights(table.name), states[table.name]) for table in tables}


@st.composite
def trainings(draw: st.DrawFn) -> tuple[Any, ...]:
    weighted = draw(st.booleans())
    poolings = st.sampled_from(["sum", "none"] if weighted else ["sum", "mean", "none"])
    shapes = draw(
        st.lists(
            st.tuples(st.integers(3, 40), st.sampled_from([4, 8]), poolings, st.integers(1, 2)), min_size=1, max_size=3
        )
    )
    tables = [
        TableConfig(
            name=f"t{n}", num_embeddings=rows, embedding_dim=width, pooling=pooling,
            features=tuple(f"t{n}f{f}" for f in range(features)),
        )
        for n, (rows, width, pooling, features) in enumerate(shapes)
    ]  # fmt: skip
    samples = draw(st.integers(1, 7))
    batches = random_batches(tables, 8, seed=draw(st.integers(0, 999)), samples=samples, weighted=weighted)
    cut = []
    for batch in batches:
        borders = sorted(draw(st.sets(st.integers(1, samples), max_size=3)) | {samples})
        cut.append(in_parts(batch, *np.diff([0, *borders]).tolist()))
    policy = draw(st.sampled_from([LRU, Fixed, RandomScores, LRUOnHost, Hybrid]))
    depth = draw(st.integers(0, 4))
    optimizer = draw(st.sampled_from([SGD(lr=0.1), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01)]))
    return tables, batches, cut, optimizer, policy, depth, draw(st.sampled_from(["cpu", "cpu-torch"]))


@pytest.mark.nightly
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(trainings())
def test_parts_change_no_row(drawn: tuple[Any, ...]) -> None:
    tables, batches, cut, optimizer, policy, depth, device = drawn
    single = trained(tables, batches, optimizer, LRU, TierConfig(device_rows="100%", device="cpu"), 0)
    tier = TierConfig(
        device_rows=policy.device_rows or str(least_rows(tables, batches, depth)), device=device, poison=True
    )
    found = trained(tables, cut, optimizer, policy, tier, depth)
    for name, (weights, state) in single.items():
        assert np.array_equal(found[name][0], weights), name
        assert np.array_equal(found[name][1], state), name


def test_parts_written_out() -> None:
    embeddings = one_table(optimizer=SGD(lr=1.0))
    before = embeddings.rows.table_weights("t")
    for planned in embeddings.look_ahead([in_parts(bags([1, 2], [2], [3]), 2, 1)], depth=0):
        first, second = planned.parts()
        assert [(part.num_samples, part.share, part.number) for part in (first, second)] == [
            (2, 2 / 3, 0),
            (1, 1 / 3, 0),
        ]
        assert (first.batch.ids.tolist(), second.batch.ids.tolist()) == ([1, 2, 2], [3])
        assert first.labels.shape == (2,) and first.dense.shape == (2, 1)
        assert np.array_equal(embeddings(first)["t"][1].detach(), before[2])
        (10 * sum_of(embeddings(first))).backward()  # type: ignore[no-untyped-call]
        (100 * sum_of(embeddings(second))).backward()  # type: ignore[no-untyped-call]
        embeddings.step()
    change = before - embeddings.rows.table_weights("t")
    assert np.allclose(change[:4, 0], [0, 10, 20, 100], atol=1e-5)


def test_parts_without_backward_give_zero_and_a_second_one_adds() -> None:
    embeddings = one_table(optimizer=SGD(lr=1.0))
    before = embeddings.rows.table_weights("t")
    for planned in embeddings.look_ahead([in_parts(bags([1], [2], [3]), 1, 1, 1)], depth=0):
        _, second, _ = planned.parts()
        for _ in range(2):
            sum_of(embeddings(second)).backward()  # type: ignore[no-untyped-call]
        embeddings.step()
    change = before - embeddings.rows.table_weights("t")
    assert np.allclose(change[:4, 0], [0, 0, 2, 0], atol=1e-6)


# --- early start -----------------------------------------------------------------------------------------------------

HOT = [0], [1]  # two samples whose rows are always there


def hot_then(*rows: int) -> Batch:
    """The hot samples, and then one for each of the rows."""
    return in_parts(bags(*HOT, *([row] for row in rows)), 2, len(rows))


class Schedule:
    """The rows of a batch that is handed over early do not move before somebody waits for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.early, self.stepped = list[int](), list[int]()
        self.waited_for = threading.Semaphore(0)
        wait = Pipeline.wait_for

        def make(worker: lookahead._Planning) -> Iterator[ReadyBatch]:
            def start_early_and_stop(ready: ReadyBatch) -> None:
                self.early.append(ready.number)
                worker._queue.put(ready)
                while not worker._stopping and not self.waited_for.acquire(timeout=0.01):
                    pass

            source = worker._pipeline, worker._batches, worker._depth
            return lookahead._plan_and_move(*source, worker._wait_until_trained, start_early_and_stop)

        def go_on_and_wait(pipeline: Pipeline, ready: ReadyBatch) -> bool:
            early = ready.arrived is not None and not ready.arrived.done()
            if early:
                self.waited_for.release()
            return wait(pipeline, ready) or early

        monkeypatch.setattr(lookahead._Planning, "_make", make)
        monkeypatch.setattr(Pipeline, "wait_for", go_on_and_wait)

    def train(self, embeddings: TieredEmbeddingBag, batches: Sequence[Batch], depth: int) -> list[Planned]:
        done = []
        for planned in embeddings.look_ahead(batches, depth=depth):
            for part in planned.parts():
                sum_of(embeddings(part)).backward()  # type: ignore[no-untyped-call]
            embeddings.step()
            self.stepped.append(planned.number)
            done.append(planned)
        return done


COLD = [hot_then(2 + n % 8) for n in range(20)]  # 8 cold rows in turn, of which few fit


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> Schedule:
    return Schedule(monkeypatch)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_first_part_trains_before_rows_of_the_others_move(schedule: Schedule, depth: int) -> None:
    embeddings = one_table(device_rows=f"{4 + depth}", policy=LRU)
    done = schedule.train(embeddings, COLD, depth)
    assert schedule.early == list(range(1, 20)), "every batch but the first, which fetches the hot rows, too"
    assert [planned.waited for planned in done] == [False] + 19 * [True]
    found = embeddings.statistics.take()
    assert (found.batches, found.batches_in_parts, found.batches_waited) == (20, 20, 19)
    assert found.times_ms["wait"] > 0
    expected = one_table()
    step_all(expected, [replace(batch, part_sizes=()) for batch in COLD])
    assert np.array_equal(embeddings.rows.table_weights("t"), expected.rows.table_weights("t"))


def test_a_first_part_that_needs_a_row_waits_for_it(schedule: Schedule) -> None:
    embeddings = one_table(device_rows="5", policy=LRU)
    batches = [in_parts(bags([n % 8], [9]), 1, 1) for n in range(16)]  # the first part has the cold row
    done = schedule.train(embeddings, batches, 1)
    assert schedule.early == [] and not any(planned.waited for planned in done)


def test_a_later_part_that_lacks_nothing_does_not_wait(schedule: Schedule) -> None:
    embeddings = one_table(device_rows="6", policy=LRU)
    waited = []
    batches = [hot_then(2), in_parts(bags([0], [1], [3]), 1, 1, 1)]
    for planned in embeddings.look_ahead(batches, depth=1):
        for number, part in enumerate(planned.parts()):
            waited.append((planned.number, number, planned.waited))
            assert part is not planned
    assert waited == [(0, 0, False), (0, 1, False), (1, 0, False), (1, 1, False), (1, 2, True)]


def test_the_first_use_of_a_row_on_the_host_is_waited_for(schedule: Schedule) -> None:
    """They get their initial values when rows move; afterwards they lie there and nobody waits."""
    embeddings = one_table(device_rows="0", policy=LRUOnHost)
    schedule.train(embeddings, [hot_then(2), hot_then(3), hot_then(2), hot_then(3)], 1)
    assert schedule.early == [2, 3]


@pytest.mark.parametrize("use", ["whole", "step"])
def test_whoever_needs_all_rows_waits_for_them(schedule: Schedule, use: str) -> None:
    embeddings = one_table(device_rows="5", policy=LRU)
    for planned in embeddings.look_ahead(COLD[:6], depth=1):
        part = next(planned.parts())
        assert not planned.waited
        sum_of(embeddings(planned if use == "whole" else part)).backward()  # type: ignore[no-untyped-call]
        embeddings.step()
        assert planned.waited == (planned.number in schedule.early)
    assert len(schedule.early) == 5


class BrokenDiskError(StorageError):
    pass


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_fetch_error_is_raised_in_the_loop_and_updates_nothing(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    embeddings = one_table(device_rows=f"{4 + depth}", policy=LRU)
    fetch = CpuDevice.fetch

    def failing(device: CpuDevice, moves: Any, *more: Any) -> None:
        if 7 in moves.fetch_rows:
            raise BrokenDiskError("the disk is gone")
        fetch(device, moves, *more)

    monkeypatch.setattr(CpuDevice, "fetch", failing)
    with pytest.raises(BrokenDiskError, match="the disk is gone"):
        schedule.train(embeddings, COLD, depth)
    assert schedule.stepped == [0, 1, 2, 3, 4]
    hot = embeddings.runtime.pipeline.tiered_groups[0].device.read(np.array([resident(embeddings)[0]]))[0]
    expected = one_table()
    step_all(expected, COLD[:5])
    assert np.array_equal(hot[0], expected.rows.table_weights("t")[0]), "the first part of batch 5 has changed nothing"


@pytest.mark.parametrize("where", ["before", "between"])
def test_a_loop_that_stops_in_a_batch_joins_the_thread(schedule: Schedule, where: str) -> None:
    embeddings = one_table(device_rows="5", policy=LRU)
    for planned in embeddings.look_ahead(COLD, depth=1):
        parts = planned.parts()
        next(parts)
        if planned.number == 3:
            if where == "between":
                next(parts)
            break
        list(parts)
    assert schedule.early == [1, 2, 3] or where == "between"
    assert look_ahead_threads() == []
    expected = one_table()
    assert np.array_equal(embeddings.rows.table_weights("t"), expected.rows.table_weights("t")), "nothing was stepped"


def test_evaluation_beside_an_early_start_sees_rows_at_rest(schedule: Schedule) -> None:
    embeddings = one_table(device_rows="5", policy=LRU)
    schedule.train(embeddings, COLD[:3], 1)
    weights = embeddings.rows.table_weights("t")
    for planned in embeddings.look_ahead(COLD[3:4], depth=1):
        part = next(planned.parts())
        assert part.num_samples == 2
        schedule.waited_for.release()
        read = embeddings.read(bags(*([row] for row in range(10))))
        assert np.array_equal(embeddings(read)["t"].detach().numpy(), weights)
