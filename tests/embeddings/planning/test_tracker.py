"""Records of rows: zero until touched, gathered for policies, and the histogram of update sizes."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive.embeddings.planning import books as books_module
from adaptive.embeddings.planning.books import MANY_ROWS, NUM_BINS, RECORD, Tracker
from adaptive.kernels.planning import books


def test_a_record_is_16_bytes_and_its_columns_are_views() -> None:
    tracker = Tracker(5)
    assert RECORD.itemsize == 16
    assert tracker.num_bytes == 80
    for name in ("code", "accesses", "last_access", "update_norm"):
        column = tracker.codes if name == "code" else getattr(tracker, name)
        assert np.shares_memory(column, tracker.records)
        column[3] = 7
        assert tracker.records[name].tolist() == [0, 0, 0, 7, 0]


def test_gather_after_touching() -> None:
    tracker = Tracker(4)
    for batch, rows in ((0, [2]), (5, [2, 1])):
        for row in rows:
            books.touch(row, 3, batch, tracker.accesses, tracker.last_access)
    tracker.add_norms(np.array([2]), np.array([0.5], np.float32))
    tracker.add_norms(np.array([2, 3]), np.array([0.25, 1], np.float32))
    tracker.codes[1] = 7
    accesses, last, norms, codes = tracker.gather(np.arange(4))
    assert codes.tolist() == [0, 7, 0, 0]
    assert accesses.tolist() == [0, 3, 6, 0]
    assert last.tolist() == [-1, 5, 5, -1]
    assert norms.tolist() == [0, 0, 0.75, 1]
    assert tracker.norm_sum == 1.75


@given(st.lists(st.floats(0, width=32), max_size=20))
def test_bins_are_those_of_a_search(norms: list[float]) -> None:
    tracker = Tracker(1)
    near = np.concatenate([np.nextafter(tracker.bin_edges, np.float32(0)), tracker.bin_edges])
    values = np.concatenate([near, np.array(norms, np.float32)])
    tracker.add_norms(np.zeros(len(values), np.int64), values)
    bins = np.clip(np.searchsorted(tracker.bin_edges, values, side="right") - 1, 0, NUM_BINS - 1)
    np.testing.assert_array_equal(tracker.bin_counts, np.bincount(bins, minlength=NUM_BINS))


def test_very_many_records_are_zeros_that_can_be_written() -> None:
    """They lie in a mapping of their own; see also the table of a billion rows in test_bytes_of_books.py."""
    tracker = Tracker(MANY_ROWS)
    rows = np.array([0, MANY_ROWS - 1])
    tracker.add_norms(rows, np.array([1, 2], np.float32))
    assert [array.tolist() for array in tracker.gather(rows)] == [[0, 0], [-1, -1], [1, 2], [0, 0]]
    assert tracker.num_bytes == 16 * MANY_ROWS


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("num_rows", [1, 255, 256, 257, 5 * books_module.PAGES_AT_ONCE * books_module.PAGE_RECORDS + 3])
def test_rows_with_records_are_found_and_forgotten(
    monkeypatch: pytest.MonkeyPatch, num_rows: int, *, is_mapped: bool
) -> None:
    """By blocks, among the pages that the system says were touched."""
    monkeypatch.setattr(books_module, "MANY_ROWS", 1 if is_mapped else num_rows + 1)
    tracker, rng = Tracker(num_rows), np.random.default_rng(num_rows)
    assert tracker.changed_rows().tolist() == tracker.seen_rows().tolist() == []
    changed, seen = (np.union1d([0, num_rows - 1], rng.integers(0, num_rows, 100)) for _ in range(2))
    tracker.codes[changed], tracker.accesses[seen] = -1, 3
    assert tracker.codes[num_rows // 2] in (0, -1)  # a page that was only read
    for found, expected in ((tracker.changed_rows(), changed), (tracker.seen_rows(), seen)):
        np.testing.assert_array_equal(found, expected, strict=True)
    tracker.forget()
    assert not tracker.records.view(np.int64).any()


def test_a_system_that_does_not_tell_of_pages_is_scanned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(books_module, "MANY_ROWS", 1)
    (tmp_path / "empty").touch()
    (tmp_path / "refused").mkdir()  # opening it raises an OSError, as a hardened system does
    for name in ("missing", "empty", "refused"):
        monkeypatch.setattr(books_module, "PAGE_MAP", str(tmp_path / name))
        tracker = Tracker(1000)
        tracker.codes[[3, 999]] = 1
        assert tracker.changed_rows().tolist() == [3, 999]


def test_forgetting_writes_no_page_of_zeros() -> None:
    """A table of 10^9 rows has 16 GB of records, which take memory only where something was written."""
    tracker = Tracker(1000)
    tracker._pages.flags.writeable = False
    tracker.forget()
    tracker = Tracker(1000)
    tracker.codes[5] = 7
    tracker._pages.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        tracker.forget()
