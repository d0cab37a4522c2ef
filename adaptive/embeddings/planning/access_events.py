"""Access events for policies (`AccessNotifier`) and their view of rows (`RowView`).

The notifier prepares a batch in all groups. It calls the policy before any book is changed for good: if the policy
fails, nothing has moved. For a policy without these methods it gathers nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.embeddings.planning.lookups import Distinct
from adaptive.embeddings.planning.planner import Arrival, Planner
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.policy import follows

Int64s = NDArray[np.int64]


class RowView:
    """The `TierView` of a policy, by global rows, from the books of all groups.

    Args:
        planners: one per group, in the groups' order.
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
        sizes = [planner.group.vector_bytes for planner in self._planners]
        return np.repeat(sizes, [len(planner.group.tables) for planner in self._planners]).astype(np.int64)

    def rows(self, batch: Batch) -> Int64s:
        if not batch.num_samples:  # its offsets do not show features
            return np.zeros(0, np.int64)
        lookups = np.diff(batch.offsets[:: batch.num_samples])
        return batch.ids + np.repeat(self._feature_starts, lookups)

    def resident(self, rows: Int64s) -> NDArray[np.bool_]:
        return self._gather(rows, np.bool_, lambda planner, owned: planner.tracker.codes[owned] > 0)

    def accesses(self, rows: Int64s) -> Int64s:
        return self._gather(rows, np.int64, lambda planner, owned: planner.tracker.accesses[owned])

    def saturated(self, rows: Int64s) -> NDArray[np.bool_]:
        return self._gather(rows, np.bool_, _saturated)

    def _gather(self, rows: Int64s, dtype: Any, of: Callable[[Planner, Int64s], NDArray[Any]]) -> NDArray[Any]:
        """(n,) values `of` each planner's owned rows; 0 for rows of other ranks."""
        values = np.zeros(len(rows), dtype)
        for planner in self._planners:
            owned = planner.group.from_global(rows)
            inside = np.flatnonzero((owned >= 0) & (owned < planner.group.num_rows))
            values[inside] = of(planner, owned[inside])
        return values


def _saturated(planner: Planner, rows: Int64s) -> NDArray[np.bool_]:
    if planner.skipper is None:
        return np.zeros(len(rows), np.bool_)
    entries = planner.skipper.hot.entries_of(rows)
    return (entries >= 0) & planner.skipper.hot.saturated[entries]


class AccessNotifier:
    """Decides about one batch after another for all groups together, and notifies the policy.

    Args:
        planners: one per group, in the groups' order.
        policy_caller: of the policy.
    """

    def __init__(self, planners: Sequence[Planner], policy_caller: PolicyCaller) -> None:
        self._planners = tuple(planners)
        self._policy_caller = policy_caller
        self._view = RowView(planners)
        self._latest = -1  # latest batch whose lookups the policy has seen
        self._evicted: list[Int64s] = []  # rows evicted between two batches, not passed on yet
        self._expired: list[Int64s] = []  # rows that lost their keys, not passed on yet

    @property
    def follows(self) -> bool:
        return follows(self._policy_caller.policy)

    def prepare(
        self, distinct: Sequence[Distinct], number: int, depth: int, windows: Sequence[Sequence[Distinct]]
    ) -> list[Arrival]:
        """Call `Planner.prepare` for every group. If it or the policy fails, nothing has changed.

        Args:
            distinct: of the batch, for each group.
            number: of the batch.
            depth: batches before it whose rows keep their slots.
            windows: for each group, the batches that follow.

        Raises:
            DeviceMemoryError, PolicyError: see `Planner.prepare`.
        """
        try:
            if self.follows:
                self._notify_lookups(distinct, number)
            arrivals = [
                planner.prepare(rows, number, depth, window)
                for planner, rows, window in zip(self._planners, distinct, windows, strict=True)
            ]
            if self.follows:
                self._notify("left", number, lambda n: self._planners[n].slots.rows[arrivals[n].victims])
                self._notify("came", number, lambda n: distinct[n].rows[arrivals[n].takers])
        except BaseException:
            for planner in self._planners:
                planner.roll_back()
            raise
        return arrivals

    def leave(self, group: int, rows: Int64s) -> None:
        """Note owned rows (n,) of a group that were evicted between two batches."""
        if self.follows and len(rows):
            self._evicted.append(self._planners[group].group.to_global(rows.copy()))

    def expire(self, group: int, rows: Int64s) -> None:
        """Note owned rows (n,) of a group that lost their keys."""
        if self.follows and len(rows):
            planner = self._planners[group]
            self.leave(group, rows[planner.tracker.codes[rows] > 0])
            self._expired.append(planner.group.to_global(rows.copy()))

    def restart(self) -> None:
        """Note that other rows are loaded: all are evicted, and batches are numbered from 0."""
        for group, planner in enumerate(self._planners):
            self.leave(group, planner.slots.rows[planner.slots.rows >= 0])
        self._latest = -1

    def _notify_lookups(self, distinct: Sequence[Distinct], number: int) -> None:
        """Called once per batch, and again if slots are rebalanced for it."""
        for method, rows in (("left", self._evicted), ("expired", self._expired)):
            if rows:
                noted = np.sort(np.concatenate(rows))
                rows.clear()
                self._policy_caller.notify(method, number, noted)
        if self._latest != number:
            self._policy_caller.notify("looked_up", number, self._all(lambda n: distinct[n].rows), self._view)
            self._latest = number

    def _notify(self, method: str, number: int, owned_rows: Callable[[int], Int64s]) -> None:
        if len(rows := self._all(owned_rows)):
            self._policy_caller.notify(method, number, rows)

    def _all(self, owned_rows: Callable[[int], Int64s]) -> Int64s:
        """(n,) global rows of all groups, ascending; `owned_rows`: group -> its rows."""
        return np.sort(np.concatenate([p.group.to_global(owned_rows(n)) for n, p in enumerate(self._planners)]))
