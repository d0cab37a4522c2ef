"""`RowView`: the answers to what a policy may ask of the tiers (`adaptive.policy.TierView`)."""

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.tiers.pipeline import Lane, Pipeline

Int64s = NDArray[np.int64]


class RowView:
    """Rows of all tables numbered through, looked up in the groups they belong to."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._lanes = pipeline.lanes
        starts = [lane.group.first_row + lane.group.table_starts[:-1] for lane in self._lanes]
        self._table_starts = np.concatenate([*starts, [self.num_rows]])
        self._table_starts.flags.writeable = False
        self._feature_starts = np.zeros(sum(len(lane.group.features) for lane in self._lanes), np.int64)
        for lane in self._lanes:
            for feature in lane.group.features:
                start = lane.group.first_row + lane.group.table_starts[feature.table]
                self._feature_starts[feature.position] = start

    @property
    def num_rows(self) -> int:
        return sum(lane.group.num_rows for lane in self._lanes)

    @property
    def device_rows(self) -> int:
        return sum(lane.device.num_slots for lane in self._lanes)

    @property
    def table_starts(self) -> Int64s:
        return self._table_starts

    @property
    def row_bytes(self) -> Int64s:
        return np.repeat(
            [4 * lane.group.embedding_dim for lane in self._lanes], [len(lane.group.tables) for lane in self._lanes]
        ).astype(np.int64)

    def rows(self, batch: Batch) -> Int64s:
        lookups = np.diff(batch.offsets[:: max(batch.num_samples, 1)])
        return batch.ids + np.repeat(self._feature_starts, lookups)

    def resident(self, rows: Int64s) -> NDArray[np.bool_]:
        found = np.zeros(len(rows), np.bool_)
        for lane, mine in self._split(rows):
            found[mine] = lane.planner.tracker.codes[rows[mine] - lane.group.first_row] > 0
        return found

    def accesses(self, rows: Int64s) -> Int64s:
        found = np.zeros(len(rows), np.int64)
        for lane, mine in self._split(rows):
            found[mine] = lane.planner.tracker.accesses[rows[mine] - lane.group.first_row]
        return found

    def saturated(self, rows: Int64s) -> NDArray[np.bool_]:
        found = np.zeros(len(rows), np.bool_)
        for lane, mine in self._split(rows):
            hot = lane.planner.hot
            if hot is not None:
                entries = hot.entries_of(rows[mine] - lane.group.first_row)
                found[mine] = (entries >= 0) & hot.saturated[entries]
        return found

    def _split(self, rows: Int64s) -> list[tuple[Lane, Int64s]]:
        parts = []
        for lane in self._lanes:
            first, last = lane.group.first_row, lane.group.first_row + lane.group.num_rows
            parts.append((lane, np.flatnonzero((rows >= first) & (rows < last))))
        return parts
