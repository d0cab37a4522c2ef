"""`TorchDevice`: slots in the memory of a GPU, or of any torch device.

Nothing in a training step waits for the device: the plan was sent ahead of time (`upload`), rows move on a separate
stream (`transfer`, `mover`), and norms, if a policy or rule reads them, come back through pinned memory, to be used a
fixed number of batches later. A batch that updates rows on the host (`misses = "host"`) waits for their gradients.

Everything is bit-equal to `CpuDevice`, so to every other placement, depth and way of transfer. Nothing depends on
timing: every sum has one order, and every measurement is used at a fixed age.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.arrays import Floats, Int64s, Rows
from adaptive.embeddings.planning.plan import GroupPlan, Moves, Pooling, RowUpdates
from adaptive.embeddings.tiers.cpu_device import CpuRows
from adaptive.embeddings.tiers.device import (
    DeviceMoves,
    DevicePlan,
    DevicePooling,
    DeviceSums,
    DeviceTier,
    DeviceUpdates,
    HotSums,
    InFlight,
    Send,
)
from adaptive.embeddings.tiers.gpu.buffers import ROW_DTYPES, TORCH_DTYPES, Bytes, TransferBuffer, add_bytes, take_rows
from adaptive.embeddings.tiers.gpu.link import ArrivingArray, ComputeLink
from adaptive.embeddings.tiers.gpu.lookups import DeviceSearcher
from adaptive.embeddings.tiers.gpu.transfer import RowArrays, Transfer
from adaptive.embeddings.tiers.gpu.upload import device_lookups, send_plan, send_pooling
from adaptive.embeddings.tiers.host import HostTier
from adaptive.embeddings.tiers.mover import Mover
from adaptive.kernels.rows.choose import RowKernels
from adaptive.kernels.vector.bfloat16 import as_stored
from adaptive.optim import RowOptimizer


class TorchSums:
    """Deferred sums (H, D) and squares (H, S) float32; pending (H,) bool marks those in use."""

    def __init__(self, capacity: int, width: int, squares_width: int, device: torch.device) -> None:
        self.sums = torch.full((capacity, width), torch.nan, device=device)
        self.squares = torch.full((capacity, squares_width), torch.nan, device=device)
        self.pending = torch.zeros(capacity, dtype=torch.bool, device=device)

    def add(self, sums: DeviceSums, gradients: Tensor, kernels: RowKernels, found_inf: Tensor | None) -> None:
        """Add a batch's gradients (V, D) on the current stream; sums that are applied after it end.

        found_inf: as in `DeviceTier.update`.
        """
        segments = sums.added
        lookups = segments.locations, segments.starts, segments.vectors, segments.scales
        tables = self.sums, self.squares, self.pending
        kernels.accumulate(*lookups, gradients, *tables, hot=segments.hot, found_inf=found_inf)
        if found_inf is None:
            self.pending.index_fill_(0, sums.applied_entries, False)
        else:
            stay = self.pending[sums.applied_entries] & (found_inf != 0)
            self.pending.index_copy_(0, sums.applied_entries, stay)

    def read(self, entries: Int64s, link: ComputeLink) -> tuple[Int64s, Floats, Floats]:
        """Return what is pending for the rows with `entries` (n,) or -1; waits for the device.

        Returns their positions (m,), sums (m, D) and squares (m, S).
        """
        hot = np.flatnonzero(entries >= 0)
        pending = hot[link.read(self.pending[:, None], entries[hot])[:, 0] > 0]
        return pending, link.read(self.sums, entries[pending]), link.read(self.squares, entries[pending])

    def restore(self, entries: Int64s, sums: Floats, squares: Floats) -> None:
        """Restore sums (m, D) and squares (m, S) of the entries (m,)."""
        device = self.sums.device
        places = torch.from_numpy(entries).to(device)
        self.sums[places], self.squares[places] = (torch.from_numpy(rows).to(device) for rows in (sums, squares))
        self.pending[places] = True

    @property
    def num_bytes(self) -> int:
        return self.sums.nbytes + self.squares.nbytes + self.pending.nbytes


def _not_sent() -> Floats:
    raise AssertionError("norms that nobody wants stay on the device")


class TorchDevice(DeviceTier):
    """Slots on a torch device.

    Rows move on the copying stream, asked by the look-ahead thread; pooling and updates run on the training stream.
    Bit-equal to `CpuDevice`.
    """

    pools_parts = False
    takes_flags = True

    def __init__(
        self,
        host: HostTier,
        num_slots: int,
        mover: Mover,
        kernels: RowKernels,
        transfer: Transfer,
        searcher: DeviceSearcher | None = None,
        *,
        poison: bool = False,
    ) -> None:
        self.poison = poison
        self._host, self._mover, self._kernels, self._transfer = host, mover, kernels, transfer
        self.searcher = self._searcher = searcher
        self._link = ComputeLink(mover)
        self._host_rows = CpuRows(host)  # pools and updates rows on the host, in the training thread
        self._corrections = torch.from_numpy(host.optimizer.corrections()).to(mover.device)
        self._set_rule(host.optimizer)
        self._widths = host.weights.shape[1], host.state.shape[1]
        self.squares_width = host.optimizer.squares_width(host.weights.shape[1])
        self._transfer_buffers: list[TransferBuffer] = []
        self.num_slots = num_slots
        self.slots = RowArrays(
            self._empty_slots(num_slots, self._widths[0], ROW_DTYPES[host.dtype]),
            self._empty_slots(num_slots, self._widths[1], torch.float32),
        )
        self._sums = TorchSums(0, self._widths[0], self.squares_width, mover.device)
        self._mover.settle()

    def _set_rule(self, optimizer: RowOptimizer) -> None:
        self._kind, self._settings = optimizer.kind, [float(value) for value in optimizer.settings()]
        self._decay_factor = optimizer.decay_factor

    def _empty_slots(self, number: int, width: int, dtype: torch.dtype) -> Tensor:
        slots = self._mover.compute.empty((number, width), dtype)
        self._mover.compute.run(lambda: slots.fill_(torch.nan if self.poison else 0.0))
        return slots

    # --- ahead of training, on the copying stream -----------------------------------------------------------------

    def send(self, array: NDArray[Any]) -> Tensor:
        return self._link.send(array)

    def to_host(self, tensor: Tensor) -> InFlight:
        return self._link.to_host(tensor)

    def upload_plan(self, plan: GroupPlan, buffer: int, inputs: Sequence[NDArray[Any]] = ()) -> DevicePlan:
        while len(self._transfer_buffers) <= buffer:
            self._transfer_buffers.append(TransferBuffer(self._mover))
        sendable = [array for array in inputs if array.dtype in TORCH_DTYPES]
        if plan.on_device is not None:
            lookups = device_lookups(plan.on_device)
            lookups.user = plan.number
            if lookups.event is not None:
                self._mover.await_found(lookups.event)
            crossed = {id(array) for array, _ in lookups.inputs}
            sendable = [array for array in sendable if id(array) not in crossed]
        return send_plan(plan, self._transfer, self._transfer_buffers[buffer], sendable)

    def write_back(self, moves: Moves, device_moves: DeviceMoves | None = None) -> None:
        self._transfer.write_back(self.slots, moves, device_moves)

    def fetch(self, moves: Moves, device_moves: DeviceMoves | None = None) -> None:
        self._transfer.fetch(self.slots, moves, device_moves)

    def finish_host_writes(self) -> None:
        self._transfer.finish_host_writes()

    def close(self) -> None:
        self._transfer.close()

    def poison_slots(self, slots: Int64s) -> None:
        self._transfer.poison_slots(self.slots, slots)

    def poison_host(self, rows: Int64s) -> None:
        self._transfer.poison_host(rows)

    # --- training, on the compute stream -------------------------------------------------------------------------

    def inputs(self, device_plan: DevicePlan | None) -> Send:
        assert device_plan is not None
        # Copies, within the device's memory: buffers are written again when the batch has been trained.
        copies = {id(array): self._copy(tensor) for array, tensor in device_plan.inputs}
        return lambda array: copies[id(array)] if id(array) in copies else self.send(array)

    def _copy(self, sent: Tensor) -> Tensor:
        copy = self._mover.compute.empty(tuple(sent.shape), sent.dtype)
        self._mover.compute.run(lambda: copy.copy_(sent))
        return copy

    def pool(
        self,
        pooling: Pooling,
        device_pooling: DevicePooling | None = None,
        rows: Rows | Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        sent = device_pooling or send_pooling(pooling, self._link)
        if sent.bags is None:
            assert sent.on_host is not None and out is None
            return self._pool_on_host(sent.on_host)
        weights = rows if rows is None or isinstance(rows, Tensor) else self._link.send(rows)
        result = self._mover.compute.empty((pooling.num_vectors, self._widths[0])) if out is None else out
        crossing, bags = self._rows_on_host(sent.crossing), sent.bags

        def pool_on_device() -> None:
            table = self.slots.weights if weights is None else weights
            rows = table, crossing, bags.row_locations, bags.inverse
            self._kernels.pool(*rows, bags.vectors, bags.starts, bags.scales, result, bags.num_samples)

        self._mover.compute.run(pool_on_device)
        if sent.on_host is not None:
            vectors, places = self._pool_on_host(sent.on_host), sent.host_vectors
            assert places is not None
            self._mover.compute.run(lambda: result.index_copy_(0, places.long(), vectors))
        return result

    def use(self, optimizer: RowOptimizer) -> None:
        self._set_rule(optimizer)
        if len(self._corrections) > 1:  # Adam's, which depend on the learning rate
            self._corrections = self._link.send(optimizer.corrections())
        self._host_rows.use(optimizer)

    def update(
        self, plan: GroupPlan, device_plan: DevicePlan | None, gradients: Tensor, found_inf: Tensor | None = None
    ) -> InFlight:
        """Rows on the host are updated when this returns, rows in slots later."""
        assert device_plan is not None
        deferred, sums, number, lines = device_plan.sums, self._sums, plan.number, plan.norm_lines
        update_host: Callable[..., Floats] = partial(self._host_rows.update, number=number, norm_lines=lines)
        update = partial(self._update, plan=plan, found_inf=found_inf)
        norms = update(device_plan.row_updates, update_host, gradients, None)
        if deferred is None:
            return norms
        self._mover.compute.run(lambda: sums.add(deferred, gradients, self._kernels, found_inf))
        update_host = partial(self._update_host_from_sums, number=number, norm_lines=lines)
        norms_of_sums = update(deferred.applied, update_host, sums.sums, sums.squares)
        return lambda: np.concatenate([norms(), norms_of_sums()], axis=1)

    def _update(
        self,
        row_updates: DeviceUpdates,
        update_host: Callable[..., Floats],
        gradients: Tensor,
        squares: Tensor | None,
        *,
        plan: GroupPlan,
        found_inf: Tensor | None,
    ) -> InFlight:
        """Update rows in slots, and on the host those that have to be updated there.

        `update_host` updates rows on the host, from the rows of gradients (and squares) that these need.
        """
        assert found_inf is None or not len(row_updates.host_positions)
        tables = (gradients,) if squares is None else (gradients, squares)
        arriving = [self._to_host(row_updates.needed, table) for table in tables if len(row_updates.host_positions)]
        norms = self._update_slots(row_updates, plan, gradients, squares, found_inf)
        if not arriving:
            return norms
        host_norms = update_host(row_updates.on_host, *(array.view() for array in arriving))
        for array in arriving:
            array.release()

        def all_norms() -> Floats:
            both = np.empty((len(host_norms), len(row_updates.rows)), np.float32)
            both[:, row_updates.positions], both[:, row_updates.host_positions] = norms(), host_norms
            return both

        return all_norms

    def _to_host(self, needed: Tensor | None, table: Tensor) -> ArrivingArray:
        """Start to copy rows `needed` of a table, or all of it, to the host."""
        if needed is None:
            return self._link.start_to_host(table)
        rows = self._mover.compute.empty((len(needed), table.shape[1]))
        self._mover.compute.run(lambda: take_rows(table, needed, rows))
        return self._link.start_to_host(rows)

    def _update_slots(
        self,
        row_updates: DeviceUpdates,
        plan: GroupPlan,
        gradients: Tensor,
        squares: Tensor | None,
        found_inf: Tensor | None,
    ) -> InFlight:
        to_host: Callable[[Tensor], InFlight] = self._link.to_host if plan.norm_lines else lambda norms: _not_sent
        segments, (weights, state) = row_updates.segments, self.slots
        norms, keys = self._mover.compute.empty((max(plan.norm_lines, 1), len(segments.locations))), None
        if not len(segments.locations):
            return to_host(norms)
        if self._host.rounds_by_key:
            rows = row_updates.rows[row_updates.positions]
            keys = self._link.send(self._host.rounding_keys(rows, plan.number).view(np.int64))
        if self._decay_factor != 1:
            decayed = weights, segments.locations, self._decay_factor, keys
            self._mover.compute.run(partial(self._kernels.decay, *decayed, found_inf=found_inf))
        sums = segments.locations, segments.starts, segments.vectors, segments.scales, gradients
        rule = self._kind, self._settings, self._corrections, norms
        more = {"hot": segments.hot, "squares": squares, "keys": keys, "found_inf": found_inf}
        self._mover.compute.run(lambda: self._kernels.update(weights, state, *sums, *rule, **more))
        return to_host(norms)

    # --- rows on the host, in the training thread ----------------------------------------------------------------

    def _pool_on_host(self, pooling: Pooling) -> Tensor:
        """Pool bags of which every row is on the host; (V, D) on the device."""
        shape = pooling.num_vectors, self._widths[0]
        return self._link.send_filled(np.float32, shape, lambda out: self._host_rows.pool(out, pooling))

    def _rows_on_host(self, rows: Int64s) -> Tensor | None:
        """Send rows (n, D) of the host to the device; None if there are none."""
        if not len(rows):
            return None

        def fill(out: Rows) -> None:
            np.take(self._host.weights, rows, axis=0, out=out, mode="clip")  # "raise" would copy twice

        return self._link.send_filled(self._host.dtype, (len(rows), self._widths[0]), fill)

    def _update_host_from_sums(
        self, applied: RowUpdates, sums: Floats, squares: Floats, *, number: int, norm_lines: int
    ) -> Floats:
        """Update rows of the host, each from one row of sums and squares: `applied.vectors`."""
        entries, host = applied.vectors.astype(np.int64), self._host
        keys = host.rounding_keys(applied.rows, number)
        places, rows = (applied.locations, entries), (host.weights, host.state)
        return self._host_rows.apply_sums(-1, *places, sums, squares, *rows, keys, norm_lines=norm_lines)

    # --- reading: waits ------------------------------------------------------------------------------------------

    def apply_deferred(self, entries: Int64s, weights: Rows, state: Rows) -> None:
        places, sums, squares = self._sums.read(entries, self._link)
        self._host_rows.apply_sums(0, places, np.arange(len(places)), sums, squares, weights, state)

    def read(self, slots: Int64s) -> tuple[Rows, Rows]:
        weights = as_stored(self._link.read(self.slots.weights, slots), self._host.dtype)  # exact: read as float32
        return weights, self._link.read(self.slots.state, slots)

    # --- the tier as a whole -------------------------------------------------------------------------------------

    def begin_sums(self, capacity: int) -> None:
        self._sums = TorchSums(capacity, self._widths[0], self.squares_width, self._mover.device)
        self._mover.settle()

    def forget_sums(self) -> None:
        self._sums.pending.fill_(False)
        self._mover.settle()

    def export_sums(self, num_entries: int) -> HotSums:
        return HotSums(*self._sums.read(np.arange(min(num_entries, len(self._sums.sums))), self._link))

    def import_sums(self, values: HotSums) -> None:
        self.forget_sums()
        self._sums.restore(values.entries, values.sums, values.squares)
        self._mover.settle()

    @property
    def num_bytes(self) -> tuple[int, int, int]:
        return self.slots.weights.nbytes, self.slots.state.nbytes, self._sums.num_bytes

    @property
    def buffer_bytes(self) -> Bytes:
        plans = (transfer_buffer.num_bytes for transfer_buffer in list(self._transfer_buffers))
        searches = (0, 0) if self._searcher is None else self._searcher.num_bytes
        return add_bytes([self._transfer.num_bytes, (self._link.num_bytes, 0), searches, *plans])
