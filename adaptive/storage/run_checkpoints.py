"""`Checkpoints`: those of a run directory, of which one is whole at any time once there is one.

While the run is under way the newest is called `checkpoint-N`, N batches of the data along; the last one becomes
`weights`. An older one is removed when the newer one is there under its name, written and synced.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from adaptive.errors import CheckpointError, OutputError
from adaptive.storage.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from adaptive.storage.durable import DISK, Disk
from adaptive.storage.run_directory import WEIGHTS, newest_checkpoint

_ANY: Final = re.compile(r"weights|checkpoint-\d+|(weights|checkpoint-\d+)\.tmp-\d+")


class Checkpoints:
    """Saves the checkpoints of a run directory, and removes old ones. Only for the process that holds it."""

    def __init__(self, directory: Path, *, disk: Disk = DISK) -> None:
        self._directory, self._disk = directory, disk

    def add(self, number: int, content: Mapping[str, Any]) -> Path:
        """Save after `number` batches of the data; `content`: arguments of `save_checkpoint`.

        Raises:
            OutputError: if it cannot be written; older ones are there then.
        """
        path = self._directory / f"checkpoint-{number}"
        if not path.exists():  # or else nothing has been trained since
            save_checkpoint(path, **content, disk=self._disk)
        try:
            for entry in self._directory.iterdir():
                if entry != path and _ANY.fullmatch(entry.name):
                    self._disk.remove(entry)
        except OSError as error:
            raise OutputError(f"an older checkpoint than {path} could not be removed: {error}") from error
        return path

    def finish(self, number: int, content: Mapping[str, Any]) -> None:
        """Save for the last time.

        Raises:
            OutputError: as `add`.
        """
        path = self.add(number, content)
        try:
            self._disk.rename(path, self._directory / WEIGHTS)
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise OutputError(f"{path} could not be renamed to {WEIGHTS}: {error}") from error


def load_newest(directory: Path) -> tuple[Path, Checkpoint]:
    """The newest checkpoint of a run directory, and where it lies; its rows stay in their files. The run may be under
    way.

    Raises:
        CheckpointError: if there is none or it is damaged; names the file.
    """
    while True:
        try:
            path = newest_checkpoint(directory)
            return path, load_checkpoint(path, rows_in_files=True)
        except FileNotFoundError as error:
            raise CheckpointError(f"{directory}: expected a run directory, found: {error.strerror}") from error
        except CheckpointError:
            if newest_checkpoint(directory) == path:
                raise  # or else it has been replaced while it was read
