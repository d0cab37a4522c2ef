"""Memory is lent again once no array lives in it; see also `test_vector_memory`, for tensors."""

import sys
from typing import Any

import numpy as np
import pytest

from adaptive.kernels.scratch import LINE_BYTES, ScratchPool, allocate, empty_rows, update_scratch


@pytest.mark.parametrize("size", [0, 1, 64, 65, 4_000_000])
def test_an_array_as_asked_for(size: int) -> None:
    array = ScratchPool().take(size)
    assert (array.shape, array.dtype) == ((size,), np.uint8)
    assert not size or array.ctypes.data % LINE_BYTES == 0


def test_batches_of_about_one_size_take_the_same_memory() -> None:
    memory = ScratchPool()
    place = memory.take(4_100_000).ctypes.data
    assert [memory.take(4_100_000 + 1000 * number).ctypes.data for number in range(20)] == [place] * 20


def test_arrays_that_are_held_do_not_change() -> None:
    memory, held = ScratchPool(), []
    for number in range(10):
        held.append(memory.take(100)[3:9].view(np.int16))
        held[-1].fill(number)
    assert [array.tolist() for array in held] == [[number] * 3 for number in range(10)]


def test_one_piece_is_carved_into_arrays_at_lines_of_their_own() -> None:
    memory = ScratchPool()
    wide, none, narrow = allocate(memory, (np.int64, 3), (np.float32, 0), (np.int32, 5))
    wide.fill(-1)
    narrow.fill(7)
    assert (wide.dtype, wide.tolist(), len(none), none.dtype) == (np.int64, [-1] * 3, 0, np.float32)
    assert (narrow.dtype, narrow.tolist()) == (np.int32, [7] * 5)
    assert wide.ctypes.data % LINE_BYTES == narrow.ctypes.data % LINE_BYTES == 0
    place = wide.ctypes.data
    del wide, none
    assert allocate(memory, (np.int64, 3))[0].ctypes.data != place  # the third array still lives there
    del narrow
    assert place in [
        array.ctypes.data for array in (*allocate(memory, (np.int64, 3)), *allocate(memory, (np.int64, 3)))
    ]


def test_threads_that_take_at_once_get_different_memory() -> None:
    """A switch of threads after any line of `take`, played by calling it again there."""
    code, pool = ScratchPool.take.__code__, ScratchPool()
    for stop in range(12):
        taken: list[np.ndarray[Any, Any]] = []

        def trace(frame: Any, event: str, _: Any, stop: int = stop, taken: Any = taken) -> Any:
            if frame.f_code is not code:
                return None
            if event == "line" and not taken and frame.f_lineno - code.co_firstlineno >= stop:
                sys.settrace(None)
                taken.append(pool.take(1000))
            return trace

        pool.take(1000)  # is there to be reused
        sys.settrace(trace)
        try:
            first = pool.take(1000)
        finally:
            sys.settrace(None)
        assert not taken or not np.shares_memory(first, taken[0])


@pytest.mark.parametrize("shape", [(3, 16), (5, 7), (1000, 33), (0, 16), (4, 0)])
def test_the_first_row_starts_a_line(shape: tuple[int, int]) -> None:
    many = [empty_rows(*shape) for _ in range(8)]
    assert all(rows.shape == shape and rows.dtype == np.float32 and rows.flags.c_contiguous for rows in many)
    assert all(rows.ctypes.data % LINE_BYTES == 0 for rows in many if rows.size)


@pytest.mark.parametrize("width", [1, 16, 33])
def test_threads_do_not_write_to_the_same_lines(width: int) -> None:
    scratch = update_scratch(2, width)
    assert len(scratch) == 2 and scratch.shape[1] >= width
    assert scratch.strides[0] % (2 * LINE_BYTES) == 0 and scratch.ctypes.data % LINE_BYTES == 0
