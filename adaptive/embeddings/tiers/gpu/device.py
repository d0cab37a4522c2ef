"""`TorchDevice`: slots in the memory of a GPU, or of any torch device.

Nothing in a training step waits for the device: the plan was sent ahead of time (`sent_plan`), rows move on a stream of
their own (`transfer`, `mover`), and norms and drifts come back through pinned memory, to be read a fixed number of
batches later. Exceptions, by nature: a batch that updates rows on the host (`misses = "host"`) waits there for their
gradients (`host_rows`), and ranks whose rows cross over the host's memory wait for these (`bring`).

Everything is bit-equal to `CpuDevice`, so to every other placement, depth and way of transfer. Nothing depends on
timing: every sum has one order, and whatever is measured is used at a fixed age.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.planning.plan import Deferred, GroupPlan, Int64s, Moves, Pooling, RowUpdates, Snapshots
from adaptive.embeddings.tiers.cpu_device import CpuRows
from adaptive.embeddings.tiers.device import DeviceTier, Floats, Later, Send, WatchedValues
from adaptive.embeddings.tiers.gpu.buffers import TORCH_DTYPES, Bytes, TransferBuffer, added, take_rows
from adaptive.embeddings.tiers.gpu.link import ArrivingArray, ComputeLink
from adaptive.embeddings.tiers.gpu.lookups import DeviceSearcher
from adaptive.embeddings.tiers.gpu.sent import (
    Segments,
    SentDeferred,
    SentPlan,
    SentPooling,
    SentRowUpdates,
    SentSnapshots,
)
from adaptive.embeddings.tiers.gpu.sent_plan import counted, found_of, send_plan, send_pooling
from adaptive.embeddings.tiers.gpu.transfer import RowArrays, Transfer
from adaptive.embeddings.tiers.host import HostTier
from adaptive.embeddings.tiers.mover import Mover
from adaptive.kernels.rows.choose import RowKernels
from adaptive.optim import RowOptimizer


class TorchSums:
    """Waiting gradients: sums (H, D), squares (H, S) float32; pending (H,) bool tells which entries count."""

    def __init__(self, capacity: int, width: int, squares_width: int, device: torch.device) -> None:
        self.sums = torch.full((capacity, width), torch.nan, device=device)
        self.squares = torch.full((capacity, squares_width), torch.nan, device=device)
        self.pending = torch.zeros(capacity, dtype=torch.bool, device=device)

    def add(self, deferred: SentDeferred, gradients: Tensor, kernels: RowKernels) -> None:
        """Add a batch's gradients (V, D) on the current stream; sums that are due after it no longer wait."""
        segments = deferred.segments_sent
        kernels.accumulate(
            segments.locations,
            segments.starts,
            segments.vectors,
            segments.scales,
            gradients,
            self.sums,
            self.squares,
            self.pending,
            hot=segments.hot,
        )
        self.pending.index_fill_(0, deferred.due_sent, False)

    def forget(self) -> None:
        """Drop all sums that wait."""
        self.pending.fill_(False)

    def read(self, entries: Int64s, link: ComputeLink) -> tuple[Int64s, Floats, Floats]:
        """What waits for the rows with `entries` (n,) or -1: positions (m,), sums (m, D), squares (m, S).

        Waits for the device.
        """
        watched = np.flatnonzero(entries >= 0)
        waiting = watched[link.read(self.pending[:, None], entries[watched])[:, 0] > 0]
        return waiting, link.read(self.sums, entries[waiting]), link.read(self.squares, entries[waiting])

    def restore(self, entries: Int64s, sums: Floats, squares: Floats) -> None:
        """Restore sums (m, D) and squares (m, S) that wait for the entries (m,)."""
        device = self.sums.device
        places = torch.from_numpy(entries).to(device)
        self.sums[places], self.squares[places] = (torch.from_numpy(rows).to(device) for rows in (sums, squares))
        self.pending[places] = True

    @property
    def num_bytes(self) -> int:
        return self.sums.nbytes + self.squares.nbytes + self.pending.nbytes


