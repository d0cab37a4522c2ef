"""Arrays in raw `.npy` files, checked before they are used.

Headers have at most 1,000 bytes; nothing is unpickled. Arrays that may be larger than memory are written and read by
blocks of their first axis: `Blocks` and `Stored`.
"""

import contextlib
import hashlib
import io
import itertools
import math
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from adaptive.errors import AdaptiveError, CheckpointError
from adaptive.storage.durable import Disk, write_new
from adaptive.storage.untrusted import JsonObject, open_plain

DTYPES: Final = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
_CHUNK_BYTES: Final = 2**22
_MOST_HEADER: Final = 1000  # bytes

Array = NDArray[Any]


@dataclass(frozen=True)
class Blocks:
    """An array that is made block by block while it is written, so it need not fit in memory.

    Attributes:
        make: yields C-contiguous blocks that follow each other along the first axis.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    make: Callable[[], Iterator[Array]]

    def whole(self) -> Array:
        """Return the array, in memory."""
        array, at = np.empty(self.shape, self.dtype), 0
        for block in self.make():
            array[at : at + len(block)] = block
            at += len(block)
        assert at == len(array), f"blocks of {at} entries in place of {len(array)}"
        return array


def write_array(path: Path, value: "Array | Blocks", disk: Disk) -> JsonObject:
    """Write and sync an array; return its `file` name, `size`, `sha256`, `dtype` and `shape`."""
    digest = hashlib.sha256()
    facts = write_watched(path, value, disk, digest.update)
    return {**facts, "sha256": digest.hexdigest()}


def write_watched(path: Path, value: "Array | Blocks", disk: Disk, see: Callable[[memoryview], None]) -> JsonObject:
    """Do what `write_array` does without digest; `see` gets the header, then the values."""
    array = value if isinstance(value, Blocks) else np.asarray(value, order="C")
    assert array.dtype.str in DTYPES, f"{path.name}: cannot save {array.dtype}"
    header = _header(array.dtype, array.shape)
    blocks = array.make() if isinstance(array, Blocks) else iter([array])

    def write(file: BinaryIO) -> None:
        for chunk in itertools.chain([memoryview(header)], itertools.chain.from_iterable(map(_chunks, blocks))):
            see(chunk)
            disk.write(file, chunk)

    write_new(path, write, disk=disk)
    size = path.stat().st_size
    expected = len(header) + math.prod(array.shape) * array.dtype.itemsize
    assert size == expected, f"{path.name}: blocks of {size} bytes in place of {expected}"
    return {"file": path.name, "size": size, "dtype": array.dtype.str, "shape": list(array.shape)}


def read_array(path: Path, dtype_text: str, shape: tuple[int, ...], size: int, sha256: str) -> Array:
    """Read an array whose type, shape, size (bytes of the file) and digest are known.

    Memory is allocated only after the size of the file has been checked.

    Raises:
        CheckpointError: if anything differs; names the file.
    """
    with _open_array(path, dtype_text, shape, size) as (file, digest):
        array = _empty(path, shape, dtype_text)
        for chunk in _chunks(array):
            _fill(chunk, file, path, size)
            digest.update(chunk)
    _check_digest(path, sha256, digest.hexdigest())
    return array


def parse_vector(data: bytes, dtype: np.dtype[Any], path: Path, *, error: type[AdaptiveError]) -> Array:
    """Return the vector (n,) in the bytes of a `.npy` file; it shares memory with `data`.

    Raises:
        AdaptiveError: `error`, if it is anything else.
    """
    file = io.BytesIO(data)
    dtype_text, shape = _parse_header(file, path, error)
    left = len(data) - file.tell()
    if dtype_text == dtype.str and len(shape) == 1 and left == shape[0] * dtype.itemsize:
        return np.frombuffer(data, dtype, offset=file.tell())
    raise error(f"{path}: expected a .npy file of a vector of {dtype}, got {dtype_text} {list(shape)} in {left} bytes")


class Stored(ABC):
    """An array in files, read by blocks.

    Attributes:
        dtype: of its values.
        shape: of the whole array.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @abstractmethod
    def read(self, first: int = 0, last: int | None = None) -> Array:
        """Return the entries [first, last), by default all. A 0-d array is read as a whole."""


