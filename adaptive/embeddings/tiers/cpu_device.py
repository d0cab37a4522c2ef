"""`CpuDevice`: a device tier in ordinary memory, for machines without a GPU.

Pooled vectors are stored past the caches (`vector.row_sums`). That is fast if the caches hold no changed copy of the
memory: memory that only vectors use, not what an allocator returns after another operation has just written to it.
Measured at 2048 x 26 x 16: 0.23 against 0.6 ms. Hence `empty_vectors` reuses memory.
"""

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.arrays import Bools, Floats, Int64s, Rows, UInt64s
from adaptive.embeddings.planning.plan import Deferred, GroupPlan, Moves, Pooling, RowUpdates
from adaptive.embeddings.tiers.device import DeviceMoves, DevicePlan, DevicePooling, DeviceTier, HotSums, InFlight, Send
from adaptive.embeddings.tiers.host import HostTier
from adaptive.kernels.rows.cpu import decay, pool, update
from adaptive.kernels.rows.cpu import deferred as deferred_kernels
from adaptive.kernels.scratch import ScratchPool, allocate, empty_rows, full_rows, update_scratch
from adaptive.kernels.vector.bfloat16 import NO_KEYS, number_as_stored
from adaptive.optim import RowOptimizer


class CpuRows:
    """Pools and updates rows of one group, in slots and on the host. For one thread.

    Attributes:
        weights: (slots, D), state: (slots, S), float32 or bfloat16.
        scratch: (threads, >= D) float32, for kernels.
    """

    def __init__(self, host: HostTier, num_slots: int = 0, fill: float = 0.0) -> None:
        self._host = host
        self.use(host.optimizer)
        threads, width = max(numba.get_num_threads(), 1), host.weights.shape[1]
        self.scratch = update_scratch(threads, width)
        self._sum_scratch = update_scratch(threads * deferred_kernels.BLOCK, width + 1)
        self.weights, self.state = (
            full_rows(num_slots, like.shape[1], number_as_stored(fill, like.dtype), like.dtype)
            for like in (host.weights, host.state)
        )

    def use(self, optimizer: RowOptimizer) -> None:
        """Update rows with these settings from now on; formula and state stay the same."""
        self._rule = optimizer.kind, optimizer.settings(), optimizer.corrections()
        self._decay_factor = np.float32(optimizer.decay_factor)

    @property
    def _tables(self) -> tuple[Rows, Rows, Rows, Rows]:
        return self.weights, self.state, self._host.weights, self._host.state

    def pool(self, out: Floats, pooling: Pooling, rows: Rows | None = None) -> None:
        """Write the vectors (V, D), from slots and host, or from `rows` (U, D) instead of slots."""
        bags = pooling.bag_vectors, pooling.bag_starts, pooling.inverse, pooling.row_locations, pooling.scales
        slots = self.weights if rows is None else rows
        pool.pool(out, bags, slots, self._host.weights, len(self.scratch))

    def update(self, row_updates: RowUpdates, gradients: Floats, number: int, *, norm_lines: int) -> Floats:
        """Update rows in place from the gradients (V, D) of batch `number`; return norms, see `DeviceTier.update`."""
        norms, keys = _norms(len(row_updates.rows), norm_lines), self._host.rounding_keys(row_updates.rows, number)
        self._decay(row_updates.locations, keys)
        lookups = row_updates.locations, row_updates.segments, row_updates.vectors, row_updates.scales, gradients
        update.update(lookups, self._tables, self._rule, (keys, norms), self.scratch)
        return norms

    def defer(
        self,
        row_updates: RowUpdates,
        deferred: Deferred,
        gradients: Floats,
        number: int,
        sums: Floats,
        squares: Floats,
        pending: Bools,
        *,
        norm_lines: int,
    ) -> Floats:
        """`update`, or add gradients (V, D) to sums (H, D) and squares (H, S), and apply those that the plan lists.

        pending (H,) marks the entries with a sum. Returns norms, see `DeviceTier.update`.
        """
        norms, keys = _norms(len(deferred.rows), norm_lines), self._host.rounding_keys(deferred.rows, number)
        if self._decay_factor != 1:
            self._decay(row_updates.locations[deferred.written], keys)
        divided = deferred.now, deferred.summed, deferred.entries, deferred.applied
        lookups = row_updates.locations, row_updates.segments, row_updates.vectors, row_updates.scales, gradients
        tables, results = (sums, squares, pending), (keys, norms)
        deferred_kernels.defer(divided, lookups, tables, self._tables, self._rule, results, self._sum_scratch)
        return norms

    def apply_sums(
        self,
        flip: int,
        locations: Int64s,
        entries: Int64s,
        sums: Floats,
        squares: Floats,
        weights: Rows,
        state: Rows,
        keys: UInt64s = NO_KEYS,
        *,
        norm_lines: int = 1,
    ) -> Floats:
        """Update rows of `weights` and `state`, each from the sum and squares of its entry.

        These are rows `locations` (n,) of copies (flip 0), or rows ~locations of the host tier (flip -1). Returns
        norms, see `DeviceTier.update`.
        """
        norms = _norms(len(locations), norm_lines)
        if self._decay_factor != 1:
            decay.decay(flip, locations, self._decay_factor, keys, weights, len(self.scratch))
        places, results = (locations, entries), (keys, norms)
        deferred_kernels.update_from_sums(
            flip, places, (sums, squares), weights, state, self._rule, results, len(self.scratch)
        )
        return norms

    def _decay(self, locations: Int64s, keys: UInt64s) -> None:
        """Apply weight decay to rows that are about to be updated, in slots and on the host."""
        if self._decay_factor != 1:
            for flip, weights in ((0, self.weights), (-1, self._host.weights)):
                decay.decay(flip, locations, self._decay_factor, keys, weights, len(self.scratch))


