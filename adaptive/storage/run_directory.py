"""The directory of a run: create, claim and release it, and keep its record `run.json`.

Two runs never share a directory: the process that uses it holds the kernel's lock on the file `lock`, and loses it when
it ends in any way.
"""

import contextlib
import fcntl
import itertools
import os
import platform
import re
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from adaptive.errors import CheckpointError, OutputError, printable, suggestion
from adaptive.storage.durable import DISK, write_atomic, write_failed
from adaptive.storage.files import JsonObject, json_text, read_json

SCHEMA: Final = 2
RECORD: Final = "run.json"
LOCK: Final = "lock"
WEIGHTS: Final = "weights"

# Names that a run may write; `overwrite` removes these and nothing else.
_OURS: Final = re.compile(
    r"(run\.json|metrics\.jsonl|rejects\.jsonl|lock|vocabulary/(vocabulary\.json|scales\.json|\d+\.npy))(\.tmp-\d+)?"
    r"|(weights|checkpoint-\d+|best-\d+)(\.tmp-\d+)?/(manifest\.json|(rows-\d+|dense|policy|optimizer|run)-\d+\.npy)"
    r"|tensorboard/events\.out\.tfevents\.[^/]*"
)
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")
_BEST: Final = re.compile(r"best-(\d+)")
_LITTER: Final = re.compile(
    r"(run\.json|metrics\.jsonl|rejects\.jsonl|weights|checkpoint-\d+|best-\d+|vocabulary\.json|scales\.json|\d+\.npy)\.tmp-\d+"
)
_FILES: Final = re.compile(r"run\.json|metrics\.jsonl|rejects\.jsonl|lock")
_FOLDERS: Final = re.compile(r"(weights|checkpoint-\d+|best-\d+)(\.tmp-\d+)?|tensorboard|vocabulary")


