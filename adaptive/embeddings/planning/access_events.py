"""Access events for policies (`AccessNotifier`) and their view of rows (`RowView`).

The notifier prepares a batch in all groups. It calls the policy before any book is changed for good: if the policy
fails, nothing has moved. For a policy that does not follow rows it gathers nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Bools, Int64s
from adaptive.batch import Batch
from adaptive.embeddings.planning.key_tables import GroupKeys
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.planner import Planner, SlotChanges
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.kernels.planning.keys import hash_keys
from adaptive.kernels.planning.lookups import Distinct
from adaptive.policy import Follows

MOST_HASHED_ROWS: Final = 1 << 22  # for the keys of a table: a rule's values of so many are scattered over 32 MiB


class RowView:
    """The `TierView` of a policy, by global rows, from the books of all groups.

    Args:
        groups: of tables.
        planners: one per group, in the groups' order; none for a `HashedView`.
        keys: of each group, None without keys; may be empty if no group has any.
    """

    def __init__(
        self, groups: Sequence[Group], planners: Sequence[Planner] = (), keys: Sequence[GroupKeys | None] = ()
    ) -> None:
        self._groups, self._planners, self._keys = tuple(groups), tuple(planners), tuple(keys)
        self._keyed = [(number, group) for number, group in enumerate(groups) if group.has_keys]
        starts = [group.to_global(group.table_starts[:-1]) for group in groups]
        self._table_starts = np.concatenate([*starts, [self.num_rows]])
        self._table_starts.flags.writeable = False
        self._feature_starts = np.zeros(sum(len(group.features) for group in groups), np.int64)
        for group in groups:
            positions, _, tables, _ = group.feature_columns
            self._feature_starts[positions] = group.to_global(group.table_starts[tables])

    @property
    def num_rows(self) -> int:
        return sum(group.num_rows for group in self._groups)

    @property
    def device_rows(self) -> int:
        return sum(len(planner.slots) for planner in self._planners)

    @property
    def table_starts(self) -> Int64s:
        return self._table_starts

    @property
    def row_bytes(self) -> Int64s:
        sizes = [group.vector_bytes for group in self._groups]
        return np.repeat(sizes, [len(group.tables) for group in self._groups]).astype(np.int64)

    def rows(self, batch: Batch) -> Int64s:
        if not batch.num_samples:  # its offsets do not show features
            return np.zeros(0, np.int64)
        lookups = np.diff(batch.offsets[:: batch.num_samples])
        rows = batch.ids + np.repeat(self._feature_starts, lookups)
        for number, group in self._keyed:
            spans = [batch.feature_span(feature.position) for feature in group.features]
            ends = np.cumsum([0, *(span.stop - span.start for span in spans)])
            last = np.searchsorted([feature.table for feature in group.features], range(len(group.tables)), "right")
            keys = np.concatenate([batch.ids[span] for span in spans])
            of_group = group.to_global(self._rows_of_keys(number, group, keys, ends[last]))
            for place, span in enumerate(spans):
                rows[span] = of_group[ends[place] : ends[place + 1]]
        return rows

    def _rows_of_keys(self, number: int, group: Group, keys: Int64s, table_ends: Int64s) -> Int64s:
        """(n,) group rows of the keys (n,) of group `number`, table by table up to `table_ends` (T,)."""
        of_group = self._keys[number]
        assert of_group is not None
        return of_group.rows_of(keys, table_ends)

    def resident(self, rows: Int64s) -> Bools:
        return self._gather(rows, np.bool_, lambda planner, rows: planner.tracker.codes[rows] > 0)

    def accesses(self, rows: Int64s) -> Int64s:
        return self._gather(rows, np.int64, lambda planner, rows: planner.tracker.accesses[rows])

    def saturated(self, rows: Int64s) -> Bools:
        return self._gather(rows, np.bool_, _saturated)

    def _gather(self, rows: Int64s, dtype: Any, of: Callable[[Planner, Int64s], NDArray[Any]]) -> NDArray[Any]:
        """(n,) values `of` each planner's rows."""
        values = np.zeros(len(rows), dtype)
        for planner in self._planners:
            of_group = planner.group.from_global(rows)
            inside = np.flatnonzero((of_group >= 0) & (of_group < planner.group.num_rows))
            values[inside] = of(planner, of_group[inside])
        return values


