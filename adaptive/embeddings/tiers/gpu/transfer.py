"""Movement of rows between a device's slots and the host tier, on the copying stream.

There are two ways, with equal results:

    DirectTransfer   kernels read and write the host's rows in place; its memory must be pinned (`gpu.pinned`)
    StagedTransfer   rows are gathered into pinned buffers, which are copied: for a host tier in a file, or memory that
                     cannot be pinned. Rows that are written back stay in a buffer until the host stores them.

Rows that never changed do not cross at all: their initial values are computed on the device. Slots and rows of a plan's
moves cross with the plan; other moves send their own.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from adaptive.arrays import Int64s, Rows
from adaptive.embeddings.planning.plan import Moves
from adaptive.embeddings.planning.sizing import row_bytes
from adaptive.embeddings.tiers.device import DeviceMoves, Fetches
from adaptive.embeddings.tiers.gpu.buffers import Bytes, IndexSender, Ring, TransferBuffer, add_bytes
from adaptive.embeddings.tiers.host import HostTier
from adaptive.embeddings.tiers.mover import Event, Mover
from adaptive.kernels.rows.choose import RowKernels
from adaptive.system import usable_cores

BLOCK_BYTES = 8 << 20  # rows that cross at once; at 50 GB/s a block takes 0.17 ms
NUM_BLOCKS = 4  # in each direction: one is filled while others cross
PIECE_ROWS = 2048  # that one thread gathers or stores at a time
THREADS = 4  # of a staged transfer, including the look-ahead thread, if there are more cores


class RowArrays(NamedTuple):
    """Rows with their state on the device: weights (slots, D) and state (slots, S), each float32 or bfloat16."""

    weights: Tensor
    state: Tensor


class Transfer(ABC):
    """Moves rows between slots and a host tier.

    The caller holds the pipeline's lock; no slot or row is named twice in a call.
    """

    in_place: bool  # kernels read and write the host's rows, and need all slots and rows on the device

    def __init__(self, host: HostTier, mover: Mover, kernels: RowKernels) -> None:
        self._host, self._mover, self._kernels = host, mover, kernels
        self._lists = IndexSender(mover)
        group = host.group
        self._tables = [
            torch.from_numpy(array).to(mover.device)
            for array in (group.seed_starts, group.table_keys.view(np.int64), group.table_bounds)
        ]
        self._first_state = float(host.first_state)

    @property
    def num_bytes(self) -> Bytes:
        """Bytes of the buffers: pinned memory, device memory."""
        return self._lists.num_bytes

    @abstractmethod
    def write_back(self, slots: RowArrays, moves: Moves, device_moves: DeviceMoves | None = None) -> None:
        """Copy the rows `moves.back_rows` from their slots to the host, with lists sent ahead."""

    def fetches(self, moves: Moves) -> Fetches:
        """Divide the rows to fetch: those that the host stores, and those at their initial values."""
        places, rows, initial = moves.fetch_slots, moves.fetch_rows, moves.fetch_initial
        if not initial.any():  # the usual case after some thousand batches
            return Fetches((places, rows), (rows[:0],))
        stored, never_stored = np.flatnonzero(~initial), np.flatnonzero(initial)  # faster than masks in random order
        # Initial values follow from row numbers in the whole tables, or keys.
        seed_rows, row_keys = self._host.group.seed_rows(rows[never_stored]), self._host.row_keys
        keys = () if row_keys is None else (row_keys[seed_rows],)
        return Fetches((places[stored], rows[stored]), (places[never_stored], seed_rows, *keys))

    def fetch(self, slots: RowArrays, moves: Moves, device_moves: DeviceMoves | None = None) -> None:
        """Copy or compute `moves.fetch_rows` into slots; store `moves.fresh_rows` on the host."""
        self._host.store_initial(moves.fresh_rows)
        lists = device_moves or DeviceMoves(self.fetches(moves), (), (), ())
        self._fetch_stored(slots, lists.fetches.stored, lists.stored)
        for places, rows, *keys in self._send(lists.fetches.initial, lists.initial):
            arguments = *slots, places, rows, *self._tables, self._first_state
            row_keys = keys[0] if keys else None
            self._mover.copying.run(partial(self._kernels.initial_rows, *arguments, row_keys=row_keys))

    def _send(self, numbers: Sequence[Int64s], sent: Sequence[Tensor]) -> Iterable[Sequence[Tensor]]:
        """Yield lists of one length on the device, some of each at a time; `sent`: with the plan, or empty."""
        if not len(numbers[0]):
            return ()
        return (sent,) if sent else self._lists.send(*numbers)

    def _copy(self, to: RowArrays, to_rows: Tensor, source: RowArrays, source_rows: Tensor) -> None:
        """Copy rows with their state, on the copying stream."""
        self._mover.copying.run(lambda: self._kernels.copy_rows(*to, to_rows, *source, source_rows))

    def _poison(self, table: RowArrays, rows: Int64s) -> None:
        for (sent,) in self._lists.send(rows):
            self._mover.copying.run(partial(_fill_with_nan, table, sent))

    @abstractmethod
    def _fetch_stored(self, slots: RowArrays, stored: tuple[Int64s, Int64s], sent: Sequence[Tensor]) -> None:
        """Copy rows to slots; `sent`: both on the device, or empty."""

    @abstractmethod
    def finish_host_writes(self) -> None:
        """Return when the host has stored the rows that copies brought; the copies are done."""

    def close(self) -> None:
        """Release the host's memory."""
        return

    def poison_slots(self, slots: RowArrays, places: Int64s) -> None:
        """Debug: write NaN to slots whose rows have been written back."""
        self._poison(slots, places)

    @abstractmethod
    def poison_host(self, rows: Int64s) -> None:
        """Debug: write NaN to rows of the host."""


