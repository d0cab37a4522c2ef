"""Rows that start at cache lines."""

import numpy as np
import pytest

from adaptive.kernels.scratch import LINE_BYTES, empty_rows, full_rows, update_scratch


@pytest.mark.parametrize("shape", [(3, 16), (5, 7), (1000, 33), (0, 16), (4, 0)])
def test_the_first_row_starts_a_line(shape: tuple[int, int]) -> None:
    many = [empty_rows(*shape) for _ in range(8)]
    assert all(rows.shape == shape and rows.dtype == np.float32 and rows.flags.c_contiguous for rows in many)
    assert all(rows.ctypes.data % LINE_BYTES == 0 for rows in many if rows.size)


def test_filled() -> None:
    assert full_rows(2, 3, 1.5).tolist() == [[1.5] * 3] * 2


@pytest.mark.parametrize("width", [1, 16, 33])
def test_threads_do_not_write_to_the_same_lines(width: int) -> None:
    scratch = update_scratch(2, width)
    assert len(scratch) == 2 and scratch.shape[1] >= width
    assert scratch.strides[0] % (2 * LINE_BYTES) == 0 and scratch.ctypes.data % LINE_BYTES == 0
