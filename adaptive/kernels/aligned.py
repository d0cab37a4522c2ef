"""Arrays whose rows start at cache lines, so that a row of 16 float32 values, as long as a line, lies in one of them.

numpy aligns to 16 bytes. There such a row lies in two lines, of which a prefetch fetches one, and threads write to the
same line: rows far from the caches were pooled and updated at half the speed.
"""

from typing import Final

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
