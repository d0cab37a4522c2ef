"""`HotSet`: who is watched, when snapshots are due, verdicts and drift. Rows are looked up by batches 0, 1, 2, ..."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from adaptive.config import SkipConfig
from adaptive.embeddings.planning import hot_set
from adaptive.embeddings.planning.hot_set import HotSet
from adaptive.embeddings.planning.plan import Feedback, Snapshots
from adaptive.kernels.planning.books import SKIPPED
from adaptive.kernels.planning.watched import SHORTER


class WatchedRows:
    """A hot set and the access counts it reads, driven batch by batch."""

    def __init__(
        self,
        capacity: int = 4,
        *,
        min_accesses: int = 2,
        min_visits: int = 1,
        num_rows: int = 50,
        short_intervals: bool = False,
    ) -> None:
        self.hot = HotSet(capacity, SkipConfig(min_accesses=min_accesses, min_visits=min_visits), num_rows)
        if not short_intervals:
            self.hot._records["num_snapshots"] = SHORTER + 1  # as of rows that were watched for long
        self.accesses = np.zeros(num_rows, np.uint32)
        self.number = 0

    def visit(
        self, *rows: int, counts: Any = None, number: int | None = None, weight: int = 1
    ) -> tuple[NDArray[np.bool_], Snapshots]:
        """One batch that looks distinct rows up, once each by default; row r lies in slot 10 * r."""
        number = self.number if number is None else number
        looked_up = np.array(rows, np.int64)
        times = np.array(counts or [1] * len(rows), np.int32)
        self.accesses[looked_up] += times.astype(np.uint32)
        self.number = number + 1
        fates = np.zeros(len(rows), np.uint8)
        mine = admit(self.hot, looked_up, self.accesses[looked_up])
        snapshots = self.hot.visit(mine, self.hot.capacity, weight, times, 10 * looked_up, fates)
        return fates == SKIPPED, snapshots

    def measure(self, snapshots: Snapshots, *drifts: float) -> None:
        feedback = Feedback(np.zeros(0, np.int64), np.zeros(0, np.float32), snapshots, np.array(drifts, np.float32))
        self.hot.learn(feedback)


def admit(hot: HotSet, rows: NDArray[np.int64], seen: NDArray[np.uint32]) -> hot_set.WatchedRows:
    return hot.admit(rows, hot_set.Candidates(seen, hot.row_entries[rows]), np.empty(len(rows), np.int32))


def told(snapshots: Snapshots) -> list[tuple[int, int, bool, int]]:
    """(location, entry, known, accesses) of each due snapshot."""
    arrays = (snapshots.locations, snapshots.entries, snapshots.has_earlier, snapshots.accesses)
    return list(zip(*(array.tolist() for array in arrays), strict=True))


def test_a_snapshot_is_due_at_a_rows_own_pace() -> None:
    """Once it has been looked up 4 times since the latest one, however many batches that took."""
    watched = WatchedRows(min_accesses=4)
    assert told(watched.visit(5, counts=[4])[1]) == [(50, 0, False, 4)]  # there is nothing to compare with
    assert told(watched.visit(5)[1]) == []
    assert told(watched.visit(5, counts=[2])[1]) == []
    assert told(watched.visit(5, 6, counts=[1, 4], number=90)[1]) == [(50, 0, True, 4), (60, 1, False, 4)]
    assert told(watched.visit(5, 6, counts=[9, 3])[1]) == [(50, 0, True, 9)]


def test_a_row_with_many_lookups_is_compared_over_many_batches() -> None:
    watched = WatchedRows(min_accesses=4, min_visits=3)
    watched.visit(5, counts=[8])
    assert [told(watched.visit(5, counts=[8])[1]) for _ in range(3)] == [[], [], [(50, 0, True, 24)]]
    _, due = watched.visit(5, counts=[8])
    assert len(due.visits) == 0
    watched.visit(5, counts=[8])
    assert watched.visit(5, counts=[8])[1].visits.tolist() == [3]


def test_the_first_intervals_are_shorter() -> None:
    """Of 64 lookups in 32 visits: after 4 in 2, then 8 in 4, 16 in 8, 32 in 16, and from then on as set."""
    watched = WatchedRows(min_accesses=64, min_visits=32, short_intervals=True)
    watched.visit(5, counts=[64])
    due = [number for number in range(1, 300) if len(watched.visit(5)[1].entries)]
    assert np.diff([0, *due]).tolist() == [4, 8, 16, 32, 64, 64, 64]


def test_a_batch_may_stand_for_eight() -> None:
    """Of 64 lookups in 32 visits: 2 lookups in every 8th batch count as 16 in 8."""
    watched = WatchedRows(min_accesses=64, min_visits=32)
    watched.visit(5, counts=[64])
    due = [watched.visit(5, counts=[2], weight=8)[1] for _ in range(8)]
    assert [told(snapshots) for snapshots in due] == [[], [], [], [(50, 0, True, 64)]] * 2
    assert due[3].visits.tolist() == [32]


def test_short_intervals_are_of_as_many_visits_in_proportion() -> None:
    watched = WatchedRows(min_accesses=1, min_visits=32, short_intervals=True)
    watched.visit(5)
    due = [number for number in range(1, 130) if len(watched.visit(5)[1].entries)]
    assert np.diff([0, *due]).tolist() == [2, 4, 8, 16, 32, 32, 32]


def test_a_skipped_update_makes_the_movement_unknown() -> None:
    """The snapshot is taken after its batch's update: a row that is left out there reports NaN, never 0."""
    watched = WatchedRows(min_accesses=2)
    watched.visit(5, counts=[2])
    watched.hot.saturated[0] = True
    skipped, due = watched.visit(5, counts=[2])
    assert skipped.tolist() == [True] and told(due) == [(50, 0, False, 2)]
    watched.hot.saturated[0] = False
    assert told(watched.visit(5, counts=[2])[1]) == [(50, 0, True, 2)]


