"""Pinned buffers for everything that crosses between host and device.

All are reused; none is freed during a run.

    PinnedBlock      pinned memory, reused when its contents have been sent
    TransferBuffer   a block with a twin on the device, for one stream: several arrays, one copy
    IndexSender      lists of rows and slots, for the kernels of one stream

Sizes grow to the largest use and are powers of two, as torch's pinned memory is anyway. The training thread has its own
buffers for what it sends and reads: `link`.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from adaptive.arrays import Int64s
from adaptive.embeddings.tiers.mover import Event, Mover, Shape, Stream
from adaptive.kernels.vector.bfloat16 import BFLOAT16

Bytes = tuple[int, int]  # of pinned memory on the host, of device memory
Parts = Sequence[tuple[DTypeLike, Shape]]  # arrays in one block

ALIGNMENT = 16  # bytes, for vector loads of kernels
SMALLEST = 1 << 16
NUM_LISTS = 8  # buffers that lists use in turn; those of a plan cross with the plan
LIST_ROWS = 1 << 19  # at once: buffers are never freed, and a flush names every row

TORCH_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.int16): torch.int16,
    np.dtype(np.int8): torch.int8,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.uint16): torch.uint16,  # rows in bfloat16, which numpy does not have
}

ROW_DTYPES = {np.dtype(np.float32): torch.float32, BFLOAT16: torch.bfloat16}  # of slots, by the host's dtype


class PinnedBlock:
    """Pinned memory of one owner, reused when its contents have been sent."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._sent: Event | None = None
        self.memory, self.num_bytes = mover.pinned(0), 0

    def take(self, num_bytes: int) -> None:
        """Wait until the host may write to it, and make room for at least `num_bytes`."""
        if self._sent is not None:
            self._mover.await_sent(self._sent)
            self._sent = None
        if self.num_bytes < num_bytes:
            self.memory, self.num_bytes = self._mover.pinned(_rounded(num_bytes)), _rounded(num_bytes)

    def sent(self, event: Event) -> None:
        """Record that its contents will have been sent at `event`."""
        self._sent = event

    def array(self, dtype: DTypeLike, shape: Shape, start: int = 0) -> NDArray[Any]:
        """Return the memory from byte `start` on as an array."""
        return part_of(self.memory, start, np.dtype(dtype), shape).numpy()


class TransferBuffer:
    """Several arrays in one pinned block, with twins on the device that one copy fills.

    Copies go to `stream`, by default the copying stream.
    """

    def __init__(self, mover: Mover, stream: Stream | None = None) -> None:
        self._stream = stream or mover.copying
        self._block = PinnedBlock(mover)
        self._twin, self._twin_bytes = self._stream.empty(0, torch.uint8), 0
        self._views: dict[np.dtype[Any], tuple[NDArray[Any], Tensor]] = {}  # whole blocks as arrays of each dtype
        self._starts = [0]
        self.arrays: list[NDArray[Any]] = []
        self.tensors: list[Tensor] = []

    def take(self, parts: Parts) -> None:
        """Make `arrays` for the host to write to, one for each (dtype, shape)."""
        self._starts = starts = starts_of(parts)
        self._block.take(starts[-1])
        if self._twin_bytes < starts[-1]:
            self._views.clear()  # first: the host's block is another one, even if the device has no memory for its twin
            self._twin = self._stream.empty(self._block.num_bytes, torch.uint8)
            self._twin_bytes = self._block.num_bytes
        self.arrays, self.tensors = [], []
        for start, (kind, shape) in zip(starts, parts, strict=False):
            dtype = np.dtype(kind)
            array, tensor = self._views.get(dtype) or self._add_views(dtype)
            first = start // dtype.itemsize
            part = slice(first, first + _num_items(shape))
            array, tensor = array[part], tensor[part]
            if not isinstance(shape, int) and len(shape) != 1:
                array, tensor = array.reshape(shape), tensor.view(shape)
            self.arrays.append(array)
            self.tensors.append(tensor)

    def _add_views(self, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Tensor]:
        """Views of the whole blocks, made once: views of each array from bytes take 6 us of Python's lock."""
        views = tuple(memory.view(TORCH_DTYPES[dtype]) for memory in (self._block.memory, self._twin))
        self._views[dtype] = views[0].numpy(), views[1]
        return self._views[dtype]

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Bytes of pinned memory, of device memory."""
        return self._block.num_bytes, self._twin_bytes

    @property
    def size(self) -> int:
        """Bytes of the current arrays, including the gaps between them."""
        return self._starts[-1]

    def send(self, num_parts: int | None = None) -> Event | None:
        """Copy the first `num_parts` arrays, default all, to the device; return when they are there, unless empty."""
        stop = self._starts[len(self.tensors) if num_parts is None else num_parts]
        if not stop:
            return None
        self._stream.copy(self._twin[:stop], self._block.memory[:stop])
        event = self._stream.record()
        self._block.sent(event)
        return event

    def send_arrays(self, arrays: Sequence[NDArray[Any]]) -> Event | None:
        """Copy `arrays` to the device, as `tensors`; return when they are there, unless empty."""
        self.take([(array.dtype, array.shape) for array in arrays])
        for to, array in zip(self.arrays, arrays, strict=True):
            to[...] = array
        return self.send()

    def to_host(self, first_part: int) -> Event:
        """Copy the arrays from `first_part` on back to the host; they have arrived at the event."""
        start, stop = self._starts[first_part], self._starts[-1]
        self._stream.copy(self._block.memory[start:stop], self._twin[start:stop])
        return self._stream.record()


class DeviceBlock:
    """Several arrays in one block of device memory, for one stream to write; reused."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._memory = stream.empty(0, torch.uint8)

    def take(self, parts: Parts) -> list[Tensor]:
        """Return an array for each (dtype, shape)."""
        if len(self._memory) < (size := starts_of(parts)[-1]):
            self._memory = self._stream.empty(_rounded(size), torch.uint8)
        return parts_of(self._memory, parts)

    @property
    def num_bytes(self) -> int:
        return len(self._memory)


