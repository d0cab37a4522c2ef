"""Plans with the answers written out: who gets which slot, who leaves, what is copied. Ids are 1, 2, 3, ..."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.helpers import (
    after_sums,
    bags,
    one_table,
    planner_of,
    resident,
    step_all,
    sum_of,
    wait_for_look_ahead,
)

from adaptive.counters import Counter
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.planning.plan import GroupPlan
from adaptive.embeddings.planning.planner import swaps
from adaptive.errors import DeviceMemoryError
from adaptive.kernels.planning.books import CHANGED, DIRTY, INITIAL
from adaptive.policy import NEVER, Policy, RowStats


class HighRowsStay(Policy):
    """So that tests can say who leaves: the lowest id."""

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.rows


class HighRowsComeIn(HighRowsStay):
    misses: Literal["prefetch", "host"] = "host"


def plan_of(planned: Planned, group: int = 0) -> GroupPlan:
    plan = planned.works[group].plan
    assert plan is not None
    return plan


def fetched(plan: GroupPlan) -> dict[int, int]:
    """Row -> slot that it is fetched into."""
    return dict(zip(plan.moves.fetch_rows.tolist(), plan.moves.fetch_slots.tolist(), strict=True))


def written_back(plan: GroupPlan) -> dict[int, int]:
    """Row -> slot from which it is written back."""
    return dict(zip(plan.moves.back_rows.tolist(), plan.moves.back_slots.tolist(), strict=True))


# --- rows come -----------------------------------------------------------------------------------------------------


def test_rows_get_slots_in_the_order_of_their_first_lookup() -> None:
    (planned,) = step_all(one_table(device_rows="5"), [bags([3, 1], [2, 3])])
    plan = plan_of(planned)
    assert fetched(plan) == {3: 0, 1: 1, 2: 2}
    assert plan.moves.fetch_initial.tolist() == [True, True, True]
    assert plan.pooling.locations.tolist() == [0, 1, 2, 0]
    assert plan.row_updates.rows.tolist() == [3, 1, 2]
    assert plan.row_updates.segments.tolist() == [0, 2, 3, 4]
    assert plan.row_updates.vectors.tolist() == [0, 1, 0, 1]  # row 3 twice: in the first and the second sample
    assert written_back(plan) == {}


# --- rows leave ----------------------------------------------------------------------------------------------------


def test_the_lowest_score_leaves_and_is_written_back() -> None:
    embeddings = one_table(device_rows="3", policy=HighRowsStay)
    *_, planned = step_all(embeddings, [bags([2, 1, 3]), bags([4])])
    assert written_back(plan_of(planned)) == {1: 1}
    assert fetched(plan_of(planned)) == {4: 1}
    assert resident(embeddings) == {2: 0, 3: 2, 4: 1}


def test_eviction_share_frees_more_slots_than_are_short() -> None:
    embeddings = one_table(device_rows="4", policy=HighRowsStay, eviction_share=0.5)
    *_, planned = step_all(embeddings, [bags([1, 2, 3, 4]), bags([5])])
    assert written_back(plan_of(planned)) == {1: 0, 2: 1}
    assert planner_of(embeddings).slots.num_free == 1


def test_few_candidates_are_enough_and_the_search_goes_round() -> None:
    embeddings = one_table(20, "16", HighRowsStay, max_candidates=1)
    done = step_all(embeddings, [bags(list(range(1, 17))), bags([17]), bags([18]), bags([19])])
    # Eight candidates for the one slot that is short, from where the last search ended: slots 0-7, 8-15, then 0-7.
    assert [written_back(plan_of(planned)) for planned in done[1:]] == [{1: 0}, {9: 8}, {2: 1}]


# --- look-ahead ----------------------------------------------------------------------------------------------------


def test_rows_of_batches_in_flight_stay() -> None:
    """Row 1 has the lowest score but batch 0 is not trained when batch 1 is planned: row 2 has to wait for row 4."""
    embeddings = one_table(device_rows="3", policy=HighRowsStay)
    done = step_all(embeddings, [bags([9]), bags([1]), bags([2]), bags([3])], depth=1)
    # Batch 3 holds row 2 (batch 2) and itself; rows 9 and 1 are idle.
    assert written_back(plan_of(done[3])) == {1: 1}


def test_what_was_needed_what_there_was_and_what_to_do() -> None:
    batches = [bags([1, 2]), bags([3, 4]), bags([4, 5])]
    with pytest.raises(DeviceMemoryError) as error:
        step_all(one_table(device_rows="4"), batches, depth=2)
    assert str(error.value) == (
        "batch 2: expected at least 5 device rows of width 4 for the 3 batches in flight (most for table t, 2 a "
        "batch), got 4 (policy LRU). Raise device_rows to at least 5, or lower the batch size, or lower depth (now 2), "
        "or set tier.when_full=reduce_lookahead."
    )
    step_all(one_table(device_rows="5"), batches, depth=2)
    step_all(one_table(device_rows="4"), batches, depth=1)


def test_reduced_lookahead_is_shorter_for_large_batches() -> None:
    embeddings = one_table(device_rows="4", when_full="reduce_lookahead")
    batches = [bags([1, 2]), bags([3, 4]), bags([5, 6]), bags([5, 6]), bags([5, 6]), bags([6])]
    initial, ahead = embeddings.rows.table_weights("t"), []
    for planned in embeddings.look_ahead(batches, depth=2):
        allowed = 1 if planned.number == 0 else 2  # batches 0, 1 and 2 together have six rows
        wait_for_look_ahead(embeddings, planned, allowed, len(batches))
        ahead.append(embeddings.runtime.pipeline.next_number - planned.number - 1)
        sum_of(embeddings(planned)).backward()
        embeddings.step()
    assert ahead == [1, 2, 2, 2, 1, 0]
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, batches))


def test_reduced_lookahead_cannot_help_a_batch_that_is_too_large() -> None:
    with pytest.raises(
        DeviceMemoryError,
        match=r"batch 1: expected at least 3 .* the 1 batches in flight .most for table t.* got 2",
    ) as error:
        step_all(one_table(device_rows="2", when_full="reduce_lookahead"), [bags([1]), bags([2, 3, 4])], depth=3)
    assert "depth" not in str(error.value)


def test_rows_of_a_batch_that_did_not_fit_are_not_held() -> None:
    embeddings = one_table(device_rows="4")
    step_all(embeddings, [bags([0, 1, 2, 3])])
    with pytest.raises(DeviceMemoryError):
        step_all(embeddings, [bags([0, 1, 2, 3, 4])])
    (planned,) = step_all(embeddings, [bags([4])])
    assert written_back(plan_of(planned)) == {0: 0}


# --- misses on the host --------------------------------------------------------------------------------------------


def test_host_rows_fill_free_slots_then_challenge_the_lowest() -> None:
    embeddings = one_table(device_rows="2", policy=HighRowsComeIn)
    done = step_all(embeddings, [bags([1, 2, 3]), bags([1, 4]), bags([0])])
    first, second, third = map(plan_of, done)
    assert fetched(first) == {2: 0, 3: 1}  # the highest scores; row 1 stays where it is
    assert first.pooling.locations.tolist() == [~1, 0, 1]
    assert first.moves.fresh_rows.tolist() == [1]
    assert written_back(second) == {2: 0}
    assert fetched(second) == {4: 0}
    assert second.pooling.locations.tolist() == [~1, 0]
    assert second.moves.fresh_rows.tolist() == []  # row 1 was given its initial values before
    assert fetched(third) == {}
    assert third.pooling.locations.tolist() == [~0]


def test_a_host_row_that_a_batch_in_flight_updates_is_late() -> None:
    """Row 9 holds the only slot while batch 0 is in flight. With batch 2 row 5 gets it, which batch 1 uses on the host:
    so it moves when batch 1 is trained. Batch 3 finds the slot held."""
    embeddings = one_table(device_rows="1", policy=NewcomersWin)
    batches = [bags([9]), bags([5]), bags([5]), bags([1]), bags([5])]
    initial = embeddings.rows.table_weights("t")
    done = step_all(embeddings, batches, depth=1)
    assert [plan_of(planned).pooling.locations.tolist() for planned in done] == [[0], [~5], [0], [~1], [0]]
    assert [plan_of(planned).moves.late_rows.tolist() for planned in done] == [[], [], [5], [], []]
    assert [fetched(plan_of(planned)) for planned in done] == [{9: 0}, {}, {}, {}, {}]
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, batches))


class NewcomersWin(Policy):
    misses: Literal["prefetch", "host"] = "host"

    def score(self, rows: RowStats) -> NDArray[np.bool_]:
        return ~rows.resident


# --- books ---------------------------------------------------------------------------------------------------------


def test_codes_and_flags_show_the_place_and_changes_of_a_row() -> None:
    embeddings = one_table(device_rows="2", policy=HighRowsStay)
    planner = planner_of(embeddings)
    step_all(embeddings, [bags([1, 2])])
    assert planner.tracker.codes[[0, 1, 2]].tolist() == [INITIAL, 1, 2]
    assert planner.slots.flags.tolist() == [DIRTY, DIRTY]
    step_all(embeddings, [bags([3])])
    assert planner.tracker.codes[[1, 2, 3]].tolist() == [-3, 2, 1]  # row 1 is stored on the host, used by batch 0
    embeddings.rows.flush()
    assert planner.slots.flags.tolist() == [CHANGED, CHANGED]
    assert planner.slots.dirty().tolist() == []
    step_all(embeddings, [bags([3, 1])])
    assert planner.slots.flags.tolist() == [DIRTY | CHANGED, DIRTY | CHANGED]


def test_a_clean_row_leaves_without_being_copied() -> None:
    embeddings = one_table(device_rows="2", policy=HighRowsStay)
    initial = embeddings.rows.table_weights("t")
    step_all(embeddings, [bags([1, 2])])
    embeddings.rows.flush()
    (planned,) = step_all(embeddings, [bags([3])])
    assert written_back(plan_of(planned)) == {}
    assert plan_of(planned).tally[0, [Counter.EVICTED, Counter.WRITTEN_BACK]].tolist() == [1, 0]
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, [bags([1, 2, 3])]))


def test_counts_of_a_batch() -> None:
    *_, planned = step_all(one_table(device_rows="3"), [bags([1, 2]), bags([1, 1, 1], [3, 4])])
    counts = plan_of(planned).tally[0]
    assert {counter.name: int(counts[counter]) for counter in Counter if counts[counter]} == {  # the rest is 0
        "LOOKUPS": 5,
        "UNIQUE_ROWS": 3,
        "LOOKUP_HITS": 3,
        "ROW_HITS": 1,
        "FETCHED": 2,
        "WRITTEN_BACK": 1,
        "ADMITTED": 2,
        "EVICTED": 1,
        "BYTES_H2D": 2 * 16,
        "BYTES_D2H": 16,
    }


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, np.inf]), max_size=9),
    st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, np.inf]), max_size=9),
    st.integers(0, 3),
)
def test_swaps_are_those_of_two_rankings(coming: list[float], staying: list[float], num_free: int) -> None:
    best = sorted(range(len(coming)), key=lambda i: -coming[i])
    worst = sorted(range(len(staying)), key=lambda i: staying[i])
    wins = [coming[new] > staying[old] for new, old in zip(best[num_free:], worst, strict=False)]
    assert wins == sorted(wins, reverse=True)
    admitted, evicted = swaps(
        100 + np.arange(len(coming)), 200 + np.arange(len(staying)), np.array(coming + staying, np.float64), num_free
    )  # fmt: skip
    assert admitted.tolist() == sorted(100 + i for i in best[: num_free + sum(wins)])
    assert evicted.tolist() == [200 + i for i in worst[: sum(wins)]]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=12),
    st.integers(4, 8),
    st.sampled_from([HighRowsStay, HighRowsComeIn]),
    st.sampled_from([0.0, 0.5]),
)
def test_books_agree_after_every_batch(
    ids: list[list[int]], num_slots: int, policy: type[Policy], eviction_share: float
) -> None:
    embeddings = one_table(10, str(num_slots), policy, eviction_share=eviction_share)
    slots, codes = planner_of(embeddings).slots, planner_of(embeddings).tracker.codes
    for planned in embeddings.look_ahead([bags(row_ids) for row_ids in ids], depth=0):
        sum_of(embeddings(planned)).backward()
        embeddings.step()
        taken = np.flatnonzero(slots.rows >= 0)
        assert sorted([*taken, *slots.free[: slots.num_free]]) == list(range(num_slots))
        assert (codes[slots.rows[taken]] == taken + 1).all()
        assert (codes > 0).sum() == len(taken)
        assert (slots.flags[slots.rows < 0] == 0).all()
        assert (codes[np.unique(planned.batch.ids)] != INITIAL).all()


# --- what a policy is told -----------------------------------------------------------------------------------------


class Listens(Policy):
    """Keeps what it is told."""

    window = 2

    def __init__(self) -> None:
        self.heard: list[RowStats] = []

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        self.heard.append(rows)
        return rows.rows


class ListensOnHost(Listens):
    misses: Literal["prefetch", "host"] = "host"


def test_candidates_are_described_as_they_are() -> None:
    policy = Listens()
    embeddings = one_table(device_rows="3", policy=policy)
    step_all(embeddings, [bags([1, 2, 2]), bags([3]), bags([4]), bags([1]), bags([2])])
    tried, told = policy.heard[:2]
    assert (tried.step, tried.rows.tolist()) == (1, [1])  # while slots are free, to see that it answers
    assert told.step == 2
    assert told.rows.tolist() == [1, 2, 3]
    assert told.table.tolist() == [0, 0, 0]
    assert told.accesses.tolist() == [1, 2, 1]
    assert told.last_access.tolist() == [0, 0, 1]
    assert told.next_access.tolist() == [3, 4, NEVER]
    assert told.update_norm.tolist() == [2.0, 4.0, 2.0]  # each lookup moves four values by one
    assert told.resident.tolist() == [True, True, True]
    assert told.saturated.tolist() == [False] * 3
    assert np.isnan(told.update_size).all()
    assert not any(getattr(told, name).flags.writeable for name in ("rows", "accesses", "update_size", "resident"))


def test_candidates_on_the_host_know_their_next_access() -> None:
    policy = ListensOnHost()
    step_all(one_table(device_rows="1", policy=policy), [bags([9]), bags([5]), bags([5]), bags([9])])
    told = policy.heard[1]
    assert told.rows.tolist() == [5, 9]
    assert told.resident.tolist() == [False, True]
    assert told.next_access.tolist() == [2, 3]