def test_learning_stores_drift_with_the_look_ups_it_took() -> None:
    watched = WatchedRows(min_accesses=1)
    _, first = watched.visit(5, 6)
    watched.measure(first, np.nan, np.nan)
    assert np.isnan(watched.hot.drift[:2]).all()
    _, second = watched.visit(6, counts=[7])
    watched.measure(second, 0.25)
    assert np.isnan(watched.hot.drift[0])
    assert watched.hot.drift[1] == 0.25
    assert watched.hot.drift_accesses[:2].tolist() == [1, 7]
    assert watched.hot.drift_visits[:2].tolist() == [1, 1]


def test_verdicts_skip_watched_rows_only_and_measuring_goes_on() -> None:
    watched = WatchedRows(min_accesses=1, capacity=2)
    assert watched.visit(5, 6, 7)[0].tolist() == [False] * 3
    watched.hot.saturated[1] = True
    skipped, snapshots = watched.visit(7, 6, 5)
    assert skipped.tolist() == [False, True, False]
    assert [entry for _, entry, _, _ in told(snapshots)] == [1, 0]


def test_a_restored_set_goes_on_as_the_saved_one() -> None:
    saved = WatchedRows(capacity=6, min_accesses=1)
    saved.hot.saturated[:1] = True
    for number in range(6):
        _, due = saved.visit(number, number + 1, 40, number=number)
        saved.measure(due, *(0.25 * number for _ in due.entries))
    restored = WatchedRows(capacity=6, min_accesses=1)
    restored.accesses[:], restored.number = saved.accesses, saved.number
    restored.hot.restore(saved.hot.columns())
    rows = np.arange(50)
    for _ in range(3):
        assert restored.hot.num_entries == saved.hot.num_entries
        assert np.array_equal(restored.hot.entries_of(rows), saved.hot.entries_of(rows))
        for name, column in saved.hot.columns().items():
            assert np.array_equal(restored.hot.columns()[name], column, equal_nan=column.dtype.kind == "f"), name
        (skipped, due), (also_skipped, also_due) = (one.visit(5, 0, 40, 7, 9) for one in (saved, restored))
        assert np.array_equal(skipped, also_skipped) and told(due) == told(also_due)


@given(st.integers(1, 300), st.lists(st.lists(st.integers(0, 999), max_size=60, unique=True), max_size=30))
def test_admitted_rows_stay(capacity: int, batches: list[list[int]]) -> None:
    hot, entries = HotSet(capacity, SkipConfig(min_accesses=1), 1000), dict[int, int]()
    for rows in batches:
        for row in rows:
            if len(entries) < capacity:
                entries.setdefault(row, len(entries))
        mine = admit(hot, np.array(rows, np.int64), np.ones(len(rows), np.uint32))
        assert mine.entries.tolist() == [entries[row] for row in rows if row in entries]
        assert np.isnan(hot.drift[: hot.num_entries]).all()
    assert hot.entries_of(np.arange(1000)).tolist() == [entries.get(row, -1) for row in range(1000)]
