"""`HotSet`: the rows watched for saturation, their verdicts and what is known of their movement.

Only rows looked up often enough are watched (Slipstream, arXiv 2404.04270: a hot-row filter, then snapshots). The
set is keyed by row and kept apart from the tiers, so verdicts do not depend on where rows lie. The look-ahead
thread owns everything here; snapshots of row values belong to the training thread (`DeviceTier.watch`). A snapshot is
renewed at the row's own pace: once it has been looked up `min_accesses` times, in `min_visits` batches, since the last;
the first four intervals are shorter, by 16, 8, 4 and 2, so that a row that has just come is judged, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.config import SkipConfig
from adaptive.embeddings.planning.plan import Feedback, Snapshots
from adaptive.kernels.planning import watched

PLACE = np.dtype([("row", np.int64), ("entry", np.int32), ("unused", np.int32)])  # a cell of the hash table
ENTRY = np.dtype(
    [
        ("row", np.int64),
        ("accesses", np.uint32),  # lookups since the latest snapshot
        ("drift_accesses", np.uint32),  # and between the two snapshots behind `drift`
        ("epoch", np.int32),  # visits since the latest snapshot, -1: there is none
        ("drift", np.float32),
        ("saturated", np.bool_),
        ("skipped", np.bool_),  # an update was left out since the latest snapshot
        ("waits", np.uint8),  # a rule's answer: visits that a gradient waits for another
        ("num_snapshots", np.uint8),  # taken so far, as far as that decides how long the next interval is
        ("drift_visits", np.uint16),  # batches that looked the row up between the two snapshots behind `drift`
        ("counted", np.uint8),  # as what, at the latest question: bits of `WatchedCounts`
    ],
    align=True,
)
assert PLACE.itemsize == 16 and ENTRY.itemsize == 32  # so that none lies in two cache lines
COLUMNS = ENTRY.names or ()


@dataclass(frozen=True)
class WatchedRows:
    """The watched rows among the distinct rows of a batch."""

    places: NDArray[np.int32]  # (n,) positions among the distinct rows, ascending
    entries: NDArray[np.int32]  # (n,)


class HotSet:
    """Watched rows of one group. Entries are given in order of admission, and kept until their rows no longer come and
    are let go (`keep`).

    Memory is taken as rows are admitted: records of zeros that the system gives when they are touched, and a hash table
    that doubles. Until then a set for 5 % of 10^9 rows takes nothing.
    """

    def __init__(self, capacity: int, config: SkipConfig) -> None:
        self.config = config
        self.num_entries = 0
        self._records = np.zeros(capacity, ENTRY)
        self.rows: NDArray[np.int64] = self._records["row"]
        self.saturated: NDArray[np.bool_] = self._records["saturated"]
        self.drift: NDArray[np.float32] = self._records["drift"]
        self.drift_accesses: NDArray[np.uint32] = self._records["drift_accesses"]
        self.drift_visits: NDArray[np.uint16] = self._records["drift_visits"]
        self.waits: NDArray[np.uint8] = self._records["waits"]
        self.counted: NDArray[np.uint8] = self._records["counted"]
        self._accesses: NDArray[np.uint32] = self._records["accesses"]
        self._num_snapshots: NDArray[np.uint8] = self._records["num_snapshots"]
        self._epoch: NDArray[np.int32] = self._records["epoch"]
        self._skipped: NDArray[np.bool_] = self._records["skipped"]
        self._new_table(0)

    @property
    def capacity(self) -> int:
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        """Bytes once all entries are taken."""
        return hot_set_bytes(self.capacity)

    def admit(self, rows: NDArray[np.int64], accesses: NDArray[np.uint32]) -> WatchedRows:
        """The watched among the distinct rows of a batch (U,); rows that have become popular enough are let in."""
        self._make_room(min(self.num_entries + len(rows), self.capacity), accesses)
        places, entries = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
        before = self.num_entries
        table, least = (self._keys, self._values), self.config.min_accesses
        self.num_entries, count = watched.find_entries(
            rows, accesses, least, *table, self.rows, before, places, entries
        )
        self.drift[before : self.num_entries] = np.nan
        self._epoch[before : self.num_entries] = -1
        return WatchedRows(places[:count], entries[:count])

    def visit(
        self,
        mine: WatchedRows,
        counts: NDArray[np.int32],
        locations: NDArray[np.int64],
        fates: NDArray[np.uint8],
    ) -> Snapshots:
        """Count a planned batch's lookups, mark the saturated rows in `fates` (U,), and say which snapshots are due.

        counts and locations are those of all distinct rows.
        """
        size, pace = len(mine.places), (self.config.min_accesses, self.config.min_visits)
        dtypes = np.int64, np.int32, np.bool_, np.int64, np.int64
        columns: list[NDArray[Any]] = [np.empty(size, dtype) for dtype in dtypes]
        due = Snapshots(*columns)
        since = self._epoch, self._accesses, self._num_snapshots
        verdicts = self.saturated, self._skipped, fates
        count = watched.visit_entries(
            mine.places, mine.entries, counts, locations, *pace, *since, *verdicts, *vars(due).values()
        )
        return Snapshots(*(column[:count] for column in vars(due).values()))

    def learn(self, feedback: Feedback) -> None:
        """Take in the drifts measured after a batch was trained."""
        snapshots, drifts = feedback.snapshots, feedback.drifts
        if snapshots is None or drifts is None:
            return
        self.drift[snapshots.entries] = drifts
        self.drift_accesses[snapshots.entries] = snapshots.accesses
        self.drift_visits[snapshots.entries] = snapshots.visits

    def entries_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) entry of each row, or -1."""
        entries = np.empty(len(rows), np.int64)
        watched.lookup_entries(rows, self._keys, self._values, entries)
        return entries

    def columns(self) -> dict[str, NDArray[Any]]:
        """Copies of the columns of all entries (n,), in order: what `restore` needs."""
        return {name: self._records[name][: self.num_entries].copy() for name in COLUMNS}

    def restore(self, columns: Mapping[str, NDArray[Any]], accesses: NDArray[np.uint32]) -> None:
        """Restore the entries with these `columns` in an empty set: distinct rows, at most `capacity` of them.

        accesses (all rows,): lookups so far.
        """
        rows = np.ascontiguousarray(columns["row"])
        self.rows[: len(rows)] = rows
        self.num_entries = len(rows)
        self._enter_all(accesses)
        for name in COLUMNS:
            self._records[name][: len(rows)] = columns[name]

    def keep(self, entries: NDArray[np.int64], accesses: NDArray[np.uint32]) -> None:
        """Go on with these entries (n,), ascending, which are numbered anew from 0; the others are forgotten.

        accesses (all rows,): lookups so far.
        """
        kept = self._records[entries]
        self._records[len(kept) : self.num_entries] = 0
        self._records[: len(kept)] = kept
        self.num_entries = len(kept)
        self._enter_all(accesses)

    # --- the hash table --------------------------------------------------------------------------------------

    def _make_room(self, num_entries: int, accesses: NDArray[np.uint32]) -> None:
        if _table_size(num_entries) > len(self._table):
            self._enter_all(accesses, num_entries)

    def _enter_all(self, accesses: NDArray[np.uint32], num_entries: int = 0) -> None:
        """Enter all rows into a new table with room for `num_entries`, or at least for those that there are."""
        rows = self.rows[: self.num_entries].copy()
        self._new_table(max(num_entries, len(rows)))
        places, entries = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
        watched.find_entries(rows, accesses, 0, self._keys, self._values, self.rows, 0, places, entries)
        assert np.array_equal(entries, np.arange(len(rows)))

    def _new_table(self, num_entries: int) -> None:
        self._table = np.zeros(_table_size(num_entries), PLACE)
        self._keys: NDArray[np.int64] = self._table["row"]
        self._values: NDArray[np.int32] = self._table["entry"]
        self._keys.fill(-1)


def hot_set_bytes(capacity: int) -> int:
    """Bytes of a set of so many entries once all are taken."""
    return capacity * ENTRY.itemsize + _table_size(capacity) * PLACE.itemsize


def _table_size(num_entries: int) -> int:
    """A power of two, at most half of which is used."""
    size = 16
    while size < 2 * num_entries:
        size *= 2
    return size
