"""`RowView`: the answers to what a policy may ask of the tiers (`adaptive.policy.TierView`), read from the books."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.embeddings.planning.planner import Planner

Int64s = NDArray[np.int64]


class RowView:
    """Rows of all tables by their global numbers, looked up in the books of the groups they belong to.

    Args:
        planners: one for each group, in the groups' order.
    """

    def __init__(self, planners: Sequence[Planner]) -> None:
        self._planners = tuple(planners)
        groups = [planner.group.undivided for planner in self._planners]
        starts = [group.to_global(group.table_starts[:-1]) for group in groups]
        self._table_starts = np.concatenate([*starts, [self.num_rows]])
        self._table_starts.flags.writeable = False
        self._feature_starts = np.zeros(sum(len(group.features) for group in groups), np.int64)
        for group in groups:
            positions, _, tables, _ = group.feature_columns
            self._feature_starts[positions] = group.to_global(group.table_starts[tables])

    @property
    def num_rows(self) -> int:
        return sum(planner.group.undivided.num_rows for planner in self._planners)

    @property
    def device_rows(self) -> int:
        return sum(len(planner.slots) for planner in self._planners)

    @property
    def table_starts(self) -> Int64s:
        return self._table_starts

    @property
    def row_bytes(self) -> Int64s:
        sizes = [4 * planner.group.embedding_dim for planner in self._planners]
        return np.repeat(sizes, [len(planner.group.tables) for planner in self._planners]).astype(np.int64)

    def rows(self, batch: Batch) -> Int64s:
        if not batch.num_samples:  # and so no features, as far as it tells
            return np.zeros(0, np.int64)
        lookups = np.diff(batch.offsets[:: batch.num_samples])
        return batch.ids + np.repeat(self._feature_starts, lookups)

    def resident(self, rows: Int64s) -> NDArray[np.bool_]:
        found = np.zeros(len(rows), np.bool_)
        for planner, mine, local in self._split(rows):
            found[mine] = planner.tracker.codes[local] > 0
        return found

    def accesses(self, rows: Int64s) -> Int64s:
        found = np.zeros(len(rows), np.int64)
        for planner, mine, local in self._split(rows):
            found[mine] = planner.tracker.accesses[local]
        return found

    def saturated(self, rows: Int64s) -> NDArray[np.bool_]:
        found = np.zeros(len(rows), np.bool_)
        for planner, mine, local in self._split(rows):
            if planner.skipper is not None:
                entries = planner.skipper.hot.entries_of(local)
                found[mine] = (entries >= 0) & planner.skipper.hot.saturated[entries]
        return found

    def _split(self, rows: Int64s) -> Iterator[tuple[Planner, Int64s, Int64s]]:
        """Each planner with the positions in `rows` of its rows, and their local numbers."""
        for planner in self._planners:
            local = planner.group.from_global(rows)
            mine = np.flatnonzero((local >= 0) & (local < planner.group.num_rows))
            yield planner, mine, local[mine]
