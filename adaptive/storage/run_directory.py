"""The folder of a run: made, claimed and released here; `run.json` says what the run was and how it ended.

Two runs never share a folder: whoever holds it has the kernel's lock on the file `lock`. A process that dies loses it,
however it dies. `evaluation.npy` has logits and labels of the latest evaluation, float32 (2, n), for tests over the
same samples.
"""

import contextlib
import difflib
import fcntl
import itertools
import json
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

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import CheckpointError, OutputError, printable
from adaptive.storage.durable import DISK, replace_file, write_atomic
from adaptive.storage.untrusted import (
    DIGEST,
    JsonObject,
    check_signature,
    open_plain,
    parse_json,
    read_plain,
    signed_json,
)

SCHEMA: Final = 2
RECORD: Final = "run.json"
LOCK: Final = "lock"
WEIGHTS: Final = "weights"
SCORES: Final = "evaluation.npy"

# What a run may write: `overwrite` removes these and nothing else.
_OURS: Final = re.compile(
    r"(run\.json|evaluation\.npy|metrics\.jsonl|rejects\.jsonl|lock|vocabulary/(vocabulary\.json|\d+\.npy))(\.tmp-\d+)?"
    r"|(weights|checkpoint-\d+|best-\d+)(\.tmp-\d+)?/(manifest\.json|(rows|dense|policy|optimizer|run|shard-\d+)-\d+\.npy)"
    r"|tensorboard/events\.out\.tfevents\.[^/]*"
)
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")
_BEST: Final = re.compile(r"best-(\d+)")
_LITTER: Final = re.compile(r"(run\.json|metrics\.jsonl|rejects\.jsonl|weights|checkpoint-\d+|best-\d+)\.tmp-\d+")
_LITTER_OF_VOCABULARY: Final = re.compile(r"(vocabulary\.json|\d+\.npy)\.tmp-\d+")
_FILES: Final = re.compile(r"run\.json|metrics\.jsonl|rejects\.jsonl|lock")
_FOLDERS: Final = re.compile(r"(weights|checkpoint-\d+|best-\d+)(\.tmp-\d+)?|tensorboard|vocabulary")


class RunDirectory:
    """A claimed run directory; a context manager that records how the run ended and releases the claim.

    Args:
        overwrite: remove the run that is there.
        resume: go on with it. What killed processes were writing is removed.
        force_unlock: also if a process of another machine or container seems to hold the directory.

    Raises:
        CheckpointError: if there is no run to resume, or part of it is a link, through which none is written.
        OutputError: if another process holds the directory (named in the message), if it is not empty and neither
            `overwrite` nor `resume` was asked for, if files in it are none of a run, or if it cannot be written.
    """

    def __init__(
        self, path: Path, *, overwrite: bool = False, resume: bool = False, force_unlock: bool = False
    ) -> None:
        self.path = path
        if resume:
            read_record(path)  # or else we would leave a lock in a folder that is no run
            _refuse_links(path)
        self.record: JsonObject = {}
        try:
            self._made = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(path / LOCK, force_unlock=force_unlock)
            try:
                if resume:
                    _remove_litter(path)
                else:
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
            OutputError: if it cannot be written, or the directory is not the one any more that is locked.
        """
        self.record |= facts
        try:
            if not _is_at(self._lock, self.path / LOCK):
                raise OutputError(f"run directory {self.path} is gone, or another one is in its place: it was moved?")
            write_atomic(self.path / RECORD, signed_json(self.record))
        except OSError as error:
            raise OutputError(f"{self.path / RECORD} could not be written: {error}") from error

    def begin(self, **facts: Any) -> None:
        """Write `run.json` as of the start; `facts`: configuration, data fingerprint, device and the like."""
        started = {"schema": SCHEMA, "status": "running", "start": _now(), "versions": versions()}
        self.write(**started, **_holder(), **facts)

    def record_resume(self, *, step: int, ranks: Sequence[str] = (), **facts: Any) -> None:
        """Write `run.json` as of the start of a run that is resumed after `step` steps; `facts`: what changed; `ranks`:
        where each rank is that goes on."""
        over = ("end", "error", "summary", DIGEST)
        earlier = self.record.get("resumed") or []
        stretch: JsonObject = {"step": step, "start": _now(), "versions": versions()}
        if was_finished(self.record, step):
            stretch["of_finished"] = True
        resumed = [*earlier, {**stretch, "ranks": list(ranks)} if ranks else stretch]
        self.record = {**{name: one for name, one in self.record.items() if name not in over}, "schema": SCHEMA}
        self.write(status="running", resumed=resumed, **_holder(), **facts)

    def finish(self, summary: JsonObject) -> None:
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
            if _is_at(self._lock, self.path / LOCK):  # and no other run's, where ours was moved away
                (self.path / LOCK).unlink()
        os.close(self._lock)
        if self._made:
            with contextlib.suppress(OSError):  # goes only while empty: a run that never began leaves nothing
                self.path.rmdir()


def newest_first(path: Path) -> list[Path]:
    """The folders of a run directory's checkpoints from which it could go on, the newest first; `weights` is there only
    where a run came to its end, and is then the newest but for those of a run that went on from it."""
    return [*(path / f"checkpoint-{number}" for number in _numbers(path, _CHECKPOINT)), path / WEIGHTS]


def newest_checkpoint(path: Path) -> Path:
    """The folder of a run directory's newest checkpoint: of a run that was cut short `checkpoint-N`, N batches of the
    data along, else `weights`, which may not be there."""
    return newest_first(path)[0]


def best_checkpoint(path: Path) -> Path | None:
    """The folder of the weights of a run's best evaluation, `best-N`, N batches of the data along, if they are kept."""
    numbers = _numbers(path, _BEST)
    return path / f"best-{numbers[0]}" if numbers else None


