"""The books of one group: the record of every row, 16 bytes (`Tracker`), and of every slot, 21 bytes (`SlotTable`).

Their owner is the look-ahead thread.

Accesses and latest access are counted when a batch is planned; sizes of updates arrive a fixed number of batches
after training. So what a policy sees at batch k does not depend on threads or clocks. Records are zero until a row
is first touched and memory is only taken then: a billion rows cost nothing to construct. Evaluation does not count.
"""

import mmap
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.planning.layout import table_buckets
from adaptive.embeddings.planning.lookups import Distinct
from adaptive.kernels.planning import books, selection
from adaptive.kernels.scratch import LentMemory, carve

RECORD = np.dtype(
    [
        ("code", np.int32),  # where the row lies, see kernels.planning.books
        ("accesses", np.uint32),  # lookups so far
        ("last_access", np.int32),  # latest batch that looked the row up, + 1
        ("update_norm", np.float32),  # sum of the L2 norms of its updates
    ]
)
assert RECORD.itemsize == 16

SLOT_BYTES = 21  # of the arrays of a `SlotTable`
NUM_BINS = 64
MANY_ROWS = 1 << 26  # 1 GiB of records
MAP_NORESERVE = 0x4000  # of Linux; Python names it from 3.13 on
PAGE_RECORDS = mmap.PAGESIZE // RECORD.itemsize
PAGES_AT_ONCE = 1 << 10  # 4 MiB of records
PAGE_MAP = "/proc/self/pagemap"  # of Linux: 8 bytes of each page; its two highest bits are "present" and "swapped"


class Records(NamedTuple):
    """Copies of the records of rows (n,)."""

    accesses: NDArray[np.int64]
    last_access: NDArray[np.int64]  # latest batch, or -1
    update_norm: NDArray[np.float32]
    codes: NDArray[np.int32]


class Tracker:
    """Records of the rows of one group, and a histogram of update sizes."""

    def __init__(self, num_rows: int) -> None:
        self._pages, self._tells_pages = _zeros(num_rows)
        self.records = self._pages.reshape(-1)[:num_rows]
        self.codes: NDArray[np.int32] = self.records["code"]
        self.accesses: NDArray[np.uint32] = self.records["accesses"]
        self.last_access: NDArray[np.int32] = self.records["last_access"]
        self.update_norm: NDArray[np.float32] = self.records["update_norm"]
        # Bins of half a power of two from 2**-24 to 2**8; what lies outside counts in the first or last bin.
        self.bin_edges = np.exp2(np.linspace(-24, 8, NUM_BINS + 1)).astype(np.float32)
        self.bin_counts = np.zeros(NUM_BINS, np.int64)
        self._bin_guesses = bin_guesses(self.bin_edges)
        self.norm_sum = 0.0

    def changed_rows(self) -> NDArray[np.int64]:
        """(n,) ascending rows that have stored values, on the device or on the host."""
        return self._rows_with("code")

    def seen_rows(self) -> NDArray[np.int64]:
        """(n,) ascending rows that were looked up."""
        return self._rows_with("accesses")

    def forget(self) -> None:
        """Zero all records. Only pages with something else are written: the others take no memory, and stay so."""
        for pages in self._used_pages():
            hit = pages[self._pages[pages].view(np.int64).any(axis=1)]
            if len(hit):
                self._pages[hit] = np.zeros((), RECORD)

    def _rows_with(self, column: str) -> NDArray[np.int64]:
        rows = [np.empty(0, np.int64)]
        for pages in self._used_pages():
            page, place = np.nonzero(self._pages[column][pages])
            rows.append(pages[page] * PAGE_RECORDS + place)
        return np.concatenate(rows)

    def _used_pages(self) -> Iterator[NDArray[np.int64]]:
        """Ascending numbers of the pages that may hold anything but zeros, `PAGES_AT_ONCE` at a time."""
        for first in range(0, len(self._pages), 16 * PAGES_AT_ONCE):
            pages = np.arange(first, min(first + 16 * PAGES_AT_ONCE, len(self._pages)))
            if self._tells_pages:
                pages = pages[_was_touched(self._pages[first:], len(pages))]
            for start in range(0, len(pages), PAGES_AT_ONCE):
                yield pages[start : start + PAGES_AT_ONCE]

    def add_norms(self, rows: NDArray[np.int64], norms: NDArray[np.float32]) -> None:
        """Account for the updates of one trained batch; rows are distinct."""
        self.norm_sum += books.add_update_norms(
            rows, norms, self.update_norm, self.bin_edges, self._bin_guesses, self.bin_counts
        )

    def gather(self, rows: NDArray[np.int64]) -> Records:
        """The records of rows (n,)."""
        dtypes = np.int64, np.int64, np.float32, np.int32
        columns: list[NDArray[Any]] = [np.empty(len(rows), dtype) for dtype in dtypes]
        records = Records(*columns)
        books.gather_records(rows, *self.columns, self.update_norm, *records)
        return records

    @property
    def columns(self) -> tuple[NDArray[np.int32], NDArray[np.uint32], NDArray[np.int32]]:
        """(rows,) each: codes, accesses and latest access, as kernels take them."""
        return self.codes, self.accesses, self.last_access

    @property
    def num_bytes(self) -> int:
        return self.records.nbytes


