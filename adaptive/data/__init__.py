"""Data sets: built-in streams, text, Parquet, arrays, sequences, prepared data.

`open_dataset` opens any of them. Loops over bytes and ids are in `data.kernels`; `Batch` is in `adaptive.batch`.

Opening a data set reads all training files if rows must be counted (`holdout`) or a vocabulary fitted. This happens
deep inside commands that show other progress, so the command sets a listener around them (`listen_to_reading`). The
command line imports this module before it knows its command, so it must not import numpy.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

ReportBytes = Callable[[int, int], None]  # is called now and then with the bytes on disk read so far, and their total


@dataclass(frozen=True)
class PartRead:
    """The progress of a part: `done` of `total` (None: unknown) samples, or bytes on disk."""

    done: int
    total: int | None
    in_bytes: bool = False


_begin: ContextVar[Callable[[], ReportBytes] | None] = ContextVar("begin", default=None)


@contextmanager
def listen_to_reading(begin: Callable[[], ReportBytes]) -> Iterator[None]:
    """Call `begin` at each read that opens a data set; its result gets progress."""
    token = _begin.set(begin)
    try:
        yield
    finally:
        _begin.reset(token)


def begin_reading() -> ReportBytes:
    """Announce a read of all files; return the function that reports its progress."""
    begin = _begin.get()
    return begin() if begin is not None else lambda done, total: None
