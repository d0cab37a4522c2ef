"""Checkpoints: folders of raw `.npy` arrays and a `manifest.json` that describes them.

The folder appears whole or not at all, and may be copied freely. Names of files are plain; types, shapes, sizes and a
SHA-256 of each array are those of the manifest. No code is run (no pickle).

Rows are stored in shards: each rank, which may be the only one, writes the rows that it owns, as its own arrays. One
rank writes everything else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, Strict

from adaptive.errors import CheckpointError
from adaptive.storage.arrays import Array, ArrayFile, Stored, read_array, write_array
from adaptive.storage.durable import DISK, Disk, write_directory, write_failed, write_new
from adaptive.storage.files import JsonObject, json_text, read_json
from adaptive.storage.presets import checked

FORMAT: Final = "adaptive-checkpoint"
VERSION: Final = 5
MANIFEST: Final = "manifest.json"
LARGE_BYTES: Final = 8 << 20  # arrays of rows beyond this size may stay in their files

Rows = Mapping[str, Any]  # by name: arrays; large ones are `Blocks` when saved, and may be `Stored` when loaded
Count = Annotated[int, Field(ge=0)]
LAX: Final = Strict(False)  # of a tuple, which is a list in JSON


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        rows: `RowStore.state_blocks` of the first rank.
        dense: tensors of the model's `state_dict`.
        policy: arrays of `Policy.state_dict`.
        meta: JSON values.
        optimizer: arrays of the dense optimizer.
        run: other arrays that a run needs to resume.
        other_rows: those of the other ranks, in their order; only when loaded.
    """

    rows: Mapping[str, Any]
    dense: Mapping[str, torch.Tensor]
    policy: dict[str, Array]
    meta: JsonObject
    optimizer: dict[str, Array] = field(default_factory=dict)
    run: dict[str, Array] = field(default_factory=dict)
    other_rows: Sequence[Rows] = ()

    @property
    def shards(self) -> list[Rows]:
        """The rows of all ranks, in their order."""
        return [self.rows, *self.other_rows]


class _Closed(BaseModel):
    """Base of the manifest's models."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Entry(_Closed):
    """An array in the manifest."""

    group: Literal["rows", "dense", "policy", "optimizer", "run"]
    name: str
    shard: Count = 0
    file: Annotated[str, Field(pattern=r"^[a-z]+(-[0-9]+){1,2}\.npy$")]  # a plain name: no folder, no "..", no device
    size: Count  # bytes of the file
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    dtype: str
    shape: Annotated[tuple[Count, ...], LAX, Field(max_length=64)]  # numpy's limit


class _Manifest(_Closed):
    format: str
    version: int
    arrays: list[_Entry]
    num_shards: Annotated[int, Field(ge=1)]
    meta: JsonObject


def write_shard(folder: Path, number: int, rows: Rows, disk: Disk = DISK) -> list[JsonObject]:
    """Write the rows of rank `number` into a checkpoint; return their entries. Raises OSError if that fails."""
    entries = [
        {
            "group": "rows",
            "name": name,
            "shard": number,
            **write_array(folder / f"rows-{number}-{place}.npy", rows[name], disk),
        }
        for place, name in enumerate(rows)
    ]
    disk.sync_directory(folder)
    return entries


def save_checkpoint(
    directory: Path,
    content: Checkpoint,
    *,
    write_others: Callable[[Path], Sequence[Sequence[JsonObject]]] = lambda folder: (),
    disk: Disk = DISK,
) -> None:
    """Write a checkpoint into the new folder `directory`, which appears whole or not at all.

    Args:
        directory: must not exist.
        content: the arrays to write.
        write_others: lets the other ranks call `write_shard` for this folder; returns the results, in their order.
        disk: the disk operations.

    Raises:
        OutputError: if the folder exists or cannot be written.
    """
    groups: dict[str, Mapping[str, Array]] = {
        "dense": {name: value.detach().cpu().numpy() for name, value in content.dense.items()},
        "policy": content.policy,
        "optimizer": content.optimizer,
        "run": content.run,
    }
    arrays = [(group, name, value) for group, values in groups.items() for name, value in values.items()]

    def fill(folder: Path) -> None:
        entries = write_shard(folder, 0, content.rows, disk)
        entries += [
            {"group": group, "name": name, **write_array(folder / f"{group}-{number}.npy", value, disk)}
            for number, (group, name, value) in enumerate(arrays)
        ]
        others = write_others(folder)
        entries += [entry for of_rank in others for entry in of_rank]
        facts = {"num_shards": 1 + len(others), "meta": content.meta}
        text = json_text({"format": FORMAT, "version": VERSION, "arrays": entries, **facts})
        write_new(folder / MANIFEST, lambda file: disk.write(file, text), disk=disk)

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        write_directory(directory, fill, disk=disk)
    except OSError as error:
        raise write_failed(directory, error) from error


def load_checkpoint(
    directory: Path, *, rows_in_files: bool = False, shards: Callable[[int], Sequence[int]] = range
) -> Checkpoint:
    """Read and verify a checkpoint.

    Args:
        rows_in_files: verify the arrays of rows, but leave large ones in their files: they may be larger than memory.
        shards: function from the number of shards to those that are read; the rows of others are empty.

    Raises:
        CheckpointError: if anything is missing or differs from the manifest; names the file.
    """
    manifest = _read_manifest(directory / MANIFEST)
    groups: dict[str, dict[str, Any]] = {"dense": {}, "policy": {}, "optimizer": {}, "run": {}}
    rows = [dict[str, Any]() for _ in range(manifest.num_shards)]
    wanted = set(shards(manifest.num_shards))
    for entry in manifest.arrays:
        if entry.shard >= len(rows):
            raise CheckpointError(f"{directory / MANIFEST}: expected {len(rows)} shards, got one more: {entry.file}")
        if entry.group == "rows" and entry.shard not in wanted:
            continue
        of_group = rows[entry.shard] if entry.group == "rows" else groups[entry.group]
        of_group[entry.name] = _read(directory, entry, in_file=rows_in_files and entry.group == "rows")
    dense = {name: torch.from_numpy(value) for name, value in groups["dense"].items()}
    others = groups["policy"], manifest.meta, groups["optimizer"], groups["run"]
    return Checkpoint(rows[0], dense, *others, other_rows=rows[1:])


def _read(directory: Path, entry: _Entry, *, in_file: bool) -> Array | Stored:
    facts = directory / entry.file, entry.dtype, entry.shape, entry.size
    if not in_file or len(entry.shape) < 2 or entry.size <= LARGE_BYTES:
        return read_array(*facts, entry.sha256)
    file = ArrayFile(*facts)
    file.check(entry.sha256)
    return file


def _read_manifest(path: Path) -> _Manifest:
    advice = "Load it with the version of adaptive-train that wrote it."
    expected = {"format": FORMAT, "version": VERSION}
    content = read_json(path, expected, advice=advice)
    return checked(_Manifest, content, str(path), error=CheckpointError)