def bin_guesses(edges: NDArray[np.float32]) -> NDArray[np.int32]:
    """(1024,) the bin of the smallest number whose sign, exponent and leading digit are these 10 bits."""
    smallest = (np.arange(1024, dtype=np.uint32) << np.uint32(22)).view(np.float32)
    smallest[512:] = 0  # norms are not negative
    return np.clip(np.searchsorted(edges, smallest, side="right") - 1, 0, len(edges) - 2).astype(np.int32)


def _zeros(num_rows: int) -> tuple[NDArray[Any], bool]:
    """Records of zeros (pages, PAGE_RECORDS), and whether the system tells which pages were touched.

    numpy asks for pages of 2 MiB, which are faster, but of a billion records' 16 GB a few thousand scattered rows would
    take all; so many rows lie in small pages.
    """
    shape = -(-num_rows // PAGE_RECORDS), PAGE_RECORDS
    if num_rows < MANY_ROWS:
        return np.zeros(shape, RECORD), False
    # Not reserved: what is mapped may exceed the memory, as long as what is touched does not.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (MAP_NORESERVE if sys.platform == "linux" else 0)
    pages = mmap.mmap(-1, shape[0] * mmap.PAGESIZE, flags=flags)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, RECORD).reshape(shape), os.path.exists(PAGE_MAP)


def _was_touched(pages: NDArray[Any], number: int) -> NDArray[np.bool_]:
    """(number,) whether each of the first pages of an array is in memory or swapped out; reading a page that was never
    touched would take a page fault, which makes a scan of 10^9 records take seconds."""
    entry = pages.ctypes.data // mmap.PAGESIZE
    try:
        with open(PAGE_MAP, "rb", buffering=0) as file:
            entries = os.pread(file.fileno(), 8 * number, 8 * entry)
    except OSError:  # a hardened system may refuse it: then every page is read
        entries = b""
    touched: NDArray[np.bool_] = np.frombuffer(entries, np.uint64) >> np.uint64(62) != 0
    return touched if len(touched) == number else np.ones(number, np.bool_)


Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Bools = NDArray[np.bool_]


