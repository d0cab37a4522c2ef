"""Files that data are read from: found by path or pattern, fingerprinted, and checked not to change.

One that is cut short, grows, is written to or disappears between two passes is an error, since other samples would be
trained without notice.
"""

import glob
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import ValidationError

from adaptive.config import Config, explain
from adaptive.errors import AdaptiveError, InputError
from adaptive.storage.untrusted import DIGEST, MOST_BYTES, check_signature, parse_json, read_plain

Signed = TypeVar("Signed", bound=Config)

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
        """Check that this is still the same file: its size, and when it was written last.

        Raises:
            InputError: if not.
        """
        if facts.st_size != self.size:
            raise InputError(
                f"{self.path}: has {facts.st_size} bytes, had {self.size} when the data set was opened; "
                "data must not change during a run"
            )
        if facts.st_mtime_ns != self.modified:
            raise InputError(
                f"{self.path}: was written to after the data set was opened; data must not change during a run"
            )

    def fingerprint(self) -> dict[str, object]:
        """Name, size and SHA-256 of the bytes on disk: of all of them up to 64 MiB, of 64 blocks of 1 MiB spread
        evenly from the first to the last byte in larger files, so that it takes less than a second for any size. A
        CRC-32 would be the same for all gzip files of one size whose content is stored: each ends with its own.
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
    """Files named by `PATH[,PATH...]`; a path with `*`, `?` or `[` is a pattern, its matches are sorted by name.

    Args:
        list_folder: the data files in a folder and below, for formats whose data may be folders.

    Raises:
        InputError: if a file is missing or a folder, or a pattern matches nothing.
    """
    files: list[DataFile] = []
    for part in map(str.strip, spec.split(",")):
        if not part:
            raise InputError(f"data {spec!r}: a path is empty; give PATH or PATH,PATH or a pattern such as 'day_*.gz'")
        path = Path(part).expanduser()
        is_pattern = glob.has_magic(part) and not os.path.exists(path)
        paths = [Path(match) for match in sorted(glob.glob(str(path)))] if is_pattern else [path]
        if list_folder is not None:
            paths = [file for path in paths for file in (list_folder(path) if path.is_dir() else [path])]
        if not paths:
            raise InputError(f"data: no file matches {part!r}; check the folder, and quote patterns in the shell")
        files += map(find_file, paths)
    return tuple(files)


def find_parts(
    train: str, evaluation: str | None, *, list_folder: Callable[[Path], list[Path]] | None = None
) -> tuple[tuple[DataFile, ...], int]:
    """The files to train and to evaluate on, and how many of them, the first ones, are those to train on."""
    files = find_files(train, list_folder=list_folder)
    more = () if evaluation is None else find_files(evaluation, list_folder=list_folder)
    return files + more, len(files)


def find_file(path: Path) -> DataFile:
    """The file of this path, to be read several times. Raises InputError: if it is none, or not a regular one."""
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; name its files, for example '{path}/*'")
    try:
        facts = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if not stat.S_ISREG(facts.st_mode):
        raise InputError(f"{path} is a pipe or a device; data are read several times: write them to a file first")
    return DataFile.of(path, facts)


def open_file(path: Path) -> BinaryIO:
    """Open a file that was found before. Raises InputError: if it is gone or cannot be read."""
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        advice = "check whose it is and who may read it"
        if isinstance(error, FileNotFoundError):
            advice = "it was there when the data set was opened"
        raise InputError(f"{path}: cannot be opened ({error.strerror}); {advice}") from error


def load_signed(
    path: Path, model: type[Signed], version: int, *, advice: str, error: type[AdaptiveError], most: int = MOST_BYTES
) -> Signed:
    """The content of a file of `signed_json` that this version of the program wrote.

    Args:
        version: the `format` that the file must have.
        most: bytes.

    Raises:
        AdaptiveError: `error`, if the file is missing, damaged, or of another version.
    """
    raw = read_plain(path, most, error=error)
    content: Any = parse_json(raw, str(path), error=error)
    if not isinstance(content, dict) or content.get("format") != version:
        got = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise error(f"{path}: expected format {version}, got {got}; {advice}")
    check_signature(raw, content.pop(DIGEST, ""), str(path), error=error)
    try:
        return model.model_validate(content)
    except ValidationError as failed:
        raise error(f"{path}: damaged ({explain(model, failed)}); {advice}") from failed
