"""Checkpoints: folders of raw `.npy` arrays and a `manifest.json` that describes them.

The folder appears whole or not at all, and may be copied freely. Names of files are plain; types, shapes, sizes and a
SHA-256 of each array are those of the manifest. No code is run (no pickle).

Rows are stored in shards: each rank, which may be the only one, writes the rows that it owns, as its own arrays. One
rank writes everything else.

`Checkpoints` writes and removes those of a run, so that there is always a complete one. During the run the newest is
called `checkpoint-N`, after N batches of the data; the last one becomes `weights`. An older one is removed only when
the newer one has been written, synced and renamed. With `save=best` there is also `best-N`, the weights of the best
evaluation so far.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, Strict

from adaptive.errors import CheckpointError, OutputError
from adaptive.storage.arrays import Array, ArrayFile, Stored, read_array, write_array
from adaptive.storage.durable import DISK, Disk, write_directory, write_failed, write_new
from adaptive.storage.files import JsonObject, checked, json_text, read_json
from adaptive.storage.run_directory import WEIGHTS, best_checkpoint, newest_checkpoint, newest_first

FORMAT: Final = "adaptive-checkpoint"
VERSION: Final = 6
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


def load_checkpoint(directory: Path, *, shards: Callable[[int], Sequence[int]] = range) -> Checkpoint:
    """Read and verify a checkpoint. Large arrays of rows stay in their files: they may be larger than memory.

    Args:
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
        of_group[entry.name] = _read(directory, entry, in_file=entry.group == "rows")
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


WriteOthers = Callable[[Path | None, Checkpoint], Sequence[Sequence[JsonObject]]]

_ANY: Final = re.compile(r"weights|checkpoint-\d+|(weights|checkpoint-\d+)\.tmp-\d+")

_ANY_BEST: Final = re.compile(r"best-\d+(\.tmp-\d+)?")


class Checkpoints:
    """Saves and removes the checkpoints of a run directory, for the process that holds it."""

    def __init__(
        self,
        directory: Path,
        *,
        keep: int = 1,
        damaged: Collection[Path] = (),
        write_others: WriteOthers = lambda folder, content: (),
        disk: Disk = DISK,
    ) -> None:
        """
        Args:
            keep: number of checkpoints to keep during the run; older ones are removed.
            damaged: checkpoints that could not be read; they are replaced, and do not count.
            write_others: lets other ranks write their rows, see `save_checkpoint`; the folder is None if the
                checkpoint exists.
            disk: the disk operations.
        """
        self._directory, self._keep, self._damaged, self._disk = directory, keep, set(damaged), disk
        self._write_others = write_others

    def add(self, number: int, content: Checkpoint) -> Path:
        """Save a checkpoint after `number` batches of the data, and return its folder.

        Raises:
            OutputError: if it cannot be written; then older ones still exist.
        """
        path = self._save(f"checkpoint-{number}", content)
        self._remove_others([path, *self._older(number)], _ANY)
        return path

    def _save(self, name: str, content: Checkpoint) -> Path:
        path = self._directory / name
        if self._is_needed(path):
            save_checkpoint(
                path, content, write_others=lambda folder: self._write_others(folder, content), disk=self._disk
            )
        else:
            self._write_others(None, content)
        return path

    def _is_needed(self, path: Path) -> bool:
        """Return True if there is no such checkpoint yet. Removes a damaged one."""
        if path in self._damaged:
            self._remove([path], path)
        if not self._directory.is_dir():  # a new directory would be without everything written so far
            raise OutputError(
                f"run directory {self._directory}: expected it to exist, got none for {path}. Start the run again."
            )
        return not path.exists()

    def _older(self, number: int) -> list[Path]:
        """Return the newest earlier checkpoints to keep together with that of batch `number`."""
        whole = [path for path in newest_first(self._directory) if path not in self._damaged]
        earlier = [path for path in whole if path.name != WEIGHTS and int(path.name.partition("-")[2]) < number]
        return earlier[: self._keep - 1]

    def _remove_others(self, remaining: Sequence[Path], kind: re.Pattern[str]) -> None:
        paths = [path for path in self._directory.iterdir() if path not in remaining and kind.fullmatch(path.name)]
        self._remove(paths, remaining[0])

    def _remove(self, entries: Iterable[Path], path: Path) -> None:
        try:
            for entry in entries:
                self._disk.remove(entry)
        except OSError as error:
            raise write_failed(path, error) from error

    def keep_best(self, number: int, content: Checkpoint) -> None:
        """Save the best weights so far, after `number` batches, in place of the previous best."""
        path = self._save(f"best-{number}", content)
        self._remove_others([path], _ANY_BEST)

    def finish(self, number: int, content: Checkpoint) -> None:
        """Save the last checkpoint, as `weights`; raises what `add` does."""
        path = self._save(f"checkpoint-{number}", content)
        self._remove_others([path], _ANY)
        try:
            self._disk.rename(path, self._directory / WEIGHTS)
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise write_failed(path, error) from error


Load = Callable[[Path], Checkpoint]
"""Loads a checkpoint; with several processes, raises on all if it is damaged for one."""


def load_whole(
    directory: Path, names: Sequence[str] | None = None, load: Load = load_checkpoint
) -> tuple[Path, Checkpoint, dict[Path, str]]:
    """Return the newest undamaged checkpoint, its path, and errors of newer damaged ones.

    Only for the process that holds the directory, and those that read with it. `names`: of the checkpoints, newest
    first, as that process sees them; None: as this one does.

    Raises:
        CheckpointError: if all are damaged: the error of the newest.
    """
    damaged: dict[Path, str] = {}
    first: CheckpointError | None = None
    for name in [path.name for path in newest_first(directory)] if names is None else names:
        path = directory / name
        try:
            return path, load(path), damaged
        except CheckpointError as error:
            damaged[path] = str(error)
            first = first or error
    raise first or CheckpointError(f"{directory / WEIGHTS}: expected a checkpoint, got none")


def load_best(directory: Path) -> tuple[Path, Checkpoint]:
    """Return the path and content of the best evaluation's checkpoint if stored, else of the newest.

    Large arrays of rows stay in their files. The run may be in progress.

    Raises:
        CheckpointError: if there is none or it is damaged; names the file.
    """

    while True:
        try:
            path = best_checkpoint(directory) or newest_checkpoint(directory)
            return path, load_checkpoint(path)
        except FileNotFoundError as error:
            raise CheckpointError(f"{directory}: expected a run directory, got an error: {error.strerror}") from error
        except CheckpointError:
            if (best_checkpoint(directory) or newest_checkpoint(directory)) == path:
                raise  # otherwise it was replaced while it was read: try the next one
