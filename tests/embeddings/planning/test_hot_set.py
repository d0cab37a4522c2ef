"""`HotSet`: who is hot, update sizes and answers. Rows are looked up by batches 0, 1, 2, ..."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from adaptive.config import SkipConfig
from adaptive.embeddings.planning.plan import Feedback
from adaptive.embeddings.planning.skipping import HotRows, HotSet


def admit(hot: HotSet, rows: NDArray[np.int64], seen: NDArray[np.uint32]) -> HotRows:
    return hot.admit(rows, seen, hot.row_entries[rows], np.empty(len(rows), np.int32))


def made(*rows: int, capacity: int = 6) -> HotSet:
    hot = HotSet(capacity, SkipConfig(min_accesses=1), 50)
    admit(hot, np.array(rows), np.ones(len(rows), np.uint32))
    return hot


def learn(
    hot: HotSet, rows: list[int], norms: list[float], lengths: list[float], applied: tuple[int, ...] = ()
) -> None:
    measured = np.array([norms, lengths], np.float32)
    hot.learn(Feedback(np.array(rows), measured, np.array(applied, np.int32)))


def test_a_new_row_is_updated_at_every_visit_and_has_no_size() -> None:
    hot = made(7, 3)
    assert np.isnan(hot.sizes[:2]).all() and hot.answers[:2].tolist() == [1, 1]
    assert not hot.is_saturated(slice(0, 2)).any()


def test_sizes_follow_updates_of_hot_rows() -> None:
    """The first size is taken over, of later ones an eighth. Row 9 is not hot."""
    hot = made(7, 3)
    learn(hot, [3, 7, 9], [1, 2, 5], [4, 4, 1])
    assert hot.sizes[:2].tolist() == [0.5, 0.25]
    learn(hot, [7], [4], [2])
    assert hot.sizes[:2].tolist() == [0.5 + (2 - 0.5) / 8, 0.25]


def test_a_sum_counts_as_its_visits() -> None:
    """An update with 4 gradients that moves the row by its length: half of that for each visit, four times."""
    hot = made(7, 3)
    learn(hot, [3, 7], [0.25, 2], [1, 2], applied=(4,))
    assert hot.sizes[:2].tolist() == [0.5, 0.25]
    learn(hot, [3], [0], [1], applied=(2,))
    np.testing.assert_allclose(hot.sizes[1], 0.25 * (7 / 8) ** 2)


def test_a_row_that_does_not_move_is_saturated_and_one_of_zeros_is_not() -> None:
    hot = made(7, 3, 5)
    learn(hot, [7, 3, 5], [0, 1, 0.049], [0, 0, 1])
    assert hot.is_saturated(np.arange(3)).tolist() == [True, False, True]
    learn(hot, [7], [1], [1])
    assert hot.is_saturated(np.arange(1)).tolist() == [False], "it moves again"


def test_a_restored_set_goes_on_as_the_saved_one() -> None:
    saved = made(7, 3, 40)
    learn(saved, [7, 3], [1, 2], [4, 4])
    saved.answers[:3], saved.deferred[:3], saved.saturated[:3] = [1, 4, 0], [0, 2, 0], [True, False, True]
    restored = HotSet(6, SkipConfig(min_accesses=1), 50)
    restored.restore(saved.columns())
    for hot in (saved, restored):
        learn(hot, [40, 3], [1, 2], [8, 4], applied=(3,))
        admit(hot, np.array([3, 11]), np.ones(2, np.uint32))
    assert np.array_equal(restored.entries_of(np.arange(50)), saved.entries_of(np.arange(50)))
    for name, column in saved.columns().items():
        assert np.array_equal(restored.columns()[name], column, equal_nan=column.dtype.kind == "f"), name


@given(st.integers(1, 300), st.lists(st.lists(st.integers(0, 999), max_size=60, unique=True), max_size=30))
def test_admitted_rows_stay(capacity: int, batches: list[list[int]]) -> None:
    hot, entries = HotSet(capacity, SkipConfig(min_accesses=1), 1000), dict[int, int]()
    for rows in batches:
        for row in rows:
            if len(entries) < capacity:
                entries.setdefault(row, len(entries))
        mine = admit(hot, np.array(rows, np.int64), np.ones(len(rows), np.uint32))
        assert mine.entries.tolist() == [entries[row] for row in rows if row in entries]
        assert np.isnan(hot.sizes[: hot.num_entries]).all()
    assert hot.entries_of(np.arange(1000)).tolist() == [entries.get(row, -1) for row in range(1000)]
