"""`HotSet`: the watched rows, with their movement and the skip rule's answers.

Only rows looked up often enough are watched (Slipstream, arXiv 2404.04270: a hot-row filter, then snapshots). The set
is keyed by row and separate from the tiers, so answers do not depend on where rows are stored. Only the planning thread
uses it; snapshots of row values belong to the training thread (`DeviceTier.watch`).

A row's snapshot is renewed after `min_accesses` lookups in at least `min_visits` batches. The first four intervals are
16, 8, 4 and 2 times shorter, so that a newly watched row is judged soon.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.config import SkipConfig
from adaptive.embeddings.planning.books import zero_pages
from adaptive.embeddings.planning.plan import Feedback, Snapshots
from adaptive.kernels.planning import watched

ENTRY = np.dtype(
    [
        ("row", np.int64),
        ("accesses", np.uint32),  # lookups since the latest snapshot
        ("drift_accesses", np.uint32),  # lookups between the two snapshots behind `drift`
        ("epoch", np.int32),  # visits since the latest snapshot, -1: there is none
        ("drift", np.float32),
        ("saturated", np.bool_),
        ("skipped", np.bool_),  # an update was skipped since the latest snapshot
        ("waits", np.uint8),  # the rule's answer - 1: further visits over which gradients are accumulated
        ("num_snapshots", np.uint8),  # taken so far, up to the number that affects the next interval
        ("drift_visits", np.uint16),  # batches that looked up the row between the two snapshots behind `drift`
        ("counted", np.uint8),  # bits of `WatchedCounts` as of the rule's latest answer
    ],
    align=True,
)
assert ENTRY.itemsize == 32  # so that none crosses a cache line
COLUMNS = ENTRY.names or ()
WATCHED, JUDGED, SATURATED, WAITING, AT_REST = 1, 2, 4, 8, 16
"""Bits of `HotSet.counted`, in the order of `WatchedCounts`."""
SAMPLED_ROWS: Final = 1024
"""Rows of a group whose movement is measured for reports if the rule does not need it: those that were watched first,
and so are looked up most."""
SAMPLED_BATCHES: Final = 7
"""One batch of so many stands for all of them in that sample: counting in each takes 1% of a step of 5 ms. It is odd,
so that streams which alternate between sources are sampled from all of them."""
REST: Final = 0.05  # a row at rest has moved by less than this share of its length


@dataclass(frozen=True)
class Candidates:
    """Distinct rows (U,) of a batch, which are watched if they have an entry, or get one."""

    seen: NDArray[np.uint32]  # (U,) lookups of each so far, with this batch
    entries: NDArray[np.int32]  # (U,) entry + 1 of each in the hot set, 0 without one


@dataclass(frozen=True)
class WatchedRows:
    """The watched rows among the distinct rows of a batch."""

    places: NDArray[np.int32]  # (n,) positions among the distinct rows, ascending
    entries: NDArray[np.int32]  # (n,)


class HotSet:
    """Watched rows of one group. Entries are numbered in order of admission.

    Rows that are no longer looked up are dropped (`retain`). Memory is taken as rows are admitted: arrays are zeros,
    which the system allocates when they are touched.

    Attributes:
        row_entries: (rows of the group,) entry + 1 of each row, 0 without one.
    """

    def __init__(self, capacity: int, config: SkipConfig, num_rows: int) -> None:
        """Watch at most `capacity` of the `num_rows` rows of the group."""
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
        self.row_entries: NDArray[np.int32] = zero_pages(num_rows, np.int32)[0].reshape(-1)[:num_rows]

    @property
    def capacity(self) -> int:
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        """Bytes once all entries are taken."""
        return hot_set_bytes(self.capacity, len(self.row_entries))

    def admit(self, rows: NDArray[np.int64], candidates: Candidates, places: NDArray[np.int32]) -> WatchedRows:
        """Admit rows with enough lookups; return the watched ones of a batch's rows (U,).

        The result takes the memory of `places` (U,) and of the candidates' entries.
        """
        old, entries = self.num_entries, candidates.entries
        books = self.config.min_accesses, self.row_entries, self.rows, old
        self.num_entries, count = watched.find_entries(rows, candidates.seen, *books, places, entries)
        self.drift[old : self.num_entries] = np.nan
        self._epoch[old : self.num_entries] = -1
        return WatchedRows(places[:count], entries[:count])

    def visit(
        self,
        watched_rows: WatchedRows,
        most_entries: int,
        weight: int,
        counts: NDArray[np.int32],
        locations: NDArray[np.int64],
        fates: NDArray[np.uint8],
    ) -> Snapshots:
        """Count a planned batch's lookups, and return the snapshots that are due after it.

        Args:
            watched_rows: of the batch.
            most_entries: only rows with lower entries count.
            weight: number of batches for which this one stands.
            counts, locations: (U,) of all distinct rows.
            fates: (U,) in which saturated rows are marked.
        """
        places, entries = watched_rows.places, watched_rows.entries
        size, pace = min(len(places), most_entries), (self.config.min_accesses, self.config.min_visits)
        dtypes = np.int64, np.int32, np.bool_, np.int64, np.int64
        columns: list[NDArray[Any]] = [np.empty(size, dtype) for dtype in dtypes]
        since = self._epoch, self._accesses, self._num_snapshots
        verdicts = self.saturated, self._skipped, fates
        scratch = np.empty(len(places), np.int32)
        count = watched.visit_entries(
            places, entries, most_entries, weight, counts, locations, *pace, *since, *verdicts, tuple(columns), scratch
        )
        return Snapshots(*(column[:count] for column in columns))

    def learn(self, feedback: Feedback) -> None:
        """Store the drifts measured after a batch was trained."""
        snapshots, drifts = feedback.snapshots, feedback.drifts
        if snapshots is None or drifts is None:
            return
        self.drift[snapshots.entries] = drifts
        self.drift_accesses[snapshots.entries] = snapshots.accesses
        self.drift_visits[snapshots.entries] = snapshots.visits

    def at_rest(self, entries: NDArray[np.int64] | slice) -> NDArray[np.bool_]:
        """(n,) True for rows whose latest measured interval was a full one, in which they moved by less than `REST`.

        The first intervals are shorter, and show little movement of any row.
        """
        accesses, visits = self.drift_accesses[entries], self.drift_visits[entries]
        full = (accesses >= self.config.min_accesses) & (visits >= self.config.min_visits)
        rests: NDArray[np.bool_] = full & (self.drift[entries] < REST)  # NaN is not less
        return rests

    def entries_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) entry of each row, or -1."""
        return self.row_entries[rows].astype(np.int64) - 1

    def columns(self) -> dict[str, NDArray[Any]]:
        """(n,) each: copies of the columns of all entries, for `restore`."""
        return {name: self._records[name][: self.num_entries].copy() for name in COLUMNS}

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Restore the entries of an empty set from `columns` of at most `capacity` rows."""
        rows = np.ascontiguousarray(columns["row"])
        self.rows[: len(rows)] = rows
        self.num_entries = len(rows)
        self.row_entries[rows] = np.arange(1, len(rows) + 1)
        for name in COLUMNS:
            self._records[name][: len(rows)] = columns[name]

    def retain(self, entries: NDArray[np.int64]) -> None:
        """Drop all entries but these (n,), ascending, which are renumbered from 0."""
        records = self._records[entries]
        self.row_entries[self.rows[: self.num_entries]] = 0
        self.row_entries[records["row"]] = np.arange(1, len(records) + 1)
        self._records[len(records) : self.num_entries] = 0
        self._records[: len(records)] = records
        self.num_entries = len(records)


def hot_set_bytes(capacity: int, num_rows: int) -> int:
    """Bytes of a set once all `capacity` entries are taken."""
    return capacity * ENTRY.itemsize + num_rows * np.dtype(np.int32).itemsize
