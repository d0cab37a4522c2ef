"""`CpuDevice`: a device tier in ordinary memory, for machines without a GPU.

Pooled vectors are stored past the caches (`vector.row_sums`). That is fast where the caches hold no changed copy of
the memory: where only vectors have been before, and not in whatever an allocator hands out next, which some other
operation has just written. Measured at 2048 x 26 x 16: 0.23 against 0.6 ms. Hence `VectorMemory`.
"""

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.planning.plan import Deferred, GroupPlan, Int64s, Moves, Pooling, RowUpdates, Snapshots
from adaptive.embeddings.tiers.device import DeviceTier, Floats, Later, Send, WatchedValues
from adaptive.embeddings.tiers.host import HostTier
from adaptive.kernels.rows.cpu import decay, drift, pool, update
from adaptive.kernels.rows.cpu import deferred as deferred_kernels
from adaptive.kernels.scratch import LentMemory, carve, empty_rows, full_rows, update_scratch
from adaptive.optim import RowOptimizer


class CpuRows:
    """Pools and updates rows of one group, in slots and on the host. For one thread.

    Attributes:
        weights: (slots, D) float32. state: (slots, S) float32.
        scratch: (threads, 2, >= D) float32, for kernels.
    """

    def __init__(self, host: HostTier, optimizer: RowOptimizer, num_slots: int = 0, fill: float = 0.0) -> None:
        self._host = host
        self.use(optimizer)
        self.scratch = update_scratch(max(numba.get_num_threads(), 1), host.weights.shape[1])
        self.resize(num_slots, fill)

    def use(self, optimizer: RowOptimizer) -> None:
        """Update rows by these settings from now on; the formula and the state are the same."""
        self._rule = optimizer.kind, optimizer.settings(), optimizer.corrections()
        self._kept = np.float32(optimizer.kept)

    def resize(self, num_slots: int, fill: float = 0.0) -> None:
        """Reallocate to `num_slots` slots that hold `fill`."""
        self.weights = full_rows(num_slots, self._host.weights.shape[1], fill)
        self.state = full_rows(num_slots, self._host.state.shape[1], fill)

    def pool(self, out: Floats, pooling: Pooling, rows: Floats | None = None) -> None:
        """Write the vectors (V, D), from slots and host, or from `rows` (U, D) in the place of slots."""
        pool.pool(
            out,
            pooling.bag_vectors,
            pooling.bag_starts,
            pooling.inverse,
            pooling.row_locations,
            pooling.scales,
            self.weights if rows is None else rows,
            self._host.weights,
            len(self.scratch),
        )

    def update(self, row_updates: RowUpdates, gradients: Floats) -> Floats:
        """Update rows where they lie from gradients (V, D); returns the L2 norm of each update (U,)."""
        norms = np.empty(len(row_updates.rows), np.float32)
        self._decay(row_updates.locations)
        update.update(
            row_updates.locations,
            row_updates.segments,
            row_updates.vectors,
            row_updates.scales,
            gradients,
            self.weights,
            self.state,
            self._host.weights,
            self._host.state,
            *self._rule,
            norms,
            self.scratch,
        )
        return norms

    def defer(
        self, deferred: Deferred, gradients: Floats, sums: Floats, squares: Floats, pending: NDArray[np.bool_]
    ) -> Floats:
        """Add gradients (V, D) to sums (H, D) and squares (H, S), which then wait (H,), and apply those that are due.

        Returns the L2 norm of each update (n,).
        """
        row_updates = deferred.row_updates
        norms = np.empty(len(deferred.due_rows), np.float32)
        self._decay(deferred.due_locations)
        deferred_kernels.defer(
            row_updates.locations,
            row_updates.segments,
            row_updates.vectors,
            row_updates.scales,
            gradients,
            sums,
            squares,
            pending,
            deferred.due_at,
            deferred.due_locations,
            deferred.due_entries,
            self.weights,
            self.state,
            self._host.weights,
            self._host.state,
            *self._rule,
            norms,
            self.scratch,
        )
        return norms

    def apply_sums_on_host(self, locations: Int64s, entries: Int64s, sums: Floats, squares: Floats) -> Floats:
        """Update rows of the host at `locations` (n,), all ~row, each from the sum and squares of its entry (n,).

        Returns the L2 norm of each update (n,).
        """
        return self._apply(-1, locations, entries, sums, squares, self._host.weights, self._host.state)

    def apply_sums_to_copies(
        self, places: Int64s, entries: Int64s, sums: Floats, squares: Floats, weights: Floats, state: Floats
    ) -> None:
        """The same for copies of rows: rows `places` (n,) of `weights` and `state`. Changes no row of a tier."""
        self._apply(0, places, entries, sums, squares, weights, state)

    def _apply(
        self,
        flip: int,
        locations: Int64s,
        entries: Int64s,
        sums: Floats,
        squares: Floats,
        weights: Floats,
        state: Floats,
    ) -> Floats:
        norms = np.empty(len(locations), np.float32)
        if self._kept != 1:
            decay.decay(flip, locations, self._kept, weights, len(self.scratch))
        deferred_kernels.update_from_sums(
            flip, locations, entries, sums, squares, weights, state, *self._rule, norms, self.scratch
        )
        return norms

    def _decay(self, locations: Int64s) -> None:
        """Weight decay of rows about to be updated, in slots and on the host."""
        if self._kept != 1:
            for flip, weights in ((0, self.weights), (-1, self._host.weights)):
                decay.decay(flip, locations, self._kept, weights, len(self.scratch))


