"""`Checkpoints`: write and remove checkpoints, so that there is always a complete one.

During the run the newest is called `checkpoint-N`, after N batches of the data; the last one becomes `weights`. An
older one is removed only when the newer one has been written, synced and renamed. With `save=best` there is also
`best-N`, the weights of the best evaluation so far.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from adaptive.errors import CheckpointError, OutputError
from adaptive.storage.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from adaptive.storage.durable import DISK, Disk, write_failed
from adaptive.storage.files import JsonObject
from adaptive.storage.run_directory import WEIGHTS, best_checkpoint, newest_checkpoint, newest_first

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


def load_in_files(path: Path) -> Checkpoint:
    """Load a checkpoint of which large arrays of rows stay in their files."""
    return load_checkpoint(path, rows_in_files=True)


def load_whole(
    directory: Path, names: Sequence[str] | None = None, load: Load = load_in_files
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


def load_best(
    directory: Path, of_first: Callable[[str], str] = lambda name: name, load: Load = load_in_files
) -> tuple[Path, Checkpoint]:
    """Return the path and content of the best evaluation's checkpoint if stored, else of the newest.

    Large arrays of rows stay in their files. The run may be in progress. `of_first` returns the name that the first of
    several processes has chosen: others may see fewer files on a shared file system.

    Raises:
        CheckpointError: if there is none or it is damaged; names the file.
    """

    def choose() -> Path:
        return directory / of_first((best_checkpoint(directory) or newest_checkpoint(directory)).name)

    while True:
        try:
            path = choose()
            return path, load(path)
        except FileNotFoundError as error:
            raise CheckpointError(f"{directory}: expected a run directory, got an error: {error.strerror}") from error
        except CheckpointError:
            if choose() == path:
                raise  # otherwise it was replaced while it was read: try the next one
