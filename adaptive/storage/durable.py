"""Durable writes: a file or folder appears under its name whole, or not at all.

Everything is written under a temporary name in the same folder, synced, renamed, and the folder synced. The few
operations this takes are the methods of `Disk`, so that tests can let each of them fail in turn.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

Writer = Callable[[BinaryIO], None]


class Disk:
    """The disk operations that durable writes are made of."""

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
        """Make names in `path` durable: a rename alone may be lost with the power."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file or a folder with what is in it; nothing happens if there is none. Links are not followed."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


DISK = Disk()


def temporary_name(path: Path) -> Path:
    """The name under which `path` is written before it is renamed."""
    return path.with_name(f"{path.name}.tmp-{os.getpid()}")


def write_atomic(path: Path, data: bytes, *, disk: Disk = DISK) -> None:
    """`replace_file` by `data`."""
    replace_file(path, lambda file: disk.write(file, data), disk=disk)


def replace_file(path: Path, writer: Writer, *, disk: Disk = DISK) -> None:
    """Replace the file `path` by what `writer` writes: after any failure the old content is there, or the new, never a
    mix.

    Raises:
        OSError: if an operation failed, or what `writer` raised. The temporary file is gone then.
    """
    temporary = temporary_name(path)
    try:
        write_new(temporary, writer, disk=disk)
        disk.rename(temporary, path)
    except BaseException:
        _try_to_remove(temporary, disk)
        raise
    disk.sync_directory(path.parent)


def write_directory(path: Path, fill: Callable[[Path], None], *, disk: Disk = DISK) -> None:
    """Make the folder `path`; `fill` gets the temporary folder in which to write. Its files must be synced by it.

    Raises:
        FileExistsError: if there is a `path` already.
        OSError: if an operation failed. The temporary folder is gone then.
    """
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists already")
    temporary = temporary_name(path)
    _try_to_remove(temporary, disk)  # left by a killed process that had our number
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
    """Write and sync a file that nobody looks at yet: inside a temporary folder, or before a rename."""
    _try_to_remove(path, disk)
    with disk.create(path) as file:
        writer(file)
        disk.sync(file)


def _try_to_remove(path: Path, disk: Disk) -> None:
    with contextlib.suppress(OSError):  # what failed first is what the user must read
        disk.remove(path)
