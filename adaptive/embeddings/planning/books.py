"""The books of one group: records of rows (`Tracker`) and of slots (`SlotTable`).

A row takes 8 bytes, and 4 more if the policy or the skip rule can ask for update norms. A slot takes 17, and 4 more if
the policy evicts by accesses; 9 if every row has a slot. Only the planning thread writes them.

Accesses and the latest access are counted when a batch is planned; update sizes arrive a fixed number of batches after
training. So a policy's input at batch k does not depend on threads or clocks. Records are zero until a row is first
used, and memory is only taken then: constructing a billion rows costs nothing. Evaluation does not count.
"""

import mmap
import os
import platform
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Bools, Floats, Int32s, Int64s, UInt64s
from adaptive.embeddings.planning.layout import table_index
from adaptive.kernels.planning import books
from adaptive.kernels.planning.books import Entered, SlotColumns, Taken
from adaptive.kernels.planning.lookups import Distinct
from adaptive.kernels.scratch import ScratchPool, allocate

RECORD = np.dtype(
    [
        ("code", np.int32),  # where the row is and when it was used, see kernels.planning.books
        ("accesses", np.uint32),  # lookups so far
    ]
)
assert RECORD.itemsize == 8

ORDERS: Final = (("accesses",), ("last_access",), ("accesses", "last_access"), ("last_access", "accesses"))
"""Columns by which `SlotTable.lowest` orders rows; the second one breaks ties."""

SLOT_BYTES, FITTING_SLOT_BYTES = 17, 9  # of the arrays of a `SlotTable`; the second if every row has a slot
NORM_BYTES = ACCESSES_BYTES = 4
SHARED_ROWS = 1 << 11  # whose records or values threads divide: starting them takes as long as some hundred rows
NO_ENTRIES = np.zeros(0, np.int32)
SAMPLE = 4096  # slots, from which a bound of the lowest keys is estimated
ALL_KEYS: Final = np.uint64(2**64 - 1)
MANY_ROWS = 1 << 26  # 512 MiB of records
_LINUX_FLAG: Final = {"x86_64": 0x4000, "aarch64": 0x4000}  # Python names it from 3.12 on
NO_RESERVE: Final[int] = getattr(mmap, "MAP_NORESERVE", _LINUX_FLAG.get(platform.machine(), 0))
"""Flag of mappings that may exceed the memory, as long as the touched pages do not; 0 where it is not known."""
PAGE_RECORDS = mmap.PAGESIZE // RECORD.itemsize
PAGES_AT_ONCE = 1 << 10  # 4 MiB of records
PAGE_MAP = "/proc/self/pagemap"  # of Linux: 8 bytes per page; the two highest bits are "present" and "swapped"


class Records(NamedTuple):
    """Copies of the records of rows (n,)."""

    accesses: Int64s
    last_access: Int64s  # latest batch, or -1
    slots: Int64s  # slot, or -1