class CpuDevice(DeviceTier):
    """Slots in ordinary memory; every operation is one numba kernel."""

    pools_parts = True

    def __init__(self, host: HostTier, num_slots: int, optimizer: RowOptimizer, *, poison: bool = False) -> None:
        self.poison = poison
        self._host = host
        self._fill = np.nan if poison else 0.0
        self._rows = CpuRows(host, optimizer, num_slots, self._fill)
        self.num_slots = num_slots
        self.squares_width = optimizer.squares_width(host.weights.shape[1])
        self._vectors = VectorMemory()
        self.watch(0, snapshots=False, sums=False)

    @property
    def weights(self) -> Floats:
        """(slots, D) the values in slots."""
        return self._rows.weights

    @property
    def state(self) -> Floats:
        """(slots, S) their optimizer state."""
        return self._rows.state

    def send(self, array: NDArray[Any]) -> Tensor:
        # torch refuses read-only memory; a copy keeps the promise that batches do not change.
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    def bring(self, tensor: Tensor) -> Later:
        array = tensor.numpy()
        return lambda: array

    def ship(self, plan: GroupPlan, buffer: int, inputs: Sequence[NDArray[Any]] = ()) -> GroupPlan:
        return plan

    def inputs(self, plan: GroupPlan) -> Send:
        return lambda array: torch.from_numpy(array.copy())  # a loop may write into its tensors, batches come again

    def ship_again(self, plan: GroupPlan) -> None:
        return

    def land(self) -> None:
        return

    def close(self) -> None:
        return

    def resize(self, num_slots: int) -> None:
        self._rows.resize(num_slots, self._fill)
        self.num_slots = num_slots

    def write_back(self, moves: Moves) -> None:
        self._host.copy_in(moves.back_rows, self.weights, self.state, moves.back_slots)

    def fetch(self, moves: Moves) -> None:
        host = self._host
        initial = moves.fetch_initial
        slots, rows = moves.fetch_slots[~initial], moves.fetch_rows[~initial]
        host.copy_out(rows, self.weights, self.state, slots)
        host.initial(self.weights, self.state, moves.fetch_slots[initial], moves.fetch_rows[initial])
        host.store_initial(moves.fresh_rows)

    def poison_slots(self, slots: Int64s) -> None:
        self.weights[slots] = np.nan
        self.state[slots] = np.nan

    def poison_host(self, rows: Int64s) -> None:
        self._host.poison(rows)

    def pool(self, pooling: Pooling, rows: Floats | Tensor | None = None, out: Tensor | None = None) -> Tensor:
        out = self.empty_vectors(pooling.num_vectors) if out is None else out
        self._rows.pool(out.numpy(), pooling, rows.numpy() if isinstance(rows, Tensor) else rows)
        return out

    def empty_vectors(self, number: int) -> Tensor:
        return self._vectors.take(number, self.weights.shape[1])

    def use(self, optimizer: RowOptimizer) -> None:
        self._rows.use(optimizer)

    def update(self, row_updates: RowUpdates, gradients: Tensor) -> Later:
        norms = self._rows.update(row_updates, gradients.numpy())
        return lambda: norms

    def defer(self, deferred: Deferred, gradients: Tensor) -> Later:
        norms = self._rows.defer(deferred, gradients.numpy(), self._sums, self._squares, self._pending)
        return lambda: norms

    def apply_waiting(self, entries: Int64s, weights: Floats, state: Floats) -> None:
        watched = np.flatnonzero(entries >= 0)
        waiting = watched[self._pending[entries[watched]]]
        self._rows.apply_sums_to_copies(waiting, entries[waiting], self._sums, self._squares, weights, state)

    def drift(self, snapshots: Snapshots) -> Later:
        drifts = np.empty(len(snapshots.entries), np.float32)
        drift.drift(
            snapshots.locations,
            snapshots.entries,
            snapshots.known,
            self.weights,
            self._host.weights,
            self._snapshots,
            drifts,
            self._rows.scratch[:, 0],
        )
        return lambda: drifts

    def read(self, slots: Int64s) -> tuple[Floats, Floats]:
        return self.weights[slots], self.state[slots]

    def watch(self, capacity: int, *, snapshots: bool, sums: bool) -> None:
        width = self.weights.shape[1]
        self._snapshots = full_rows(capacity if snapshots else 0, width, np.nan)
        # Not written: only sums that wait are read, and all would take as much memory as the popular rows.
        self._sums = empty_rows(capacity if sums else 0, width)
        self._squares = empty_rows(len(self._sums), self.squares_width)
        self._pending = np.zeros(len(self._sums), np.bool_)

    def forget_watched(self) -> None:
        self._snapshots.fill(np.nan)
        self._pending.fill(False)

    def kept(self, num_entries: int) -> WatchedValues:
        waiting = np.flatnonzero(self._pending[:num_entries])
        return WatchedValues(self._snapshots[:num_entries].copy(), waiting, self._sums[waiting], self._squares[waiting])

    def keep(self, kept: WatchedValues) -> None:
        self.forget_watched()
        self._snapshots[: len(kept.snapshots)] = kept.snapshots
        self._sums[kept.waiting], self._squares[kept.waiting] = kept.sums, kept.squares
        self._pending[kept.waiting] = True

    @property
    def buffer_bytes(self) -> tuple[int, int]:
        return 0, 0

    @property
    def num_bytes(self) -> tuple[int, int, int]:
        watched = self._snapshots.nbytes + self._sums.nbytes + self._squares.nbytes
        return self.weights.nbytes, self.state.nbytes, watched


class VectorMemory:
    """Memory for vectors, used again once no tensor lives in it. For one thread; tensors may be dropped in any."""

    def __init__(self) -> None:
        self._memory = LentMemory()

    def take(self, num_rows: int, width: int) -> Tensor:
        """(num_rows, width) float32, not written, aligned to cache lines; its memory as `LentMemory` says."""
        (vectors,) = carve(self._memory, (np.float32, num_rows * width))
        return torch.from_numpy(vectors.reshape(num_rows, width))