class HashedView(RowView):
    """The rows that an input rule sees: the row of a key follows from its hash alone.

    So it depends neither on which keys have rows nor on when it is asked for. A table has as many
    hashed rows as rows, at most `MOST_HASHED_ROWS`.
    """

    def _rows_of_keys(self, number: int, group: Group, keys: Int64s, table_ends: Int64s) -> Int64s:
        hashes, first, high = np.empty(len(keys), np.uint64), 0, np.uint64(32)
        for table, end in enumerate(table_ends.tolist()):
            of_table = hashes[first:end]
            hash_keys(keys[first:end], group.table_keys[table], of_table)
            of_table >>= high  # the highest bits, scaled to the number of rows
            of_table *= np.uint64(min(group.tables[table].num_embeddings, MOST_HASHED_ROWS))
            of_table >>= high
            of_table += np.uint64(group.table_starts[table] + 1)
            first = end
        return hashes.view(np.int64)


def _saturated(planner: Planner, rows: Int64s) -> Bools:
    if planner.skipper is None:
        return np.zeros(len(rows), np.bool_)
    entries = planner.skipper.hot.entries_of(rows)
    return (entries >= 0) & planner.skipper.hot.is_saturated(entries)


class AccessNotifier:
    """Decides about one batch after another for all groups together, and notifies the policy.

    Args:
        planners: one per group, in the groups' order.
        policy_caller: of the policy.
        keys: as `RowView`.
    """

    def __init__(
        self, planners: Sequence[Planner], policy_caller: PolicyCaller, keys: Sequence[GroupKeys | None] = ()
    ) -> None:
        self._planners = tuple(planners)
        self._policy_caller = policy_caller
        self._follows = isinstance(policy_caller.policy, Follows)
        self._view = RowView([planner.group for planner in planners], planners, keys)
        self._latest = -1  # latest batch whose lookups the policy has seen
        self._evicted: list[Int64s] = []  # rows evicted between two batches, not passed on yet
        self._expired: list[Int64s] = []  # rows that lost their keys, not passed on yet

    def prepare(
        self, distinct: Sequence[Distinct], number: int, depth: int, windows: Sequence[Sequence[Distinct]]
    ) -> list[SlotChanges]:
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
            self._notify_between_batches(number)
            if self._follows and self._latest != number:  # once per batch, also if it is retried
                self._policy_caller.notify("looked_up", number, self._all(lambda n: distinct[n].rows), self._view)
                self._latest = number
            slot_changes = [
                planner.prepare(rows, number, depth, window)
                for planner, rows, window in zip(self._planners, distinct, windows, strict=True)
            ]
            if self._follows:
                self._notify("evicted", number, lambda n: self._planners[n].slots.rows[slot_changes[n].evicted])
                self._notify("admitted", number, lambda n: distinct[n].rows[slot_changes[n].admitted])
        except BaseException:
            for planner in self._planners:
                planner.roll_back()
            raise
        return slot_changes

    def leave(self, group: int, rows: Int64s) -> None:
        """Note rows (n,) of a group that were evicted between two batches."""
        if self._follows and len(rows):
            self._evicted.append(self._planners[group].group.to_global(rows.copy()))

    def expire(self, group: int, rows: Int64s) -> None:
        """Note rows (n,) of a group that lost their keys."""
        planner = self._planners[group]
        self.leave(group, rows[planner.tracker.codes[rows] > 0])
        if self._follows and len(rows):
            self._expired.append(planner.group.to_global(rows.copy()))

    def restart(self) -> None:
        """Note that other rows are loaded: all are evicted, and batches are numbered from 0."""
        for group, planner in enumerate(self._planners):
            self.leave(group, planner.slots.rows[planner.slots.rows >= 0])
        self._latest = -1

    def _notify_between_batches(self, number: int) -> None:
        """Pass on what happened between the previous batch and this one."""
        for rows, method in ((self._evicted, "evicted"), (self._expired, "expired")):
            if rows:
                noted = np.sort(np.concatenate(rows))
                rows.clear()
                self._policy_caller.notify(method, number, noted)

    def _notify(self, method: str, number: int, group_rows: Callable[[int], Int64s]) -> None:
        if len(rows := self._all(group_rows)):
            self._policy_caller.notify(method, number, rows)

    def _all(self, group_rows: Callable[[int], Int64s]) -> Int64s:
        """(n,) global rows of all groups, ascending; `group_rows`: group -> its rows."""
        return np.sort(np.concatenate([p.group.to_global(group_rows(n)) for n, p in enumerate(self._planners)]))
