"""`ScratchPool`: reusable memory for large arrays, aligned to cache lines.

The system hands out memory page by page and clears each page first. For arrays of some megabytes, created again for
every batch, that takes as long as the loop that fills them.
"""

from sys import getrefcount
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Floats

LINE_BYTES: Final = 64
LINE: Final = LINE_BYTES // 4  # float32 values
APART: Final = 2 * LINE  # processors fetch lines in pairs


def empty_rows(num_rows: int, width: int, dtype: Any = np.float32) -> NDArray[Any]:
    """(num_rows, width), C-contiguous, cache-aligned; unwritten, so without memory."""
    size, item = num_rows * width, np.dtype(dtype).itemsize
    memory = np.empty(size + LINE_BYTES // item, dtype)
    start = -memory.ctypes.data % LINE_BYTES // item
    return memory[start : start + size].reshape(num_rows, width)


def full_rows(num_rows: int, width: int, fill: float, dtype: Any = np.float32) -> NDArray[Any]:
    """(num_rows, width), as `empty_rows`, filled with one value."""
    rows = empty_rows(num_rows, width, dtype)
    rows.fill(fill)
    return rows


def update_scratch(threads: int, width: int) -> Floats:
    """(threads, >= width) for `kernels.rows.cpu.update`; threads share no cache line."""
    return full_rows(threads, -(-width // APART) * APART, 0.0)


STEPS: Final = 8  # sizes between two powers of two: batches of similar size get the same memory


class ScratchPool:
    """Lends memory for arrays, which may be dropped in any thread."""

    def __init__(self) -> None:
        self._pieces: list[NDArray[np.uint8]] = []

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """(num_bytes,) uint8, not written, cache-aligned.

        Its memory is reused only after the array and everything that shares its memory (views, tensors, tensors saved
        by autograd) is gone: all of these refer to the owner of the memory.
        """
        for memory in self._pieces:
            if getrefcount(memory.base) != _UNUSED:
                continue
            if num_bytes <= len(memory) <= 2 * max(num_bytes, LINE_BYTES):
                array = memory[:num_bytes]
                if getrefcount(memory.base) == _UNUSED + 1:  # no other thread has taken it meanwhile
                    return array
            else:
                self._pieces = [piece for piece in self._pieces if piece is not memory]
        memory = empty_rows(1, _rounded(num_bytes) // 4).reshape(-1).view(np.uint8)
        array = memory[:num_bytes]
        self._pieces.append(memory)
        return array


_LINE: Final = empty_rows(1, LINE)
_UNUSED: Final = getrefcount(_LINE.base)  # references to the memory of an array without views


def allocate(memory: ScratchPool, *wanted: tuple[type[Any], int]) -> list[NDArray[Any]]:
    """One-dimensional arrays (dtype, size), each cache-aligned, in one piece of memory."""
    end, firsts = 0, []
    for kind, size in wanted:
        firsts.append(end)
        end += -(-np.dtype(kind).itemsize * size // LINE_BYTES) * LINE_BYTES
    piece = memory.take(end)
    return [np.ndarray(size, kind, piece, first) for (kind, size), first in zip(wanted, firsts, strict=True)]


def _rounded(num_bytes: int) -> int:
    step = max(LINE_BYTES, 1 << max(num_bytes - 1, 0).bit_length() >> (STEPS.bit_length()))
    return max(LINE_BYTES, -(-num_bytes // step) * step)
