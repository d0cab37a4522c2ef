"""Read and write rows of a file of records: weights and optimizer state, in float32 words.

Rows close to each other are read or written in one piece, a *run*, through a staging block. All runs are requested
before any is waited for, which keeps the disk busy: one thread reads as fast as 64 that wait for one page each.

Letters: n rows, K runs.
"""

import ctypes
import os
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from adaptive.kernels.jit import kernel

_HAS_NOWAIT = hasattr(os, "RWF_NOWAIT") and hasattr(ctypes.CDLL(None), "preadv2")
_HAS_ADVICE = hasattr(os, "posix_fadvise")
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_WILL_NEED = getattr(os, "POSIX_FADV_WILLNEED", 0)

_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.intp, types.int64, types.int64))
_pwrite: Any = types.ExternalFunction("pwrite", types.int64(types.int32, types.intp, types.int64, types.int64))
_preadv2: Any = types.ExternalFunction(
    "preadv2", types.int64(types.int32, types.intp, types.int32, types.int64, types.int32)
)
_fadvise: Any = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))


def pread_rows(fd: Any, rows: Any, first: Any, last: Any, offset: Any) -> Any:
    """Read from `offset` into rows [first, last) of a C-contiguous 2-D array; -1 on errors."""
    try:
        return os.preadv(fd, [rows[first:last]], offset)
    except OSError:
        return -1


@overload(pread_rows)
def _compile_pread(fd: Any, rows: Any, first: Any, last: Any, offset: Any) -> Any:
    def compiled(fd: Any, rows: Any, first: Any, last: Any, offset: Any) -> Any:
        size = rows.strides[0]
        return _pread(np.int32(fd), rows.ctypes.data + first * size, (last - first) * size, offset)

    return compiled


def pread_cached_rows(fd: Any, rows: Any, first: Any, last: Any, offset: Any, vector: Any) -> Any:
    """`pread_rows` from the page cache; -1 if unknown. `vector` (2,) int64 is scratch."""
    try:
        return os.preadv(fd, [rows[first:last]], offset, _NOWAIT) if _HAS_NOWAIT else -1
    except OSError:
        return -1


@overload(pread_cached_rows)
def _compile_pread_cached(fd: Any, rows: Any, first: Any, last: Any, offset: Any, vector: Any) -> Any:
    def compiled(fd: Any, rows: Any, first: Any, last: Any, offset: Any, vector: Any) -> Any:
        size = rows.strides[0]
        vector[0] = rows.ctypes.data + first * size
        vector[1] = (last - first) * size
        return _preadv2(np.int32(fd), vector.ctypes.data, np.int32(1), offset, np.int32(_NOWAIT))

    def unknown(fd: Any, rows: Any, first: Any, last: Any, offset: Any, vector: Any) -> Any:
        return -1

    return compiled if _HAS_NOWAIT else unknown


def pwrite_rows(fd: Any, rows: Any, first: Any, last: Any, offset: Any) -> Any:
    """Write rows [first, last) of a C-contiguous 2-D array at `offset`; -1 on errors."""
    try:
        return os.pwrite(fd, rows[first:last], offset)
    except OSError:
        return -1


@overload(pwrite_rows)
def _compile_pwrite(fd: Any, rows: Any, first: Any, last: Any, offset: Any) -> Any:
    def compiled(fd: Any, rows: Any, first: Any, last: Any, offset: Any) -> Any:
        size = rows.strides[0]
        return _pwrite(np.int32(fd), rows.ctypes.data + first * size, (last - first) * size, offset)

    return compiled


def will_need(fd: Any, offset: Any, size: Any) -> None:
    """Hint to the system to start reading these bytes into memory; does not wait."""
    if _HAS_ADVICE:
        os.posix_fadvise(fd, offset, size, _WILL_NEED)


@overload(will_need)
def _compile_will_need(fd: Any, offset: Any, size: Any) -> Any:
    def compiled(fd: Any, offset: Any, size: Any) -> None:
        _fadvise(np.int32(fd), offset, size, np.int32(_WILL_NEED))

    def nothing(fd: Any, offset: Any, size: Any) -> None:
        pass

    return compiled if _HAS_ADVICE else nothing


PAGE = 4096  # bytes


@kernel()
def plan_runs(rows, max_gap, capacity, first_rows, starts, places):
    """Cut ascending `rows` (n,) into runs of at most `capacity` rows; returns (rows, runs).

    Run k covers file rows from first_rows[k] on and staged rows [starts[k], starts[k + 1]); places[i] is the staged
    row of rows[i]. Neighbors with at most `max_gap` rows between them share a run, and the gap is staged, too.
    """
    num_runs = staged = 0
    starts[0] = 0
    for i in range(rows.size):
        joined = num_runs > 0 and rows[i] - rows[i - 1] - 1 <= max_gap
        needed = rows[i] - rows[i - 1] if joined else 1
        if staged + needed > capacity:
            return i, num_runs
        if not joined:
            first_rows[num_runs] = rows[i]
            num_runs += 1
        staged += needed
        starts[num_runs] = staged
        places[i] = staged - 1
    return rows.size, num_runs


@kernel()
def read_runs(fd, first_rows, starts, num_runs, records, unfinished, vector):
    """Read runs of a file into staged `records`; returns the number of incomplete ones.

    Those are listed in `unfinished` (K,) int64. First the runs in the page cache are copied, then all others are
    requested, then these are read. `vector` (2,) int64 is scratch.
    """
    size = records.strides[0]
    missing = 0
    for k in range(num_runs):
        first, last = starts[k], starts[k + 1]
        if pread_cached_rows(fd, records, first, last, first_rows[k] * size, vector) != (last - first) * size:
            unfinished[missing] = k
            missing += 1
    for j in range(missing):
        k = unfinished[j]
        will_need(fd, first_rows[k] * size, (starts[k + 1] - starts[k]) * size)
    left = 0
    for j in range(missing):
        k = unfinished[j]
        first, last = starts[k], starts[k + 1]
        if pread_rows(fd, records, first, last, first_rows[k] * size) != (last - first) * size:
            unfinished[left] = k
            left += 1
    return left


@kernel()
def expect(fd, rows, row_bytes):
    """Request ascending `rows` (n,) of a file without waiting, once per page."""
    latest = -1
    for i in range(rows.size):
        begin = rows[i] * row_bytes
        page = (begin + row_bytes - 1) // PAGE
        if page != latest:
            will_need(fd, begin, row_bytes)
            latest = page


@kernel()
def write_runs(fd, first_rows, starts, num_runs, records, unfinished):
    """Write staged `records` to runs of a file; returns the number of incomplete ones.

    Those are listed in `unfinished` (K,) int64. The pages at both ends of each run, which also hold other rows, are
    requested before anything is written.
    """
    size = records.strides[0]
    for k in range(num_runs):
        begin = first_rows[k] * size
        end = begin + (starts[k + 1] - starts[k]) * size
        if begin % PAGE:
            will_need(fd, begin, 1)
        if end % PAGE and (end // PAGE > begin // PAGE or not begin % PAGE):
            will_need(fd, end, 1)
    left = 0
    for k in range(num_runs):
        first, last = starts[k], starts[k + 1]
        if pwrite_rows(fd, records, first, last, first_rows[k] * size) != (last - first) * size:
            unfinished[left] = k
            left += 1
    return left
