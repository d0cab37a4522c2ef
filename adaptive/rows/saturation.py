"""`HotSet`: the rows watched for saturation, their verdicts and what is known of their movement.

Only rows looked up often enough are watched (Slipstream, arXiv 2404.04270: a hot-row filter, then snapshots). The
set is keyed by row and kept apart from the tiers, so verdicts do not depend on where rows lie. The look-ahead
thread owns everything here; snapshots of row values belong to the training thread (`SnapshotStore` in
`adaptive.tiers.device`). A snapshot is renewed at a row's first look-up in each interval.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive.config import SkipConfig
from adaptive.kernels import planning
from adaptive.tiers.plan import Feedback, Snapshots


class HotSet:
    """Watched rows of one group. Entries are given in order of admission and kept for the run."""

    def __init__(self, capacity: int, config: SkipConfig) -> None:
        self.config = config
        self.num_entries = 0
        self.rows = np.zeros(capacity, np.int64)
        self.saturated = np.zeros(capacity, np.bool_)
        self.drift = np.full(capacity, np.nan, np.float32)
        self.drift_accesses = np.zeros(capacity, np.int64)
        self._accesses = np.zeros(capacity, np.int64)  # since the latest snapshot
        self._epoch = np.full(capacity, -1, np.int32)
        self._skipped = np.zeros(capacity, np.bool_)  # an update was left out since the latest snapshot
        table_size = 16
        while table_size < 2 * capacity:
            table_size *= 2
        self._keys = np.full(table_size, -1, np.int64)
        self._places = np.zeros(table_size, np.int32)

    @property
    def capacity(self) -> int:
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        arrays = (
            self.rows,
            self.saturated,
            self.drift,
            self.drift_accesses,
            self._accesses,
            self._epoch,
            self._skipped,
        )
        return sum(array.nbytes for array in (*arrays, self._keys, self._places))

    def admit(self, rows: NDArray[np.int64], accesses: NDArray[np.uint32]) -> NDArray[np.int32]:
        """(U,) entry of each distinct row of a batch, or -1; rows that have become popular enough are let in."""
        entries = np.empty(len(rows), np.int32)
        self.num_entries = planning.find_entries(
            rows,
            accesses,
            self.config.min_accesses,
            self._keys,
            self._places,
            self.rows,
            self.num_entries,
            entries,
        )
        return entries

    def visit(
        self,
        number: int,
        entries: NDArray[np.int32],
        counts: NDArray[np.int32],
        locations: NDArray[np.int64],
    ) -> tuple[NDArray[np.bool_], Snapshots]:
        """Count a planned batch's distinct rows; which of them are saturated, and which snapshots are due."""
        skipped, due = np.empty(len(entries), np.bool_), np.empty(len(entries), np.int64)
        epoch = number // self.config.interval
        known = np.empty(len(entries), np.bool_)
        num_due = planning.visit_entries(
            entries, counts, epoch, self._epoch, self._accesses, self.saturated, self._skipped, skipped, due, known
        )
        due = due[:num_due]
        entries_due = entries[due]
        snapshots = Snapshots(locations[due], entries_due, known[:num_due], self._accesses[entries_due])
        self._accesses[entries_due] = 0
        return skipped, snapshots

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
        planning.lookup_entries(rows, self._keys, self._places, found)
        return found
