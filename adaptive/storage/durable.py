"""Durable writes: a file or folder appears under its name as a whole, or not at all.

Everything is written under a temporary name in the same folder, synced, and renamed; then the folder is synced. What a
killed process left under a temporary name is removed when the same name is written again. The operations are the
methods of `Disk`, so that tests can make each of them fail in turn.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from adaptive.errors import OutputError

Writer = Callable[[BinaryIO], None]


def write_failed(path: Path, error: OSError) -> OutputError:
    """Return the error to raise when a user's file or folder cannot be written."""
    return OutputError(
        f"{path}: expected a place that can be written, got an error: {error}. Free some space, check its permissions, "
        "or choose another folder."
    )


class Disk:
    """The disk operations of durable writes."""

    def create(self, path: Path) -> BinaryIO:
        return open(path, "xb")  # "x": never through a link or into a file of somebody else

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        file.write(data)

    def sync(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def sync_directory(self, path: Path) -> None:
        """Make the names in `path` durable: without this, a power failure may undo a rename."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with its content, if it exists. Links are not followed."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


DISK = Disk()


def temporary_name(path: Path) -> Path:
    """Return the name under which `path` is written before it is renamed."""
    return path.with_name(f"{path.name}.tmp-{os.getpid()}")


def remove_litter(path: Path, disk: "Disk") -> None:
    """Remove temporary files and folders of `path` that dead processes left."""
    pattern = re.compile(re.escape(path.name) + r"\.tmp-([0-9]+)")
    with contextlib.suppress(OSError):  # as when the folder is missing, which the user will be told
        for entry in list(path.parent.iterdir()):
            match = pattern.fullmatch(entry.name)
            if match and not _is_alive(int(match[1])):
                _try_to_remove(entry, disk)


def _is_alive(process: int) -> bool:
    """Return True for other running processes: what has this one's number, an earlier one left."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return process != os.getpid()


def write_atomic(path: Path, data: bytes, *, disk: Disk = DISK) -> None:
    """Replace the file `path` by `data`; see `replace_file`."""
    replace_file(path, lambda file: disk.write(file, data), disk=disk)


def replace_file(path: Path, writer: Writer, *, disk: Disk = DISK) -> None:
    """Replace the file `path` by the output of `writer`.

    After any failure it has the old or the new content.

    Raises:
        OSError: if an operation or `writer` failed. The temporary file has been removed.
    """
    temporary = temporary_name(path)
    remove_litter(path, disk)
    try:
        write_new(temporary, writer, disk=disk)
        disk.rename(temporary, path)
    except BaseException:
        _try_to_remove(temporary, disk)
        raise
    disk.sync_directory(path.parent)


def write_directory(path: Path, fill: Callable[[Path], None], *, disk: Disk = DISK) -> None:
    """Create the folder `path`.

    `fill` gets the temporary folder, and must write and sync its files.

    Raises:
        FileExistsError: if `path` exists.
        OSError: if an operation failed. The temporary folder has been removed.
    """
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists already")
    temporary = temporary_name(path)
    remove_litter(path, disk)
    try:
        disk.make_directory(temporary)
        fill(temporary)
        disk.sync_directory(temporary)
        disk.rename(temporary, path)
    except BaseException:
        _try_to_remove(temporary, disk)
        raise
    disk.sync_directory(path.parent)


def write_new(path: Path, writer: Writer, *, disk: Disk = DISK) -> None:
    """Write and sync a file that nobody reads yet, because it will be renamed."""
    _try_to_remove(path, disk)
    with disk.create(path) as file:
        writer(file)
        disk.sync(file)


def _try_to_remove(path: Path, disk: Disk) -> None:
    with contextlib.suppress(OSError):  # the user must see the first error
        disk.remove(path)
