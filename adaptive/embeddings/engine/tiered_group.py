"""`TieredGroup`: one group of tables with tiers and planner; `LateFetches`: late rows.

With `misses = "host"`, a row that every batch uses is never idle: some batch in flight always updates it on the host.
If only idle rows were fetched, it would never get a slot. So the plan of batch n may give such a row a slot, which
batch n and later batches use, while earlier batches still use the row on the host. The training thread copies its
values after batch n - 1 and before batch n is trained. The slot is held from batch n on, so the row cannot be evicted
before it has arrived.

Letters: n rows or slots, D width, S state width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Int64s, Rows
from adaptive.batch import Batch
from adaptive.counters import Counter, Stopwatch
from adaptive.embeddings.planning.key_tables import GroupKeys, KeyChanges
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import DistinctFinder, Lookups
from adaptive.embeddings.planning.plan import GroupPlan, Moves, no_rows
from adaptive.embeddings.planning.planner import Planner
from adaptive.embeddings.planning.skipping import Skipper
from adaptive.embeddings.tiers.device import DevicePlan, DeviceTier, HotSums
from adaptive.embeddings.tiers.host import HostTier
from adaptive.kernels.planning.lookups import Distinct

NORMS = "update_norm"  # name of the records that are saved only if they are kept


@dataclass(frozen=True)
class TieredGroup:
    """One group of tables with its host tier, its device tier and its planner.

    Rows are numbered as in the group, slots as on the device. The caller of a method holds the pipeline's lock. All
    moves of rows must be finished before rows are read or set.
    """

    group: Group
    host: HostTier
    device: DeviceTier
    planner: Planner
    reader: DistinctFinder  # of the training thread, for evaluation
    keys: GroupKeys | None  # of tables with keys

    @property
    def skipper(self) -> Skipper | None:
        """The state of hot rows; None if no update is skipped or deferred."""
        return self.planner.skipper

    # --- rows on both tiers ----------------------------------------------------------------------------------

    def values(self, rows: Int64s, *, with_deferred: bool = True) -> tuple[Rows, Rows]:
        """Return copies (n, D), (n, S) of rows; `with_deferred`: with deferred updates applied."""
        slots, has_values = self.planner.slots.slots_of(rows), self.planner.tracker.has_values(rows)
        weights = np.empty((len(rows), self.host.weights.shape[1]), self.host.dtype)
        state = np.empty((len(rows), self.host.state.shape[1]), np.float32)
        on_device, on_host = np.flatnonzero(slots >= 0), np.flatnonzero((slots < 0) & has_values)
        weights[on_device], state[on_device] = self.device.read(slots[on_device])
        self.host.copy_out(rows[on_host], weights, state, on_host)
        untouched = np.flatnonzero(~has_values)
        self.host.initial(weights, state, untouched, rows[untouched])
        if with_deferred and self.skipper is not None and self.skipper.defers:
            self.device.apply_deferred(self.skipper.hot.entries_of(rows), weights, state)
        return weights, state

    def put(self, rows: Int64s, weights: Rows, state: Rows) -> None:
        """Set weights (n, D) and state (n, S) of rows (n,), on both tiers."""
        self.host.write(rows, weights, state)
        self.planner.tracker.store_on_host(rows)
        slots = self.planner.slots.slots_of(rows)
        on_device, slots = rows[slots >= 0], slots[slots >= 0]
        initial = np.zeros(len(on_device), np.bool_)
        self.device.fetch(Moves(fetch_slots=slots, fetch_rows=on_device, fetch_initial=initial))
        self.planner.slots.mark_stored(slots)

    def put_on_host(self, rows: Int64s, weights: Rows, state: Rows) -> None:
        """Set weights (n, D) and state (n, S) of rows (n,), none of which is on the device."""
        self.host.write(rows, weights, state)
        self.planner.tracker.store_on_host(rows)

    def clear(self) -> None:
        """Reset all rows to their initial values, with empty slots, records and hot set."""
        self.planner.slots.empty()
        if self.skipper is not None:
            self.skipper.forget()
        self.device.forget_sums()
        self.planner.tracker.forget()

    def changed_rows(self) -> Int64s:
        """Return the rows (n,) that ever changed, ascending."""
        return self.planner.tracker.changed_rows()

    def records(self) -> tuple[Int64s, dict[str, NDArray[Any]]]:
        """Return the rows (n,) ever looked up, ascending, and copies of their records (n,)."""
        tracker = self.planner.tracker
        seen = tracker.seen_rows()
        records: dict[str, NDArray[Any]] = {
            "accesses": tracker.accesses[seen],
            "last_access": self.planner.slots.last_access(seen),
        }
        return seen, records if tracker.update_norm is None else {**records, NORMS: tracker.update_norm[seen]}

    def restore_records(self, seen: Int64s, records: Mapping[str, NDArray[Any]]) -> None:
        """Restore the result of `records`, after `clear`."""
        tracker = self.planner.tracker
        tracker.accesses[seen] = records["accesses"]
        tracker.set_last_access(seen, records["last_access"])
        if tracker.update_norm is not None and NORMS in records:
            tracker.update_norm[seen] = records[NORMS]

    # --- keys ------------------------------------------------------------------------------------------------

    def find(self, batch: Batch) -> Distinct:
        """Find the distinct rows of a batch that is only read. Raises as `DistinctFinder.find`."""
        distinct = self.reader.find(batch)
        return distinct if self.keys is None else self.keys.find(distinct)

    def glance(self, lookups: Lookups) -> Distinct:
        """Return the present rows of a batch that is to be planned later."""
        return lookups.distinct if self.keys is None else self.keys.glance(lookups.distinct)

    def live_keys(self) -> Int64s:
        """Return the number of keys with a row (tables of the group,)."""
        if self.keys is None:
            return np.zeros(len(self.group.tables), np.int64)
        return self.keys.count_live()

    def commit(self, changes: KeyChanges, number: int) -> None:
        """Reset rows that lost their keys to initial values and empty records; note that batch `number` admits others.

        No batch in flight may use the rows, and none may be hot.
        """
        tracker, freed = self.planner.tracker, changes.freed
        slots = self.planner.slots.slots_of(freed)
        changes.tally[:, Counter.EVICTED] += self.group.count_by_table(freed[slots >= 0])
        self.planner.slots.discard(slots[slots >= 0])
        tracker.forget_rows(freed)
        latest = np.full(len(changes.admitted), number + 1, np.int32)
        tracker.set_last_access(changes.admitted, latest)  # so that it can expire even if planning fails now

    # --- slots -----------------------------------------------------------------------------------------------

    def move(self, plan: GroupPlan, device_plan: DevicePlan | None, stopwatch: Stopwatch) -> None:
        """Execute the moves of a plan: write back, then fetch."""
        lists = None if device_plan is None else device_plan.moves
        with stopwatch.stage("write_back"):
            self.device.write_back(plan.moves, lists)
            if self.device.poison:
                self.device.poison_slots(plan.moves.back_slots)
        with stopwatch.stage("fetch"):
            self.device.fetch(plan.moves, lists)
            self.host.expect(plan)

    def write_back_changed(self, trained: int) -> None:
        """Write changed rows back; they keep their slots. `trained`: the latest trained batch."""
        slots = self.planner.slots
        dirty = slots.dirty()
        self.device.write_back(Moves(dirty, slots.rows[dirty]))
        # Rows of a batch that is planned but not trained stay dirty, because it will change them.
        slots.clean(dirty[slots.used[dirty] <= trained])

    # --- the hot set -----------------------------------------------------------------------------------------

    def drop_hot_rows(self, leaving: Int64s) -> None:
        """Drop the entries `leaving` of the hot set and apply their sums. No batch may be in flight."""
        skipper = self.skipper
        assert skipper is not None
        hot = skipper.hot
        sums = self.device.export_sums(hot.num_entries)
        # Their rows get the sums while entries have their old numbers; the sums of the others then move along.
        rows_with_sums = hot.rows[np.intersect1d(sums.entries, leaving)]
        if len(rows_with_sums):
            self.put(rows_with_sums, *self.values(rows_with_sums))
        stay = np.setdiff1d(np.arange(hot.num_entries), leaving)
        stays = np.isin(sums.entries, stay)
        entries = np.searchsorted(stay, sums.entries[stays])  # renumbered
        self.device.import_sums(HotSums(entries, sums.sums[stays], sums.squares[stays]))
        skipper.retain(stay)


def table_names(tiered_groups: Sequence[TieredGroup]) -> str:
    """Return the names of the first tables, as text for messages."""
    names = [table.name for tiered in tiered_groups for table in tiered.group.tables]
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


class LateFetches:
    """Late rows of the batches in flight. The caller holds the pipeline's lock."""

    def __init__(self, devices: Sequence[DeviceTier], stopwatch: Stopwatch) -> None:
        self._devices = tuple(devices)
        self._stopwatch = stopwatch
        self._plans: dict[int, list[GroupPlan]] = {}  # number of a batch -> its plans, for each group

    def expect(self, plans: Sequence[GroupPlan]) -> None:
        """Register the plans of a batch."""
        if any(plan.is_late for plan in plans):
            self._plans[plans[0].number] = list(plans)

    def fetch(self, number: int) -> None:
        """Fetch the late rows of batch `number`, when all earlier batches are trained."""
        self._copy(self._plans[number])
        for device, plan in zip(self._devices, self._plans.pop(number), strict=True):
            if device.poison:
                device.poison_host(np.intersect1d(plan.moves.late_rows, _rows_updated_on_device(plan)))

    def copy_current(self) -> None:
        """Copy the current values of late rows to their slots, where readers look for them.

        Called by the training thread between two batches. `fetch` copies a row again once earlier batches changed it.
        """
        for plans in self._plans.values():
            self._copy(plans)

    def clear(self) -> None:
        """Drop all plans, when no batch is in flight."""
        self._plans.clear()

    def poison_host(self, group: int, plan: GroupPlan) -> None:
        """Write NaN to host copies of rows that a batch will change on the device, as a check."""
        device = self._devices[group]
        if device.poison:  # but not to rows that earlier batches still use on the host
            on_host = [no_rows(), *(plans[group].moves.late_rows for plans in self._plans.values())]
            device.poison_host(np.setdiff1d(_rows_updated_on_device(plan), np.concatenate(on_host)))

    def _copy(self, plans: Sequence[GroupPlan]) -> None:
        with self._stopwatch.stage("fetch"):
            for device, plan in zip(self._devices, plans, strict=True):
                slots, rows = plan.moves.late_slots, plan.moves.late_rows
                initial = np.zeros(len(rows), np.bool_)  # an earlier batch used them, so they are stored
                device.fetch(Moves(fetch_slots=slots, fetch_rows=rows, fetch_initial=initial))


def _rows_updated_on_device(plan: GroupPlan) -> Int64s:
    """Return the rows that a batch updates in slots."""
    return plan.written_rows[plan.written_locations >= 0]
