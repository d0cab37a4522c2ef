"""Thirty mistakes of similar systems, each with a test that would have caught it.

This file has those about order and indices (1 to 18); `test_traps_state.py` has 19 to 30. The numbers are those of a
survey of embedding caches and parameter servers. Some are missing, or tested in part:

* 3 and 4 (memory freed, or work begun, while another stream is not done) need a GPU: the test at the end is skipped
  without one.
* 15, "an empty batch on one rank only", 23 (rows not divisible by devices) and 24 (another world size on load) need
  several ranks, which `tests/ranks` has. The other halves of 15 are tested here.
* 26 (the cache's precision differs from the table's) cannot happen: both tiers are float32, which is what is tested.
"""

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.helpers import (
    LFUOnHost,
    Scattered,
    ScatteredOnHost,
    Trainee,
    after_sums,
    bags,
    featured,
    one_table,
    random_batches,
    rows_held,
    snapshot,
    step_all,
    sum_of,
    table_states,
    train,
    train_slowly,
    wait_for_look_ahead,
)
from support.traps import OPTIMIZERS, TABLE, build

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.planning.planner import Planner
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import DeviceMemoryError, InputError
from adaptive.optim import SGD, Adam, RowOptimizer
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lru import LRU
from adaptive.policy import InputPolicy, Policy, RowStats, TierView

# --- prefetch order and cache races --------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [3, 5])
def test_trap_01_a_later_prefetch_evicts_no_staged_row(depth: int) -> None:
    """A cache staged batch i, then batch i + 1 evicted these rows before i was trained. Here the device has room for
    exactly the rows in flight, and every batch is trained as late as possible."""
    batches = random_batches(TABLE, 20, seed=1, samples=3)
    needed = rows_held(TABLE, batches, depth)[4]
    embeddings, trainee = build(device_rows=str(needed), when_full="error", eviction_share=1.0), Trainee(TABLE)
    for planned in embeddings.look_ahead(batches, depth=depth):
        wait_for_look_ahead(embeddings, planned, depth, len(batches))
        trainee.learn(embeddings(planned), planned.batch)
        embeddings.step()
    snapshot(embeddings, trainee).assert_equals(train_slowly(TABLE, batches, SGD(lr=0.5)))


@pytest.mark.parametrize("policy", [Scattered, ScatteredOnHost, LFUOnHost])
def test_trap_02_update_goes_to_the_copy_that_is_valid(policy: type[Policy]) -> None:
    """A row missed by batch i was brought in by the prefetch of i + 1 before i's backward; i's update then went to
    the copy on the host. Every row here is in some of three consecutive batches, in every combination."""
    crowd = [bags([8, 9, 10]), bags([11, 12, 13])]
    batches = []
    for _ in range(3):
        batches += crowd + [bags([row for row in range(1, 8) if row >> j & 1]) for j in range(3)]
    for depth in (1, 2):
        embeddings = one_table(14, "10" if policy is Scattered else "3", policy, when_full="reduce_lookahead")
        initial = embeddings.rows.table_weights("t")
        for planned in embeddings.look_ahead(batches, depth=depth):
            wait_for_look_ahead(embeddings, planned, 1, len(batches))
            sum_of(embeddings(planned)).backward()
            embeddings.step()
        assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, batches))


