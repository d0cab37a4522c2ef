"""Saved weights: a folder of raw `.npy` arrays and a `manifest.json` that says what each must be.

The folder appears whole or not at all. Loading trusts nothing: names are plain, sizes are compared before memory
is taken, every byte is covered by a sha256, and no code is ever run (no pickle). The folder may be copied freely.

Several ranks write one checkpoint: rows in a shard of each (`adaptive.storage.shards`), all else by one of them.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adaptive.errors import CheckpointError, OutputError
from adaptive.storage.arrays import Array, ArrayFile, Blocks, Stored, read_array, write_array
from adaptive.storage.durable import DISK, Disk, write_directory, write_new
from adaptive.storage.shards import ALL, PartEntry, open_shards
from adaptive.storage.untrusted import parse_json, read_plain

FORMAT: Final = "adaptive-checkpoint"
VERSION: Final = 2
SHARDED: Final = 3  # version of checkpoints of several ranks
READABLE: Final = (1, VERSION, SHARDED)  # 1: weights only, from which no run can go on
MANIFEST: Final = "manifest.json"

_MAX_MANIFEST_BYTES: Final = 2**26


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint: what `save_checkpoint` was given."""

    rows: dict[str, Array] | dict[str, Stored] | dict[str, Array | Stored]
    dense: dict[str, torch.Tensor]
    policy: dict[str, Array]
    meta: dict[str, Any]
    optimizer: dict[str, Array] = field(default_factory=dict)
    run: dict[str, Array] = field(default_factory=dict)


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Entry(_Closed):
    """One array in the manifest."""

    group: Literal["rows", "dense", "policy", "optimizer", "run"]
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
    shards: list[list[PartEntry]] = []
    meta: dict[str, Any]


def save_checkpoint(
    directory: Path,
    *,
    rows: Mapping[str, Array | Blocks],
    dense: Mapping[str, torch.Tensor],
    policy: Mapping[str, Array],
    meta: Mapping[str, Any],
    optimizer: Mapping[str, Array] = MappingProxyType({}),
    run: Mapping[str, Array] = MappingProxyType({}),
    shards: Callable[[Path], Sequence[Sequence[Mapping[str, Any]]]] | None = None,
    disk: Disk = DISK,
) -> None:
    """Write a checkpoint into the new folder `directory`; it is there whole afterwards, or not at all.

    Args:
        directory: must not exist.
        rows: arrays of `RowStore.state_arrays` or `state_blocks`.
        dense: tensors of the model's `state_dict`.
        policy: arrays of `Policy.state_dict`.
        meta: JSON values.
        optimizer: arrays of the dense optimizer.
        run: whatever else a run needs to go on.
        shards: of several ranks: gets the folder and lets them write into it; returns what `write_parts` gave to each.
        disk: the disk operations; tests pass one that fails.

    Raises:
        OutputError: if the folder exists or cannot be written.
    """
    weights = {name: value.detach().cpu().numpy() for name, value in dense.items()}
    groups: dict[str, Mapping[str, Any]] = {
        "rows": rows,
        "dense": weights,
        "policy": policy,
        "optimizer": optimizer,
        "run": run,
    }
    arrays: dict[tuple[str, str], Array | Blocks] = {}
    for group, values in groups.items():
        arrays |= {(group, name): value for name, value in values.items()}

    def fill(folder: Path) -> None:
        entries = []
        for number, ((group, name), value) in enumerate(arrays.items()):
            facts = write_array(folder / f"{group}-{number}.npy", value, disk)
            entries.append({"group": group, "name": name, **facts})
        in_shards = {} if shards is None else {"shards": shards(folder)}
        version = VERSION if shards is None else SHARDED
        _write_manifest(folder / MANIFEST, version, {"arrays": entries, **in_shards, "meta": dict(meta)}, disk)

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        write_directory(directory, fill, disk=disk)
    except OSError as error:
        raise OutputError(f"checkpoint {directory} could not be written: {error}") from error


def load_checkpoint(directory: Path, *, rows_in_files: bool = False, pieces: range = ALL) -> Checkpoint:
    """Read and verify a checkpoint.

    Args:
        rows_in_files: verify the arrays of rows, but leave them in their files: they may be larger than memory.
        pieces: of shards, where there are some: rows of others are neither there nor verified.

    Raises:
        CheckpointError: if anything is missing or differs from the manifest; names the file, what was expected and
            what was found.
    """
    manifest = _read_manifest(directory / MANIFEST)
    groups: dict[str, dict[str, Any]] = {"rows": {}, "dense": {}, "policy": {}, "optimizer": {}, "run": {}}
    files: set[str] = set()
    for entry in manifest.arrays:
        group = groups[entry.group]
        if entry.name in group or entry.file in files:
            raise CheckpointError(
                f"{directory / MANIFEST}: {entry.group} {entry.name!r} ({entry.file}) stands there twice"
            )
        files.add(entry.file)
        read = ArrayFile if rows_in_files and entry.group == "rows" else read_array
        group[entry.name] = read(directory / entry.file, entry.dtype, entry.shape, entry.size, entry.sha256)
    if manifest.shards:
        if twice := {one.name for one in manifest.shards[0]} & set(groups["rows"]):
            raise CheckpointError(f"{directory / MANIFEST}: rows {sorted(twice)[0]!r} stands there twice")
        where = directory / MANIFEST
        groups["rows"].update(open_shards(directory, manifest.shards, pieces, where, in_files=rows_in_files))
    dense = {name: torch.from_numpy(value) for name, value in groups["dense"].items()}
    return Checkpoint(
        groups["rows"], dense, groups["policy"], manifest.meta, optimizer=groups["optimizer"], run=groups["run"]
    )


def _write_manifest(path: Path, version: int, content: dict[str, Any], disk: Disk) -> None:
    unsigned = json.dumps(
        {"format": FORMAT, "version": version, "sha256": "", **content}, indent=1, allow_nan=False
    ).encode()
    digest = hashlib.sha256(unsigned).hexdigest()
    signed = unsigned.replace(b'"sha256": ""', f'"sha256": "{digest}"'.encode(), 1)
    write_new(path, lambda file: disk.write(file, signed), disk=disk)


def _read_manifest(path: Path) -> _Manifest:
    raw = read_plain(path, _MAX_MANIFEST_BYTES)
    content = parse_json(raw, str(path))
    found = (content.get("format"), content.get("version")) if isinstance(content, dict) else (None, None)
    if found not in [(FORMAT, version) for version in READABLE]:
        raise CheckpointError(
            f"{path}: expected format {FORMAT} version {', '.join(map(str, READABLE))}, found {found[0]} version "
            f"{found[1]}; it was written by another program, or by a newer one"
        )
    try:
        manifest = _Manifest.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{path}: {where}: {first['msg']}, found {str(first['input'])[:200]!r}") from error
    if bool(manifest.shards) != (manifest.version == SHARDED):
        raise CheckpointError(f"{path}: expected shards in version {SHARDED}, and nowhere else")
    digest = hashlib.sha256(raw.replace(manifest.sha256.encode(), b"", 1)).hexdigest()
    if digest != manifest.sha256:
        raise CheckpointError(f"{path}: expected sha256 {manifest.sha256}, found {digest}; the file is damaged")
    return manifest
