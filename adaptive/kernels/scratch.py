"""`LentMemory`: memory for large arrays, used again once no array lives in it.

The system gives memory a page at a time and clears each first. For arrays of some megabytes, made anew for every
batch, that takes as long as the loop that fills them.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LINE_BYTES: Final = 64
LINE: Final = LINE_BYTES // 4  # float32 values
APART: Final = 2 * LINE  # processors fetch lines in pairs

Floats = NDArray[np.float32]


def empty_rows(num_rows: int, width: int) -> Floats:
    """(num_rows, width) float32, C-contiguous; not written, so that the system has not taken the memory yet."""
    size = num_rows * width
    memory = np.empty(size + LINE, np.float32)
    start = -memory.ctypes.data % LINE_BYTES // 4
    return memory[start : start + size].reshape(num_rows, width)


def full_rows(num_rows: int, width: int, fill: float) -> Floats:
    """The same, filled."""
    rows = empty_rows(num_rows, width)
    rows.fill(fill)
    return rows


def update_scratch(threads: int, width: int) -> Floats:
    """(threads, 2, >= width) for `kernels.rows.cpu.update`: no two threads write to the same cache line."""
    padded = -(-width // APART) * APART
    return full_rows(threads * 2, padded, 0.0).reshape(threads, 2, padded)


MOST_PIECES: Final = 4  # of memory kept for later
STEPS: Final = 8  # sizes between two powers of two: batches of about one size take the same memory


class LentMemory:
    """Lends memory. For one thread; arrays may be dropped in any."""

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """(num_bytes,) uint8, not written, aligned to cache lines. Its memory is taken again only after the array and
        everything that shares it (views, tensors, what autograd saved) is gone."""
        memory = self._find(num_bytes)
        if memory is None:
            memory = _aligned(_rounded(num_bytes))
        return np.asarray(_Lent(memory, self._free))[:num_bytes]

    def _find(self, num_bytes: int) -> NDArray[np.uint8] | None:
        while self._free:
            memory = self._free.pop()
            if num_bytes <= len(memory) <= 2 * max(num_bytes, LINE_BYTES):
                return memory
        return None


def carve(memory: LentMemory, *wanted: tuple[type[Any], int]) -> list[NDArray[Any]]:
    """One-dimensional arrays (dtype, size) that share one piece of memory, each at a cache line of its own."""
    sizes = [-(-np.dtype(kind).itemsize * size // LINE_BYTES) * LINE_BYTES for kind, size in wanted]
    piece, found, first = memory.take(sum(sizes)), [], 0
    for (kind, size), taken in zip(wanted, sizes, strict=True):
        found.append(piece[first : first + taken].view(kind)[:size])
        first += taken
    return found


def _rounded(num_bytes: int) -> int:
    step = max(LINE_BYTES, 1 << max(num_bytes - 1, 0).bit_length() >> (STEPS.bit_length()))
    return max(LINE_BYTES, -(-num_bytes // step) * step)


def _aligned(num_bytes: int) -> NDArray[np.uint8]:
    memory = np.empty(num_bytes + LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % LINE_BYTES
    return memory[start : start + num_bytes]


class _Lent:
    """The owner of lent memory: numpy keeps it alive as long as any array of it; then it gives the memory back.

    A list takes and gives an item in one step, so no lock is needed, which `__del__` could not wait for.
    """

    def __init__(self, memory: NDArray[np.uint8], free: list[NDArray[np.uint8]]) -> None:
        self._memory, self._free = memory, free

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__

    def __del__(self) -> None:
        if len(self._free) < MOST_PIECES:
            self._free.append(self._memory)