class HostRows:
    """Pools and updates rows of one group that lie on the host, in the training thread."""

    def __init__(self, host: HostTier, optimizer: RowOptimizer, link: ComputeLink) -> None:
        self._host, self._link = host, link
        self._rows = CpuRows(host, optimizer)
        self._width = host.weights.shape[1]

    def use(self, optimizer: RowOptimizer) -> None:
        """Update rows by these settings from now on."""
        self._rows.use(optimizer)

    def pool(self, pooling: Pooling) -> Tensor:
        """(V, D) on the device: bags of which every row lies on the host."""

        def fill(out: Floats) -> None:
            self._rows.pool(out, pooling)

        return self._link.send_filled(np.float32, (pooling.num_vectors, self._width), fill)

    def rows(self, rows: Int64s) -> Tensor | None:
        """(n, D) rows on the device; None if there are none."""
        if not len(rows):
            return None

        def fill(out: Floats) -> None:
            np.take(self._host.weights, rows, axis=0, out=out, mode="clip")  # "raise" would copy twice

        return self._link.send_filled(np.float32, (len(rows), self._width), fill)

    def update(self, row_updates: RowUpdates, gradients: Floats) -> Floats:
        """Update rows of the host from gradients (V, D); returns the L2 norm of each update (U,)."""
        return self._rows.update(row_updates, gradients)

    def update_from_sums(self, due: RowUpdates, sums: Floats, squares: Floats) -> Floats:
        """Update rows of the host from sums (n, D) and their squares (n, S), one row of these each: `due.vectors`.

        Returns the L2 norm of each update (U,).
        """
        return self._rows.apply_sums_on_host(due.locations, due.vectors.astype(np.int64), sums, squares)

    def apply_waiting(self, waiting: Int64s, sums: Floats, squares: Floats, weights: Floats, state: Floats) -> None:
        """Apply sums (n, D) with their squares (n, S) to copies: to the rows `waiting` (n,) of weights and state."""
        self._rows.apply_sums_to_copies(waiting, np.arange(len(waiting)), sums, squares, weights, state)


