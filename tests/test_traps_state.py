"""The traps of `test_traps.py`, 19 to 30: state, precision, measuring, and one of ours."""

import numpy as np
import pytest
from support.helpers import (
    LFU,
    LFUOnHost,
    Trainee,
    bags,
    one_table,
    random_batches,
    rows_held,
    step_all,
    sum_of,
    table_states,
    train,
    train_more,
    train_slowly,
)
from support.skip_rules import LeaveOut
from support.traps import OPTIMIZERS, TABLE, build

from adaptive.config import SkipConfig, TableConfig
from adaptive.counters import Counter
from adaptive.optim import SGD, Adam, RowOptimizer
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lru import LRU
from adaptive.policy import Policy

# --- state ---------------------------------------------------------------------------------------------------------


def test_trap_19_saving_needs_no_flush_which_changes_nothing() -> None:
    """State saved before a flush held old rows; flushing in the middle of training changed the result."""
    batches = random_batches(TABLE, 10)
    unflushed, flushed = build(device_rows="70%"), build(device_rows="70%")
    train(unflushed, TABLE, batches, 2)
    trainee = Trainee(TABLE)
    for planned in flushed.look_ahead(batches, depth=2):
        trainee.learn(flushed(planned), planned.batch)
        flushed.step()
        flushed.rows.flush()
        flushed.rows.flush()
    left, right = unflushed.rows.state_arrays(), flushed.rows.state_arrays()
    assert all(np.array_equal(left[name], right[name]) for name in left)


def test_trap_20_adams_step_count_is_saved_for_each_row() -> None:
    """The step count was not part of the state, so bias correction started again after a restart."""
    batches = random_batches(TABLE, 10)
    first, trainee = build(optimizer=Adam(lr=0.01)), Trainee(TABLE)
    train_more(first, trainee, batches[:5], 0)
    second = build(optimizer=Adam(lr=0.01))
    second.rows.load_state_arrays(first.rows.state_arrays())
    train_more(second, trainee, batches[5:], 0).assert_equals(train_slowly(TABLE, batches, Adam(lr=0.01)))
    updates = sum(np.bincount(np.unique(batch.ids), minlength=60) for batch in batches)
    assert table_states(second)["t"][:, 8].tolist() == np.asarray(updates).tolist()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_trap_21_state_is_loaded_into_a_smaller_device(optimizer: RowOptimizer) -> None:
    """Optimizer state was laid out by capacity: a smaller cache crashed on loading, or mixed rows up."""
    batches, trainee = random_batches(TABLE, 16, samples=3), Trainee(TABLE)
    large = build(optimizer=optimizer)
    train_more(large, trainee, batches[:8], 1)
    small = build(device_rows=str(rows_held(TABLE, batches, 0)[4]), optimizer=optimizer)
    small.rows.load_state_arrays(large.rows.state_arrays())
    train_more(small, trainee, batches[8:], 1).assert_equals(train_slowly(TABLE, batches, optimizer))


def test_trap_22_saving_while_rows_move_sees_every_row_once() -> None:
    """A checkpoint taken during a copy had zeros. Here the look-ahead moves rows during every save."""
    batches = random_batches(TABLE, 20, samples=3)
    embeddings, trainee = build(device_rows="40%", eviction_share=1.0), Trainee(TABLE)
    for planned in embeddings.look_ahead(batches, depth=3):
        trainee.learn(embeddings(planned), planned.batch)
        embeddings.step()
        arrays = embeddings.rows.state_arrays()  # not synchronized: rows of later batches move at the same time
        saved = np.full((60, 4), np.nan, np.float32)
        saved[arrays["rows0.changed"]] = arrays["rows0.weights"]
        slow = train_slowly(TABLE, batches[: planned.number + 1], SGD(lr=0.5)).weights["t"]
        seen = np.unique(np.concatenate([batch.ids for batch in batches[: planned.number + 1]]))
        assert np.array_equal(saved[seen], slow[seen])


@pytest.mark.parametrize("stop", [0, 1, 5, 11])
def test_trap_25_stopped_and_resumed_equals_never_stopped(stop: int) -> None:
    """Batches that were prefetched and not trained were lost, counters restarted, policies forgot."""
    batches, trainee = random_batches(TABLE, 12, samples=3), Trainee(TABLE)
    whole = build(policy=LFU, device_rows="50%")
    expected = train(whole, TABLE, batches, 2)
    first = build(policy=LFU, device_rows="50%")
    train_more(first, trainee, batches[:stop], 2)
    second = build(policy=LFU, device_rows="50%")
    second.rows.load_state_arrays(first.rows.state_arrays())
    train_more(second, trainee, batches[stop:], 2).assert_equals(expected)
    resumed, never_stopped = second.rows.state_arrays(), whole.rows.state_arrays()
    for name in ("next_batch", "rows0.accesses", "rows0.last_access", "rows0.update_norm"):
        assert np.array_equal(resumed[name], never_stopped[name]), name