def _numbers(path: Path, kind: re.Pattern[str]) -> list[int]:
    """Of the folders whose names match, the largest first."""
    matches = (kind.fullmatch(entry.name) for entry in path.iterdir())
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def read_record(path: Path) -> JsonObject:
    """What `run.json` of a run directory says.

    Raises:
        CheckpointError: if there is none or it is not of this program.
    """
    file = path / RECORD
    if not os.path.lexists(file):
        raise CheckpointError(f"{file}: expected the record of a run, found: No such file or directory{_nearest(path)}")
    raw = read_plain(file)
    record = parse_json(raw, str(file))
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA or isinstance(schema, bool):
        raise CheckpointError(
            f"{file}: expected schema {SCHEMA}, found {str(schema)[:80]}; written by another version of adaptive-train?"
        )
    check_signature(raw, record.get(DIGEST), str(file))
    _check_kinds(record, str(file))
    return dict(record)


def _nearest(path: Path) -> str:
    """`; did you mean RUN?` for the run whose folder has the most similar name, among those next to it and in runs/."""
    runs = list[str]()
    for folder in (path.parent, Path("runs")):
        with contextlib.suppress(OSError):  # such as a name that is too long
            runs += [str(record.parent) for record in folder.glob(f"*/{RECORD}")]
    near = difflib.get_close_matches(str(path), sorted(runs), n=1)
    return f"; did you mean {near[0]}?" if near else ""


_KINDS: Final[Mapping[str, type]] = {
    "config": dict, "data": dict, "data.vocabularies": dict, "data.files": list, "versions": dict, "summary": dict,
    "summary.stop_at": dict, "summary.best": dict, "resumed": list, "folder": str, "status": str, "preset": dict,
}  # fmt: skip
_WORDS: Final[Mapping[type, str]] = {dict: "an object", list: "a list of objects", str: "a text"}


def _check_kinds(record: JsonObject, where: str) -> None:
    """Check that what readers take apart is what it must be; whether values make sense is for them to say."""
    for name, kind in _KINDS.items():
        value: Any = record
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        inner = value if isinstance(value, list) else []
        if value is not None and not (isinstance(value, kind) and all(isinstance(one, dict) for one in inner)):
            raise CheckpointError(f"{where}: {name}: expected {_WORDS[kind]}, found {str(value)[:80]!r}")


def _refuse_links(path: Path) -> None:
    """What a run writes to lies in its directory: nothing is written through a link, to a pipe or a device."""
    for entry in path.iterdir():
        is_folder = _FOLDERS.fullmatch(entry.name) is not None
        if not is_folder and not _FILES.fullmatch(entry.name):
            continue
        fits = stat.S_ISDIR if is_folder else stat.S_ISREG
        if not fits(entry.lstat().st_mode):
            needed = "a folder" if is_folder else "a plain file"
            kind = "a link" if entry.is_symlink() else "something else"
            raise CheckpointError(f"{entry}: expected {needed}, found {kind}; a run writes only inside its directory")


