"""`ComputeLink`: between the training thread and the device, through pinned buffers: arrays there, numbers back."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from adaptive.embeddings.tiers.device import Later
from adaptive.embeddings.tiers.gpu.buffers import TORCH_DTYPES, PinnedBlock, part_of, take_rows
from adaptive.embeddings.tiers.mover import Event, Mover, Shape

READ_BYTES = 32 << 20  # rows that are read out at once
SENDS = 16  # sends under way before the training thread waits for the oldest


class ComputeLink:
    """Sends the training thread's arrays to the device and brings numbers back, on the compute stream."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._sending: deque[PinnedBlock] = deque()
        self._idle: list[PinnedBlock] = []
        self._blocks: list[PinnedBlock] = []  # all there are

    @property
    def num_bytes(self) -> int:
        """Of pinned memory."""
        return sum(block.num_bytes for block in list(self._blocks))

    def _new_block(self) -> PinnedBlock:
        self._blocks.append(PinnedBlock(self._mover))
        return self._blocks[-1]

    def send(self, array: NDArray[Any]) -> Tensor:
        """The array on the device."""
        if array.dtype not in TORCH_DTYPES:  # rare: what belongs to samples may be of any type that torch knows
            return torch.tensor(array, device=self._mover.device)
        return self.send_filled(array.dtype, array.shape, lambda to: np.copyto(to, array))

    def send_filled(self, dtype: DTypeLike, shape: Shape, fill: Callable[[NDArray[Any]], None]) -> Tensor:
        """An array on the device that `fill` writes, on the host, into the pinned memory it is given."""
        found = np.dtype(dtype)
        compute, tensor = self._mover.compute, self._mover.compute.empty(shape, TORCH_DTYPES[found])
        if tensor.numel():
            block = self._new_block() if len(self._sending) < SENDS else self._sending.popleft()
            block.take(tensor.nbytes)
            fill(block.array(found, shape))
            compute.copy(tensor, part_of(block.memory, 0, found, shape))
            block.sent(compute.record())
            self._sending.append(block)
        return tensor

    def bring(self, tensor: Tensor) -> Later:
        """Start to bring float32 numbers from the device; call the result, once, to get them."""
        return self.bring_view(tensor).take

    def bring_view(self, tensor: Tensor) -> "ArrivingArray":
        """The same as a view of the pinned buffer, without a copy."""
        block = self._idle.pop() if self._idle else self._new_block()
        block.take(tensor.nbytes)
        shape = tuple(tensor.shape)
        if tensor.numel():
            self._mover.compute.copy(part_of(block.memory, 0, np.dtype(np.float32), shape), tensor)
        return ArrivingArray(self._mover, block, shape, self._mover.compute.record(), self._idle)

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


class ArrivingArray:
    """Numbers on their way to the host."""

    def __init__(
        self, mover: Mover, block: PinnedBlock, shape: tuple[int, ...], event: Event, idle: list[PinnedBlock]
    ) -> None:
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
