"""Records of rows: zero until touched, and gathered for policies."""

from pathlib import Path

import numpy as np
import pytest

from adaptive.counters import Counter
from adaptive.embeddings.planning import books as books_module
from adaptive.embeddings.planning.books import SlotTable, Tracker
from adaptive.kernels.planning import books
from adaptive.kernels.planning.books import Entered
from adaptive.kernels.planning.lookups import Distinct


@pytest.mark.parametrize("num_slots", [1, 4])
def test_gather_after_touching(num_slots: int) -> None:
    """Row 1 is on the host, row 2 in a slot."""
    tracker = Tracker(4, keeps_norms=True)
    slots = SlotTable(num_slots, np.array([0, 4]), tracker)
    for batch, rows, admitted in ((0, [2], 0), (3, [1], None), (5, [2], None)):
        distinct = Distinct(np.array(rows), np.array([3], np.int32), np.zeros(1, np.int32), np.array([1]))
        places, tally = np.full((2, 1), -1), np.zeros((1, len(Counter)), np.int64)
        no_entries = np.zeros(0, np.int32)
        entered = Entered(*places, np.zeros(1, np.int32), no_entries, np.zeros(0, np.uint32), no_entries)
        missing = slots.enter(distinct, batch, 1, entered, tally)
        if admitted is not None:
            slots.take(np.array([admitted]), distinct, places[0], batch, batch, tally)
        elif missing:
            slots.leave_on_host(np.arange(1), distinct, places[0], batch)
    tracker.add_norms(np.array([2]), np.array([0.5], np.float32))
    tracker.add_norms(np.array([2, 3]), np.array([0.25, 1], np.float32))
    accesses, last, places = slots.gather(np.arange(4))
    assert places.tolist() == slots.slots_of(np.arange(4)).tolist() == [-1, -1, 0, -1]
    assert accesses.tolist() == [0, 3, 6, 0]
    assert last.tolist() == (slots.last_access(np.arange(4)) - 1).tolist() == [-1, 3, 5, -1]
    assert tracker.has_values(np.arange(4)).tolist() == [False, True, True, False]
    assert tracker.update_norm is not None and tracker.update_norm.tolist() == [0, 0, 0.75, 1]


def test_codes_on_the_host_hold_both_facts() -> None:
    """Rows 0 and 1 are stored on the host, rows 1 and 2 were used, by batches 6 and 0."""
    tracker = Tracker(4)
    slots, everything = SlotTable(1, np.array([0, 4]), tracker), np.arange(4)
    tracker.store_on_host(np.array([0, 1]))
    tracker.set_last_access(np.array([1, 2]), np.array([7, 1], np.int32))
    for _ in range(2):
        assert slots.last_access(everything).tolist() == [0, 7, 1, 0]
        assert tracker.has_values(everything).tolist() == [True, True, False, False]
        tracker.store_on_host(np.array([0, 1]))  # again
    most = np.array([books.MOST_BATCHES + 1], np.int32)
    tracker.set_last_access(everything[:1], most)
    assert slots.last_access(everything[:1]) == most and tracker.has_values(everything[:1])


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("num_rows", [1, 511, 512, 513, 5 * books_module.PAGES_AT_ONCE * books_module.PAGE_RECORDS + 3])
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
    """A table of 10^9 rows has 8 GB of records, which take memory only where something was written."""
    tracker = Tracker(1000)
    tracker._pages.flags.writeable = False
    tracker.forget()
    tracker = Tracker(1000)
    tracker.codes[5] = 7
    tracker._pages.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        tracker.forget()