def _norms(num_rows: int, norm_lines: int) -> Floats:
    """Return room for the norms of updates, which kernels always write, and in a second line for those of rows."""
    return np.empty((max(norm_lines, 1), num_rows), np.float32)


class CpuDevice(DeviceTier):
    """Slots in ordinary memory; every operation is one numba kernel."""

    pools_parts = True

    def __init__(self, host: HostTier, num_slots: int, *, poison: bool = False) -> None:
        self.poison = poison
        self._host = host
        self._rows = CpuRows(host, num_slots, np.nan if poison else 0.0)
        self.num_slots = num_slots
        self.squares_width = host.optimizer.squares_width(host.weights.shape[1])
        self._vectors = ScratchPool()
        self._allocate_sums(0)

    @property
    def weights(self) -> Rows:
        """Values (slots, D) in slots."""
        return self._rows.weights

    @property
    def state(self) -> Floats:
        """Optimizer state (slots, S) in slots."""
        return self._rows.state

    def send(self, array: NDArray[Any]) -> Tensor:
        # torch refuses read-only memory, and batches must not change.
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    def upload_plan(self, plan: GroupPlan, buffer: int, inputs: Sequence[NDArray[Any]] = ()) -> None:
        return

    def inputs(self, device_plan: DevicePlan | None) -> Send:
        return lambda array: torch.from_numpy(array.copy())  # a loop may write to its tensors; batches come again

    def finish_host_writes(self) -> None:
        return

    def close(self) -> None:
        return

    def write_back(self, moves: Moves, device_moves: DeviceMoves | None = None) -> None:
        if len(moves.back_rows):
            self._host.copy_in(moves.back_rows, self.weights, self.state, moves.back_slots)

    def fetch(self, moves: Moves, device_moves: DeviceMoves | None = None) -> None:
        host, slots, rows = self._host, moves.fetch_slots, moves.fetch_rows
        if np.count_nonzero(moves.fetch_initial) < len(rows):
            # Indices of unpredictable flags take two thirds of the time of indexing by the flags.
            stored, initial = np.flatnonzero(~moves.fetch_initial), np.flatnonzero(moves.fetch_initial)
            host.copy_out(rows[stored], self.weights, self.state, slots[stored])
            slots, rows = slots[initial], rows[initial]
        host.initial(self.weights, self.state, slots, rows)
        if len(moves.fresh_rows):
            host.store_initial(moves.fresh_rows)

    def poison_slots(self, slots: Int64s) -> None:
        for rows in (self.weights, self.state):
            rows[slots] = number_as_stored(np.nan, rows.dtype)

    def poison_host(self, rows: Int64s) -> None:
        self._host.poison(rows)

    def pool(
        self,
        pooling: Pooling,
        device_pooling: DevicePooling | None = None,
        rows: Rows | Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        assert out is None
        out = self.empty_vectors(pooling.num_vectors)
        self._rows.pool(out.numpy(), pooling, rows.numpy() if isinstance(rows, Tensor) else rows)
        return out

    def empty_vectors(self, number: int) -> Tensor:
        # Aligned to cache lines; reused once no tensor shares the memory, in whichever thread that one was dropped.
        width = self.weights.shape[1]
        (vectors,) = allocate(self._vectors, (np.float32, number * width))
        return torch.from_numpy(vectors.reshape(number, width))

    def use(self, optimizer: RowOptimizer) -> None:
        self._rows.use(optimizer)

    def update(
        self, plan: GroupPlan, device_plan: DevicePlan | None, gradients: Tensor, found_inf: Tensor | None = None
    ) -> InFlight:
        assert found_inf is None
        row_updates, of_batch, lines = plan.row_updates, (gradients.numpy(), plan.number), plan.norm_lines
        if plan.deferred is None:
            norms = self._rows.update(row_updates, *of_batch, norm_lines=lines)
        else:
            sums, squares, pending = self._sums, self._squares, self._pending
            norms = self._rows.defer(row_updates, plan.deferred, *of_batch, sums, squares, pending, norm_lines=lines)
        return lambda: norms

    def apply_deferred(self, entries: Int64s, weights: Rows, state: Rows) -> None:
        hot = np.flatnonzero(entries >= 0)
        deferred = hot[self._pending[entries[hot]]]
        self._rows.apply_sums(0, deferred, entries[deferred], self._sums, self._squares, weights, state)

    def read(self, slots: Int64s) -> tuple[Rows, Rows]:
        return self.weights[slots], self.state[slots]

    def begin_sums(self, capacity: int) -> None:
        self._allocate_sums(capacity)

    def _allocate_sums(self, capacity: int) -> None:
        # Uninitialized: only pending sums are read, and writing all would take as much memory as the popular rows.
        self._sums = empty_rows(capacity, self.weights.shape[1])
        self._squares = empty_rows(capacity, self.squares_width)
        self._pending = np.zeros(capacity, np.bool_)

    def forget_sums(self) -> None:
        self._pending.fill(False)

    def export_sums(self, num_entries: int) -> HotSums:
        entries = np.flatnonzero(self._pending[:num_entries])
        return HotSums(entries, self._sums[entries], self._squares[entries])

    def import_sums(self, values: HotSums) -> None:
        self.forget_sums()
        self._sums[values.entries], self._squares[values.entries] = values.sums, values.squares
        self._pending[values.entries] = True

    @property
    def buffer_bytes(self) -> tuple[int, int]:
        return 0, 0

    @property
    def num_bytes(self) -> tuple[int, int, int]:
        return self.weights.nbytes, self.state.nbytes, self._sums.nbytes + self._squares.nbytes
