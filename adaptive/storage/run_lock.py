"""The lock of a run directory: whoever has the kernel's lock on the file `lock` holds the directory. A process that
dies loses it, however it dies."""

import contextlib
import fcntl
import json
import os
import socket
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adaptive.errors import OutputError, printable


def holder() -> dict[str, Any]:
    """Who we are, for the lock and the record."""
    return {"pid": os.getpid(), "host": socket.gethostname()}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def take_lock(path: Path, *, force_unlock: bool = False) -> int:
    """Take the lock file; returns its descriptor. The kernel frees it when this process ends, however it ends.

    Args:
        force_unlock: also if a process of another machine or container seems to hold it, of which the kernel here knows
            nothing.

    Raises:
        OutputError: if another process holds it; names it.
        OSError: if the file cannot be made or read.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OutputError(f"{path}: expected a plain file, found a pipe or device; remove it")
            _take(descriptor, path, force_unlock)
            if not is_at(descriptor, path):  # its last holder removed it between our open and our lock
                os.close(descriptor)
                continue
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({**holder(), "start": now()}).encode(), 0)
            return descriptor
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise


def _take(descriptor: int, path: Path, force_unlock: bool) -> None:
    before = _read_holder(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputError(
            f"run directory {path.parent} is busy: {_holder_text(before)}; choose another directory with --out"
        ) from error
    # On a file system that other machines share, the kernel may know nothing of their locks.
    if before and before.get("host") != socket.gethostname() and not force_unlock:
        raise OutputError(
            f"run directory {path.parent} is busy or was left by a dead run: {_holder_text(before)}, which is another "
            f"machine or container than this one ({socket.gethostname()}). If that process is gone, take the directory "
            f"over: add --force-unlock"
        )


def _read_holder(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except (ValueError, RecursionError):
        return {}  # just made, or its holder is about to write it
    return found if isinstance(found, dict) else {}


def _holder_text(holder: Mapping[str, Any]) -> str:
    if not holder:
        return "another process has just taken it"
    told = {name: printable(str(holder.get(name)))[:80] for name in ("pid", "host", "start")}  # of a stranger, perhaps
    return f"process {told['pid']} on {told['host']}, since {told['start']}"


def is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one at this path."""
    try:
        found = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)