def _remove_litter(path: Path) -> None:
    """What processes that were killed were writing, under temporary names."""
    for folder, kind in ((path, _LITTER), (path / "vocabulary", _LITTER_OF_VOCABULARY)):
        for entry in list(folder.iterdir()) if folder.is_dir() else []:
            if kind.fullmatch(entry.name):
                DISK.remove(entry)


def was_finished(record: Mapping[str, Any], step: int) -> bool:
    """Whether a run had come to its end after this step: it is finished, or was made longer there and was stopped
    before it saved anything more."""
    last = (record.get("resumed") or [{}])[-1]
    return record.get("status") == "finished" or (bool(last.get("of_finished")) and last.get("step") == step)


def versions() -> dict[str, str]:
    """Versions that can change numbers, and the threads among which torch divides a product: numba and torch share the
    pool, and the first kernel of numba's makes its number torch's."""
    import numba  # takes a second; whoever trains has done so, after torch

    names = ("adaptive-train", "torch", "numpy", "numba")
    packages = {name: version(name) for name in names}
    return {"python": platform.python_version(), **packages, "threads": str(numba.get_num_threads())}


def _walk(path: Path) -> Iterator[str]:
    """Names of what lies in a folder, `/` between folders; folders of a run are looked into, links are not."""
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink() and _FOLDERS.fullmatch(entry.name):
            yield from (f"{entry.name}/{inner.name}" for inner in sorted(entry.iterdir()))
        else:
            yield entry.name


# --- the lock ----------------------------------------------------------------------------------------------------


def _holder() -> JsonObject:
    """Who we are, for the lock and the record."""
    return {"pid": os.getpid(), "host": socket.gethostname()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _take_lock(path: Path, *, force_unlock: bool = False) -> int:
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
            if not _is_at(descriptor, path):  # its last holder removed it between our open and our lock
                os.close(descriptor)
                continue
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({**_holder(), "start": _now()}).encode(), 0)
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


def _read_holder(descriptor: int) -> JsonObject:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
    except (ValueError, RecursionError):
        return {}  # just made, or its holder is about to write it
    return holder if isinstance(holder, dict) else {}


def _holder_text(holder: JsonObject) -> str:
    if not holder:
        return "another process has just taken it"
    pid, host, start = (
        printable(str(holder.get(name)))[:80] for name in ("pid", "host", "start")
    )  # perhaps a stranger's
    return f"process {pid} on {host}, since {start}"


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one at this path."""
    try:
        at_path = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (opened.st_dev, opened.st_ino) == (at_path.st_dev, at_path.st_ino)


# --- scores ------------------------------------------------------------------------------------------------------


def write_scores(directory: Path, logits: NDArray[np.float32], labels: NDArray[np.float32]) -> None:
    """Keep logits and labels (n,) in a run directory, 8 bytes a sample.

    Raises:
        OutputError: if they cannot be written.
    """
    both, file = np.stack([logits, labels]), directory / SCORES
    try:
        replace_file(file, lambda into: np.save(into, both, allow_pickle=False))
    except OSError as error:
        raise OutputError(f"{file} could not be written: {error}") from error


def read_scores(directory: Path) -> NDArray[np.float32] | None:
    """Logits and labels (2, n) from a run directory, mapped into memory; None if they were not kept.

    Raises:
        CheckpointError: for a damaged file, and for what is no file.
    """
    file = directory / SCORES
    if not os.path.lexists(file):
        return None
    open_plain(file).close()  # a pipe would be waited for
    try:
        scores = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{file}: expected logits and labels of an evaluation, found: {error}") from error
    if not isinstance(scores, np.ndarray) or scores.dtype != np.float32 or scores.ndim != 2 or len(scores) != 2:
        what = f"{scores.dtype} {scores.shape}" if isinstance(scores, np.ndarray) else "several arrays"
        raise CheckpointError(f"{file}: expected float32 (2, samples), found {what}; the file is damaged")
    if not np.isfinite(scores).all():
        raise CheckpointError(f"{file}: expected finite logits and labels, got NaN or infinity; the file is damaged")
    return scores
