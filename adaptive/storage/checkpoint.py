"""Checkpoints: folders of raw `.npy` arrays and a `manifest.json` that describes them.

The folder appears whole or not at all, and may be copied freely. Names of files are plain; types, shapes, sizes and a
SHA-256 of each array are those of the manifest. No code is run (no pickle).

Rows are stored in shards (`adaptive.storage.shards`): each rank, which may be the only one, writes the rows that it
owns. One rank writes everything else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import Field

from adaptive.errors import CheckpointError
from adaptive.storage.arrays import Array, Stored, read_array, write_array
from adaptive.storage.durable import DISK, Disk, write_directory, write_failed, write_new
from adaptive.storage.files import JsonObject, json_text, read_json
from adaptive.storage.presets import checked
from adaptive.storage.shards import ALL, LAX, Closed, Count, Part, PartEntry, Sha256, open_shards, write_parts

FORMAT: Final = "adaptive-checkpoint"
VERSION: Final = 4
MANIFEST: Final = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        rows: when saved, `RowStore.state_parts`: parts of a shard, and small arrays that are equal on all ranks. When
            loaded, arrays of the rows of all ranks, or of some pieces; large arrays may be `Stored`.
        dense: tensors of the model's `state_dict`.
        policy: arrays of `Policy.state_dict`.
        meta: JSON values.
        optimizer: arrays of the dense optimizer.
        run: other arrays that a run needs to resume.
    """

    rows: Mapping[str, Any]
    dense: Mapping[str, torch.Tensor]
    policy: dict[str, Array]
    meta: JsonObject
    optimizer: dict[str, Array] = field(default_factory=dict)
    run: dict[str, Array] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Part]:
        """The entries of `rows` that are parts of a shard."""
        return {name: value for name, value in self.rows.items() if isinstance(value, Part)}


ShardWriter = Callable[[Path, Mapping[str, Part], Disk], Sequence[Sequence[JsonObject]]]
"""Writes the parts into the folder as this rank's shard; returns the entries of all ranks for the manifest."""


def write_alone(folder: Path, parts: Mapping[str, Part], disk: Disk) -> list[list[JsonObject]]:
    """Write the only shard: the `ShardWriter` of a process that has all rows."""
    return [write_parts(folder, 0, parts, disk)]


class _Entry(Closed):
    """An array in the manifest."""

    group: Literal["rows", "dense", "policy", "optimizer", "run"]
    name: str
    file: Annotated[str, Field(pattern=r"^[a-z]+-[0-9]+\.npy$")]  # a plain name: no folder, no "..", no device
    size: Count  # bytes of the file
    sha256: Sha256
    dtype: str
    shape: Annotated[tuple[Count, ...], LAX, Field(max_length=64)]  # numpy's limit


class _Manifest(Closed):
    format: str
    version: int
    arrays: list[_Entry]
    shards: Annotated[list[list[PartEntry]], Field(min_length=1)]
    meta: JsonObject


def save_checkpoint(
    directory: Path, content: Checkpoint, *, write_shards: ShardWriter = write_alone, disk: Disk = DISK
) -> None:
    """Write a checkpoint into the new folder `directory`, which appears whole or not at all.

    Args:
        directory: must not exist.
        content: the arrays to write.
        write_shards: writes the parts of `content.rows`, and lets other ranks write theirs.
        disk: the disk operations.

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
        manifest = {"format": FORMAT, "version": VERSION, "arrays": entries, "shards": shards, "meta": content.meta}
        text = json_text(manifest)
        write_new(folder / MANIFEST, lambda file: disk.write(file, text), disk=disk)

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        write_directory(directory, fill, disk=disk)
    except OSError as error:
        raise write_failed(directory, error) from error


def load_checkpoint(directory: Path, *, rows_in_files: bool = False, pieces: range = ALL) -> Checkpoint:
    """Read and verify a checkpoint.

    Args:
        rows_in_files: verify the arrays of rows, but leave large ones in their files: they may be larger than memory.
        pieces: of shards of several ranks; rows of other pieces are neither returned nor verified.

    Raises:
        CheckpointError: if anything is missing or differs from the manifest; names the file.
    """
    manifest = _read_manifest(directory / MANIFEST)
    groups: dict[str, dict[str, Any]] = {"rows": {}, "dense": {}, "policy": {}, "optimizer": {}, "run": {}}
    for entry in manifest.arrays:
        read = read_array(directory / entry.file, entry.dtype, entry.shape, entry.size, entry.sha256)
        groups[entry.group][entry.name] = read
    rows: dict[str, Array | Stored] = groups["rows"]
    rows |= open_shards(directory, manifest.shards, pieces, in_files=rows_in_files)
    dense = {name: torch.from_numpy(value) for name, value in groups["dense"].items()}
    return Checkpoint(rows, dense, groups["policy"], manifest.meta, groups["optimizer"], groups["run"])


def _read_manifest(path: Path) -> _Manifest:
    advice = "Load it with the version of adaptive-train that wrote it."
    expected = {"format": FORMAT, "version": VERSION}
    content = read_json(path, expected, advice=advice)
    return checked(_Manifest, content, str(path), error=CheckpointError)
