"""How much of files is read, for an estimate of the time left; and who is told while a data set is being opened.

Opening reads all training files where rows are counted (`holdout`) or a vocabulary is fitted. Data sets are opened deep
inside commands that have other progress of their own to tell, so who listens is set around them (`told_of_reading`).
The command line imports this before it knows its command, so it needs no numpy.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Told = Callable[[int, int], None]  # is called now and then with bytes on disk read so far, and of how many


@dataclass(frozen=True)
class PartRead:
    """How much of a part is read: so many of `total` samples or, `in_bytes`, of its files' bytes on disk. `total`
    None: unknown."""

    done: int
    total: int | None
    in_bytes: bool = False


_begin: ContextVar[Callable[[], Told] | None] = ContextVar("begin", default=None)


@contextmanager
def told_of_reading(begin: Callable[[], Told]) -> Iterator[None]:
    """Inside, in this thread, each reading of all files that opens a data set begins with a call of `begin`, and what
    that returns is told how far it is."""
    token = _begin.set(begin)
    try:
        yield
    finally:
        _begin.reset(token)


def reading_begins() -> Told:
    """Whom to tell of a reading that begins now: nobody, where nobody listens."""
    begin = _begin.get()
    return begin() if begin is not None else lambda done, total: None
