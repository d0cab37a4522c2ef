"""`LateRows`: rows that are given a slot while batches in flight still update them on the host.

With `misses = "host"` a row that every batch uses would never come in if it had to be idle for that: some batch in
flight always updates it where it lies. So the plan of batch n may give such a row a slot, which batch n and those after
it use, while those before it use the row on the host. Its values cross in between: when batch n - 1 has been trained
and before batch n is, asked for by the training thread. The slot is held from batch n on, so the row does not leave
before it came.
"""

from collections.abc import Sequence

import numpy as np

from adaptive.counters import Stopwatch
from adaptive.embeddings.planning.plan import GroupPlan, Int64s, Moves, no_rows
from adaptive.embeddings.tiers.device import DeviceTier


class LateRows:
    """Late rows of the batches in flight, by group. Its owner holds the pipeline's lock.

    Args:
        devices: one for each group.
        stopwatch: in which fetching counts.
    """

    def __init__(self, devices: Sequence[DeviceTier], stopwatch: Stopwatch) -> None:
        self._devices = tuple(devices)
        self._stopwatch = stopwatch
        self.coming: dict[int, list[GroupPlan]] = {}  # number of a batch -> its plans, for each group

    def expect(self, plans: Sequence[GroupPlan]) -> None:
        """A batch with late rows has been planned."""
        self.coming[plans[0].number] = list(plans)

    def fetch(self, number: int) -> None:
        """From the training thread, when all batches before `number` are trained: its late rows come."""
        self._copy(self.coming[number])
        for device, plan in zip(self._devices, self.coming.pop(number), strict=True):
            if device.poison:
                device.poison_host(np.intersect1d(plan.moves.late_rows, updated_on_device(plan)))

    def look(self) -> None:
        """From the training thread, between two batches: whoever looks for a late row finds it by its new slot, so copy
        it there as it is. Once the batches before have changed it, it is fetched as if this had not been."""
        for plans in self.coming.values():
            self._copy(plans)

    def forget(self) -> None:
        """No batch is in flight."""
        self.coming.clear()

    def on_host(self, group: int) -> Int64s:
        """Rows of a group that are still used on the host by batches in flight."""
        return np.concatenate([no_rows(), *(plans[group].moves.late_rows for plans in self.coming.values())])

    def _copy(self, plans: Sequence[GroupPlan]) -> None:
        with self._stopwatch.stage("fetch"):
            for device, plan in zip(self._devices, plans, strict=True):
                slots, rows = plan.moves.late_slots, plan.moves.late_rows
                initial = np.zeros(len(rows), np.bool_)  # a batch before used them: they are stored
                device.fetch(Moves(fetch_slots=slots, fetch_rows=rows, fetch_initial=initial))


def updated_on_device(plan: GroupPlan) -> Int64s:
    """Rows that a batch updates in slots, at once."""
    return plan.row_updates.rows[plan.row_updates.locations >= 0]