class SlotTable:
    """Which row each slot of one group holds. Row -> slot is the code in the tracker's record.

    Slots repeat what records say of their rows, so that choosing who leaves reads memory in order. Where every row has
    a slot nobody leaves: there batches change records alone, and slots are told when somebody looks.
    """

    def __init__(self, num_slots: int, table_starts: Int64s, tracker: Tracker) -> None:
        self.rows = np.full(num_slots, -1, np.int64)  # row in each slot, -1 = free
        self.free = np.arange(num_slots - 1, -1, -1, dtype=np.int32)  # a stack: free[:num_free]
        self.num_free = num_slots
        self._used = np.full(num_slots, -1, np.int32)
        self._accesses = np.zeros(num_slots, np.uint32)
        self._flags = np.zeros(num_slots, np.uint8)
        self._follow = num_slots < len(tracker.codes)
        self._untold: int | None = None  # the mark of batches of which slots were not told
        self._search_from = 0
        self._listed, self._chosen = LentMemory(), LentMemory()  # each for arrays of one size
        self._table_starts = table_starts
        self._buckets = table_buckets(table_starts)
        self._tracker = tracker

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in (self.free, *self._arrays))

    @property
    def used(self) -> Int32s:
        """(slots,) the latest planned batch that needs each."""
        self._tell()
        return self._used

    @property
    def flags(self) -> NDArray[np.uint8]:
        self._tell()
        return self._flags

    def _tell(self) -> None:
        """Have slots say what the records say."""
        if self._untold is not None:
            columns = self._tracker.columns[1:]
            books.follow_records(self.rows, *columns, *self._columns, np.uint8(self._untold))
            self._untold = None

    def idle(self, oldest_held: int, limit: int) -> Int64s:
        """Slots whose row no batch from `oldest_held` on needs; at most `limit`, from where the last search ended."""
        (idle,) = carve(self._listed, (np.int64, min(limit, len(self))))
        first = self._search_from
        count, self._search_from = books.idle_slots(self.rows, self.used, oldest_held, first, len(idle), idle)
        return idle[:count]

    def lowest(self, slots: Int64s, order: int, count: int) -> Int64s:
        """Positions of those `count` of the slots (n,) whose rows come first in an order of `selection.ORDERS`."""
        return selection.lowest_slots(slots, self.used, self._accesses, order, count, self._chosen)

    def release(self, victims: Int64s, tally: Int64s) -> tuple[Int64s, Int64s]:
        """Free the slots `victims`; returns (slots, rows) to write back."""
        if not len(victims):  # nobody need be told
            return victims, victims
        slots, rows = np.empty((2, len(victims)), np.int64)
        lines, tables = (self.free, self.num_free), (self._table_starts, *self._buckets)
        codes = self._tracker.codes
        count = books.release_slots(victims, self.rows, self.flags, codes, *lines, *tables, slots, rows, tally)
        self.num_free += len(victims)
        return slots[:count], rows[:count]

    def enter(
        self,
        distinct: Distinct,
        number: int,
        mark: int,
        locations: Int64s,
        missing: Int64s,
        before: Int32s,
        tally: Int64s,
    ) -> int:
        """Touch the rows that lie in slots and hold these for batch `number`; see `books.enter_batch`."""
        if not self._follow and self._untold != mark:
            self._tell()
            self._untold = mark
        rows, records = (distinct.rows, distinct.counts, distinct.table_ends), self._tracker.columns
        how = np.uint8(mark), self._follow
        results = locations, missing, before, tally
        return int(books.enter_batch(*rows, number, *records, *self._columns, *how, *results))

    def leave(self, distinct: Distinct, locations: Int64s, before: Int32s) -> None:
        """Undo `enter`."""
        records = self._tracker.columns[1:]
        books.leave_batch(distinct.rows, distinct.counts, locations, before, *records, *self._columns, self._follow)

    def take(
        self,
        takers: Int64s,
        distinct: Distinct,
        locations: Int64s,
        number: int,
        oldest_held: int,
        mark: int,
        tally: Int64s,
    ) -> tuple[Int64s, Bools, Bools]:
        """Give the distinct rows `takers` a slot each, held for batch `number`, and touch them.

        Returns (slots, still at their initial value, still updated on the host by a batch from `oldest_held` on).
        """
        assert len(takers) <= self.num_free
        slots = np.empty(len(takers), np.int64)
        initial, late = np.empty((2, len(takers)), np.bool_)
        rows, when = (distinct.rows, distinct.counts, distinct.table_ends), (number, oldest_held)
        slot_columns = self.rows, *self._columns, self.free, self.num_free
        records, results = self._tracker.columns, (slots, initial, late, tally)
        books.take_slots(takers, *rows, *records, np.uint8(mark), locations, *when, *slot_columns, *results)
        self.num_free -= len(takers)
        return slots, initial, late

    def leave_on_host(self, missing: Int64s, distinct: Distinct, locations: Int64s, number: int) -> Int64s:
        """Touch those of the distinct rows `missing` that have no slot; returns those that must be given their initial
        values on the host."""
        fresh = np.empty(len(missing), np.int64)
        rows, records = (distinct.rows, distinct.counts), self._tracker.columns
        count = books.use_rows_on_host(missing, *rows, number, *records, locations, fresh)
        return fresh[:count]

    def dirty(self) -> Int64s:
        """Slots whose row changed since it came."""
        return np.flatnonzero((self.flags & books.DIRTY) != 0)

    def mark_dirty(self, updated: Int64s, locations: Int64s) -> None:
        """A batch will change its distinct rows `updated`, of which some lie in slots."""
        books.mark_dirty(updated, locations, self._flags)

    def mark_stored(self, slots: NDArray[np.int64]) -> None:
        """The host has values for these rows that are not their initial ones."""
        self.flags[slots] |= books.CHANGED

    def clean(self, slots: Int64s) -> None:
        """Mark `slots` as unchanged: their rows have been copied to the host and stay."""
        self.flags[slots] = books.CHANGED

    def compact(self, num_slots: int) -> Int64s:
        """Have `num_slots` slots, the rows in the first of them, in order; returns (slots,) old -> new."""
        taken = np.flatnonzero(self.rows >= 0)
        new = np.full(len(self), -1, np.int64)
        new[taken] = np.arange(len(taken))
        fresh = SlotTable(num_slots, self._table_starts, self._tracker)
        self._tell()
        for new_array, array in zip(fresh._arrays, self._arrays, strict=True):
            new_array[: len(taken)] = array[taken]
        self._become(fresh)
        self.num_free = num_slots - len(taken)
        self._tracker.codes[self.rows[: len(taken)]] = new[taken] + 1
        return new

    def empty(self) -> None:
        """Forget all rows; for loading other values."""
        self._become(SlotTable(len(self), self._table_starts, self._tracker))

    def _become(self, other: "SlotTable") -> None:
        self.rows, self._used, self._accesses, self._flags = other._arrays
        self.free, self.num_free, self._search_from = other.free, other.num_free, 0
        self._follow, self._untold = other._follow, None

    @property
    def _columns(self) -> tuple[Int32s, NDArray[np.uint32], NDArray[np.uint8]]:
        """(slots,) each: what slots repeat of the records of their rows, as kernels take them."""
        return self._used, self._accesses, self._flags

    @property
    def _arrays(self) -> tuple[NDArray[Any], ...]:
        """(slots,) each: what is known of each slot."""
        return self.rows, *self._columns