class RunDirectory:
    """A claimed run directory; a context manager that records how the run ended.

    It releases the claim at the end.

    Args:
        overwrite: remove the existing run.
        resume: keep the existing run, and remove the unfinished files of killed processes.

    Raises:
        CheckpointError: if there is no run to resume, or part of it is a link (runs do not write through links).
        OutputError: if another process holds the directory, if it is not empty and neither `overwrite` nor `resume` is
            set, if it holds files that no run writes, or if it cannot be written.
    """

    def __init__(self, path: Path, *, overwrite: bool = False, resume: bool = False) -> None:
        self.path = path
        if resume:
            read_record(path)  # first, so that no lock is left in a folder that is not a run
            _refuse_links(path)
        self.record: JsonObject = {}
        try:
            self._made = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(path / LOCK)
            try:
                if resume:
                    _remove_litter(path)
                else:
                    self._make_room(overwrite)
            except BaseException:
                self._release()
                raise
        except OSError as error:
            raise write_failed(path, error) from error

    @classmethod
    def named_after(cls, policy: str, *, root: Path = Path("runs")) -> "RunDirectory":
        """Create `root/<date-time>-<policy>`, with a number if that name is taken."""
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", policy.rpartition(":")[2]).strip("-") or "policy"
        stem = f"{datetime.now():%Y-%m-%d-%H%M%S}-{name}"
        for number in itertools.count(1):
            path = root / (stem if number == 1 else f"{stem}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise write_failed(path, error) from error
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
            OutputError: if it cannot be written, or the locked directory was moved or removed.
        """
        self.record |= facts
        try:
            if not _is_at(self._lock, self.path / LOCK):
                raise OutputError(
                    f"run directory {self.path}: expected the directory that this run locked, got none or another one. "
                    "Do not move or remove it during the run."
                )
            write_atomic(self.path / RECORD, json_text(self.record))
        except OSError as error:
            raise write_failed(self.path / RECORD, error) from error

    def begin(self, **facts: Any) -> None:
        """Write `run.json` at the start; `facts`: configuration, fingerprint, device, and so on."""
        started = {"schema": SCHEMA, "status": "running", "start": _now(), "versions": versions()}
        self.write(**started, **facts)

    def record_resume(self, *, step: int, ranks: Sequence[str] = (), **facts: Any) -> None:
        """Write `run.json` when a run is resumed after `step` steps.

        Args:
            ranks: host and process of each rank that resumes.
            facts: changed facts.
        """
        over = ("end", "error", "summary")
        earlier = self.record.get("resumed") or []
        stretch: JsonObject = {"step": step, "start": _now(), "versions": versions()}
        if was_finished(self.record, step):
            stretch["of_finished"] = True
        resumed = [*earlier, {**stretch, "ranks": list(ranks)} if ranks else stretch]
        self.record = {**{name: value for name, value in self.record.items() if name not in over}, "schema": SCHEMA}
        self.write(status="running", resumed=resumed, **facts)

    def finish(self, summary: JsonObject) -> None:
        """Record that the run finished."""
        self.write(status="finished", end=_now(), summary=dict(summary))

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and self.record:
                with contextlib.suppress(OutputError):  # the user must see the error that stopped the run
                    self.write(status="stopped", end=_now(), error=f"{type(error).__name__}: {error}")
        finally:
            self._release()

    def _make_room(self, overwrite: bool) -> None:
        entries = [name for name in _walk(self.path) if name != LOCK]
        if not entries:
            return
        if not overwrite:
            raise OutputError(
                f"run directory {self.path}: expected an empty directory, got files in it. Choose another with --out, "
                "or replace the run with --overwrite."
            )
        others = [name for name in entries if not _OURS.fullmatch(name)]
        if others:
            raise OutputError(
                f"run directory {self.path}: expected only files of a run, got {', '.join(others[:5])}. Move them "
                "away, or choose another directory with --out."
            )
        for name in entries:
            DISK.remove(self.path / name)
        for folder in [p for p in self.path.iterdir() if _FOLDERS.fullmatch(p.name)]:
            folder.rmdir()

    def _release(self) -> None:
        with contextlib.suppress(OSError):
            if _is_at(self._lock, self.path / LOCK):  # not another run's lock, if our directory was moved
                (self.path / LOCK).unlink()
        os.close(self._lock)
        if self._made:
            with contextlib.suppress(OSError):  # works only if empty: a run that never began leaves nothing
                self.path.rmdir()


def newest_first(path: Path) -> list[Path]:
    """Return the folders of checkpoints from which a run could resume, newest first.

    `weights` exists only if the run finished. Only checkpoints of a run that was resumed after that are newer.
    """
    return [*(path / f"checkpoint-{number}" for number in _numbers(path, _CHECKPOINT)), path / WEIGHTS]


def newest_checkpoint(path: Path) -> Path:
    """Return `checkpoint-N` of an unfinished run, else `weights`, which may not exist."""
    return newest_first(path)[0]


def best_checkpoint(path: Path) -> Path | None:
    """Return the folder `best-N` of the best evaluation, or None if none is stored."""
    numbers = _numbers(path, _BEST)
    return path / f"best-{numbers[0]}" if numbers else None


def _numbers(path: Path, kind: re.Pattern[str]) -> list[int]:
    """Return the numbers of the folders whose names match, largest first."""
    matches = (kind.fullmatch(entry.name) for entry in path.iterdir())
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def read_record(path: Path) -> JsonObject:
    """Return the content of `run.json`.

    Raises:
        CheckpointError: if there is none, or it is damaged or of another version.
    """
    file = path / RECORD
    if not os.path.lexists(file):
        raise CheckpointError(f"{file}: expected the record of a run, got no such file{_nearest(path)}")
    advice = "Read it with the version of adaptive-train that wrote it."
    return read_json(file, {"schema": SCHEMA}, advice=advice)


def _nearest(path: Path) -> str:
    """Return `; did you mean RUN?` for a similar run in `path`, next to it or in runs/; else the latest runs there."""
    started: dict[str, float] = {}
    for folder in (path, path.parent, Path("runs")):
        with contextlib.suppress(OSError):  # such as a name that is too long
            started |= {str(record.parent): record.stat().st_mtime for record in folder.glob(f"*/{RECORD}")}
    latest = sorted(started, key=lambda run: -started[run])[:5]
    return suggestion(str(path), sorted(started)) or (f"; the latest runs: {', '.join(latest)}" if latest else "")


def _refuse_links(path: Path) -> None:
    """Check that a run writes only inside its directory: no links, pipes or devices."""
    for entry in path.iterdir():
        is_folder = _FOLDERS.fullmatch(entry.name) is not None
        if not is_folder and not _FILES.fullmatch(entry.name):
            continue
        fits = stat.S_ISDIR if is_folder else stat.S_ISREG
        if not fits(entry.lstat().st_mode):
            expected = "a folder" if is_folder else "a regular file"
            kind = "a link" if entry.is_symlink() else "something else"
            raise CheckpointError(f"{entry}: expected {expected}, got {kind}. Runs write only inside their directory.")


def _remove_litter(path: Path) -> None:
    """Remove the temporary files of killed processes."""
    for entry in [*path.glob("*.tmp-*"), *path.glob("vocabulary/*.tmp-*")]:
        if _LITTER.fullmatch(entry.name):
            DISK.remove(entry)


def was_finished(record: Mapping[str, Any], step: int) -> bool:
    """Return True if a run was finished at this step.

    It is finished, or it was extended at this step and stopped before it saved another checkpoint.
    """
    last = (record.get("resumed") or [{}])[-1]
    return record.get("status") == "finished" or (bool(last.get("of_finished")) and last.get("step") == step)


def versions() -> dict[str, str]:
    """Return the versions, and the number of torch's threads, that can change numbers.

    numba and torch share a thread pool, and the first numba kernel sets its number of threads for torch as well.
    """
    import numba  # takes a second; a process that trains has already imported it, after torch

    names = ("adaptive-train", "torch", "numpy", "numba")
    packages = {name: version(name) for name in names}
    return {"python": platform.python_version(), **packages, "threads": str(numba.get_num_threads())}


def _walk(path: Path) -> Iterator[str]:
    """Yield names of entries, also of those in folders of a run, without following links."""
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink() and _FOLDERS.fullmatch(entry.name):
            yield from (f"{entry.name}/{inner.name}" for inner in sorted(entry.iterdir()))
        else:
            yield entry.name


# --- the lock ----------------------------------------------------------------------------------------------------


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _take_lock(path: Path) -> int:
    """Take the lock file and return its descriptor.

    The kernel frees the lock when this process ends in any way.

    Raises:
        OutputError: if another process holds it; names the process.
        OSError: if the file cannot be created or read.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(descriptor, path):  # its last holder removed it between our open and our lock
                os.close(descriptor)
                continue
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}, since {_now()}".encode(), 0)
            return descriptor
        except BlockingIOError as error:
            holder = printable(os.pread(descriptor, 300, 0).decode(errors="replace")) or "another process"
            os.close(descriptor)
            raise OutputError(
                f"run directory {path.parent}: expected a free directory, got one in use by {holder}. Choose another "
                "with --out."
            ) from error
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise


def _is_at(descriptor: int, path: Path) -> bool:
    """Return True if the open file is the file at this path."""
    try:
        at_path = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (opened.st_dev, opened.st_ino) == (at_path.st_dev, at_path.st_ino)