@pytest.mark.parametrize("depth", range(7))
def test_trap_05_every_batch_is_planned_once(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline that was refilled in its steady state prefetched twice and drew too many batches from the loader."""
    planned_numbers: list[int] = []
    commit = Planner.commit

    def counted(self: Planner, batch: Batch, changes: object) -> object:
        plan = commit(self, batch, changes)  # type: ignore[arg-type]
        planned_numbers.append(plan.number)
        return plan

    monkeypatch.setattr(Planner, "commit", counted)
    for length in range(6):
        planned_numbers.clear()
        drawn: list[int] = []

        def loader(length: int = length, drawn: list[int] = drawn) -> Iterator[Batch]:
            for number in range(length):
                drawn.append(number)
                yield bags([number])

        assert len(step_all(one_table(), loader(), depth=depth)) == length
        assert planned_numbers == drawn == list(range(length))


@pytest.mark.parametrize("fault", ["no forward", "no backward", "no grad", "exception"])
def test_trap_06_prefetch_without_backward_leaks_no_pins(fault: str) -> None:
    """Pins were released by a backward hook; a batch without backward held its rows forever, until nothing fit."""
    embeddings = one_table(10, "6", when_full="error")
    initial, trained = embeddings.rows.table_weights("t"), []
    for _ in range(5):
        look_ahead = embeddings.look_ahead([bags([n, n + 1]) for n in range(0, 10, 2)], depth=2)
        with suppress(RuntimeError), closing(look_ahead):
            for planned in look_ahead:
                if planned.number % 5 == 4:
                    trained.append(planned.batch)
                    sum_of(embeddings(planned)).backward()
                    embeddings.step()
                elif fault == "no backward":
                    embeddings(planned)
                elif fault == "no grad":
                    with torch.no_grad():
                        embeddings(planned)
                elif fault == "exception" and planned.number % 5 == 2:
                    sum_of(embeddings(planned)).backward()
                    raise RuntimeError("between backward and step")
    more = [bags([n, 9 - n]) for n in range(5)]
    step_all(embeddings, more, depth=2)
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, [*trained, *more]))


def test_trap_07_statistics_on_or_off_give_the_same_bits() -> None:
    """Control flow read a statistic, and went wrong when the counter was switched off."""
    batches = random_batches(TABLE, 12)
    embeddings, trainee = build(device_rows="60%"), Trainee(TABLE)
    for planned in embeddings.look_ahead(batches, depth=2):
        embeddings.statistics.take()
        trainee.learn(embeddings(planned), planned.batch)
        embeddings.step()
    observed = snapshot(embeddings, trainee)
    observed.assert_equals(train(build(device_rows="60%"), TABLE, batches, 2))


@pytest.mark.parametrize("depth", [0, 2])
def test_trap_08_fewer_slots_than_rows_is_an_error_or_falls_back(depth: int) -> None:
    """A cache smaller than a batch's distinct ids, or N batches', crashed or overwrote rows in use."""
    batches = random_batches(TABLE, 10, samples=4)
    one_batch, in_flight = rows_held(TABLE, batches, 0)[4], rows_held(TABLE, batches, depth)[4]
    with pytest.raises(DeviceMemoryError, match=f"expected at least {in_flight} device rows of width 4"):
        train(build(device_rows=str(in_flight - 1), when_full="error"), TABLE, batches, depth)
    expected = train_slowly(TABLE, batches, SGD(lr=0.5))
    train(build(device_rows=str(one_batch)), TABLE, batches, depth).assert_equals(expected)
    train(build(policy=LFUOnHost, device_rows="1"), TABLE, batches, depth).assert_equals(expected)


def test_trap_09_rows_are_written_back_before_they_are_read(tmp_path: Path) -> None:
    """A host store freed a row before it was unlinked; background eviction ran against writes. Here rows are
    evicted and fetched in neighboring batches while the store on disk is flushed."""
    embeddings = one_table(12, "7", Scattered, eviction_share=1.0, host=f"mmap:{tmp_path}")
    rng = np.random.default_rng(2)
    batches = [bags(rng.integers(0, 12, 3).tolist()) for _ in range(60)]
    initial = embeddings.rows.table_weights("t")
    for planned in embeddings.look_ahead(batches, depth=1):
        wait_for_look_ahead(embeddings, planned, 1, len(batches))
        sum_of(embeddings(planned)).backward()
        embeddings.rows.flush()
        embeddings.step()
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, batches))


class Listens(Policy):
    def __init__(self) -> None:
        self.heard: list[RowStats] = []

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        self.heard.append(rows)
        return rows.last_access


@pytest.mark.parametrize("depth", [0, 4])
def test_trap_10_lookups_are_counted_once_and_follow_the_row(depth: int) -> None:
    """Prefetching skipped the frequency counter, or counted twice; and a new key inherited the score of the key that
    had its place before."""
    batches = random_batches(TABLE, 15, samples=3)
    embeddings = build(policy=Listens(), device_rows="70%")
    train(embeddings, TABLE, batches, depth)
    ids = np.concatenate([batch.ids for batch in batches])
    assert np.array_equal(embeddings.runtime.view.accesses(np.arange(60)), np.bincount(ids, minlength=60))

    policy = Listens()
    step_all(one_table(9, "2", policy), [bags([1, 1, 1]), bags([2]), bags([3]), bags([4])])
    assert [dict(zip(stats.rows.tolist(), stats.accesses.tolist(), strict=True)) for stats in policy.heard] == [
        {1: 3},  # while slots are free, to check the policy's answer
        {1: 3, 2: 1},
        {3: 1, 2: 1},  # row 3 took the slot of row 1
    ]


@pytest.mark.parametrize("depth", [0, 3])
def test_trap_11_a_policy_that_arranges_inputs_keeps_its_state(depth: int) -> None:
    """A preprocessing module run for the look-ahead's batch ran again for the batch itself, or lost its state."""

    class Numbering(LRU, InputPolicy):
        calls = 0

        def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
            for batch in batches:
                self.calls += 1
                batch.dense[:] = self.calls
                yield batch

    policy = Numbering()
    embeddings = one_table(policy=policy)
    for first in (1, 5):
        done = step_all(embeddings, [bags([1]) for _ in range(4)], depth=depth)
        assert [planned.dense.item() for planned in done] == list(range(first, first + 4))
    assert policy.calls == 8


# --- indices -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [LRU, Hybrid])
@pytest.mark.parametrize(
    ("num_rows", "width"),
    [(2**27 + 100, 20), pytest.param(2**31 + 100, 1, marks=pytest.mark.nightly)],
    ids=["elements", "ids"],
)
def test_trap_12_tables_beyond_32_bits(tmp_path: Path, num_rows: int, width: int, policy: type[Policy]) -> None:
    """Addresses, offsets, linear ids and evicted keys were cut to 32 bits, and the wrong rows were trained."""
    tables = [
        TableConfig(name="small", num_embeddings=5, embedding_dim=width),
        TableConfig(name="huge", num_embeddings=num_rows, embedding_dim=width, init_bound=1.0),
    ]
    size = "0" if policy is Hybrid else "40"
    tier = TierConfig(device_rows=size, host=f"mmap:{tmp_path}", device="cpu")
    try:
        embeddings = TieredEmbeddingBag(tables, tier, policy=policy, optimizer=SGD(lr=1.0))
    except (MemoryError, OSError) as error:
        pytest.skip(f"no address space for {num_rows:,} rows here: {error}")
    far = [num_rows - 1 - k for k in range(3)] + [2**24 + 1, 2**26 + 3]
    near = [row % 2**24 for row in far]
    rows = [featured([[]], [[row]]) for row in far + near]

    def values() -> NDArray[np.float32]:
        read = [embeddings(embeddings.read(batch))["huge"].detach().numpy()[0] for batch in rows]
        return np.stack(read)

    initial = values()
    batches = [featured([[1]], [[row]]) for row in far] + [featured([[2]], [far[:2]])]
    # Enough other rows in between to evict the first ones.
    crowd = [featured([[0]], [list(range(1000 + k, 1000 + k + 15))]) for k in range(0, 90, 15)]
    step_all(embeddings, [*batches, *crowd, *batches], depth=1)
    expected = initial.copy()
    expected[: len(far)] -= 1
    expected[:2] -= 1
    expected[: len(far)] -= 1
    expected[:2] -= 1
    assert np.array_equal(values(), expected)


@pytest.mark.parametrize("bad", [-1, 60, 2**31, -(2**40)])
@pytest.mark.parametrize("depth", [0, 2])
def test_trap_13_ids_outside_the_table_are_errors(bad: int, depth: int) -> None:
    """Negative and too large ids silently became row 0, or crashed the process."""
    embeddings = build()
    before = embeddings.rows.table_weights("t")
    with pytest.raises(InputError, match=f"feature t, sample 1, position 2: expected .* 0 to 59 .* got {bad}"):
        step_all(embeddings, [bags([3], [4, 5, bad])], depth=depth)
    assert np.array_equal(embeddings.rows.table_weights("t"), before)


@pytest.mark.parametrize("offsets", [[1, 2, 3], [0, 2, 1], [0, 1, 2], [0, 1, 4], [0, 3], [0, -1, 3], [0, 1, 2, 3], []])
def test_trap_14_offsets_are_checked_before_anything_runs(offsets: list[int]) -> None:
    """Offsets that decrease, are negative, end elsewhere or are one too few were read beyond the end of arrays."""
    with pytest.raises(ValueError, match=r"batch: .*offsets"):
        Batch(np.zeros((2, 0), np.float32), np.arange(3), np.array(offsets, np.int64), np.zeros(2, np.float32))


@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
def test_trap_15_empty_bags_tables_and_batches_give_zeros(pooling: Literal["sum", "mean", "none"]) -> None:
    """Mean over an empty bag gave NaN; a table without lookups in a batch, or a batch without any, crashed."""
    tables = [
        TableConfig(name="a", num_embeddings=5, embedding_dim=4, pooling=pooling),
        TableConfig(name="b", num_embeddings=5, embedding_dim=16, pooling=pooling),
    ]
    embeddings = build(tables, optimizer=Adam(lr=0.1))
    before = [embeddings.rows.table_weights(name) for name in ("a", "b")]
    for planned in embeddings.look_ahead([featured([[], []], [[], []]), featured([[], [1]], [[], []])], depth=1):
        vectors = embeddings(planned)
        for name in ("a", "b"):
            lookups = 0 if planned.number == 0 or name == "b" else 1
            assert vectors[name].shape[0] == (lookups if pooling == "none" else 2)
            if pooling != "none":
                assert vectors[name][0].tolist() == [0.0] * vectors[name].shape[1]
        sum_of(vectors).backward()
        embeddings.step()
    changed = [embeddings.rows.table_weights(name) != table for name, table in zip(("a", "b"), before, strict=True)]
    assert np.flatnonzero(changed[0].any(1)).tolist() == [1]
    assert not changed[1].any()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_trap_16_duplicates_are_summed_in_order_updated_once(optimizer: RowOptimizer) -> None:
    """Duplicates in a bag, over bags and over features that share a table were updated once each, or in the order in
    which threads came."""
    tables = (TableConfig(name="t", num_embeddings=4, embedding_dim=4, features=("x", "y")),)
    rng = np.random.default_rng(0)
    long_run = [[1] * 300, [1, 2] * 50, [], [3]]
    batches = [
        Batch(
            rng.normal(size=(4, 1)).astype(np.float32),
            batch.ids,
            batch.offsets,
            np.array([0, 1, 1, 0], np.float32),
        )
        for batch in [featured(long_run, [[2] * 7, [1], [3, 3], []])] * 4
    ]
    trained = train(build(tables, optimizer=optimizer), tables, batches, 1)
    trained.assert_equals(train_slowly(tables, batches, optimizer))


def test_trap_17_a_gradient_of_zero_is_an_update() -> None:
    """Rows with a zero gradient were taken for rows not touched; Adam's moments then did not decay."""
    embeddings = one_table(optimizer=Adam(lr=0.1))
    for planned in embeddings.look_ahead([bags([1, 2])] * 2):
        vectors = sum_of(embeddings(planned))
        (vectors * (0.0 if planned.number else 1.0)).backward()
        embeddings.step()
    state = table_states(embeddings)["t"]
    assert state[1, 8] == 2  # updates of the row, the first with a gradient of 1
    assert state[1, 0] == np.float32(0.9) * ((np.float32(1) - np.float32(0.9)) * np.float32(1))
    assert embeddings.runtime.view.accesses(np.array([1])).tolist() == [2]


def test_trap_18_weights_scale_gradients_and_are_not_counted() -> None:
    """Per-sample weights were left out of the gradient, and lookups were counted by weight."""
    embeddings = one_table()
    initial = embeddings.rows.table_weights("t")
    step_all(embeddings, [bags([1, 2], [2, 3], weights=[0.5, 2.0, -4.0, 0.0])])
    change = (initial - embeddings.rows.table_weights("t"))[:, 0]
    assert change[[1, 2]].tolist() == pytest.approx([0.5, -2.0], abs=1e-6)
    assert change[3] == 0
    assert embeddings.runtime.view.accesses(np.arange(5)).tolist() == [0, 1, 2, 1, 0]


# --- with a GPU only -----------------------------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: streams race only there")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_trap_03_04_streams_wait_for_each_other(depth: int) -> None:
    """Memory went back to the allocator while a copy on another stream still read it; or one stream waited for the
    copies, and another one used them. Here other streams allocate, free and work."""
    embeddings = one_table(40, "50%", Scattered, device="cuda", when_full="reduce_lookahead")
    rng = np.random.default_rng(4)
    batches = [bags(rng.integers(0, 40, 6).tolist()) for _ in range(50)]
    initial, stop = embeddings.rows.table_weights("t"), threading.Event()

    def disturb() -> None:
        stream = torch.cuda.Stream()
        while not stop.is_set():
            with torch.cuda.stream(stream):
                block = torch.full((1 << 20,), float("nan"), device="cuda")
                torch.cuda._sleep(100_000)
                del block

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for planned in embeddings.look_ahead(batches, depth=depth):
            if planned.number % 2:
                torch.cuda._sleep(1_000_000)  # the training stream is late
            sum_of(embeddings(planned)).backward()
            embeddings.step()
    finally:
        stop.set()
        thread.join()
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, batches))
