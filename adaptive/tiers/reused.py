"""`Reused`: memory for tensors that are made and dropped batch after batch.

Pooled vectors are stored past the caches (`kernels.row_sums`). That is fast where the caches hold no changed copy of
the memory: where only vectors have been before, and not in whatever an allocator hands out next, which some other
operation has just written. Measured at 2048 x 26 x 16: 0.23 against 0.6 ms.
"""

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.aligned import empty_rows

MOST: Final = 4  # pieces kept for later


class Reused:
    """Pieces of memory that no tensor lives in any more. For one thread; tensors may be dropped in any."""

    def __init__(self) -> None:
        self._free: list[NDArray[np.float32]] = []

    def take(self, num_rows: int, width: int) -> Tensor:
        """(num_rows, width) float32, not written, aligned to cache lines. Its memory is taken again only after it and
        everything that shares it (views, arrays, what autograd saved) is gone."""
        size = num_rows * width
        memory = self._find(size)
        if memory is None:
            memory = empty_rows(1, size)[0]
        lent = np.asarray(_Lent(memory, self._free))
        return torch.from_numpy(lent[:size].reshape(num_rows, width))

    def _find(self, size: int) -> NDArray[np.float32] | None:
        while self._free:
            memory = self._free.pop()
            if size <= len(memory) <= 2 * size:
                return memory
        return None


class _Lent:
    """What numpy keeps alive as long as an array of the memory; then the memory is free.

    A list takes and gives an item in one step, so no lock is needed, which `__del__` could not wait for.
    """

    def __init__(self, memory: NDArray[np.float32], free: list[NDArray[np.float32]]) -> None:
        self._memory, self._free = memory, free

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__

    def __del__(self) -> None:
        if len(self._free) < MOST:
            self._free.append(self._memory)
