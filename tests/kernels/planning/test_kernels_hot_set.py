"""The books of hot rows: which rows are hot, sizes of updates, which gradients are deferred."""

from collections.abc import Callable
from typing import Any

import numpy as np
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.variants import both

from adaptive.counters import Counter
from adaptive.kernels.planning import hot_set
from adaptive.kernels.planning.books import APPLY, DEFER, SKIP, UPDATE

Choose = Callable[[Any], Callable[..., Any]]


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def i32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


class Table:
    """The entries of 20 rows, and the rows of these entries."""

    def __init__(self, choose: Choose, capacity: int) -> None:
        self.row_entries, self.rows, self.num = np.zeros(20, np.int32), np.zeros(capacity, np.int64), 0
        self._find = choose(hot_set.find_entries)

    def find(self, rows: NDArray[np.int64], accesses: Any, least: int) -> list[tuple[int, int]]:
        """(place, entry) of each hot row."""
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
@settings(max_examples=60, deadline=None)
@given(
    answers=st.lists(st.integers(0, 4), min_size=6, max_size=6),
    batches=st.lists(st.lists(st.integers(0, 5), unique=True), max_size=12),
)
def test_gradients_wait_for_as_many_visits_as_answered(
    choose: Choose, answers: list[int], batches: list[list[int]]
) -> None:
    """Written out: row r is entry 5 - r. A row with answer 0 is skipped, with 1 updated now."""
    waiting, waits = np.zeros(6, np.uint8), [0] * 6
    for batch in batches:
        places, entries = np.arange(len(batch), dtype=np.int32), np.array([5 - row for row in batch], np.int32)
        actions, (summed, of_sums, applied, visits) = (
            np.zeros(len(batch), np.uint8),
            np.full((4, len(batch)), -1, np.int32),
        )
        books = np.array(answers, np.uint8), waiting
        counts = choose(hot_set.defer_visits)(places, entries, *books, actions, summed, of_sums, applied, visits)
        expected_actions, expected_applied = list[int](), list[tuple[int, int]]()
        with_sum = list[int]()
        for place, row in enumerate(batch):
            answer, gradients = answers[5 - row], waits[row] + 1
            action = SKIP if answer == 0 else DEFER if gradients < answer else APPLY if gradients > 1 else UPDATE
            if action == APPLY:
                expected_applied.append((len(with_sum), gradients))
            if action in (APPLY, DEFER):
                with_sum.append(place)
            waits[row] = gradients if action == DEFER else 0
            expected_actions.append(action)
        assert actions.tolist() == expected_actions and counts == (len(with_sum), len(expected_applied))
        assert list(zip(applied[: counts[1]].tolist(), visits[: counts[1]].tolist(), strict=True)) == expected_applied
        assert summed[: counts[0]].tolist() == with_sum
        assert of_sums[: counts[0]].tolist() == entries[with_sum].tolist()
        assert waiting.tolist() == waits[::-1]


@both
@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_sizes_equal_the_slow_twin(choose: Choose, data: st.DataObject, seed: int) -> None:
    rng, sizes, expected = np.random.default_rng(seed), np.full(4, np.nan, np.float32), [np.float32(np.nan)] * 4
    row_entries = np.array([0, 3, 1, 0, 4, 2], np.int32)
    for _ in range(data.draw(st.integers(1, 6))):
        rows = rng.permutation(6)[: data.draw(st.integers(0, 6))]
        applied = rng.integers(2, 17, data.draw(st.integers(0, len(rows)))).astype(np.int32)
        norms = rng.choice([0, 0.01, 1], (2, len(rows))).astype(np.float32)
        choose(hot_set.learn_sizes)(rows, norms, applied, row_entries, sizes)
        visits = [1] * (len(rows) - len(applied)) + applied.tolist()
        for row, norm, length, number in zip(rows, *norms, visits, strict=True):
            if (entry := row_entries[row] - 1) >= 0:
                expected[entry] = reference.update_size(expected[entry], norm, length, number)
        np.testing.assert_array_equal(sizes, expected)


@both
def test_divide_rows(choose: Choose) -> None:
    """Table 0: a skipped row, a plain one, one that is deferred. Table 1: a sum that is applied, a deferred row."""
    tally, places, rows = np.zeros((2, len(Counter)), np.int64), i32(9, 9, 9, 9, 9), ints(9, 9, 9, 9, 9)
    actions = np.array([SKIP, UPDATE, DEFER, APPLY, DEFER], np.uint8)
    distinct, deferred = (ints(20, 21, 22, 23, 24), i32(3, 1, 4, 8, 16), ints(3, 5)), (i32(2, 3, 4), i32(1))
    assert choose(hot_set.divide_rows)(distinct, actions, deferred, (places, rows), tally) == 1
    assert (places[:2].tolist(), rows[:2].tolist()) == ([1, 3], [21, 23])
    counted = {counter.name: tally[:, counter].tolist() for counter in Counter if tally[:, counter].any()}
    assert counted == {"SKIPPED_UPDATES": [2, 1], "SKIPPED_LOOKUPS": [7, 16], "DEFERRED_UPDATES": [1, 1]}
