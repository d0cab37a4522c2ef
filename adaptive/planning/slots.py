"""`SlotTable`: which row holds which slot of the device tier. 21 bytes a slot, owned by the look-ahead thread."""

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.planning import books
from adaptive.planning.tracker import Tracker

Int64s = NDArray[np.int64]


class SlotTable:
    """Slots of one group. The other direction, row -> slot, is the code in the tracker's record."""

    def __init__(self, num_slots: int, table_starts: Int64s, tracker: Tracker) -> None:
        self.rows = np.full(num_slots, -1, np.int64)  # row in each slot, -1 = free
        self.used = np.full(num_slots, -1, np.int32)  # latest planned batch that needs the slot
        self.flags = np.zeros(num_slots, np.uint8)
        self.free = np.arange(num_slots - 1, -1, -1, dtype=np.int64)  # a stack: free[:num_free]
        self.num_free = num_slots
        self._search_from = 0
        self._table_starts = table_starts
        self._tracker = tracker

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes + self.used.nbytes + self.flags.nbytes + self.free.nbytes

    def idle(self, oldest_held: int, limit: int) -> Int64s:
        """Slots whose row no batch from `oldest_held` on needs; at most `limit`, from where the last search ended."""
        found = np.empty(min(limit, len(self)), np.int64)
        count, self._search_from = books.idle_slots(
            self.rows, self.used, oldest_held, self._search_from, len(found), found
        )
        return found[:count]

    def release(self, victims: Int64s, tally: Int64s) -> tuple[Int64s, Int64s]:
        """Free the slots `victims`; returns (slots, rows) to write back."""
        slots, rows = np.empty(len(victims), np.int64), np.empty(len(victims), np.int64)
        count = books.release_slots(
            victims,
            self.rows,
            self.flags,
            self._tracker.codes,
            self.free,
            self.num_free,
            self._table_starts,
            slots,
            rows,
            tally,
        )
        self.num_free += len(victims)
        return slots[:count], rows[:count]

    def take(
        self, takers: Int64s, rows: Int64s, locations: Int64s, number: int, tally: Int64s
    ) -> tuple[Int64s, NDArray[np.bool_]]:
        """Give the distinct rows `rows[takers]` a slot each, held for batch `number`; returns (slots, still at their
        initial value)."""
        assert len(takers) <= self.num_free
        slots, initial = np.empty(len(takers), np.int64), np.empty(len(takers), np.bool_)
        books.take_slots(
            takers,
            rows,
            self._tracker.codes,
            locations,
            number,
            self.rows,
            self.used,
            self.flags,
            self.free,
            self.num_free,
            self._table_starts,
            slots,
            initial,
            tally,
        )
        self.num_free -= len(takers)
        return slots, initial

    def dirty(self) -> Int64s:
        """Slots whose row changed since it came."""
        return np.flatnonzero((self.flags & books.DIRTY) != 0)

    def clean(self, slots: Int64s) -> None:
        """The rows in `slots` have been copied to the host and stay."""
        self.flags[slots] = books.CHANGED

    def compact(self, num_slots: int) -> Int64s:
        """Have fewer slots, with the rows in the first of them, in order; returns (slots,) old -> new."""
        taken = np.flatnonzero(self.rows >= 0)
        new = np.full(len(self), -1, np.int64)
        new[taken] = np.arange(len(taken))
        fresh = SlotTable(num_slots, self._table_starts, self._tracker)
        fresh.rows[: len(taken)] = self.rows[taken]
        fresh.used[: len(taken)] = self.used[taken]
        fresh.flags[: len(taken)] = self.flags[taken]
        self._become(fresh)
        self.num_free = num_slots - len(taken)
        self._tracker.codes[self.rows[: len(taken)]] = new[taken] + 1
        return new

    def empty(self) -> None:
        """Forget all rows; for loading other values."""
        self._become(SlotTable(len(self), self._table_starts, self._tracker))

    def _become(self, other: "SlotTable") -> None:
        self.rows, self.used, self.flags = other.rows, other.used, other.flags
        self.free, self.num_free, self._search_from = other.free, other.num_free, 0
