"""`Lane`: one group of tables with its tiers and its planner; and rows that are fetched late.

With `misses = "host"` a row that every batch uses would never come in if it had to be idle for that: some batch in
flight always updates it where it lies. So the plan of batch n may give such a row a slot, which batch n and those after
it use, while those before it use the row on the host. Its values cross in between: when batch n - 1 has been trained
and before batch n is, asked for by the training thread (`LateFetches`). The slot is held from batch n on, so the row
does not leave before it came.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.counters import Counter, Stopwatch
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import DistinctFinder
from adaptive.embeddings.planning.plan import GroupPlan, Int64s, Moves, no_rows
from adaptive.embeddings.planning.planner import Planner
from adaptive.embeddings.planning.skipping import Skipper
from adaptive.embeddings.tiers.device import DeviceTier, WatchedValues
from adaptive.embeddings.tiers.host import HostTier
from adaptive.kernels.planning.books import INITIAL, ON_HOST

Floats = NDArray[np.float32]
RECORDS = ("accesses", "last_access", "update_norm")  # of rows that were looked up, as they are saved


@dataclass(frozen=True)
class Lane:
    """One group of tables with its host tier, its device tier and its planner. Rows are numbered as in the group; slots
    as on the device. Whoever calls methods holds the pipeline's lock."""

    group: Group
    host: HostTier
    device: DeviceTier
    planner: Planner
    reader: DistinctFinder  # of the training thread, for evaluation

    @property
    def skipper(self) -> Skipper | None:
        """What is known of watched rows; None if no update is left out or deferred."""
        return self.planner.skipper

    # --- rows wherever they lie ------------------------------------------------------------------------------

    def values(self, rows: Int64s, *, with_waiting: bool = True) -> tuple[Floats, Floats]:
        """Copies (weights, state) of rows (n,); `with_waiting`: with waiting gradients applied to the copies. Copies
        that were asked for are done."""
        codes = self.planner.tracker.codes[rows]
        weights = np.empty((len(rows), self.host.weights.shape[1]), np.float32)
        state = np.empty((len(rows), self.host.state.shape[1]), np.float32)
        on_device, on_host = np.flatnonzero(codes > 0), np.flatnonzero(codes < 0)
        weights[on_device], state[on_device] = self.device.read(codes[on_device].astype(np.int64) - 1)
        self.host.copy_out(rows[on_host], weights, state, on_host)
        untouched = np.flatnonzero(codes == 0)
        self.host.initial(weights, state, untouched, rows[untouched])
        if with_waiting and self.skipper is not None and self.skipper.deferral is not None:
            self.device.apply_waiting(self.skipper.hot.entries_of(rows), weights, state)
        return weights, state

    def put(self, rows: Int64s, weights: Floats, state: Floats) -> None:
        """Give rows (n,) these values. Copies that were asked for are done."""
        codes = self.planner.tracker.codes
        self.host.write(rows, weights, state)
        codes[rows[codes[rows] == INITIAL]] = ON_HOST
        here = rows[codes[rows] > 0]
        taken = codes[here].astype(np.int64) - 1
        self.device.fetch(Moves(fetch_slots=taken, fetch_rows=here, fetch_initial=np.zeros(len(here), np.bool_)))
        self.planner.slots.mark_stored(taken)

    def put_on_host(self, rows: Int64s, weights: Floats, state: Floats) -> None:
        """Give rows (n,), of which none is on the device, these values."""
        self.host.write(rows, weights, state)
        self.planner.tracker.codes[rows] = ON_HOST

    def clear(self) -> None:
        """Forget all rows and what is known of them: each has its initial value."""
        self.planner.slots.empty()
        if self.skipper is not None:
            self.skipper.forget()
        self.device.forget_watched()
        self.planner.tracker.forget()

    def changed_rows(self) -> Int64s:
        """(n,) ascending rows that have stored values."""
        return self.planner.tracker.changed_rows()

    def records(self) -> tuple[Int64s, dict[str, NDArray[Any]]]:
        """(n,) ascending rows that were looked up, and copies of their records (n,)."""
        tracker = self.planner.tracker
        seen = tracker.seen_rows()
        return seen, {name: tracker.records[name][seen] for name in RECORDS}

    def restore_records(self, seen: Int64s, records: dict[str, NDArray[Any]]) -> None:
        """Enter what `records` gave, after `clear`."""
        for name, values in records.items():
            self.planner.tracker.records[name][seen] = values

    # --- slots -----------------------------------------------------------------------------------------------

    def move(self, plan: GroupPlan, stopwatch: Stopwatch) -> None:
        """Carry a plan out: write back, then fetch."""
        with stopwatch.stage("write_back"):
            self.device.write_back(plan.moves)
            if self.device.poison:
                self.device.poison_slots(plan.moves.back_slots)
        with stopwatch.stage("fetch"):
            self.device.fetch(plan.moves)
            self.host.expect(plan.row_updates)

    def write_back_changed(self, trained: int) -> None:
        """Write changed rows back; they keep their slots. `trained`: the latest batch that is."""
        slots = self.planner.slots
        dirty = slots.dirty()
        self.device.write_back(Moves(dirty, slots.rows[dirty]))
        # A batch that is planned but not trained yet will change its rows: they stay dirty.
        slots.clean(dirty[slots.used[dirty] <= trained])

    def taken_slots(self, trained: int | None = None) -> Int64s:
        """(n,) slots that hold a row; `trained`: idle ones, whose rows no batch behind this one uses."""
        slots = self.planner.slots
        is_taken = slots.rows >= 0
        return np.flatnonzero(is_taken if trained is None else is_taken & (slots.used <= trained))

    def oldest(self, slots: Int64s, count: int) -> Int64s:
        """Of the slots (n,) the `count` that were used longest ago."""
        return slots[np.argsort(self.planner.slots.used[slots], kind="stable")[: max(count, 0)]]

    def rows_in(self, slots: Int64s) -> Int64s:
        """(n,) the rows in slots (n,)."""
        return self.planner.slots.rows[slots]

    def resize(self, num_slots: int, victims: Int64s) -> tuple[Int64s, Int64s]:
        """Another number of slots; rows keep theirs, under new numbers, but for the slots `victims`. Every changed row
        has been written to the host.

        Returns (old slots,) their new numbers, and (tables of the group,) the rows that left.
        """
        slots = self.planner.slots
        tally = np.zeros((len(self.group.tables), len(Counter)), np.int64)
        back_slots, _ = slots.release(victims, tally)
        assert not len(back_slots), "rows that leave have been written back"
        new_slots = slots.compact(num_slots)
        self.device.resize(num_slots)  # waits: the new slots are made
        rows = slots.rows[slots.rows >= 0]
        here = np.arange(len(rows))
        self.device.fetch(Moves(fetch_slots=here, fetch_rows=rows, fetch_initial=slots.flags[here] == 0))
        return new_slots, tally[:, Counter.DEMOTED]

    # --- the hot set -----------------------------------------------------------------------------------------

    def evict_watched(self, leaving: Int64s) -> None:
        """Watch the entries `leaving` no more, and number the others anew; gradients that wait for them are applied.
        Copies are done, and no batch is in flight."""
        skipper = self.skipper
        assert skipper is not None
        hot = skipper.hot
        kept = self.device.kept(hot.num_entries)
        owed = hot.rows[np.intersect1d(kept.waiting, leaving)]
        if len(owed):
            self.put(owed, *self.values(owed))
        stay = np.setdiff1d(np.arange(hot.num_entries), leaving)
        still = np.isin(kept.waiting, stay)
        waiting = np.searchsorted(stay, kept.waiting[still])  # by their new numbers
        snapshots = kept.snapshots[stay] if len(kept.snapshots) else kept.snapshots
        self.device.keep(WatchedValues(snapshots, waiting, kept.sums[still], kept.squares[still]))
        skipper.keep(stay)


