"""Arrays as raw `.npy` files, written here and checked before they are used: their header is compared, never parsed."""

import hashlib
import itertools
import math
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import CheckpointError
from adaptive.storage.durable import Disk, write_new

DTYPES: Final = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
_CHUNK_BYTES: Final = 2**22

Array = NDArray[Any]


def write_array(path: Path, value: Array, disk: Disk) -> dict[str, Any]:
    """Write one array, synced; returns its `file` name, `size`, `sha256`, `dtype` and `shape`."""
    array = np.asarray(value, order="C")
    assert array.dtype.str in DTYPES, f"{path.name}: cannot save {array.dtype}"
    digest = hashlib.sha256()

    def write(file: BinaryIO) -> None:
        for chunk in itertools.chain([memoryview(_header(array.dtype, array.shape))], _chunks(array)):
            digest.update(chunk)
            disk.write(file, chunk)

    write_new(path, write, disk=disk)
    return {
        "file": path.name,
        "size": path.stat().st_size,
        "sha256": digest.hexdigest(),
        "dtype": array.dtype.str,
        "shape": list(array.shape),
    }


def read_array(path: Path, dtype_text: str, shape: tuple[int, ...], size: int, sha256: str) -> Array:
    """Read one array of a known type, shape, size (bytes of the file) and digest; memory is taken only once the file is
    known to hold as much.

    Raises:
        CheckpointError: if anything differs; names the file, what was expected and what was found.
    """
    if dtype_text not in DTYPES:
        raise CheckpointError(f"{path}: expected one of the types {', '.join(DTYPES)}, found {dtype_text!r}")
    dtype, digest = np.dtype(dtype_text), hashlib.sha256()
    with open_plain(path) as file:
        found_size = os.fstat(file.fileno()).st_size
        if found_size != size:
            raise CheckpointError(
                f"{path}: expected {size} bytes, found {found_size}; the file is cut or of another run"
            )
        header = _header(dtype, shape)
        needed = len(header) + math.prod(shape) * dtype.itemsize
        if size != needed:
            raise CheckpointError(f"{path}: expected {needed} bytes for {dtype} {list(shape)}, found {size}")
        found = file.read(len(header))
        if found != header:
            raise CheckpointError(f"{path}: expected the .npy header {header!r}, found {found!r}; the file is damaged")
        digest.update(header)
        try:
            array = np.empty(shape, dtype)
        except ValueError as error:  # too many dimensions, or [0, 2**62, 2**62]
            raise CheckpointError(f"{path}: expected a shape that numpy can hold, found {list(shape)}") from error
        for chunk in _chunks(array):
            if file.readinto(chunk) != len(chunk):  # type: ignore[attr-defined]
                raise CheckpointError(f"{path}: expected {size} bytes, found fewer; the file shrank while it was read")
            digest.update(chunk)
    if digest.hexdigest() != sha256:
        raise CheckpointError(
            f"{path}: expected sha256 {sha256}, found {digest.hexdigest()}; the file is damaged or of another run"
        )
    return array


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The `.npy` header, version 1.0, padded to 64 bytes.

    Made here and compared, never parsed: numpy's own parser evaluates literals, and its padding has changed before.
    """
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    padding = -(len(b"\x93NUMPY") + 4 + len(text) + 1) % 64
    content = text.encode("ascii") + b" " * padding + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(content)) + content


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading; links, folders and devices are refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        found = "a link" if path.is_symlink() else error.strerror or str(error)
        raise CheckpointError(f"{path}: expected a plain file, found: {found}") from error
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise CheckpointError(f"{path}: expected a plain file, found a folder, pipe or device")
    return file


def _chunks(array: Array) -> Iterator[memoryview]:
    """The bytes of a C-contiguous array, in pieces."""
    raw = array.reshape(-1).view(np.uint8).data
    return (raw[start : start + _CHUNK_BYTES] for start in range(0, len(raw), _CHUNK_BYTES))
