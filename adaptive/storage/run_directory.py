"""The folder of a run: made, claimed and released here; `run.json` says what the run was and how it ended.

Two runs never share a folder: whoever holds it has the kernel's lock on `lock`, which a process that dies loses.
"""

import contextlib
import fcntl
import itertools
import json
import os
import platform
import re
import socket
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from adaptive.errors import CheckpointError, OutputError
from adaptive.storage.durable import DISK, write_atomic

SCHEMA: Final = 1
RECORD: Final = "run.json"
LOCK: Final = "lock"
WEIGHTS: Final = "weights"

# What a run may write: `overwrite` removes these and nothing else.
_OURS: Final = re.compile(
    r"(run\.json|metrics\.jsonl|rejects\.jsonl|lock|vocabulary/(vocabulary\.json|\d+\.npy))(\.tmp-\d+)?"
    r"|(weights|checkpoint-\d+|best-\d+)(\.tmp-\d+)?/(manifest\.json|(rows|dense|policy|optimizer|run)-\d+\.npy)"
    r"|tensorboard/events\.out\.tfevents\.[^/]*"
)
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")
_BEST: Final = re.compile(r"best-(\d+)")
_FOLDERS: Final = re.compile(r"(weights|checkpoint-\d+|best-\d+)(\.tmp-\d+)?|tensorboard|vocabulary")


