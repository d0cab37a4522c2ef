"""Rows between a device's slots and the host tier, on the streams for copies. Two ways, with equal results:

    DirectTransfer   kernels read and write the host's rows in place; its memory must be pinned (`gpu.pinned`)
    StagedTransfer   rows are gathered into pinned buffers, which are copied: for a host tier in a file, or memory that
                     cannot be pinned. Rows that are written back lie in a buffer until they *land*: until the host
                     stores them.

Rows that never changed do not cross at all: their initial values are computed on the device.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from adaptive.embeddings.planning.plan import Int64s, Moves
from adaptive.embeddings.tiers.gpu.buffers import Bytes, IndexSender, Ring, TransferBuffer, added
from adaptive.embeddings.tiers.host import Floats, HostTier
from adaptive.embeddings.tiers.mover import Event, Mover
from adaptive.kernels.rows.choose import RowKernels
from adaptive.kernels.rows.cpu import steps
from adaptive.optim import RowOptimizer
from adaptive.system import usable_cores

BLOCK_BYTES = 8 << 20  # rows that cross at once; at 50 GB/s a block takes 0.17 ms
NUM_BLOCKS = 4  # in each direction: one is filled while others cross
PIECE_ROWS = 2048  # that one thread gathers or stores at a time
THREADS = 4  # of a staged transfer, the look-ahead's own among them, where there are cores


@dataclass
class RowArrays:
    """Rows with their state on the device: weights (slots, D), state (slots, S)."""

    weights: Tensor
    state: Tensor


class Transfer(ABC):
    """Moves rows between slots and a host tier. The caller holds the pipeline's lock; no slot or row comes twice."""

    def __init__(self, host: HostTier, mover: Mover, kernels: RowKernels, optimizer: RowOptimizer) -> None:
        self._host, self._mover, self._kernels = host, mover, kernels
        self._lists = IndexSender(mover)
        group = host.group
        self._tables = [
            torch.from_numpy(array).to(mover.device)
            for array in (group.undivided.table_starts, group.table_keys.view(np.int64), group.table_bounds)
        ]
        self._first_state = float(optimizer.settings()[steps.FIRST])

    @property
    def num_bytes(self) -> Bytes:
        """Bytes of its buffers: of pinned memory, of device memory."""
        return self._lists.num_bytes

    @abstractmethod
    def write_back(self, slots: RowArrays, moves: Moves) -> None:
        """Copy the rows `moves.back_rows` from their slots to the host."""

    def fetch(self, slots: RowArrays, moves: Moves) -> None:
        """Bring, or make, the rows `moves.fetch_rows` into their slots; store `moves.fresh_rows` on the host."""
        self._host.store_initial(moves.fresh_rows)
        initial = moves.fetch_initial
        if not initial.any():  # the usual case after some thousand batches: nothing to pick out
            self._fetch_stored(slots, moves.fetch_slots, moves.fetch_rows)
            return
        if not initial.all():
            self._fetch_stored(slots, moves.fetch_slots[~initial], moves.fetch_rows[~initial])
        fresh = self._host.group.group_rows(moves.fetch_rows[initial])  # values follow from numbers of all ranks' rows
        for places, rows in self._lists.send(moves.fetch_slots[initial], fresh):
            self._make(slots, places, rows)

    def _make(self, slots: RowArrays, places: Tensor, rows: Tensor) -> None:
        self._mover.copying.run(
            lambda: self._kernels.initial_rows(
                slots.weights, slots.state, places, rows, *self._tables, self._first_state
            )
        )

    @abstractmethod
    def _fetch_stored(self, slots: RowArrays, places: Int64s, rows: Int64s) -> None: ...

    @abstractmethod
    def land(self) -> None:
        """Return when the host has stored the rows that copies brought; the copies are done."""

    def close(self) -> None:
        """Release the host's memory."""
        return

    def poison_slots(self, slots: RowArrays, places: Int64s) -> None:
        """Debug: NaN into slots whose rows have been written back."""
        for (sent,) in self._lists.send(places):
            self._mover.copying.run(partial(_poison, slots, sent))

    @abstractmethod
    def poison_host(self, rows: Int64s) -> None:
        """Debug: NaN into rows of the host."""


class DirectTransfer(Transfer):
    """Rows cross in place: kernels on the device read and write the host tables' pinned memory.

    Args:
        host_rows: the host's weights and state as the device sees them.
        lands: rows on the host are used in place there, so what is written back must land with the next plan.
    """

    def __init__(
        self,
        host: HostTier,
        mover: Mover,
        kernels: RowKernels,
        optimizer: RowOptimizer,
        host_rows: RowArrays,
        *,
        lands: bool,
        close: Callable[[], None],
    ) -> None:
        super().__init__(host, mover, kernels, optimizer)
        self._let_go = close
        self._host_rows: RowArrays | None = host_rows
        self._lands = lands
        self._written: Event | None = None

    def write_back(self, slots: RowArrays, moves: Moves) -> None:
        if self._written is not None and self._lands:
            self._mover.await_brought(self._written)
        for places, rows in self._lists.send(moves.back_slots, moves.back_rows):
            self._run(self._kernels.write_back, slots, places, rows)
        if len(moves.back_slots):
            self._written = self._mover.copying.record()

    def _fetch_stored(self, slots: RowArrays, places: Int64s, rows: Int64s) -> None:
        for sent_places, sent_rows in self._lists.send(places, rows):
            self._run(self._kernels.fetch, slots, sent_places, sent_rows)

    def _run(self, kernel: Callable[..., None], slots: RowArrays, places: Tensor, rows: Tensor) -> None:
        host = self._open_rows()
        self._mover.copying.run(lambda: kernel(slots.weights, slots.state, places, host.weights, host.state, rows))

    def _open_rows(self) -> RowArrays:
        assert self._host_rows is not None, "the tiers are closed: their memory is not the device's any more"
        return self._host_rows

    def land(self) -> None:
        pass

    def close(self) -> None:
        self._host_rows = None
        try:
            self._mover.finish_copies()  # a kernel that reads released memory ends the process
        finally:
            self._let_go()

    def poison_host(self, rows: Int64s) -> None:
        host = self._open_rows()
        for (sent,) in self._lists.send(rows):  # they may be on their way to the device: poisoned behind them
            self._mover.copying.run(partial(_poison, host, sent))