# --- precision -----------------------------------------------------------------------------------------------------


def test_trap_26_both_tiers_have_one_precision() -> None:
    """A cache kept other bits per value than the table, so that a row changed by being moved."""
    embeddings = build(optimizer=Adam())
    (tiered,) = embeddings.runtime.pipeline.tiered_groups
    device = tiered.device.read(np.arange(2))
    assert {array.dtype for array in (tiered.host.weights, tiered.host.state, *device)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_trap_27_any_width(optimizer: RowOptimizer) -> None:
    """Widths that are no multiple of 4, or larger than 1024, gave zeros."""
    tables = tuple(
        TableConfig(name=f"w{width}", num_embeddings=9, embedding_dim=width) for width in (1, 3, 15, 17, 1031)
    )
    batches = random_batches(tables, 4, samples=3)
    embeddings = build(tables, optimizer=optimizer, device_rows="90%")
    train(embeddings, tables, batches, 1).assert_equals(train_slowly(tables, batches, optimizer))


@pytest.mark.parametrize("policy", [LRU, Hybrid, LFUOnHost])
def test_trap_28_new_rows_are_never_uninitialised(policy: type[Policy]) -> None:
    """A row's first lookup read uninitialized memory. Initial values are the same however they are read."""
    embeddings = build(policy=policy, device_rows="auto" if policy is Hybrid else "20%")
    table = embeddings.rows.table_weights("t")
    assert np.isfinite(table).all()
    assert len(np.unique(table)) > 200
    read = embeddings(embeddings.read(bags(*([row] for row in range(60)))))["t"].detach().numpy()
    assert np.array_equal(read, table)
    for planned in embeddings.look_ahead([bags([k], [k + 1], [k + 2]) for k in range(0, 60, 3)], depth=1):
        first = 3 * planned.number
        assert np.array_equal(embeddings(planned)["t"].detach().numpy(), table[first : first + 3])


# --- measuring -----------------------------------------------------------------------------------------------------


def test_trap_29_a_warm_up_is_not_part_of_the_hit_rate() -> None:
    """A benchmark's warm-up left the cache in a state in which every key missed. Statistics are of the batches since
    the last call, and calibrating moves nothing."""
    embeddings = one_table()
    embeddings.calibrate([bags([1, 2, 3])])
    assert embeddings.runtime.view.resident(np.arange(10)).sum() == 0
    step_all(embeddings, [bags([1, 2])])
    warm_up = embeddings.statistics.take()
    step_all(embeddings, [bags([1, 2, 3])])
    measured = embeddings.statistics.take()
    assert warm_up.counts[0, [Counter.LOOKUPS, Counter.LOOKUP_HITS]].tolist() == [2, 0]
    assert measured.counts[0, [Counter.LOOKUPS, Counter.LOOKUP_HITS]].tolist() == [3, 2]


# --- ours ----------------------------------------------------------------------------------------------------------


def test_trap_30_a_skipped_row_stands_still_and_can_be_woken() -> None:
    """No other system skips updates. A skipped row keeps weights, moments and step count; when the verdict changes, it
    is updated again from there."""

    class SleepsForAWhile(LRU):
        def __init__(self) -> None:
            self.rule = LeaveOut(lambda rows: np.full(len(rows), 2 <= rows.step < 5))

    skip = SkipConfig(interval=1, hot_rows="100%", min_accesses=1, feedback_delay=0)
    embeddings = one_table(policy=SleepsForAWhile, skip=skip, optimizer=Adam(lr=0.1))
    weights, counts = [], []
    for planned in embeddings.look_ahead([bags([1])] * 8, depth=0):
        sum_of(embeddings(planned)).backward()
        embeddings.step()
        weights.append(embeddings.rows.table_weights("t")[1].tolist())
        counts.append(table_states(embeddings)["t"][1].tolist())
    assert weights[1] == weights[2] == weights[4] != weights[5]
    assert counts[1] == counts[4]
    assert [state[-1] for state in counts] == [1, 2, 2, 2, 2, 3, 4, 5]
    awake = one_table(optimizer=Adam(lr=0.1))
    step_all(awake, [bags([1])] * 5)
    assert weights[-1] == awake.rows.table_weights("t")[1].tolist()