class ArrayFile(Stored):
    """An array in a file, which is kept open and so may be removed.

    Args:
        path, dtype_text, shape, size: as in `read_array`.
        header_sha256: of the bytes before the values. The values are verified by `check`.
    """

    def __init__(self, path: Path, dtype_text: str, shape: tuple[int, ...], size: int, header_sha256: str) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype_text) if dtype_text in DTYPES else np.dtype(np.uint8)
        self.shape = shape
        self._path, self._size = path, size
        with _open_array(path, dtype_text, shape, size) as (file, digest):
            _check_digest(path, header_sha256, digest.hexdigest(), " of the header")
            self._start = file.tell()
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def check(self, first: int, last: int, sha256: str) -> None:
        """Verify the entries [first, last) of the first axis by their digest.

        Raises:
            CheckpointError: if it differs.
        """
        digest = hashlib.sha256()
        step = max(_CHUNK_BYTES // max(self._place(1) - self._place(0), 1), 1)
        for start in range(first, last, step):
            for chunk in _chunks(self.read(start, min(start + step, last))):
                digest.update(chunk)
        _check_digest(self._path, sha256, digest.hexdigest(), f" of entries {first:,} to {last:,}")

    def read(self, first: int = 0, last: int | None = None) -> Array:
        shape = self.shape
        if shape:
            shape = ((shape[0] if last is None else last) - first, *shape[1:])
        array = _empty(self._path, shape, self.dtype.str)
        self.read_into(array, first)
        return array

    def read_into(self, array: Array, first: int) -> None:
        """Fill a C-contiguous array (n, ...) with the entries [first, first + n)."""
        at = self._place(first)
        for chunk in _chunks(array):
            while len(chunk):
                count = os.preadv(self._descriptor, [chunk], at)
                if not count:
                    raise _shrank(self._path, self._size)
                chunk, at = chunk[count:], at + count

    def _place(self, entry: int) -> int:
        """Return the offset of an entry in the file, in bytes."""
        return self._start + entry * math.prod(self.shape[1:]) * self.dtype.itemsize


def whole(array: "Array | Stored") -> Array:
    """Return the array, in memory."""
    return array.read() if isinstance(array, Stored) else array


@contextlib.contextmanager
def _open_array(path: Path, dtype_text: str, shape: tuple[int, ...], size: int) -> Iterator[tuple[BinaryIO, Any]]:
    """Check type, shape and size; yield the file after its header, and the header's digest."""
    if dtype_text not in DTYPES:
        raise CheckpointError(f"{path}: expected one of the types {', '.join(DTYPES)}, got {dtype_text!r}")
    dtype, digest = np.dtype(dtype_text), hashlib.sha256()
    with open_plain(path) as file:
        actual = os.fstat(file.fileno()).st_size
        if actual != size:
            raise CheckpointError(f"{path}: expected {size} bytes, got {actual}. The file is truncated")
        stored_type, stored_shape = _parse_header(file, path, CheckpointError)
        expected = file.tell() + math.prod(shape) * dtype.itemsize
        if (stored_type, stored_shape, size) != (dtype_text, shape, expected):
            raise CheckpointError(
                f"{path}: expected {expected} bytes for {dtype} {list(shape)}, got {size} for {stored_type} "
                f"{list(stored_shape)}"
            )
        file.seek(0)
        digest.update(file.read(expected - math.prod(shape) * dtype.itemsize))
        yield file, digest


def _empty(path: Path, shape: tuple[int, ...], dtype_text: str) -> Array:
    try:
        return np.empty(shape, dtype_text)
    except ValueError as error:  # too many dimensions, or [0, 2**62, 2**62]
        raise CheckpointError(f"{path}: expected a shape that numpy can hold, got {list(shape)}") from error


def _fill(chunk: memoryview, file: BinaryIO, path: Path, size: int) -> None:
    try:
        count = file.readinto(chunk)  # type: ignore[attr-defined]
    except OSError as error:
        raise CheckpointError(f"{path}: expected a readable file, got an error: {error.strerror or error}") from error
    if count != len(chunk):
        raise _shrank(path, size)


def _shrank(path: Path, size: int) -> CheckpointError:
    return CheckpointError(f"{path}: expected {size} bytes, got fewer. The file shrank while it was read")


def _check_digest(path: Path, expected: str, actual: str, part: str = "") -> None:
    if actual != expected:
        raise CheckpointError(f"{path}: expected sha256 {expected}{part}, got {actual}. The file is damaged")


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    npy.write_array_header_1_0(out, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return out.getvalue()


_PARSING: Final = Lock()
"""Numpy parses headers with `ast`; before Python 3.12 two threads at once were seen to fail in its count of nesting."""


def _parse_header(file: BinaryIO, path: Path, error: type[AdaptiveError]) -> tuple[str, tuple[int, ...]]:
    """Parse the header; return type and shape of the C-contiguous array that follows it."""
    try:
        if npy.read_magic(file) != (1, 0):
            raise ValueError("another version")
        with _PARSING:
            shape, is_fortran, dtype = npy.read_array_header_1_0(file, max_header_size=_MOST_HEADER)
        if is_fortran:
            raise ValueError("Fortran order")
    except Exception as failed:  # for damaged text, numpy's parser raises any error of Python's tokenizer
        raise error(
            f"{path}: expected a .npy header of version 1.0, got a damaged one ({str(failed)[:200]})"
        ) from failed
    return dtype.str, shape


def _chunks(array: Array) -> Iterator[memoryview]:
    """Return the bytes of a C-contiguous array, in chunks."""
    raw = array.reshape(-1).view(np.uint8).data
    return (raw[start : start + _CHUNK_BYTES] for start in range(0, len(raw), _CHUNK_BYTES))
