"""Reading and writing files from inside kernels, without the interpreter: `pread_rows`, `pwrite_rows` and hints.

Each is a call of the C library when compiled, and the same call through `os` in plain Python. They return the number
of bytes moved, or -1; the reason of a failure is found by asking again through `os`.
"""

import ctypes
import os
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

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
    """Read from `offset` of a file into rows [first, last) of a C-contiguous 2-D array."""
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
    """`pread_rows`, but only what the system holds in memory; -1 where it cannot tell. `vector` (2,) int64: scratch."""
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
    """Write rows [first, last) of a C-contiguous 2-D array at `offset` of a file."""
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
    """Ask the system to start reading these bytes into memory, without waiting for them; a hint."""
    if _HAS_ADVICE:
        os.posix_fadvise(fd, offset, size, _WILL_NEED)


@overload(will_need)
def _compile_will_need(fd: Any, offset: Any, size: Any) -> Any:
    def compiled(fd: Any, offset: Any, size: Any) -> None:
        _fadvise(np.int32(fd), offset, size, np.int32(_WILL_NEED))

    def nothing(fd: Any, offset: Any, size: Any) -> None:
        pass

    return compiled if _HAS_ADVICE else nothing