class DirectTransfer(Transfer):
    """Rows cross in place: kernels read and write the host tables' pinned memory.

    Args:
        host_rows: the host's weights and state as the device sees them.
        used_in_place: rows are used in place on the host, so what a plan writes back must be stored by the next one.
        release: called by `close`, when no kernel uses the memory any more.
    """

    in_place = True

    def __init__(
        self,
        host: HostTier,
        mover: Mover,
        kernels: RowKernels,
        host_rows: RowArrays,
        *,
        used_in_place: bool,
        release: Callable[[], None],
    ) -> None:
        super().__init__(host, mover, kernels)
        self._release = release
        self._host_rows: RowArrays | None = host_rows
        self._used_in_place = used_in_place
        self._written: Event | None = None

    def write_back(self, slots: RowArrays, moves: Moves, device_moves: DeviceMoves | None = None) -> None:
        if self._written is not None and self._used_in_place:
            self._mover.await_brought(self._written)
        back = () if device_moves is None else device_moves.back
        for places, rows in self._send((moves.back_slots, moves.back_rows), back):
            self._copy(self._open_rows(), rows, slots, places)
        if len(moves.back_slots):
            self._written = self._mover.copying.record()

    def _fetch_stored(self, slots: RowArrays, stored: tuple[Int64s, Int64s], sent: Sequence[Tensor]) -> None:
        for places, rows in self._send(stored, sent):
            self._copy(slots, places, self._open_rows(), rows)

    def _open_rows(self) -> RowArrays:
        assert self._host_rows is not None, "the tiers are closed: the device no longer has their memory"
        return self._host_rows

    def finish_host_writes(self) -> None:
        pass

    def close(self) -> None:
        self._host_rows = None
        try:
            self._mover.finish_copies()  # a kernel that reads released memory ends the process
        finally:
            self._release()

    def poison_host(self, rows: Int64s) -> None:
        self._poison(self._open_rows(), rows)  # on the copying stream, after copies of them that are in flight


@dataclass(frozen=True)
class _WrittenBack:
    """Rows in flight to the host, which stores them after `event`."""

    event: Event
    rows: Int64s
    weights: Rows
    state: Rows


