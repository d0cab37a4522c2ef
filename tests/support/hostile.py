"""Hostile values and files, and the time and memory that reading them may take."""

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from adaptive.storage.untrusted import signed_json

SECONDS, MOST_MEMORY = 600, 500 << 20
VALUES: Final[list[Any]] = [
    None, "", "text", "nul\0", "\ud800", -1, 0, 10**18, 2**70, -(2**70), 1.5, 1e300, 1e-300, True, [], {}, [[]],
    {"a": {}}, [1, "2"], "/dev/zero", "/proc/self/mem", "../..", "x" * 5000, "file.py:Class",
    "\N{ARABIC-INDIC DIGIT THREE}%",
]  # fmt: skip


class Hangs(BaseException):
    pass


@contextmanager
def at_once() -> Iterator[None]:
    """Check that the body ends and takes little memory. If it does not end, raise `Hangs`: late enough for kernels to
    be compiled in it on a machine that others use."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024 < MOST_MEMORY


def paths_in(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values of a JSON text, also to those that contain others."""
    if above:
        yield above
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths_in(inner, (*above, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def is_json(value: Any) -> bool:
    try:
        signed_json({"value": value})
    except (ValueError, UnicodeEncodeError):
        return False
    return True


NOT_PLAIN: Final[dict[str, Callable[[Path], None]]] = {
    "pipe": lambda path: os.mkfifo(path),
    "folder": lambda path: path.mkdir(),
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "deep": lambda path: _write(path, b"[" * 100_000),
    "nested": lambda path: _write(path, b'{"a":' * 900 + b"1" + b"}" * 900),
    "digits": lambda path: _write(path, b'{"a": ' + b"9" * 1_000_000 + b"}"),
    "huge": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 2**40),
    "binary": lambda path: _write(path, bytes(range(256)) * 10),
}


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
