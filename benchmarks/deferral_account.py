"""What a variant of `bench_deferral` writes, counted from the plans of its batches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.counters import Counter
from adaptive.embeddings.planned_batch import Planned
from benchmarks import harness
from benchmarks.variants import Ours

INDEX_BYTES = 8  # of a row's number in a checkpoint


class Account:
    """Counts since `begin`. Rows of one group of tables."""

    def __init__(self, ours: Ours) -> None:
        self._ours = ours
        (self._lane,) = ours.bag._pipeline.lanes
        self.begin()

    def begin(self) -> None:
        """Start at zero."""
        self._before = self._ours.bag.host_io()
        self._counts = np.zeros(len(Counter), np.int64)
        self._steps = self._in_place = 0

    def see(self, planned: Planned) -> NDArray[np.int64]:
        """Count a batch that has just been trained; returns the rows it wrote."""
        plan: Any = planned.works[0].plan
        later = plan.deferred
        rows = plan.row_updates.rows if later is None else np.concatenate([plan.row_updates.rows, later.due_rows])
        places = plan.row_updates.locations
        places = places if later is None else np.concatenate([places, later.due_locations])
        self._steps += 1
        self._counts += plan.tally.sum(axis=0)
        self._in_place += int((places < 0).sum())
        return rows

    @property
    def row_bytes(self) -> int:
        """Of a row with its optimizer state."""
        host = self._lane.host
        return int(4 * (host.weights.shape[1] + host.state.shape[1]))

    @property
    def sum_bytes(self) -> int:
        """Of the gradients of a row that wait, and of their squares where the optimizer needs them."""
        width = self._lane.host.weights.shape[1]
        return int(4 * (width + self._ours.bag._optimizer.squares_width(width)))

    def read(self) -> dict[str, float]:
        """A step's share of everything since `begin`: `visits` (distinct rows looked up), `not_written`, `leaving`,
        `written_back`, `bytes` to the host tier."""
        counts = self._counts
        moved = self._ours.bag.host_io()["bytes_written"] - self._before["bytes_written"]
        back = int(counts[Counter.WRITTEN_BACK])
        size = (moved or back * self.row_bytes) + self._in_place * self.row_bytes
        found = {
            "visits": counts[Counter.UNIQUE_ROWS],
            "not_written": counts[Counter.DEFERRED_UPDATES],
            "leaving": counts[Counter.DEMOTED],
            "written_back": back,
            "bytes": size,
        }
        return {name: float(count) / self._steps for name, count in found.items()}


class Differences:
    """Bytes of checkpoints that hold what changed since the last one, taken every so many steps."""

    def __init__(self, account: Account, saves: Sequence[int], num_rows: int) -> None:
        self._account = account
        self._changed = {every: np.zeros(num_rows, np.bool_) for every in saves}
        self._visited = {every: np.zeros(num_rows, np.bool_) for every in saves}
        self.rows = dict.fromkeys(saves, 0)
        self.sums = dict.fromkeys(saves, 0)  # that wait, of rows looked up since the last checkpoint
        self._steps = 0

    def see(self, planned: Planned) -> None:
        """Count a batch that has just been trained."""
        written = self._account.see(planned)
        plan: Any = planned.works[0].plan
        self._steps += 1
        for every, changed in self._changed.items():
            visited = self._visited[every]
            changed[written] = True
            if plan.deferred is not None:
                visited[plan.deferred.row_updates.rows] = True
            if self._steps % every == 0:
                self.rows[every] += int(np.count_nonzero(changed))
                self.sums[every] += int(np.count_nonzero(visited[self._waiting()]))
                changed[:] = visited[:] = False

    def _waiting(self) -> NDArray[np.int64]:
        planner = self._account._lane.planner
        skipper = planner.skipper
        if skipper is None or skipper.deferral is None:
            return np.zeros(0, np.int64)
        return skipper.hot.rows[skipper.deferral.waiting > 0]

    def bytes(self, every: int) -> tuple[float, float]:
        """Of one checkpoint: changed rows with their state, and those with the sums that wait."""
        saves = max(self._steps // every, 1)
        rows = self.rows[every] * (self._account.row_bytes + INDEX_BYTES) / saves
        return rows, rows + self.sums[every] * (self._account.sum_bytes + INDEX_BYTES) / saves


class Watch:
    """The bytes of all rows on the device, and which rows were said to be written since."""

    def __init__(self, ours: Ours) -> None:
        (lane,) = ours.bag._pipeline.lanes
        self._device: Any = lane.device
        self._rows = lane.planner.slots.rows
        self._here = np.flatnonzero(self._rows >= 0)
        self._before = self._values()
        self.written: list[NDArray[np.int64]] = []

    def _values(self) -> NDArray[np.uint32]:
        values = np.concatenate([self._device.weights[self._here], self._device.state[self._here]], axis=1)
        return values.view(np.uint32)

    def check(self) -> None:
        """Rows said to be written, and no others, have changed.

        Raises:
            NotEqual: if not.
        """
        changed = self._rows[self._here[(self._values() != self._before).any(axis=1)]]
        said = np.intersect1d(np.concatenate(self.written), self._rows[self._here])
        if not len(said) or not np.array_equal(np.sort(changed), said):
            raise harness.NotEqual(f"{len(said)} rows are said to have been written, {len(changed)} have changed")