class RunDirectory:
    """A claimed run directory; a context manager that records how the run ended and releases the claim.

    Args:
        overwrite: remove the run that is there.
        resume: go on with it.

    Raises:
        CheckpointError: if there is no run to resume.
        OutputError: if another process holds the directory (named in the message), if it is not empty and neither
            `overwrite` nor `resume` was asked for, if files in it are none of a run, or if it cannot be written.
    """

    def __init__(self, path: Path, *, overwrite: bool = False, resume: bool = False) -> None:
        self.path = path
        if resume:
            read_record(path)  # or else we would leave a lock in a folder that is no run
        self.record: dict[str, Any] = {}
        try:
            self._made = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(path / LOCK)
            try:
                if not resume:
                    self._make_room(overwrite)
            except BaseException:
                self._release()
                raise
        except OSError as error:
            raise OutputError(f"run directory {path} cannot be used: {error}") from error

    @classmethod
    def named_after(cls, policy: str, *, root: Path = Path("runs")) -> "RunDirectory":
        """The new directory `root/<date-time>-<policy>`, with a number where that name is taken."""
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", policy.rpartition(":")[2]).strip("-") or "policy"
        stem = f"{datetime.now():%Y-%m-%d-%H%M%S}-{name}"
        for number in itertools.count(1):
            path = root / (stem if number == 1 else f"{stem}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise OutputError(f"run directory {path} cannot be made: {error}") from error
            directory = cls(path)
            directory._made = True
            return directory
        raise AssertionError("unreachable")

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def rejects(self) -> Path:
        return self.path / "rejects.jsonl"

    def write(self, **facts: Any) -> None:
        """Add facts (JSON values) to `run.json` and write it.

        Raises:
            OutputError: if it cannot be written.
        """
        self.record |= facts
        try:
            write_atomic(self.path / RECORD, json.dumps(self.record, indent=1, allow_nan=False).encode() + b"\n")
        except OSError as error:
            raise OutputError(f"{self.path / RECORD} could not be written: {error}") from error

    def begin(self, **facts: Any) -> None:
        """Write `run.json` as of the start; `facts`: configuration, data fingerprint, device and the like."""
        started = {"schema": SCHEMA, "status": "running", "start": _now(), "versions": versions()}
        self.write(**started, **holder(), **facts)

    def go_on(self, *, step: int, **facts: Any) -> None:
        """Write `run.json` as of the start of a run that is resumed after `step` steps; `facts`: what changed."""
        self.record = {name: value for name, value in self.record.items() if name not in ("end", "error", "summary")}
        earlier = self.record.get("resumed", [])
        resumed = [*earlier, {"step": step, "start": _now(), "versions": versions()}]
        self.write(status="running", resumed=resumed, **holder(), **facts)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Record the end of a run that came to its end."""
        self.write(status="finished", end=_now(), summary=dict(summary))

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and self.record:
                with contextlib.suppress(OutputError):  # what stopped the run is what the user must read
                    self.write(status="stopped", end=_now(), error=f"{type(error).__name__}: {error}")
        finally:
            self._release()

    def _make_room(self, overwrite: bool) -> None:
        entries = [name for name in _walk(self.path) if name != LOCK]
        if not entries:
            return
        if not overwrite:
            raise OutputError(
                f"run directory {self.path} is not empty; choose another with --out, or replace it with --overwrite"
            )
        others = [name for name in entries if not _OURS.fullmatch(name)]
        if others:
            raise OutputError(
                f"run directory {self.path} holds {', '.join(others[:5])}, which no run writes; "
                "move it away or choose another directory with --out"
            )
        for name in entries:
            DISK.remove(self.path / name)
        for folder in [p for p in self.path.iterdir() if _FOLDERS.fullmatch(p.name)]:
            folder.rmdir()

    def _release(self) -> None:
        with contextlib.suppress(OSError):
            (self.path / LOCK).unlink()
        os.close(self._lock)
        if self._made:
            with contextlib.suppress(OSError):  # goes only while empty: a run that never began leaves nothing
                self.path.rmdir()


def newest_checkpoint(path: Path) -> Path:
    """The folder of a run directory's newest checkpoint: of a run that was cut short `checkpoint-N`, N batches of the
    data along, else `weights`, which may not be there."""
    found = [int(match[1]) for entry in path.iterdir() if (match := _CHECKPOINT.fullmatch(entry.name))]
    return path / (f"checkpoint-{max(found)}" if found else WEIGHTS)


def best_checkpoint(path: Path) -> Path | None:
    """The folder of the weights of a run's best evaluation, `best-N`, N batches of the data along, if they are kept."""
    found = [int(match[1]) for entry in path.iterdir() if (match := _BEST.fullmatch(entry.name))]
    return path / f"best-{max(found)}" if found else None


def read_record(path: Path) -> dict[str, Any]:
    """What `run.json` of a run directory says.

    Raises:
        CheckpointError: if there is none or it is not of this program.
    """
    file = path / RECORD
    try:
        record = json.loads(file.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{file}: expected the record of a run, found: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: expected JSON, found {error}; the file is damaged") from error
    found = record.get("schema") if isinstance(record, dict) else None
    if found != SCHEMA:
        raise CheckpointError(f"{file}: expected schema {SCHEMA}, found {found}; written by a newer adaptive-train?")
    return dict(record)


def versions() -> dict[str, str]:
    """Versions that can change numbers, and the threads among which torch divides a product: numba and torch share the
    pool, and the first kernel of numba's makes its number torch's."""
    import numba  # takes a second; whoever trains has done so, after torch

    names = ("adaptive-train", "torch", "numpy", "numba")
    found = {"python": platform.python_version(), **{name: version(name) for name in names}}
    return {**found, "threads": str(numba.get_num_threads())}


def holder() -> dict[str, Any]:
    """Who we are, for the lock and the record."""
    return {"pid": os.getpid(), "host": socket.gethostname()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _lock(path: Path) -> int:
    """Take the lock file; returns its descriptor. The kernel frees it when this process ends, however it ends."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            _take(descriptor, path)
            if not _is_at(descriptor, path):  # its last holder removed it between our open and our lock
                os.close(descriptor)
                continue
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({**holder(), "start": _now()}).encode(), 0)
            return descriptor
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise


def _take(descriptor: int, path: Path) -> None:
    before = _read_holder(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputError(
            f"run directory {path.parent} is busy: {_holder_text(before)}; choose another directory with --out"
        ) from error
    # On a file system that other machines share, the kernel may know nothing of their locks.
    if before and before.get("host") != socket.gethostname():
        raise OutputError(
            f"run directory {path.parent} is busy or was left by a dead run: {_holder_text(before)}; "
            f"if that process is gone, remove {path}"
        )


def _read_holder(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}  # just made, or its holder is about to write it
    return found if isinstance(found, dict) else {}


def _holder_text(holder: Mapping[str, Any]) -> str:
    if not holder:
        return "another process has just taken it"
    return f"process {holder.get('pid')} on {holder.get('host')}, since {holder.get('start')}"


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        found = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)


def _walk(path: Path) -> Iterator[str]:
    """Names of what lies in a folder, `/` between folders; folders of a run are looked into, links are not."""
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink() and _FOLDERS.fullmatch(entry.name):
            yield from (f"{entry.name}/{inner.name}" for inner in sorted(entry.iterdir()))
        else:
            yield entry.name
