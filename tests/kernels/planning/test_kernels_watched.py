"""The books of watched rows: who is watched, verdicts and snapshots due, what is counted. Answers written out."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.variants import both

from adaptive.counters import Counter
from adaptive.kernels.planning import watched
from adaptive.kernels.planning.books import DUE, NOW, SKIPPED, WAITS

Choose = Callable[[Any], Callable[..., Any]]


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def i32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


class Table:
    """The entries of 20 rows, and the rows of these entries."""

    def __init__(self, choose: Choose, capacity: int) -> None:
        self.row_entries, self.rows, self.num = np.zeros(20, np.int32), np.zeros(capacity, np.int64), 0
        self._find = choose(watched.find_entries)

    def find(self, rows: NDArray[np.int64], accesses: Any, least: int) -> list[tuple[int, int]]:
        """(place, entry) of each watched row."""
        places, entries = np.full(len(rows), -9, np.int32), self.row_entries[rows]
        books = self.row_entries, self.rows, self.num
        self.num, count = self._find(rows, accesses[rows], least, *books, places, entries)
        return list(zip(places[:count].tolist(), entries[:count].tolist(), strict=True))


@both
@settings(max_examples=60, deadline=None)
@given(data=st.data(), capacity=st.integers(1, 12), least=st.integers(0, 3))
def test_the_hot_set_is_a_dictionary(choose: Choose, data: st.DataObject, capacity: int, least: int) -> None:
    table, entries = Table(choose, capacity), dict[int, int]()
    accesses = np.array(data.draw(st.lists(st.integers(0, 5), min_size=20, max_size=20)), np.uint32)
    for batch in data.draw(st.lists(st.lists(st.integers(0, 19), unique=True), max_size=5)):
        expected = []
        for place, row in enumerate(batch):
            if accesses[row] >= least and (row in entries or len(entries) < capacity):
                expected.append((place, entries.setdefault(row, len(entries))))
        assert table.find(ints(*batch), accesses, least) == expected
    assert (table.row_entries - 1).tolist() == [entries.get(row, -1) for row in range(20)]
    assert table.rows[: table.num].tolist() == list(entries)


@both
@given(batches=st.lists(st.lists(st.integers(0, 99), unique=True, max_size=8), max_size=3))
def test_a_hash_table_numbers_rows_as_they_come(choose: Choose, batches: list[list[int]]) -> None:
    """64 places for at most 24 rows: collisions and all."""
    keys, values, numbers, count = np.full(64, -1), np.zeros(64, np.int32), dict[int, int](), 0
    for batch in batches:
        places = np.full(len(batch), -9)
        count = choose(watched.enter_rows)(ints(*batch), keys, values, count, places)
        assert places.tolist() == [numbers.setdefault(row, len(numbers)) for row in batch]
    assert count == len(numbers)
    places = np.empty(100, np.int64)
    choose(watched.lookup_entries)(np.arange(100), keys, values, places)
    assert places.tolist() == [numbers.get(row, -1) for row in range(100)]


@both
def test_a_snapshot_is_due_after_lookups_and_visits(choose: Choose) -> None:
    """Distinct rows 0, 2 and 3 are entries 1, 2 and 0; row 1 is not watched. 12 look-ups in 3 visits are needed."""
    visits, accesses, saturated = i32(-1, 2, 1), np.array([0, 11, 20], np.uint32), np.array([False, True, True])
    left_out, fates = np.zeros(3, np.bool_), np.zeros(4, np.uint8)
    due = np.full(3, -9), np.full(3, -9, np.int32), np.zeros(3, np.bool_), np.full(3, -9), np.full(3, -9)
    settled = np.full(3, watched.SHORTER + 1, np.uint8)
    books = visits, accesses, settled, saturated, left_out
    rows = i32(0, 2, 3), i32(1, 2, 0), 3, 1, i32(1, 2, 3, 4), ints(50, 51, ~2, 53)
    arguments = *rows, 12, 3, *books, fates, due, i32(9, 9, 9)
    assert choose(watched.visit_entries)(*arguments) == 2
    expected = [[50, 53], [1, 0], [False, False], [12, 4], [3, 1]]  # entry 1 is left out now, entry 0 has come now
    assert [column[:2].tolist() for column in due] == expected
    assert fates.tolist() == [SKIPPED, NOW, SKIPPED, NOW]
    assert left_out.tolist() == [False, False, True]
    assert accesses.tolist() == [0, 0, 23]
    assert visits.tolist() == [0, 0, 2]
    assert choose(watched.visit_entries)(*arguments) == 1  # entry 2: 26 look-ups in 3 visits
    assert [column[0].tolist() for column in due] == [~2, 2, False, 26, 3]


@both
def test_only_the_first_entries_have_snapshots(choose: Choose) -> None:
    """Entries 0 and 1 of 0, 2 and 1, all seen for the first time."""
    visits, accesses, snapshots = i32(-1, -1, -1), np.zeros(3, np.uint32), np.zeros(3, np.uint8)
    books = visits, accesses, snapshots, np.zeros(3, np.bool_), np.zeros(3, np.bool_)
    due = np.full(2, -9), np.full(2, -9, np.int32), np.zeros(2, np.bool_), np.full(2, -9), np.full(2, -9)
    rows = i32(1, 2, 3), i32(0, 2, 1), 2, 1, i32(4, 5, 6, 7), ints(50, 51, 52, 53)
    assert choose(watched.visit_entries)(*rows, 12, 3, *books, np.zeros(4, np.uint8), due, i32(9, 9, 9)) == 2
    assert [column.tolist() for column in due] == [[51, 53], [0, 1], [False, False], [5, 7], [1, 1]]
    assert visits.tolist() == [0, 0, -1]


@both
def test_look_ups_and_visits_since_a_snapshot_do_not_wrap(choose: Choose) -> None:
    accesses, visits = np.array([2**32 - 2], np.uint32), i32(2**16 - 1)
    books = visits, accesses, np.zeros(1, np.uint8), np.zeros(1, np.bool_), np.zeros(1, np.bool_)
    due = np.zeros(1, np.int64), i32(0), np.zeros(1, np.bool_), np.zeros(1, np.int64), np.zeros(1, np.int64)
    never = 2**40, 2**40
    rows = i32(0), i32(0), 1, 1, i32(7), ints(0)
    choose(watched.visit_entries)(*rows, *never, *books, np.zeros(1, np.uint8), due, i32(0))
    assert accesses.tolist() == [2**32 - 1] and visits.tolist() == [2**16 - 1]


@both
def test_divide_rows(choose: Choose) -> None:
    """Table 0: a saturated row, a plain one, one whose gradient waits. Table 1: a sum that is due, one that waits."""
    tally, places, rows = np.zeros((2, len(Counter)), np.int64), i32(9, 9, 9, 9, 9), ints(9, 9, 9, 9, 9)
    fates = np.array([SKIPPED, NOW, WAITS, DUE, WAITS], np.uint8)
    distinct, deferred = (ints(20, 21, 22, 23, 24), i32(3, 1, 4, 8, 16), ints(3, 5)), (i32(2, 3, 4), i32(1))
    assert choose(watched.divide_rows)(distinct, fates, deferred, (places, rows), tally) == 1
    assert (places[:2].tolist(), rows[:2].tolist()) == ([1, 3], [21, 23])
    counted = {counter.name: tally[:, counter].tolist() for counter in Counter if tally[:, counter].any()}
    assert counted == {"SKIPPED_UPDATES": [2, 1], "SKIPPED_LOOKUPS": [7, 16], "DEFERRED_UPDATES": [1, 1]}
