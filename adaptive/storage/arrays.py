"""Arrays in raw `.npy` files, whose type, shape and size are checked before they are used; nothing is unpickled.

Arrays that may be larger than memory are written and read by blocks of their first axis: `Blocks` and `Stored`.
"""

import hashlib
import itertools
import math
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from adaptive.errors import CheckpointError
from adaptive.storage.durable import Disk, write_new
from adaptive.storage.files import JsonObject

DTYPES: Final = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
_CHUNK_BYTES: Final = 2**22

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
    array = value if isinstance(value, Blocks) else np.asarray(value, order="C")
    assert array.dtype.str in DTYPES, f"{path.name}: cannot save {array.dtype}"
    header = _header(array.dtype, array.shape)
    blocks, digest = array.make() if isinstance(array, Blocks) else iter([array]), hashlib.sha256(header)

    def write(file: BinaryIO) -> None:
        disk.write(file, header)
        for chunk in itertools.chain.from_iterable(map(_chunks, blocks)):
            digest.update(chunk)
            disk.write(file, chunk)

    write_new(path, write, disk=disk)
    size = path.stat().st_size
    expected = len(header) + math.prod(array.shape) * array.dtype.itemsize
    assert size == expected, f"{path.name}: blocks of {size} bytes in place of {expected}"
    facts = {"file": path.name, "size": size, "dtype": array.dtype.str, "shape": list(array.shape)}
    return {**facts, "sha256": digest.hexdigest()}


def read_array(path: Path, dtype_text: str, shape: tuple[int, ...], size: int, sha256: str) -> Array:
    """Read an array whose type, shape, size (bytes of the file) and digest are known.

    Raises:
        CheckpointError: if anything differs; names the file.
    """
    array = ArrayFile(path, dtype_text, shape, size).read()
    digest = hashlib.sha256(_header(array.dtype, shape))
    for chunk in _chunks(array):
        digest.update(chunk)
    _check_digest(path, sha256, digest)
    return array


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
        path, dtype_text, shape, size: as in `read_array`. `check` verifies the values.
    """

    def __init__(self, path: Path, dtype_text: str, shape: tuple[int, ...], size: int) -> None:
        if dtype_text not in DTYPES:
            raise CheckpointError(f"{path}: expected one of the types {', '.join(DTYPES)}, got {dtype_text!r}")
        self.dtype, self.shape, self._path = np.dtype(dtype_text), shape, path
        header = _header(self.dtype, shape)
        self._start = len(header)
        try:
            with open(path, "rb") as file:
                actual, begins = os.fstat(file.fileno()).st_size, file.read(len(header))
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            raise CheckpointError(f"{path}: expected a regular file, got {error.strerror}") from error
        weakref.finalize(self, os.close, self._descriptor)
        expected = len(header) + math.prod(shape) * self.dtype.itemsize
        if not actual == size == expected:
            raise CheckpointError(f"{path}: expected {expected} bytes for {self.dtype} {list(shape)}, got {actual}")
        if begins != header:
            raise CheckpointError(f"{path}: expected a .npy file of {self.dtype} {list(shape)}, got another header")

    def check(self, sha256: str) -> None:
        """Verify all values by their digest.

        Raises:
            CheckpointError: if it differs.
        """
        digest = hashlib.sha256(_header(self.dtype, self.shape))
        step = max(_CHUNK_BYTES // max(self._place(1) - self._place(0), 1), 1)
        for start in range(0, self.shape[0], step):
            for chunk in _chunks(self.read(start, min(start + step, self.shape[0]))):
                digest.update(chunk)
        _check_digest(self._path, sha256, digest)

    def read(self, first: int = 0, last: int | None = None) -> Array:
        shape = self.shape
        if shape:
            shape = ((shape[0] if last is None else last) - first, *shape[1:])
        array, at = np.empty(shape, self.dtype), self._place(first)
        for chunk in _chunks(array):
            while len(chunk):
                count = os.preadv(self._descriptor, [chunk], at)
                if not count:
                    raise CheckpointError(f"{self._path}: expected more bytes. The file shrank while it was read")
                chunk, at = chunk[count:], at + count
        return array

    def _place(self, entry: int) -> int:
        """Return the offset of an entry in the file, in bytes."""
        return self._start + entry * math.prod(self.shape[1:]) * self.dtype.itemsize


def whole(array: "Array | Stored") -> Array:
    """Return the array, in memory."""
    return array.read() if isinstance(array, Stored) else array


def _check_digest(path: Path, expected: str, digest: Any) -> None:
    if digest.hexdigest() != expected:
        raise CheckpointError(f"{path}: expected sha256 {expected}, got {digest.hexdigest()}. The file is damaged")


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a `.npy` file, byte by byte as numpy writes it today: readers compare it."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {tuple(map(int, shape))!r}, }}"
    text += " " * (21 - len(str(shape[0])) if shape else 0)  # so that the first axis can grow
    text += " " * (64 - (len(text) + 11) % 64) + "\n"
    return npy.magic(1, 0) + len(text).to_bytes(2, "little") + text.encode()


def _chunks(array: Array) -> Iterator[memoryview]:
    """Return the bytes of a C-contiguous array, in chunks."""
    raw = array.reshape(-1).view(np.uint8).data
    return (raw[start : start + _CHUNK_BYTES] for start in range(0, len(raw), _CHUNK_BYTES))