class TorchDevice(DeviceTier):
    """Slots on a torch device: rows cross on streams for copies, pooling and updates run on the training stream.

    Bit-equal to `CpuDevice`.
    """

    pools_parts = False

    def __init__(
        self,
        host: HostTier,
        num_slots: int,
        optimizer: RowOptimizer,
        mover: Mover,
        kernels: RowKernels,
        transfer: Transfer,
        searcher: DeviceSearcher | None = None,
        *,
        poison: bool = False,
    ) -> None:
        self.poison = poison
        self._mover, self._kernels, self._transfer = mover, kernels, transfer
        self.searcher = self._searcher = searcher
        self._link = ComputeLink(mover)
        self._host_rows = HostRows(host, optimizer, self._link)
        self._kind, self._settings = optimizer.kind, [float(value) for value in optimizer.settings()]
        self._kept = optimizer.kept
        self._corrections = torch.from_numpy(optimizer.corrections()).to(mover.device)
        self._widths = host.weights.shape[1], host.state.shape[1]
        self.squares_width = optimizer.squares_width(host.weights.shape[1])
        self._transfer_buffers: list[TransferBuffer] = []
        self.resize(num_slots)
        self.watch(0, snapshots=False, sums=False)

    def resize(self, num_slots: int) -> None:
        def rows(number: int, width: int) -> Tensor:
            found = self._mover.compute.empty((number, width))
            self._mover.compute.run(lambda: _fill(found, torch.nan if self.poison else 0.0))
            return found

        weights, state = self._widths
        self.num_slots = 0
        self.slots = RowArrays(rows(0, weights), rows(0, state))  # the old ones make room first
        if self._mover.device.type == "cuda":
            torch.cuda.empty_cache()  # else the new ones would lie in the old ones' larger blocks and waste the rest
        self.slots = RowArrays(rows(num_slots, weights), rows(num_slots, state))
        self._mover.settle()
        self.num_slots = num_slots

    # --- ahead of training, on streams for copies ---------------------------------------------------------------

    def send(self, array: NDArray[Any]) -> Tensor:
        return self._link.send(array)

    def bring(self, tensor: Tensor) -> Later:
        return self._link.bring(tensor)

    def ship(self, plan: GroupPlan, buffer: int, inputs: Sequence[NDArray[Any]] = ()) -> GroupPlan:
        while len(self._transfer_buffers) <= buffer:
            self._transfer_buffers.append(TransferBuffer(self._mover))
        if plan.found is not None:
            found_of(plan.found).user = plan.number
        known = [array for array in inputs if array.dtype in TORCH_DTYPES]
        return counted(send_plan(plan, self._transfer_buffers[buffer], known))

    def ship_again(self, plan: GroupPlan) -> None:
        assert isinstance(plan, SentPlan)
        send_plan(plan.original, plan.transfer_buffer, plan.inputs)

    def write_back(self, moves: Moves) -> None:
        self._transfer.write_back(self.slots, moves)

    def fetch(self, moves: Moves) -> None:
        self._transfer.fetch(self.slots, moves)

    def land(self) -> None:
        self._transfer.land()

    def close(self) -> None:
        self._transfer.close()

    def poison_slots(self, slots: Int64s) -> None:
        self._transfer.poison_slots(self.slots, slots)

    def poison_host(self, rows: Int64s) -> None:
        self._transfer.poison_host(rows)

    # --- training, on the compute stream -------------------------------------------------------------------------

    def inputs(self, plan: GroupPlan) -> Send:
        assert isinstance(plan, SentPlan)
        # Copies, within the device's memory: the parcel is written again when the batch has been trained.
        own = {id(one): (one, self._own(sent)) for one, sent in zip(plan.inputs, plan.sent_inputs, strict=True)}
        return lambda array: own[id(array)][1] if id(array) in own else self.send(array)

    def _own(self, sent: Tensor) -> Tensor:
        found = self._mover.compute.empty(tuple(sent.shape), sent.dtype)
        self._mover.compute.run(lambda: _copy(found, sent))
        return found

    def pool(self, pooling: Pooling, rows: Floats | Tensor | None = None, out: Tensor | None = None) -> Tensor:
        if not isinstance(pooling, SentPooling):
            pooling = send_pooling(pooling, self._link)
        if pooling.bags is None:
            assert pooling.on_host is not None and out is None
            return self._host_rows.pool(pooling.on_host)
        weights = rows if rows is None or isinstance(rows, Tensor) else self._link.send(rows)
        out = self.empty_vectors(pooling.num_vectors) if out is None else out
        crossing, bags = self._host_rows.rows(pooling.crossing), pooling.bags

        def pool_here() -> None:
            table = self.slots.weights if weights is None else weights
            rows = table, crossing, bags.row_locations, bags.inverse
            self._kernels.pool(*rows, bags.vectors, bags.starts, bags.scales, out, bags.num_samples)

        self._mover.compute.run(pool_here)
        if pooling.on_host is not None:
            vectors, places = self._host_rows.pool(pooling.on_host), pooling.host_vectors
            self._mover.compute.run(lambda: _put_rows(out, places, vectors))
        return out

    def empty_vectors(self, number: int) -> Tensor:
        return self._mover.compute.empty((number, self._widths[0]))

    def use(self, optimizer: RowOptimizer) -> None:
        self._settings, self._kept = [float(value) for value in optimizer.settings()], optimizer.kept
        if len(self._corrections) > 1:  # Adam's, which hold the rate
            self._corrections = self._link.send(optimizer.corrections())
        self._host_rows.use(optimizer)

    def update(self, row_updates: RowUpdates, gradients: Tensor) -> Later:
        """Rows on the host are updated when this returns, rows in slots when the device comes to it."""
        assert isinstance(row_updates, SentRowUpdates)
        return self._update(row_updates, self._host_rows.update, gradients)

    def _update(
        self,
        row_updates: SentRowUpdates,
        there: Callable[..., Floats],
        gradients: Tensor,
        squares: Tensor | None = None,
    ) -> Later:
        """`there` updates rows on the host, from the rows of gradients (and squares) that they need."""
        tables = (gradients,) if squares is None else (gradients, squares)
        coming = [self._bring(row_updates.needed, table) for table in tables if len(row_updates.there)]
        norms = self._update_slots(row_updates.segments_here, gradients, squares)
        if not coming:
            return norms
        norms_there = there(row_updates.on_host, *(brought.view() for brought in coming))
        for brought in coming:
            brought.done()

        def all_norms() -> Floats:
            found = np.empty(len(row_updates.rows), np.float32)
            found[row_updates.here], found[row_updates.there] = norms(), norms_there
            return found

        return all_norms

    def _bring(self, needed: Tensor | None, table: Tensor) -> ArrivingArray:
        """Rows `needed` of a table, or all of it, to the host."""
        if needed is None:
            return self._link.bring_view(table)
        found = self._mover.compute.empty((len(needed), table.shape[1]))
        self._mover.compute.run(lambda: take_rows(table, needed, found))
        return self._link.bring_view(found)

    def _update_slots(self, segments: Segments, gradients: Tensor, squares: Tensor | None) -> Later:
        norms = self._mover.compute.empty(len(segments.locations))
        if len(segments.locations) and self._kept != 1:
            kept = self._kept
            self._mover.compute.run(lambda: self._kernels.decay(self.slots.weights, segments.locations, kept))
        if len(segments.locations):
            self._mover.compute.run(
                lambda: self._kernels.update(
                    self.slots.weights,
                    self.slots.state,
                    segments.locations,
                    segments.starts,
                    segments.vectors,
                    segments.scales,
                    gradients,
                    self._kind,
                    self._settings,
                    self._corrections,
                    norms,
                    squares=squares,
                    hot=segments.hot,
                )
            )
        return self._link.bring(norms)

    def defer(self, deferred: Deferred, gradients: Tensor) -> Later:
        assert isinstance(deferred, SentDeferred)
        sums = self._sums
        self._mover.compute.run(lambda: sums.add(deferred, gradients, self._kernels))
        return self._update(deferred.due, self._host_rows.update_from_sums, sums.sums, sums.squares)

    def drift(self, snapshots: Snapshots) -> Later:
        assert isinstance(snapshots, SentSnapshots)
        sent = snapshots.arguments
        crossing = self._host_rows.rows(snapshots.crossing)
        drifts = self._mover.compute.empty(len(sent.locations))
        if len(drifts):
            self._mover.compute.run(
                lambda: self._kernels.drift(
                    sent.locations, sent.entries, sent.known, self.slots.weights, crossing, self._snapshots, drifts
                )
            )
        return self._link.bring(drifts)

    # --- reading: waits ------------------------------------------------------------------------------------------

    def apply_waiting(self, entries: Int64s, weights: Floats, state: Floats) -> None:
        self._host_rows.apply_waiting(*self._sums.read(entries, self._link), weights, state)

    def read(self, slots: Int64s) -> tuple[Floats, Floats]:
        return self._link.read(self.slots.weights, slots), self._link.read(self.slots.state, slots)

    # --- the tier as a whole -------------------------------------------------------------------------------------

    def watch(self, capacity: int, *, snapshots: bool, sums: bool) -> None:
        width, device = self._widths[0], self._mover.device
        self._snapshots = torch.full((capacity if snapshots else 0, width), torch.nan, device=device)
        self._sums = TorchSums(capacity if sums else 0, width, self.squares_width, device)
        self._mover.settle()

    def forget_watched(self) -> None:
        self._snapshots.fill_(torch.nan)
        self._sums.forget()
        self._mover.settle()

    def kept(self, num_entries: int) -> WatchedValues:
        snapshots = self._link.read(self._snapshots, np.arange(min(num_entries, len(self._snapshots))))
        return WatchedValues(snapshots, *self._sums.read(np.arange(min(num_entries, len(self._sums.sums))), self._link))

    def keep(self, kept: WatchedValues) -> None:
        self.forget_watched()
        self._snapshots[: len(kept.snapshots)] = torch.from_numpy(kept.snapshots).to(self._snapshots.device)
        self._sums.restore(kept.waiting, kept.sums, kept.squares)
        self._mover.settle()

    @property
    def num_bytes(self) -> tuple[int, int, int]:
        watched = self._snapshots.nbytes + self._sums.num_bytes
        return self.slots.weights.nbytes, self.slots.state.nbytes, watched

    @property
    def buffer_bytes(self) -> Bytes:
        plans = (transfer_buffer.num_bytes for transfer_buffer in list(self._transfer_buffers))
        found = (0, 0) if self._searcher is None else self._searcher.num_bytes
        return added([self._transfer.num_bytes, (self._link.num_bytes, 0), found, *plans])


def _copy(to: Tensor, source: Tensor) -> None:
    to.copy_(source)


def _fill(table: Tensor, value: float) -> None:
    table.fill_(value)


def _put_rows(table: Tensor, places: Tensor | None, rows: Tensor) -> None:
    assert places is not None
    table.index_copy_(0, places.long(), rows)
