"""Saved weights: a folder of raw `.npy` arrays and a `manifest.json` that says what each must be.

The folder appears whole or not at all. Loading trusts nothing: names are plain, sizes are compared before memory
is taken, every byte is covered by a sha256, and no code is ever run (no pickle). The folder may be copied freely.
"""

import hashlib
import itertools
import json
import math
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adaptive.errors import CheckpointError, OutputError
from adaptive.files import DISK, Disk, write_directory, write_new

FORMAT: Final = "adaptive-checkpoint"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"

_DTYPES: Final = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
_MAX_MANIFEST_BYTES: Final = 2**26
_CHUNK_BYTES: Final = 2**22

Array = NDArray[Any]


@dataclass(frozen=True)
class Checkpoint:
    """What `save_checkpoint` was given."""

    rows: dict[str, Array]
    dense: dict[str, torch.Tensor]
    policy: dict[str, Array]
    meta: dict[str, Any]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Entry(_Closed):
    """One array in the manifest."""

    group: Literal["rows", "dense", "policy"]
    name: str
    file: Annotated[str, Field(pattern=r"^[a-z]+-[0-9]+\.npy$")]  # a plain name: no folder, no "..", no device
    size: Annotated[int, Field(ge=0)]  # bytes of the file
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    dtype: str
    shape: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=64)]  # numpy's limit


class _Manifest(_Closed):
    format: str
    version: int
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # of this file with these 64 digits left out
    arrays: list[_Entry]
    meta: dict[str, Any]


def save_checkpoint(
    directory: Path,
    *,
    rows: Mapping[str, Array],
    dense: Mapping[str, torch.Tensor],
    policy: Mapping[str, Array],
    meta: Mapping[str, Any],
    disk: Disk = DISK,
) -> None:
    """Write a checkpoint into the new folder `directory`; it is there whole afterwards, or not at all.

    Args:
        directory: must not exist.
        rows: arrays of `TieredEmbeddingBag.state_arrays`.
        dense: tensors of the model's `state_dict`.
        policy: arrays of `Policy.state_dict`.
        meta: JSON values.
        disk: the disk operations; tests pass one that fails.

    Raises:
        OutputError: if the folder exists or cannot be written.
    """
    arrays = {("rows", name): value for name, value in rows.items()}
    arrays |= {("dense", name): value.detach().cpu().numpy() for name, value in dense.items()}
    arrays |= {("policy", name): value for name, value in policy.items()}

    def fill(folder: Path) -> None:
        entries = []
        for number, ((group, name), value) in enumerate(arrays.items()):
            facts = _write_array(folder / f"{group}-{number}.npy", value, disk)
            entries.append({"group": group, "name": name, **facts})
        _write_manifest(folder / MANIFEST, {"arrays": entries, "meta": dict(meta)}, disk)

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        write_directory(directory, fill, disk=disk)
    except OSError as error:
        raise OutputError(f"checkpoint {directory} could not be written: {error}") from error


def load_checkpoint(directory: Path) -> Checkpoint:
    """Read and verify a checkpoint.

    Raises:
        CheckpointError: if anything is missing or differs from the manifest; names the file, what was expected and
            what was found.
    """
    manifest = _read_manifest(directory / MANIFEST)
    groups: dict[str, dict[str, Array]] = {"rows": {}, "dense": {}, "policy": {}}
    files: set[str] = set()
    for entry in manifest.arrays:
        group = groups[entry.group]
        if entry.name in group or entry.file in files:
            raise CheckpointError(
                f"{directory / MANIFEST}: {entry.group} {entry.name!r} ({entry.file}) stands there twice"
            )
        files.add(entry.file)
        group[entry.name] = _read_array(directory / entry.file, entry)
    dense = {name: torch.from_numpy(value) for name, value in groups["dense"].items()}
    return Checkpoint(groups["rows"], dense, groups["policy"], manifest.meta)


def _write_array(path: Path, value: Array, disk: Disk) -> dict[str, Any]:
    """Write one array; returns its line of the manifest."""
    array = np.asarray(value, order="C")
    assert array.dtype.str in _DTYPES, f"{path.name}: cannot save {array.dtype}"
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


def _write_manifest(path: Path, content: dict[str, Any], disk: Disk) -> None:
    unsigned = json.dumps(
        {"format": FORMAT, "version": VERSION, "sha256": "", **content}, indent=1, allow_nan=False
    ).encode()
    digest = hashlib.sha256(unsigned).hexdigest()
    signed = unsigned.replace(b'"sha256": ""', f'"sha256": "{digest}"'.encode(), 1)
    write_new(path, lambda file: disk.write(file, signed), disk=disk)


def _read_manifest(path: Path) -> _Manifest:
    with _open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MAX_MANIFEST_BYTES:
            raise CheckpointError(f"{path}: expected at most {_MAX_MANIFEST_BYTES} bytes, found {size}")
        raw = file.read(size)
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: expected JSON, found {error}; the file is damaged") from error
    found = (content.get("format"), content.get("version")) if isinstance(content, dict) else (None, None)
    if found != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path}: expected format {FORMAT} version {VERSION}, found {found[0]} version {found[1]}; "
            "it was written by another program, or by a newer one"
        )
    try:
        manifest = _Manifest.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{path}: {where}: {first['msg']}, found {str(first['input'])[:200]!r}") from error
    digest = hashlib.sha256(raw.replace(manifest.sha256.encode(), b"", 1)).hexdigest()
    if digest != manifest.sha256:
        raise CheckpointError(f"{path}: expected sha256 {manifest.sha256}, found {digest}; the file is damaged")
    return manifest


def _read_array(path: Path, entry: _Entry) -> Array:
    """Read one array; memory is taken only once the file is known to hold as much."""
    if entry.dtype not in _DTYPES:
        raise CheckpointError(f"{path}: expected one of the types {', '.join(_DTYPES)}, found {entry.dtype!r}")
    dtype, digest = np.dtype(entry.dtype), hashlib.sha256()
    with _open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != entry.size:
            raise CheckpointError(
                f"{path}: expected {entry.size} bytes, found {size}; the file is cut or of another run"
            )
        header = _header(dtype, entry.shape)
        needed = len(header) + math.prod(entry.shape) * dtype.itemsize
        if size != needed:
            raise CheckpointError(f"{path}: expected {needed} bytes for {dtype} {list(entry.shape)}, found {size}")
        found = file.read(len(header))
        if found != header:
            raise CheckpointError(f"{path}: expected the .npy header {header!r}, found {found!r}; the file is damaged")
        digest.update(header)
        try:
            array = np.empty(entry.shape, dtype)
        except ValueError as error:  # too many dimensions, or [0, 2**62, 2**62]
            raise CheckpointError(f"{path}: expected a shape that numpy can hold, found {list(entry.shape)}") from error
        for chunk in _chunks(array):
            if file.readinto(chunk) != len(chunk):  # type: ignore[attr-defined]
                raise CheckpointError(f"{path}: expected {size} bytes, found fewer; the file shrank while it was read")
            digest.update(chunk)
    if digest.hexdigest() != entry.sha256:
        raise CheckpointError(
            f"{path}: expected sha256 {entry.sha256}, found {digest.hexdigest()}; the file is damaged or of another run"
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


def _open_plain(path: Path) -> BinaryIO:
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
