"""Data files: find them by path or pattern, fingerprint them, detect changes.

A file that is truncated, grows, is written to or disappears between two passes is an error, since the run would
silently train on other samples.
"""

import glob
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from adaptive.errors import InputError

_CHECKED_BLOCK = 1 << 20
_CHECKED_BLOCKS = 64


@dataclass(frozen=True)
class DataFile:
    """A file as it was when the data set was opened."""

    path: Path
    size: int  # bytes on disk
    modified: int  # in ns, by its file system's clock

    @classmethod
    def of(cls, path: Path, facts: os.stat_result) -> "DataFile":
        return cls(path, facts.st_size, facts.st_mtime_ns)

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def num_bytes(self) -> int:
        return self.size

    def require_unchanged(self, facts: os.stat_result) -> None:
        """Raise InputError unless size and modification time are still the same."""
        changed = ""
        if facts.st_size != self.size:
            changed = f"{self.size} bytes, as when the data set was opened, got {facts.st_size}"
        elif facts.st_mtime_ns != self.modified:
            changed = "the file as it was when the data set was opened, got a later modification time"
        if changed:
            raise InputError(f"{self.path}: expected {changed}. Do not change data files during a run.")

    def fingerprint(self) -> dict[str, object]:
        """Return name, size and SHA-256 of the bytes on disk, as JSON values.

        The digest covers all bytes up to 64 MiB. Of a larger file it covers 64 blocks of 1 MiB, spread evenly from the
        first to the last byte, so that it takes less than a second for any size. (A CRC-32 would be the same for all
        uncompressed gzip files of one size, since each ends with its CRC.)
        """
        whole = self.size <= _CHECKED_BLOCK * _CHECKED_BLOCKS
        blocks = -(-self.size // _CHECKED_BLOCK) if whole else _CHECKED_BLOCKS
        step = _CHECKED_BLOCK if whole else (self.size - _CHECKED_BLOCK) / (_CHECKED_BLOCKS - 1)
        digest = hashlib.sha256()
        with open_file(self.path) as file:
            for start in (int(step * block) for block in range(blocks)):
                file.seek(start)
                digest.update(file.read(_CHECKED_BLOCK))
        checked = "all" if whole else f"{_CHECKED_BLOCKS} blocks of 1 MiB"
        return {"path": str(self.path), "bytes": self.size, "sha256": digest.hexdigest(), "sha256_of": checked}


def find_files(spec: str, *, list_folder: Callable[[Path], list[Path]] | None = None) -> tuple[DataFile, ...]:
    """Return the files of `PATH[,PATH...]`.

    Paths with `*`, `?` or `[` are patterns, whose matches are sorted by name.

    Args:
        list_folder: returns the data files in a folder and below, for formats whose data may be folders.

    Raises:
        InputError: if a file is missing or a folder, or a pattern matches nothing.
    """
    files: list[DataFile] = []
    for part in map(str.strip, spec.split(",")):
        if not part:
            raise InputError(
                f"data: expected PATH or PATH,PATH or a pattern such as 'day_*.gz', got {spec!r}. Name a path."
            )
        if "://" in part:
            raise InputError(
                f"data: expected files of this machine, got {part!r}. Copy them first, for example with "
                "aws s3 cp --recursive, or mount the bucket."
            )
        path = Path(part).expanduser()
        is_pattern = glob.has_magic(part) and not os.path.exists(path)
        paths = [Path(match) for match in sorted(glob.glob(str(path)))] if is_pattern else [path]
        if list_folder is not None:
            paths = [file for path in paths for file in (list_folder(path) if path.is_dir() else [path])]
        if not paths and path.is_dir():
            raise InputError(
                f"{path}: expected files with the ending of the format in the folder, got none. Check the path; names "
                "that begin with _ or . are left out."
            )
        if not paths:
            raise InputError(
                f"data: expected a pattern that matches files, got {part!r}. Check the folder and the quotes."
            )
        files += map(find_file, paths)
    return tuple(files)


def find_parts(
    train: str, evaluation: str | None, *, list_folder: Callable[[Path], list[Path]] | None = None
) -> tuple[tuple[DataFile, ...], int]:
    """Return the files for training and those for evaluation, and the number of the former."""
    files = find_files(train, list_folder=list_folder)
    more = () if evaluation is None else find_files(evaluation, list_folder=list_folder)
    return files + more, len(files)


def names_below(folder: Path, endings: tuple[str, ...]) -> list[str]:
    """Return the names, relative to a folder, of the files with these endings in it and below, in `name_order`.

    Without hidden and temporary ones: those whose name, or folder, begins with `.` or `_`.
    """
    names = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] not in "._"]  # os.walk enters what is left here
        inner = PurePosixPath(os.path.relpath(place, folder))
        names += [str(inner / name) for name in files if name[0] not in "._" and name.endswith(endings)]
    return sorted(names, key=name_order)


def name_order(name: str) -> tuple[str, ...]:
    """Return what relative names are sorted by: folder by folder, so that `a/z` comes before `a-1`."""
    return PurePosixPath(name).parts


def find_file(path: Path) -> DataFile:
    """Return the regular file at this path; raise InputError if there is none."""
    if os.path.isdir(path):
        raise InputError(f"{path}: expected a file, got a folder. Name its files, for example '{path}/*'.")
    try:
        facts = path.stat()
    except OSError as error:
        raise InputError(f"{path}: expected a file, got an error ({error.strerror}). Check the path.") from error
    if not stat.S_ISREG(facts.st_mode):
        raise InputError(f"{path}: expected a regular file, got a pipe or a device. Write the data to a file first.")
    return DataFile.of(path, facts)


def open_file(path: Path) -> BinaryIO:
    """Open a data file; raise InputError if it is gone or cannot be read."""
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        advice = "Check its owner and permissions."
        if isinstance(error, FileNotFoundError):
            advice = "Put it back: it existed when the data set was opened."
        raise InputError(f"{path}: expected a readable file, got an error ({error.strerror}). {advice}") from error