class Ring:
    """Transfer buffers used in turn."""

    def __init__(self, mover: Mover, size: int) -> None:
        self._transfer_buffers = deque(TransferBuffer(mover) for _ in range(size))

    def next(self) -> TransferBuffer:
        self._transfer_buffers.rotate(-1)
        return self._transfer_buffers[0]

    @property
    def num_bytes(self) -> Bytes:
        return add_bytes(transfer_buffer.num_bytes for transfer_buffer in list(self._transfer_buffers))


class IndexSender:
    """Sends numbers of rows or slots to the device, for the kernels of the copying stream.

    The buffers are reused, so queue work on what was sent before the next call.
    """

    def __init__(self, mover: Mover) -> None:
        self._ring = Ring(mover, NUM_LISTS)

    def send(self, *numbers: Int64s) -> Iterator[list[Tensor]]:
        """Yield lists of one length on the device, LIST_ROWS of each at a time."""
        for first in range(0, len(numbers[0]), LIST_ROWS):
            parts = [array[first : first + LIST_ROWS] for array in numbers]
            transfer_buffer = self._ring.next()
            transfer_buffer.send_arrays(parts)
            yield transfer_buffer.tensors

    @property
    def num_bytes(self) -> Bytes:
        return self._ring.num_bytes


def add_bytes(parts: Iterable[Bytes]) -> Bytes:
    """Return the sum of (pinned, device) bytes."""
    pinned = device = 0
    for part in parts:
        pinned, device = pinned + part[0], device + part[1]
    return pinned, device


def take_rows(table: Tensor, places: Tensor, out: Tensor) -> None:
    """out = table[places]"""
    out.copy_(table.index_select(0, places))


def starts_of(parts: Parts) -> list[int]:
    """Return the first bytes of arrays (dtype, shape) in one block, and the end of the last."""
    starts = [0]
    for dtype, shape in parts:
        size = np.dtype(dtype).itemsize * _num_items(shape)
        starts.append(starts[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return starts


def parts_of(memory: Tensor, parts: Parts) -> list[Tensor]:
    """Return arrays of these (dtype, shape), one after the other in memory."""
    starts = starts_of(parts)[:-1]
    return [part_of(memory, start, np.dtype(dtype), shape) for start, (dtype, shape) in zip(starts, parts, strict=True)]


def part_of(memory: Tensor, start: int, dtype: np.dtype[Any], shape: Shape) -> Tensor:
    dims = _dims(shape)
    return memory[start : start + dtype.itemsize * prod(dims)].view(TORCH_DTYPES[dtype]).view(dims)


def _num_items(shape: Shape) -> int:
    return shape if isinstance(shape, int) else prod(shape)


def _dims(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _rounded(num_bytes: int) -> int:
    return max(SMALLEST, 1 << (num_bytes - 1).bit_length())