class Tracker:
    """Records of the rows of one group.

    Attributes:
        threads: that work on a batch's records together; more than 1 if the training thread plans.
        update_norm: (rows,) sum of the L2 norms of each row's updates; None if nobody can ask for it.
    """

    def __init__(self, num_rows: int, *, keeps_norms: bool = False) -> None:
        self.threads = 1
        self._pages, self._has_page_map = zero_pages(num_rows, RECORD)
        self.records = self._pages.reshape(-1)[:num_rows]
        self.codes: Int32s = self.records["code"]
        self.accesses: NDArray[np.uint32] = self.records["accesses"]
        self.columns = self.codes, self.accesses  # for kernels
        self.update_norm: Floats | None = None
        if keeps_norms:
            self.keep_norms()

    def keep_norms(self) -> None:
        """Sum the update norms of each row from now on. Before any batch is trained."""
        self.update_norm = zero_pages(len(self.records), np.float32)[0].reshape(-1)[: len(self.records)]

    def changed_rows(self) -> Int64s:
        """(n,) rows with stored values, on the device or on the host, ascending."""
        return self._rows_where(lambda records: _has_values(records["code"]))

    def seen_rows(self) -> Int64s:
        """(n,) rows that were looked up, ascending."""
        return self._rows_where(lambda records: records["accesses"] != 0)

    def has_values(self, rows: Int64s) -> Bools:
        """(n,) True for rows with stored values, on the device or on the host."""
        return _has_values(self.codes[rows])

    def store_on_host(self, rows: Int64s) -> None:
        """Note that the host has other values than the initial ones for those of the rows (n,) that are not in slots.

        `rows` are distinct.
        """
        codes = self.codes[rows]
        # On the host, where codes are 0 or negative, the last bit says whether values are stored. Without them a code
        # is even: minus 1 sets the bit, and keeps the latest batch, which is the rest.
        self.codes[rows] = np.where(_has_values(codes), codes, codes - 1)

    def set_last_access(self, rows: Int64s, latest: Int32s) -> None:
        """Set the latest batch + 1 (n,) of rows (n,) on the host; 0: none."""
        codes = self.codes[rows]
        assert not (codes > 0).any()
        self.codes[rows] = -(2 * latest + (codes & 1))

    def forget_rows(self, rows: Int64s) -> None:
        """Zero the records of rows (n,), which are on the host and then count as never used."""
        self.records[rows] = np.zeros((), RECORD)
        if self.update_norm is not None:
            self.update_norm[rows] = 0

    def forget(self) -> None:
        """Zero all records. Pages that are zero already are not written, so they take no memory."""
        for pages in self._used_pages():
            used = pages[self._pages[pages].view(np.int64).any(axis=1)]
            if len(used):
                self._pages[used] = np.zeros((), RECORD)
        if self.update_norm is not None:
            self.keep_norms()

    def _rows_where(self, is_chosen: Callable[[NDArray[Any]], Bools]) -> Int64s:
        """(n,) rows that a function of records chooses, ascending; it chooses no zero record."""
        rows = [np.empty(0, np.int64)]
        for pages in self._used_pages():
            page, place = np.nonzero(is_chosen(self._pages[pages]))
            rows.append(pages[page] * PAGE_RECORDS + place)
        return np.concatenate(rows)

    def _used_pages(self) -> Iterator[Int64s]:
        """Pages that may hold non-zero records, ascending, `PAGES_AT_ONCE` at a time."""
        for first in range(0, len(self._pages), 16 * PAGES_AT_ONCE):
            pages = np.arange(first, min(first + 16 * PAGES_AT_ONCE, len(self._pages)))
            if self._has_page_map:
                pages = pages[_are_touched(self._pages[first:], len(pages))]
            for start in range(0, len(pages), PAGES_AT_ONCE):
                yield pages[start : start + PAGES_AT_ONCE]

    def add_norms(self, rows: Int64s, norms: Floats) -> None:
        """Add the update norms (n,) of distinct rows (n,) after a trained batch, if they are kept."""
        if self.update_norm is not None:
            books.add_norms(rows, norms, self.update_norm)

    @property
    def num_bytes(self) -> int:
        return self.records.nbytes + (0 if self.update_norm is None else self.update_norm.nbytes)


def _has_values(codes: Int32s) -> Bools:
    """Return which rows with these codes have stored values, on the device or on the host."""
    has_values: Bools = (codes > 0) | (codes & 1 != 0)
    return has_values


def books_bytes(num_rows: int, num_slots: int, *, keeps_norms: bool, by_accesses: bool) -> int:
    """Bytes of the records of a group's rows and of its slots."""
    slot_bytes = SLOT_BYTES + by_accesses * ACCESSES_BYTES if num_slots < num_rows else FITTING_SLOT_BYTES
    return num_rows * (RECORD.itemsize + keeps_norms * NORM_BYTES) + num_slots * slot_bytes


