"""`ComputeLink`: copies between training thread and device, through pinned buffers."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from adaptive.embeddings.tiers.device import InFlight
from adaptive.embeddings.tiers.gpu.buffers import TORCH_DTYPES, PinnedBlock, part_of, take_rows
from adaptive.embeddings.tiers.mover import Event, Mover, Shape

READ_BYTES = 32 << 20  # of rows that are read at once
SENDS = 16  # sends in flight before the training thread waits for the oldest


class ComputeLink:
    """Copies arrays to the device and numbers back, on the compute stream.

    For the training thread.
    """

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._sending: deque[PinnedBlock] = deque()
        self._idle: list[PinnedBlock] = []
        self._blocks: list[PinnedBlock] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of pinned memory."""
        return sum(block.num_bytes for block in list(self._blocks))

    def _new_block(self) -> PinnedBlock:
        self._blocks.append(PinnedBlock(self._mover))
        return self._blocks[-1]

    def send(self, array: NDArray[Any]) -> Tensor:
        """Return the array on the device."""
        if array.dtype not in TORCH_DTYPES:  # rare: extras of samples may be of any type that torch has
            return torch.tensor(array, device=self._mover.device)
        return self.send_filled(array.dtype, array.shape, lambda to: np.copyto(to, array))

    def send_filled(self, dtype: DTypeLike, shape: Shape, fill: Callable[[NDArray[Any]], None]) -> Tensor:
        """Return an array on the device; `fill` writes its values to pinned memory."""
        kind = np.dtype(dtype)
        compute, tensor = self._mover.compute, self._mover.compute.empty(shape, TORCH_DTYPES[kind])
        if tensor.numel():
            block = self._new_block() if len(self._sending) < SENDS else self._sending.popleft()
            block.take(tensor.nbytes)
            fill(block.array(kind, shape))
            compute.copy(tensor, part_of(block.memory, 0, kind, shape))
            block.sent(compute.record())
            self._sending.append(block)
        return tensor

    def to_host(self, tensor: Tensor) -> InFlight:
        """Start to copy float32 numbers from the device; call the result, once, to get them."""
        return self.start_to_host(tensor).take

    def start_to_host(self, tensor: Tensor) -> "ArrivingArray":
        """Start to copy float32 numbers to a pinned buffer, in which they can be viewed."""
        block = self._idle.pop() if self._idle else self._new_block()
        block.take(tensor.nbytes)
        shape = tuple(tensor.shape)
        if tensor.numel():
            self._mover.compute.copy(part_of(block.memory, 0, np.dtype(np.float32), shape), tensor)
        return ArrivingArray(self._mover, block, shape, self._mover.compute.record(), self._idle)

    def read(self, table: Tensor, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return copies (n, width) of rows `places` (n,) of a device table; waits for them."""
        width = table.shape[1]
        at_once = max(1, READ_BYTES // (4 * max(width, 1)))
        result = np.empty((len(places), width), np.float32)
        for first in range(0, len(places), at_once):
            part = slice(first, first + at_once)
            sent, rows = self.send(places[part]), self._mover.compute.empty((len(places[part]), width))
            self._mover.compute.run(partial(take_rows, table, sent, rows))
            result[part] = self.to_host(rows)()
        return result


class ArrivingArray:
    """Numbers in flight to the host."""

    def __init__(
        self, mover: Mover, block: PinnedBlock, shape: tuple[int, ...], event: Event, idle: list[PinnedBlock]
    ) -> None:
        self._mover, self._block, self._shape, self._event, self._idle = mover, block, shape, event, idle

    def view(self) -> NDArray[np.float32]:
        """Wait for the numbers and return them; valid until `release`."""
        self._mover.await_brought(self._event)
        return self._block.array(np.float32, self._shape)

    def release(self) -> None:
        """Let the buffer be used again."""
        self._idle.append(self._block)

    def take(self) -> NDArray[np.float32]:
        """Wait for the numbers and return a copy; call it once."""
        copy = self.view().copy()
        self.release()
        return copy
