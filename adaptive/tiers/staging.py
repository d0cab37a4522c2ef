"""Pinned buffers: what crosses between host and device waits here. All are reused; none is freed during a run.

    Block    pinned memory, used again when its contents have been sent
    Parcel   a block with a twin on the device, for the copy stream: several arrays, one copy
    Link     arrays of the training thread to the device, numbers back

Sizes grow to the largest use and are powers of two, as torch's pinned memory is anyway.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from adaptive.tiers.device import Later
from adaptive.tiers.mover import Event, Mover, Shape

ALIGNMENT = 16  # bytes; what vector loads of kernels like
SMALLEST = 1 << 16
READ_BYTES = 32 << 20  # rows that are read out at once
SENDS = 16  # sends under way before the training thread waits for the oldest

_TORCH = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.bool_): torch.bool,
}


class Block:
    """Pinned memory of one owner."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._sent: Event | None = None
        self.memory = mover.pinned(0)

    def take(self, num_bytes: int) -> None:
        """From now on the host writes into it; there is room for at least `num_bytes`."""
        if self._sent is not None:
            self._mover.await_sent(self._sent)
            self._sent = None
        if len(self.memory) < num_bytes:
            self.memory = self._mover.pinned(_rounded(num_bytes))

    def sent(self, event: Event) -> None:
        """At `event` its contents will have been sent."""
        self._sent = event

    @property
    def num_bytes(self) -> int:
        return len(self.memory)

    def array(self, dtype: DTypeLike, shape: Shape, start: int = 0) -> NDArray[Any]:
        """The memory from byte `start` on."""
        return _part(self.memory, start, np.dtype(dtype), shape).numpy()


class Parcel:
    """Several arrays on the host and their twins on the device, which the copy stream fills."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._block = Block(mover)
        self._twin = mover.copies.empty(0, torch.uint8)
        self._starts = [0]
        self.arrays: list[NDArray[Any]] = []
        self.tensors: list[Tensor] = []

    def take(self, parts: Sequence[tuple[DTypeLike, Shape]]) -> None:
        """From now on the host writes into `arrays`, one for each (dtype, shape)."""
        dtypes = [np.dtype(dtype) for dtype, _ in parts]
        sizes = [dtype.itemsize * prod(_dims(shape)) for dtype, (_, shape) in zip(dtypes, parts, strict=True)]
        starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]).tolist()
        self._block.take(starts[-1])
        if len(self._twin) < starts[-1]:
            self._twin = self._mover.copies.empty(len(self._block.memory), torch.uint8)
        self._starts = starts
        self.arrays = [
            self._block.array(dtype, shape, start)
            for dtype, (_, shape), start in zip(dtypes, parts, starts[:-1], strict=True)
        ]
        self.tensors = [
            _part(self._twin, start, dtype, shape)
            for dtype, (_, shape), start in zip(dtypes, parts, starts[:-1], strict=True)
        ]

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Of pinned memory, of device memory."""
        return self._block.num_bytes, len(self._twin)

    @property
    def size(self) -> int:
        """Bytes of what the arrays hold now, with the gaps between them."""
        return self._starts[-1]

    def send(self, num_parts: int | None = None) -> None:
        """Copy the first `num_parts` arrays, default all, to the device."""
        stop = self._starts[len(self.tensors) if num_parts is None else num_parts]
        if stop:
            self._mover.copies.copy(self._twin[:stop], self._block.memory[:stop])
            self._block.sent(self._mover.copies.record())

    def bring(self, first_part: int) -> Event:
        """Copy the arrays from `first_part` on back to the host; they are there at the event."""
        start, stop = self._starts[first_part], self._starts[-1]
        self._mover.copies.copy(self._block.memory[start:stop], self._twin[start:stop])
        return self._mover.copies.record()


class Link:
    """Between the training thread and the device, on the compute stream."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._sending: deque[Block] = deque()
        self._idle: list[Block] = []
        self._blocks: list[Block] = []  # all there are

    @property
    def num_bytes(self) -> int:
        """Of pinned memory."""
        return sum(block.num_bytes for block in list(self._blocks))

    def _new_block(self) -> Block:
        self._blocks.append(Block(self._mover))
        return self._blocks[-1]

    def send(self, array: NDArray[Any]) -> Tensor:
        """The array on the device: float32, bool, int32 or int64."""
        return self.send_filled(array.dtype, array.shape, lambda to: np.copyto(to, array))

    def send_filled(self, dtype: DTypeLike, shape: Shape, fill: Callable[[NDArray[Any]], None]) -> Tensor:
        """An array on the device that `fill` writes, on the host, into the pinned memory it is given."""
        found = np.dtype(dtype)
        compute, tensor = self._mover.compute, self._mover.compute.empty(shape, _TORCH[found])
        if tensor.numel():
            block = self._new_block() if len(self._sending) < SENDS else self._sending.popleft()
            block.take(tensor.nbytes)
            fill(block.array(found, shape))
            compute.copy(tensor, _part(block.memory, 0, found, shape))
            block.sent(compute.record())
            self._sending.append(block)
        return tensor

    def bring(self, tensor: Tensor) -> Later:
        """float32 numbers from the device, whenever they are asked for, once."""
        return self.bring_view(tensor).take

    def bring_view(self, tensor: Tensor) -> "Brought":
        """The same without a copy of their own."""
        block = self._idle.pop() if self._idle else self._new_block()
        block.take(tensor.nbytes)
        shape = tuple(tensor.shape)
        if tensor.numel():
            self._mover.compute.copy(_part(block.memory, 0, np.dtype(np.float32), shape), tensor)
        return Brought(self._mover, block, shape, self._mover.compute.record(), self._idle)

    def read(self, table: Tensor, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, width) float32 copies of rows `places` (n,) of a table on the device; waits for them."""
        width = table.shape[1]
        at_once = max(1, READ_BYTES // (4 * max(width, 1)))
        found = np.empty((len(places), width), np.float32)
        for first in range(0, len(places), at_once):
            part = slice(first, first + at_once)
            found[part] = self._read_part(table, places[part])
        return found

    def _read_part(self, table: Tensor, places: NDArray[np.int64]) -> NDArray[np.float32]:
        sent, rows = self.send(places), self._mover.compute.empty((len(places), table.shape[1]))
        self._mover.compute.run(lambda: take_rows(table, sent, rows))
        return self.bring(rows)()


def take_rows(table: Tensor, places: Tensor, out: Tensor) -> None:
    """out = table[places]"""
    out.copy_(table.index_select(0, places))


class Brought:
    """Numbers on their way to the host."""

    def __init__(self, mover: Mover, block: Block, shape: tuple[int, ...], event: Event, idle: list[Block]) -> None:
        self._mover, self._block, self._shape, self._event, self._idle = mover, block, shape, event, idle

    def view(self) -> NDArray[np.float32]:
        """The numbers, once they are there; valid until `done`."""
        self._mover.await_brought(self._event)
        return self._block.array(np.float32, self._shape)

    def done(self) -> None:
        self._idle.append(self._block)

    def take(self) -> NDArray[np.float32]:
        """A copy, once they are there; call it once."""
        found = self.view().copy()
        self.done()
        return found


def _part(memory: Tensor, start: int, dtype: np.dtype[Any], shape: Shape) -> Tensor:
    dims = _dims(shape)
    return memory[start : start + dtype.itemsize * prod(dims)].view(_TORCH[dtype]).view(dims)


def _dims(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _rounded(num_bytes: int) -> int:
    return max(SMALLEST, 1 << (num_bytes - 1).bit_length())
