"""Saved weights: a folder of raw `.npy` arrays and a `manifest.json` that says what each must be.

The folder appears whole or not at all. Loading trusts nothing: names are plain, sizes are compared before memory
is taken, every byte is covered by a sha256, and no code is ever run (no pickle). The folder may be copied freely.

Rows lie in shards (`adaptive.storage.shards`): each rank, which may be the only one, writes those that it owns. All
else is written by one rank.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adaptive.errors import CheckpointError, OutputError
from adaptive.storage.arrays import Array, Stored, read_array, write_array
from adaptive.storage.durable import DISK, Disk, write_directory, write_new
from adaptive.storage.shards import ALL, Part, PartEntry, open_shards, write_parts
from adaptive.storage.untrusted import JsonObject, parse_json, read_plain

FORMAT: Final = "adaptive-checkpoint"
VERSION: Final = 4
MANIFEST: Final = "manifest.json"

_MAX_MANIFEST_BYTES: Final = 2**26


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        rows: when saved, `RowStore.state_parts`: parts of a shard, and small arrays that are equal on all ranks. When
            loaded, arrays of the rows of all ranks, or of some pieces; large ones may be `Stored`.
        dense: tensors of the model's `state_dict`.
        policy: arrays of `Policy.state_dict`.
        meta: JSON values.
        optimizer: arrays of the dense optimizer.
        run: whatever else a run needs to resume.
    """

    rows: Mapping[str, Any]
    dense: Mapping[str, torch.Tensor]
    policy: dict[str, Array]
    meta: JsonObject
    optimizer: dict[str, Array] = field(default_factory=dict)
    run: dict[str, Array] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Part]:
        """Of `rows`, those of a shard."""
        return {name: value for name, value in self.rows.items() if isinstance(value, Part)}


ShardWriter = Callable[[Path, Mapping[str, Part], Disk], Sequence[Sequence[JsonObject]]]
"""Writes the parts into the folder as this rank's shard; returns what the manifest must say of those of all ranks."""


def write_alone(folder: Path, parts: Mapping[str, Part], disk: Disk) -> list[list[JsonObject]]:
    """The `ShardWriter` of a process that has all rows."""
    return [write_parts(folder, 0, parts, disk)]


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
    shards: Annotated[list[list[PartEntry]], Field(min_length=1)]
    meta: JsonObject


def save_checkpoint(
    directory: Path, content: Checkpoint, *, write_shards: ShardWriter = write_alone, disk: Disk = DISK
) -> None:
    """Write a checkpoint into the new folder `directory`; it is there whole afterwards, or not at all.

    Args:
        directory: must not exist.
        content: what to write.
        write_shards: writes the parts of `content.rows`, and lets other ranks write theirs.
        disk: the disk operations; tests pass one that fails.

    Raises:
        OutputError: if the folder exists or cannot be written.
    """
    parts = content.parts
    groups: dict[str, Mapping[str, Array]] = {
        "rows": {name: value for name, value in content.rows.items() if name not in parts},
        "dense": {name: value.detach().cpu().numpy() for name, value in content.dense.items()},
        "policy": content.policy,
        "optimizer": content.optimizer,
        "run": content.run,
    }
    arrays = [(group, name, value) for group, values in groups.items() for name, value in values.items()]

    def fill(folder: Path) -> None:
        entries = [
            {"group": group, "name": name, **write_array(folder / f"{group}-{number}.npy", value, disk)}
            for number, (group, name, value) in enumerate(arrays)
        ]
        shards = write_shards(folder, parts, disk)
        _write_manifest(folder / MANIFEST, {"arrays": entries, "shards": shards, "meta": content.meta}, disk)

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        write_directory(directory, fill, disk=disk)
    except OSError as error:
        raise OutputError(f"checkpoint {directory} could not be written: {error}") from error


def load_checkpoint(directory: Path, *, rows_in_files: bool = False, pieces: range = ALL) -> Checkpoint:
    """Read and verify a checkpoint.

    Args:
        rows_in_files: verify the arrays of rows, but leave large ones in their files: they may be larger than memory.
        pieces: of shards of several ranks: rows of others are neither there nor verified.

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
        group[entry.name] = read_array(directory / entry.file, entry.dtype, entry.shape, entry.size, entry.sha256)
    rows: dict[str, Array | Stored] = groups["rows"]
    where = directory / MANIFEST
    if twice := {entry.name for entry in manifest.shards[0]} & set(rows):
        raise CheckpointError(f"{where}: rows {sorted(twice)[0]!r} stands there twice")
    rows |= open_shards(directory, manifest.shards, pieces, where, in_files=rows_in_files)
    dense = {name: torch.from_numpy(value) for name, value in groups["dense"].items()}
    return Checkpoint(rows, dense, groups["policy"], manifest.meta, groups["optimizer"], groups["run"])


def _write_manifest(path: Path, content: Mapping[str, object], disk: Disk) -> None:
    unsigned = json.dumps(
        {"format": FORMAT, "version": VERSION, "sha256": "", **content}, indent=1, allow_nan=False
    ).encode()
    digest = hashlib.sha256(unsigned).hexdigest()
    signed = unsigned.replace(b'"sha256": ""', f'"sha256": "{digest}"'.encode(), 1)
    write_new(path, lambda file: disk.write(file, signed), disk=disk)


def _read_manifest(path: Path) -> _Manifest:
    raw = read_plain(path, _MAX_MANIFEST_BYTES)
    content = parse_json(raw, str(path))
    kind = (content.get("format"), content.get("version")) if isinstance(content, dict) else (None, None)
    if kind != (FORMAT, VERSION) or isinstance(kind[1], bool):
        raise CheckpointError(
            f"{path}: expected format {FORMAT} version {VERSION}, found {kind[0]} version {kind[1]}; it was written by "
            "another program, or by another version. Load it with the version that wrote it"
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