class LateFetches:
    """Late rows of the batches in flight, by group. Its owner holds the pipeline's lock.

    Args:
        devices: one for each group.
        stopwatch: in which fetching counts.
    """

    def __init__(self, devices: Sequence[DeviceTier], stopwatch: Stopwatch) -> None:
        self._devices = tuple(devices)
        self._stopwatch = stopwatch
        self._plans: dict[int, list[GroupPlan]] = {}  # number of a batch -> its plans, for each group

    def expect(self, plans: Sequence[GroupPlan]) -> None:
        """A batch has been planned."""
        if any(plan.is_late for plan in plans):
            self._plans[plans[0].number] = list(plans)

    def fetch(self, number: int) -> None:
        """From the training thread, when all batches before `number` are trained: its late rows come."""
        self._copy(self._plans[number])
        for device, plan in zip(self._devices, self._plans.pop(number), strict=True):
            if device.poison:
                device.poison_host(np.intersect1d(plan.moves.late_rows, _updated_on_device(plan)))

    def look(self) -> None:
        """From the training thread, between two batches: whoever looks for a late row finds it by its new slot, so copy
        it there as it is. Once the batches before have changed it, it is fetched as if this had not been."""
        for plans in self._plans.values():
            self._copy(plans)

    def forget(self) -> None:
        """No batch is in flight."""
        self._plans.clear()

    def poison_host(self, group: int, plan: GroupPlan) -> None:
        """Debug: NaN into the host copies of rows of a group that a batch will change on the device, but for those that
        are still used on the host before."""
        device = self._devices[group]
        if device.poison:
            on_host = [no_rows(), *(plans[group].moves.late_rows for plans in self._plans.values())]
            device.poison_host(np.setdiff1d(_updated_on_device(plan), np.concatenate(on_host)))

    def _copy(self, plans: Sequence[GroupPlan]) -> None:
        with self._stopwatch.stage("fetch"):
            for device, plan in zip(self._devices, plans, strict=True):
                slots, rows = plan.moves.late_slots, plan.moves.late_rows
                initial = np.zeros(len(rows), np.bool_)  # a batch before used them: they are stored
                device.fetch(Moves(fetch_slots=slots, fetch_rows=rows, fetch_initial=initial))


def _updated_on_device(plan: GroupPlan) -> Int64s:
    """Rows that a batch updates in slots, at once."""
    return plan.row_updates.rows[plan.row_updates.locations >= 0]