@dataclass(frozen=True)
class _Landing:
    """Rows on their way to the host, which stores them once `event` has come."""

    event: Event
    rows: Int64s
    weights: Floats
    state: Floats


class StagedTransfer(Transfer):
    """Rows cross in bounded pinned buffers, which the host fills and empties.

    What a plan writes back lands when the next one is carried out, or when buffers run out.
    """

    def __init__(self, host: HostTier, mover: Mover, kernels: RowKernels, optimizer: RowOptimizer) -> None:
        super().__init__(host, mover, kernels, optimizer)
        self._coming, self._leaving = Ring(mover, NUM_BLOCKS), Ring(mover, NUM_BLOCKS)
        self._landings: deque[_Landing] = deque()
        in_memory = len(host.weights) > 0  # files have threads of their own, and one place to count what they read
        self._pool = (
            ThreadPoolExecutor(THREADS - 1, "adaptive-rows") if in_memory and usable_cores() > THREADS else None
        )
        self._widths = host.weights.shape[1], host.state.shape[1]
        self._at_once = max(1, BLOCK_BYTES // (4 * sum(self._widths)))
        self._count = torch.arange(self._at_once, device=mover.device)

    @property
    def num_bytes(self) -> Bytes:
        rings = self._coming.num_bytes, self._leaving.num_bytes
        return added([super().num_bytes, *rings, (0, self._count.nbytes)])

    def write_back(self, slots: RowArrays, moves: Moves) -> None:
        self.land()
        for first in range(0, len(moves.back_slots), self._at_once):
            part = slice(first, first + self._at_once)
            if len(self._landings) == NUM_BLOCKS:
                self._land_next()
            self._leave(slots, moves.back_slots[part], moves.back_rows[part])

    def _leave(self, slots: RowArrays, places: Int64s, rows: Int64s) -> None:
        transfer_buffer = self._leaving.next()
        self._take(transfer_buffer, places)
        transfer_buffer.send(1)
        sent, weights, state = transfer_buffer.tensors
        count = self._count[: len(rows)]
        self._mover.copying.run(
            lambda: self._kernels.write_back(slots.weights, slots.state, sent, weights, state, count)
        )
        self._landings.append(_Landing(transfer_buffer.bring(1), rows, *transfer_buffer.arrays[1:]))

    def land(self) -> None:
        while self._landings:
            self._land_next()

    def _land_next(self) -> None:
        landing = self._landings.popleft()
        self._mover.await_brought(landing.event)
        self._in_pieces(
            len(landing.rows),
            lambda at, which: self._host.copy_in(landing.rows[at], landing.weights, landing.state, which),
        )

    def _fetch_stored(self, slots: RowArrays, places: Int64s, rows: Int64s) -> None:
        for first in range(0, len(rows), self._at_once):
            part = slice(first, first + self._at_once)
            self._come(slots, places[part], rows[part])

    def _come(self, slots: RowArrays, places: Int64s, rows: Int64s) -> None:
        transfer_buffer = self._coming.next()
        self._take(transfer_buffer, places)
        _, to_weights, to_state = transfer_buffer.arrays
        self._in_pieces(len(rows), lambda at, which: self._host.copy_out(rows[at], to_weights, to_state, which))
        transfer_buffer.send()
        sent, weights, state = transfer_buffer.tensors
        count = self._count[: len(rows)]
        self._mover.copying.run(lambda: self._kernels.fetch(slots.weights, slots.state, sent, weights, state, count))

    def _in_pieces(self, count: int, work: Callable[[slice, Int64s], None]) -> None:
        """Do the work on all of `count` rows, stretch by stretch, by several threads where there are many."""
        numbers = np.arange(count)
        pieces = [slice(first, min(first + PIECE_ROWS, count)) for first in range(0, count, PIECE_ROWS)]
        if self._pool is None or len(pieces) < 2:
            work(slice(0, count), numbers)
            return
        shares = [pieces[number::THREADS] for number in range(THREADS)]

        def do(share: list[slice]) -> None:
            for piece in share:
                work(piece, numbers[piece])

        others = [self._pool.submit(do, share) for share in shares[1:]]
        try:
            do(shares[0])
        finally:
            wait(others)  # they use the buffer
        for other in others:
            other.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _take(self, transfer_buffer: TransferBuffer, places: Int64s) -> None:
        size = len(places)
        transfer_buffer.take([(np.int64, size), *((np.float32, (size, width)) for width in self._widths)])
        transfer_buffer.arrays[0][...] = places

    def poison_host(self, rows: Int64s) -> None:
        self._host.poison(rows)


def _poison(table: RowArrays, numbers: Tensor) -> None:
    table.weights.index_fill_(0, numbers, torch.nan)
    table.state.index_fill_(0, numbers, torch.nan)
