"""`HotSet`: the rows watched for saturation, their verdicts and what is known of their movement.

Only rows looked up often enough are watched (Slipstream, arXiv 2404.04270: a hot-row filter, then snapshots). The
set is keyed by row and kept apart from the tiers, so verdicts do not depend on where rows lie. The look-ahead
thread owns everything here; snapshots of row values belong to the training thread (`SnapshotStore` in
`adaptive.tiers.device`). A snapshot is renewed at a row's first look-up in each interval.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.config import SkipConfig
from adaptive.kernels import watched
from adaptive.tiers.plan import Feedback, Snapshots

PLACE = np.dtype([("row", np.int64), ("entry", np.int32), ("unused", np.int32)])  # of the hash table
ENTRY = np.dtype(
    [
        ("row", np.int64),
        ("accesses", np.uint32),  # look-ups since the latest snapshot
        ("drift_accesses", np.uint32),  # and between the two snapshots behind `drift`
        ("epoch", np.int32),  # interval of the latest snapshot
        ("drift", np.float32),
        ("saturated", np.bool_),
        ("skipped", np.bool_),  # an update was left out since the latest snapshot
    ],
    align=True,
)
assert PLACE.itemsize == 16 and ENTRY.itemsize == 32  # so that none lies in two cache lines


@dataclass(frozen=True)
class Watched:
    """The watched rows among the distinct rows of a batch."""

    places: NDArray[np.int32]  # (n,) which of the distinct rows, ascending
    entries: NDArray[np.int32]  # (n,)


class HotSet:
    """Watched rows of one group. Entries are given in order of admission and kept for the run."""

    def __init__(self, capacity: int, config: SkipConfig) -> None:
        self.config = config
        self.num_entries = 0
        self._records = np.zeros(capacity, ENTRY)
        self.rows: NDArray[np.int64] = self._records["row"]
        self.saturated: NDArray[np.bool_] = self._records["saturated"]
        self.drift: NDArray[np.float32] = self._records["drift"]
        self.drift_accesses: NDArray[np.uint32] = self._records["drift_accesses"]
        self._accesses: NDArray[np.uint32] = self._records["accesses"]
        self._epoch: NDArray[np.int32] = self._records["epoch"]
        self._skipped: NDArray[np.bool_] = self._records["skipped"]
        self.drift.fill(np.nan)
        self._epoch.fill(-1)
        table_size = 16
        while table_size < 2 * capacity:
            table_size *= 2
        self._table = np.zeros(table_size, PLACE)
        self._keys: NDArray[np.int64] = self._table["row"]
        self._values: NDArray[np.int32] = self._table["entry"]
        self._keys.fill(-1)

    @property
    def capacity(self) -> int:
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        return self._records.nbytes + self._table.nbytes

    def admit(self, rows: NDArray[np.int64], accesses: NDArray[np.uint32]) -> Watched:
        """The watched among the distinct rows of a batch (U,); rows that have become popular enough are let in."""
        places, entries = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
        self.num_entries, count = watched.find_entries(
            rows,
            accesses,
            self.config.min_accesses,
            self._keys,
            self._values,
            self.rows,
            self.num_entries,
            places,
            entries,
        )
        return Watched(places[:count], entries[:count])

    def visit(
        self,
        number: int,
        mine: Watched,
        counts: NDArray[np.int32],
        locations: NDArray[np.int64],
        fates: NDArray[np.uint8],
    ) -> Snapshots:
        """Count a planned batch's look-ups, mark the saturated rows in `fates` (U,), and say which snapshots are due.

        counts and locations are those of all distinct rows.
        """
        size = len(mine.places)
        due = Snapshots(
            np.empty(size, np.int64), np.empty(size, np.int32), np.empty(size, np.bool_), np.empty(size, np.int64)
        )
        count = watched.visit_entries(
            mine.places,
            mine.entries,
            counts,
            locations,
            number // self.config.interval,
            self._epoch,
            self._accesses,
            self.saturated,
            self._skipped,
            fates,
            due.locations,
            due.entries,
            due.known,
            due.accesses,
        )
        return Snapshots(due.locations[:count], due.entries[:count], due.known[:count], due.accesses[:count])

    def learn(self, feedback: Feedback) -> None:
        """Take in the drifts measured after a batch was trained."""
        snapshots, drifts = feedback.snapshots, feedback.drifts
        if snapshots is None or drifts is None:
            return
        self.drift[snapshots.entries] = drifts
        self.drift_accesses[snapshots.entries] = snapshots.accesses

    def entries_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) entry of each row, or -1."""
        found = np.empty(len(rows), np.int64)
        watched.lookup_entries(rows, self._keys, self._values, found)
        return found