class StagedTransfer(Transfer):
    """Rows cross in bounded pinned buffers, which the host fills and empties.

    The host stores what a plan writes back when the next plan moves rows, or when buffers run out.
    """

    in_place = False

    def __init__(self, host: HostTier, mover: Mover, kernels: RowKernels) -> None:
        super().__init__(host, mover, kernels)
        self._to_device, self._to_host = Ring(mover, NUM_BLOCKS), Ring(mover, NUM_BLOCKS)
        self._written_back: deque[_WrittenBack] = deque()
        in_memory = len(host.weights) > 0  # files have their own threads, and count in one place what they read
        self._pool = (
            ThreadPoolExecutor(THREADS - 1, "adaptive-rows") if in_memory and usable_cores() > THREADS else None
        )
        self._widths = host.weights.shape[1], host.state.shape[1]
        self._at_once = max(1, BLOCK_BYTES // row_bytes(host.group, host.optimizer))
        self._count = torch.arange(self._at_once, device=mover.device)

    @property
    def num_bytes(self) -> Bytes:
        rings = self._to_device.num_bytes, self._to_host.num_bytes
        return add_bytes([super().num_bytes, *rings, (0, self._count.nbytes)])

    def write_back(self, slots: RowArrays, moves: Moves, device_moves: DeviceMoves | None = None) -> None:
        self.finish_host_writes()
        for first in range(0, len(moves.back_slots), self._at_once):
            part = slice(first, first + self._at_once)
            if len(self._written_back) == NUM_BLOCKS:
                self._store_next()
            self._start_to_host(slots, moves.back_slots[part], moves.back_rows[part])

    def _start_to_host(self, slots: RowArrays, places: Int64s, rows: Int64s) -> None:
        transfer_buffer = self._to_host.next()
        self._take(transfer_buffer, places)
        transfer_buffer.send(1)
        sent, weights, state = transfer_buffer.tensors
        self._copy(RowArrays(weights, state), self._count[: len(rows)], slots, sent)
        self._written_back.append(_WrittenBack(transfer_buffer.to_host(1), rows, *transfer_buffer.arrays[1:]))

    def finish_host_writes(self) -> None:
        while self._written_back:
            self._store_next()

    def _store_next(self) -> None:
        written_back = self._written_back.popleft()
        self._mover.await_brought(written_back.event)
        self._in_pieces(
            len(written_back.rows),
            lambda at, numbers: self._host.copy_in(
                written_back.rows[at], written_back.weights, written_back.state, numbers
            ),
        )

    def _fetch_stored(self, slots: RowArrays, stored: tuple[Int64s, Int64s], sent: Sequence[Tensor]) -> None:
        places, rows = stored
        for first in range(0, len(rows), self._at_once):
            part = slice(first, first + self._at_once)
            self._start_to_device(slots, places[part], rows[part])

    def _start_to_device(self, slots: RowArrays, places: Int64s, rows: Int64s) -> None:
        transfer_buffer = self._to_device.next()
        self._take(transfer_buffer, places)
        _, to_weights, to_state = transfer_buffer.arrays
        self._in_pieces(len(rows), lambda at, numbers: self._host.copy_out(rows[at], to_weights, to_state, numbers))
        transfer_buffer.send()
        sent, weights, state = transfer_buffer.tensors
        self._copy(slots, sent, RowArrays(weights, state), self._count[: len(rows)])

    def _in_pieces(self, count: int, work: Callable[[slice, Int64s], None]) -> None:
        """Do the work on `count` rows, in several threads if there are many.

        `work` gets the rows of a piece as a slice and as numbers.
        """
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
            wait(others)  # even after an error: they use the buffer
        for other in others:
            other.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _take(self, transfer_buffer: TransferBuffer, places: Int64s) -> None:
        size, host = len(places), self._host
        weights, state = self._widths
        transfer_buffer.take([(np.int64, size), (host.dtype, (size, weights)), (np.float32, (size, state))])
        transfer_buffer.arrays[0][...] = places

    def poison_host(self, rows: Int64s) -> None:
        self._host.poison(rows)


def _fill_with_nan(table: RowArrays, rows: Tensor) -> None:
    for tensor in table:
        tensor.index_fill_(0, rows, torch.nan)
