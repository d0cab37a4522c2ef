"""`Checkpoints`: those of a run directory, of which one is whole at any time once there is one.

With `save=best` there is also `best-N`, the weights of the best evaluation so far.

While the run is under way the newest is called `checkpoint-N`, N batches of the data along; the last one becomes
`weights`. An older one is removed when the newer one is there under its name, written and synced.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from adaptive.errors import CheckpointError, OutputError
from adaptive.storage.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from adaptive.storage.durable import DISK, Disk
from adaptive.storage.run_directory import WEIGHTS, best_checkpoint, newest_checkpoint, newest_first
from adaptive.storage.shards import ALL

_ANY: Final = re.compile(r"weights|checkpoint-\d+|(weights|checkpoint-\d+)\.tmp-\d+")

_ANY_BEST: Final = re.compile(r"best-\d+(\.tmp-\d+)?")


class Checkpoints:
    """Saves the checkpoints of a run directory, and removes old ones. Only for the process that holds it."""

    def __init__(self, directory: Path, *, keep: int = 1, damaged: Collection[Path] = (), disk: Disk = DISK) -> None:
        """
        Args:
            keep: checkpoints that are there while the run is under way; older ones are removed.
            damaged: some that could not be read: they are replaced, and count for none.
            disk: the disk operations.
        """
        self._directory, self._keep, self._damaged, self._disk = directory, keep, set(damaged), disk

    def add(self, number: int, content: Checkpoint) -> Path:
        """Save after `number` batches of the data.

        Raises:
            OutputError: if it cannot be written; older ones are there then.
        """
        path = self._save(f"checkpoint-{number}", content)
        self._remove_others([path, *self._older(number)], _ANY)
        return path

    def _save(self, name: str, content: Checkpoint) -> Path:
        path = self._directory / name
        if self._is_needed(path):
            save_checkpoint(path, content, disk=self._disk)
        return path

    def _is_needed(self, path: Path) -> bool:
        """Whether there is no such checkpoint yet; a damaged one is removed. There is one if nothing has been trained
        since."""
        if path in self._damaged:
            self._remove([path], path)
        if not self._directory.is_dir():  # made anew it would lack all that was written so far
            raise OutputError(f"run directory {self._directory} is gone: {path} could not be written")
        return not path.exists()

    def _older(self, number: int) -> list[Path]:
        """The newest checkpoints of earlier batches that are kept beside the one of batch `number`."""
        whole = [path for path in newest_first(self._directory) if path not in self._damaged]
        before = [path for path in whole if path.name != WEIGHTS and int(path.name.partition("-")[2]) < number]
        return before[: self._keep - 1]

    def _remove_others(self, kept: Sequence[Path], kind: re.Pattern[str]) -> None:
        others = [one for one in self._directory.iterdir() if one not in kept and kind.fullmatch(one.name)]
        self._remove(others, kept[0])

    def _remove(self, entries: Iterable[Path], path: Path) -> None:
        try:
            for entry in entries:
                self._disk.remove(entry)
        except OSError as error:
            raise OutputError(f"an older checkpoint than {path} could not be removed: {error}") from error

    def keep_best(self, number: int, content: Checkpoint) -> None:
        """Save as the best so far, after `number` batches of the data; it stays until there is a better one.

        Raises:
            OutputError: as `add`.
        """
        path = self._save(f"best-{number}", content)
        self._remove_others([path], _ANY_BEST)

    def finish(self, number: int, content: Checkpoint) -> None:
        """Save for the last time.

        Raises:
            OutputError: as `add`.
        """
        path = self._save(f"checkpoint-{number}", content)
        self._remove_others([path], _ANY)
        try:
            self._disk.rename(path, self._directory / WEIGHTS)
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise OutputError(f"{path} could not be renamed to {WEIGHTS}: {error}") from error


class Readers:
    """Who reads a checkpoint: a process alone, which reads all of it. Several call the same functions together."""

    pieces: range = ALL
    """Of shards, those that are read here."""

    def of_first(self, name: str) -> str:
        """What the first reader says, who looks for all: on a file system that machines share, others may see less."""
        return name

    def first_wrong(self, wrong: str | None) -> str | None:
        """What is wrong with a checkpoint for the first reader who finds something: then it is damaged for all."""
        return wrong


ONE_READER: Final = Readers()


def load_newest(directory: Path) -> tuple[Path, Checkpoint]:
    """The newest checkpoint of a run directory, and where it lies; its rows stay in their files. The run may be under
    way.

    Raises:
        CheckpointError: if there is none or it is damaged; names the file.
    """
    return _load(directory, newest_checkpoint)


def load_whole(directory: Path, readers: Readers = ONE_READER) -> tuple[Path, Checkpoint, dict[Path, str]]:
    """The newest checkpoint that is whole, where it lies, and newer ones that are not, with what is wrong with each.
    Only for the process that holds the directory, and those that read with it.

    Raises:
        CheckpointError: if none is whole; says what is wrong with the newest.
    """
    damaged: dict[Path, str] = {}
    first: CheckpointError | None = None
    for name in readers.of_first(" ".join(path.name for path in newest_first(directory))).split():
        path = directory / name
        try:
            return path, _read(path, readers), damaged
        except CheckpointError as error:
            damaged[path] = str(error)
            first = first or error
    raise first or CheckpointError(f"{directory / WEIGHTS}: expected a checkpoint, found none")


def load_best(directory: Path, readers: Readers = ONE_READER) -> tuple[Path, Checkpoint]:
    """`load_newest`, but the weights of the best evaluation where they are kept.

    Raises:
        CheckpointError: as `load_newest`.
    """
    return _load(directory, lambda path: best_checkpoint(path) or newest_checkpoint(path), readers)


def _load(directory: Path, choose: Callable[[Path], Path], readers: Readers = ONE_READER) -> tuple[Path, Checkpoint]:
    while True:
        try:
            path = directory / readers.of_first(choose(directory).name)
            return path, _read(path, readers)
        except FileNotFoundError as error:
            raise CheckpointError(f"{directory}: expected a run directory, found: {error.strerror}") from error
        except CheckpointError:
            if directory / readers.of_first(choose(directory).name) == path:
                raise  # or else it has been replaced while it was read


def _read(path: Path, readers: Readers) -> Checkpoint:
    """The checkpoint, if it is whole for all readers."""
    checkpoint, error_here = None, None
    try:
        checkpoint = load_checkpoint(path, rows_in_files=True, pieces=readers.pieces)
    except CheckpointError as error:
        error_here = error
    wrong = readers.first_wrong(None if error_here is None else str(error_here))
    if wrong is not None:
        raise error_here or CheckpointError(wrong)
    assert checkpoint is not None
    return checkpoint
