"""`AccessNotifier`: tells policies that follow accesses what is looked up, leaves, comes; `RowView`: what they may ask.

The notifier prepares a batch in all groups. All that it tells is told before any book is entered for good: if the
policy fails, nothing has moved. For a policy without these methods nothing is put together.
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
        return self._gather(rows, np.bool_, lambda planner, local: planner.tracker.codes[local] > 0)

    def accesses(self, rows: Int64s) -> Int64s:
        return self._gather(rows, np.int64, lambda planner, local: planner.tracker.accesses[local])

    def saturated(self, rows: Int64s) -> NDArray[np.bool_]:
        return self._gather(rows, np.bool_, _saturated)

    def _gather(self, rows: Int64s, dtype: Any, of: Callable[[Planner, Int64s], NDArray[Any]]) -> NDArray[Any]:
        """(n,) what each planner says `of` its rows, by their local numbers; 0 for rows of other ranks."""
        values = np.zeros(len(rows), dtype)
        for planner in self._planners:
            local = planner.group.from_global(rows)
            inside = np.flatnonzero((local >= 0) & (local < planner.group.num_rows))
            values[inside] = of(planner, local[inside])
        return values


def _saturated(planner: Planner, rows: Int64s) -> NDArray[np.bool_]:
    if planner.skipper is None:
        return np.zeros(len(rows), np.bool_)
    entries = planner.skipper.hot.entries_of(rows)
    return (entries >= 0) & planner.skipper.hot.saturated[entries]


class AccessNotifier:
    """Decides about one batch after another for all groups together.

    Args:
        planners: one for each group, in the groups' order.
        policy_caller: of the policy that is told.
    """

    def __init__(self, planners: Sequence[Planner], policy_caller: PolicyCaller) -> None:
        self._planners = tuple(planners)
        self._policy_caller = policy_caller
        self._view = RowView(planners)
        self._told = -1  # the latest batch whose lookups were told
        self._gone: list[Int64s] = []  # rows that left between two batches, not told yet

    @property
    def follows(self) -> bool:
        return follows(self._policy_caller.policy)

    def prepare(
        self, distinct: Sequence[Distinct], number: int, depth: int, windows: Sequence[Sequence[Distinct]]
    ) -> list[Arrival]:
        """`Planner.prepare` of every group. If that fails, or the policy does, nothing has changed.

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
                self._tell_first(distinct, number)
            arrivals = [
                planner.prepare(mine, number, depth, window)
                for planner, mine, window in zip(self._planners, distinct, windows, strict=True)
            ]
            if self.follows:
                self._tell("left", number, lambda n: self._planners[n].slots.rows[arrivals[n].victims])
                self._tell("came", number, lambda n: distinct[n].rows[arrivals[n].takers])
        except BaseException:
            for planner in self._planners:
                planner.let_go()
            raise
        return arrivals

    def leave(self, group: int, rows: Int64s) -> None:
        """Local rows (n,) of a group have left between two batches; told before the next batch is decided about."""
        if self.follows and len(rows):
            self._gone.append(self._planners[group].group.to_global(rows.copy()))

    def restart(self) -> None:
        """Other rows are about to be loaded, and batches counted anew: none is on the device any more."""
        for group, planner in enumerate(self._planners):
            self.leave(group, planner.slots.rows[planner.slots.rows >= 0])
        self._told = -1

    def _tell_first(self, distinct: Sequence[Distinct], number: int) -> None:
        """Before the batch is decided about, or decided about again after slots were shared anew."""
        if self._gone:
            gone, self._gone = np.sort(np.concatenate(self._gone)), []
            self._policy_caller.tell("left", number, gone)
        if self._told != number:
            self._policy_caller.tell("looked_up", number, self._all(lambda n: distinct[n].rows), self._view)
            self._told = number

    def _tell(self, method: str, number: int, local: Callable[[int], Int64s]) -> None:
        if len(rows := self._all(local)):
            self._policy_caller.tell(method, number, rows)

    def _all(self, local: Callable[[int], Int64s]) -> Int64s:
        """Rows of all groups by their global numbers, ascending; `local`: group -> its own."""
        return np.sort(np.concatenate([p.group.to_global(local(n)) for n, p in enumerate(self._planners)]))