def zero_pages(num_rows: int, dtype: Any) -> tuple[NDArray[Any], bool]:
    """(pages, items of a page) zeros for so many rows, and whether the system reports touched pages.

    numpy requests pages of 2 MiB, which are faster. With them, a few thousand scattered rows would take all 8 GB of a
    billion records, so arrays for many rows use small pages.
    """
    of_page = mmap.PAGESIZE // np.dtype(dtype).itemsize
    shape = -(-num_rows // of_page), of_page
    if num_rows < MANY_ROWS:
        return np.zeros(shape, dtype), False
    pages = mmap.mmap(-1, shape[0] * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape), os.path.exists(PAGE_MAP)


def _are_touched(pages: NDArray[Any], number: int) -> Bools:
    """(number,) True for those of an array's first pages that are in memory or swapped out.

    Reading an untouched page causes a page fault, so scanning 10^9 records would take seconds.
    """
    entry = pages.ctypes.data // mmap.PAGESIZE
    try:
        with open(PAGE_MAP, "rb", buffering=0) as file:
            entries = os.pread(file.fileno(), 8 * number, 8 * entry)
    except OSError:  # a hardened system may refuse it; then every page is read
        entries = b""
    touched: Bools = np.frombuffer(entries, np.uint64) >> np.uint64(62) != 0
    return touched if len(touched) == number else np.ones(number, np.bool_)


def lowest(keys: NDArray[Any], count: int) -> Int64s:
    """Positions of the `count` lowest keys (n,), ascending; among equal keys the first ones."""
    if count <= 0 or count >= len(keys):
        return np.arange(max(min(count, len(keys)), 0))
    border = np.partition(keys, count - 1)[count - 1]
    chosen = keys < border
    equal = np.flatnonzero(keys == border)
    chosen[equal[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def shares(number: int, threads: int) -> Int64s:
    """(C + 1,) bounds of the shares of each thread in so many rows; one share if they are few."""
    if threads == 1 or number < SHARED_ROWS:
        return np.array([0, number])
    return np.array([number * thread // threads for thread in range(threads + 1)])


def join_lists(firsts: Int64s, ends: Int64s, *arrays: NDArray[Any]) -> int:
    """Join lists at firsts[c]:ends[c] of each array to one at its start; return its length. `firsts` ascend."""
    count = int(ends[0])
    for first, end in zip(firsts[1:].tolist(), ends[1:].tolist(), strict=True):
        for array in arrays:
            array[count : count + end - first] = array[first:end]
        count += end - first
    return count


@dataclass(frozen=True)
class IdleWindow:
    """Slots from `first` on and around to `last`, or all if both are equal."""

    oldest_held: int  # slots whose row was last used by an earlier batch are idle
    count: int  # of idle slots
    first: int
    last: int

    def spans(self, num_slots: int) -> list[tuple[int, int]]:
        """First slot and end of its parts."""
        wraps = self.first >= self.last
        return [(self.first, num_slots), (0, self.last)] if wraps else [(self.first, self.last)]

    def chunks(self, num_slots: int, threads: int) -> Int64s:
        """(C, 3) first slot and end of each thread's parts, and the number of slots in all earlier parts."""
        chunks, place = [], 0
        for start, stop in self.spans(num_slots):
            bounds = [start + (stop - start) * c // threads for c in range(threads + 1)]
            for first, end in pairwise(bounds):
                chunks.append((first, end, place))
                place += end - first
        return np.array(chunks)


class SlotTable:
    """The row in each slot of one group. Row -> slot is the code in the tracker's record.

    Slots have the latest use of their rows, and repeat their accesses if these order them (`by_accesses`), so that
    choosing rows to evict reads memory in order. If every row has a slot (`all_fit`), none is evicted: slots then have
    their latest use and flags only. Flags of a batch's rows are set when they are read: by then few of them matter.
    """

    def __init__(self, num_slots: int, table_starts: Int64s, tracker: Tracker, *, by_accesses: bool = True) -> None:
        self.all_fit = num_slots >= len(tracker.codes)
        size = 0 if self.all_fit else num_slots
        self.columns = SlotColumns(
            rows=np.full(size, -1, np.int64),
            used=np.full(num_slots, books.FREE, np.int32),
            accesses=np.zeros(size if by_accesses else 0, np.uint32),
            flags=np.zeros(num_slots, np.uint8),
            free=np.zeros(num_slots, np.int32),
        )
        self.num_free = num_slots
        self._by_accesses = by_accesses
        self._mark = np.uint8(0)  # flags of slots that are used by batches
        self._marked = 0  # from this one on; `columns.flags` reflect earlier ones
        self._search_from = 0
        self._memory = ScratchPool()
        self._index = table_index(table_starts)
        self._tracker = tracker

    def __len__(self) -> int:
        return len(self.columns.used)

    @property
    def num_bytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    @property
    def rows(self) -> Int64s:
        """(slots,) the row in each, -1 without one."""
        if not self.all_fit:
            return self.columns.rows
        rows, resident = np.full(len(self), -1, np.int64), np.flatnonzero(self._tracker.codes > 0)
        rows[self._tracker.codes[resident] - 1] = resident
        return rows

    def resident_rows(self, at_once: int) -> Iterator[Int64s]:
        """Yield the rows (n,) in slots, at most so many at once."""
        for first in range(0, len(self), at_once):
            last = first + at_once
            if self.all_fit:
                yield first + np.flatnonzero(self._tracker.codes[first:last] > 0)
            else:
                rows = self.columns.rows[first:last]
                yield rows[rows >= 0]

    @property
    def free(self) -> Int64s:
        """(n,) free slots; the last one is taken first."""
        free: Int64s = self.columns.free[: self.num_free] + np.arange(len(self) - 1, len(self) - 1 - self.num_free, -1)
        return free

    def taken(self) -> Int64s:
        """Slots (n,) with a row, ascending."""
        return np.flatnonzero(self.columns.used != books.FREE)

    @property
    def used(self) -> Int32s:
        """(slots,) the latest planned batch that needs each; `FREE` without a row."""
        return self.columns.used

    @property
    def flags(self) -> NDArray[np.uint8]:
        self._synchronize()
        return self.columns.flags

    def _synchronize(self) -> None:
        """Set the flags of rows of batches that have entered since the last time."""
        if self._mark:
            self._marked = books.mark_used(self.columns.used, self._marked, self._mark, self.columns.flags)

    def slots_of(self, rows: Int64s) -> Int64s:
        """(n,) slot of each row, or -1."""
        return np.maximum(self._tracker.codes[rows].astype(np.int64) - 1, -1)

    def last_access(self, rows: Int64s) -> Int32s:
        """(n,) latest batch + 1 that looked up each row, 0 if there was none."""
        codes = self._tracker.codes[rows]
        latest, on_device = -codes >> 1, np.flatnonzero(codes > 0)
        latest[on_device] = self.columns.used[codes[on_device] - 1] + 1
        return latest

    def gather(self, rows: Int64s) -> Records:
        """Copy the records of rows (n,)."""
        columns: list[NDArray[Any]] = [np.empty(len(rows), np.int64) for _ in range(3)]
        records = Records(*columns)
        books.gather_records(rows, self._tracker.columns, self.columns.used, tuple(records))
        return records

    def idle_window(self, oldest_held: int, limit: int) -> IdleWindow:
        """Find slots with a row that no batch from `oldest_held` on needs.

        At most `limit`, starting where the previous search ended.
        """
        first = self._search_from
        assert not self.all_fit
        count, self._search_from = books.idle_window(self.columns.used, oldest_held, first, min(limit, len(self)))
        return IdleWindow(oldest_held, count, first, self._search_from)

    def idle(self, window: IdleWindow) -> Int64s:
        """The idle slots (n,) of a window, in its order."""
        return np.concatenate([slots for slots, _ in self._idle_up_to(ALL_KEYS, window, ("last_access",))])

    def lowest(self, window: IdleWindow, order: tuple[str, ...], count: int) -> Int64s:
        """The `count` idle slots of a window whose rows come first in an order of `ORDERS`, in the window's order."""
        assert self._by_accesses or "accesses" not in order
        count = min(count, window.count)
        if count == 0:
            return np.empty(0, np.int64)
        lists = self._idle_up_to(self._bound(window, order, count), window, order)
        if sum(len(slots) for slots, _ in lists) < count:  # the sample was not representative
            lists = self._idle_up_to(ALL_KEYS, window, order)
        ranked = np.concatenate([keys for _, keys in lists])
        ranked.partition(count - 1)
        border, chosen, end = ranked[count - 1], np.empty(count + 1, np.int64), 0
        num_equal = count - np.count_nonzero(ranked[:count] < border)
        for slots, keys in lists:
            num_equal, end = books.take_lowest(slots, keys, border, num_equal, end, chosen)
        return chosen[:count]

    def _bound(self, window: IdleWindow, order: tuple[str, ...], count: int) -> np.uint64:
        """A key that, by a sample, at least the `count` lowest idle slots of a window do not exceed."""
        if window.count < 8 * SAMPLE:  # sampling would take longer
            return ALL_KEYS
        # Only of the window: rows that are taken together lie together, and here are some of the longest idle ones.
        spans = window.spans(len(self))
        step = sum(stop - start for start, stop in spans) // SAMPLE + 1
        used, first, second = (
            np.concatenate([column[start:stop:step] for start, stop in spans])
            for column in (self.columns.used, *self._key_columns(order))
        )
        keys = (first.astype(np.uint64) << np.uint64(32) | second)[used < window.oldest_held]
        place = len(keys) * count / window.count
        place = int(place + 4 * place**0.5) + 1  # 4 standard deviations
        if place >= len(keys):
            return ALL_KEYS
        bound: np.uint64 = np.partition(keys, place)[place]
        return bound

    def _idle_up_to(self, bound: np.uint64, window: IdleWindow, order: tuple[str, ...]) -> list[tuple[Int64s, UInt64s]]:
        """The idle slots (n,) of a window whose keys do not exceed a bound, and their keys, in lists, in its order."""
        chunks, threads = window.chunks(len(self), self._tracker.threads), self._tracker.threads
        idle, keys = allocate(self._memory, (np.int64, len(self)), (np.uint64, len(self)))
        ends = np.empty(len(chunks), np.int64)
        columns, until = (self.columns.used, *self._key_columns(order)), (window.oldest_held, bound)
        if threads > 1:
            books.list_chunks(chunks, ends, columns, *until, (idle, keys))
        else:
            ends[:] = [books.list_idle(chunk, columns, *until, (idle, keys)) for chunk in chunks]
        return [
            (idle[first:end], keys[first:end]) for first, end in zip(chunks[:, 2].tolist(), ends.tolist(), strict=True)
        ]

    def release(self, evicted: Int64s, tally: Int64s) -> tuple[Int64s, Int64s]:
        """Free the slots `evicted`; returns (slots, rows) to write back."""
        if not len(evicted):
            return evicted, evicted
        slots, rows = np.empty((2, len(evicted)), np.int64)
        columns = (self.rows, *self.columns[1:])  # made for this if every row has a slot
        marked = self._marked, self._mark
        books_of_group = evicted, columns, self.num_free, marked, self._tracker.codes, self._index, (slots, rows)
        bounds = shares(len(evicted), self._tracker.threads)
        if len(bounds) == 2:
            count = books.release_slots((0, len(evicted)), tally, *books_of_group)
        else:
            ends, tallies = np.empty(len(bounds) - 1, np.int64), np.zeros((len(bounds) - 1, *tally.shape), np.int64)
            books.release_chunks(bounds, ends, tallies, *books_of_group)
            count = join_lists(bounds[:-1], ends, slots, rows)
            tally += tallies.sum(axis=0)
        self.num_free += len(evicted)
        return slots[:count], rows[:count]

    def discard(self, slots: Int64s) -> None:
        """Free slots (n,) whose rows are not needed any more, changed or not."""
        self.columns.flags[slots], self.columns.used[slots] = 0, books.FREE
        if not self.all_fit:
            self.columns.rows[slots] = -1
        places = np.arange(self.num_free, self.num_free + len(slots))
        self.columns.free[places] = slots - (len(self) - 1 - places)
        self.num_free += len(slots)

    def enter(self, distinct: Distinct, number: int, mark: int, entered: Entered, tally: Int64s) -> int:
        """Touch rows in slots and hold these for batch `number`; see `books.enter_batch`.

        mark: added to the flags of its slots; DIRTY if the batch will change all its rows.
        """
        if mark != self._mark:  # earlier batches have left another one
            self._synchronize()
            self._mark, self._marked = np.uint8(mark), number
        self._marked = min(self._marked, number)  # it may enter again, and flags have been read meanwhile
        ends = distinct.table_ends
        records, columns = self._tracker.columns, tuple(self.columns)
        books_of_batch = tuple(distinct), number, records, columns, tuple(entered), tally
        bounds = shares(len(distinct.rows), self._tracker.threads)
        if len(bounds) == 2:
            return int(books.enter_batch(0, len(ends), *books_of_batch))
        starts = [0, *ends.tolist()]  # of the tables' rows
        tables = [0, *(bisect_left(starts, bound) for bound in bounds[1:-1].tolist()), len(ends)]  # of threads, first
        firsts, lasts = np.array([starts[table] for table in tables[:-1]]), np.empty(len(bounds) - 1, np.int64)
        books.enter_chunks(np.array(tables), lasts, *books_of_batch)
        return join_lists(firsts, lasts, entered.missing)  # in the tables' order

    def leave(self, distinct: Distinct, entered: Entered) -> None:
        """Undo `enter`."""
        books.leave_batch(tuple(distinct), tuple(entered), self._tracker.accesses, tuple(self.columns))

    def take(
        self, admitted: Int64s, distinct: Distinct, locations: Int64s, number: int, oldest_held: int, tally: Int64s
    ) -> Taken:
        """Give each of the distinct rows `admitted` a slot, held for batch `number`, and touch them.

        Those that a batch from `oldest_held` on updates on the host are late.
        """
        assert len(admitted) <= self.num_free
        taken = Taken(*np.empty((2, len(admitted)), np.int64), *np.empty((2, len(admitted)), np.bool_))
        slot_columns = self._tracker.columns, tuple(self.columns), self.num_free
        books_of_batch = admitted, tuple(distinct), locations, *slot_columns, (number, oldest_held), tuple(taken)
        bounds = shares(len(admitted), self._tracker.threads)
        if len(bounds) == 2:
            books.take_slots((0, len(admitted)), *books_of_batch)
        else:
            books.take_chunks(bounds, *books_of_batch)
        books.count_taken(admitted, distinct.table_ends, tally)
        self.num_free -= len(admitted)
        return taken

    def leave_on_host(self, missing: Int64s, distinct: Distinct, locations: Int64s, number: int) -> Int64s:
        """Touch those of the distinct rows `missing` that get no slot.

        Returns the rows that need their initial values on the host.
        """
        fresh = np.empty(len(missing), np.int64)
        count = books.use_rows_on_host(missing, tuple(distinct), number, self._tracker.columns, locations, fresh)
        return fresh[:count]

    def dirty(self) -> Int64s:
        """Slots whose row changed since it was fetched."""
        return np.flatnonzero((self.flags & books.DIRTY) != 0)

    def mark_dirty(self, updated: Int32s, locations: Int64s) -> None:
        """Note that a batch will change its distinct rows `updated`, some of which are in slots."""
        books.mark_dirty(updated, locations, self.columns.flags)

    def mark_stored(self, slots: Int64s) -> None:
        """Note that the host has other values than the initial ones for the rows in `slots`."""
        self.flags[slots] |= books.CHANGED

    def clean(self, slots: Int64s) -> None:
        """Mark `slots` as unchanged: their rows have been copied to the host."""
        self.flags[slots] = books.CHANGED

    def empty(self) -> None:
        """Free all slots, before other values are loaded."""
        fresh = SlotTable(len(self), self._index[0], self._tracker, by_accesses=self._by_accesses)
        self.columns, self.num_free, self._search_from, self._marked = fresh.columns, fresh.num_free, 0, 0

    def _key_columns(self, order: tuple[str, ...]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """(slots,) the high and the low half of keys that compare as an order of `ORDERS` does."""
        columns = {"last_access": self.columns.used.view(np.uint32), "accesses": self.columns.accesses}
        return columns[order[0]], columns[order[-1]]
