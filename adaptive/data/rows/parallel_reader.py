"""The rows of a part read by several threads, piece by piece, in the order in which one reader gives them.

Each thread takes the next piece (a file of text, a row group), fills blocks from it, notes bad rows, and works ahead
until as many blocks wait as may. Rows and notes are taken over in order, so batches, bad rows and errors are those of
one reader, whatever the number of threads.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from adaptive.data.rows.rejects import BadLine, RejectLog
from adaptive.data.rows.row_source import Block, Position, RowSource
from adaptive.system import start_thread

T = TypeVar("T")

BLOCK_ROWS = 1 << 14
_MOST_ROWS = 1 << 18  # of a piece that are held ahead
_AHEAD = 2  # pieces for each thread that may be begun before the consumer comes to them


@dataclass
class _Results(Generic[T]):
    """The results of one work so far."""

    waiting: deque[T] = field(default_factory=deque)
    is_done: bool = False
    error: BaseException | None = None


def side_by_side(works: Sequence[Callable[[], Iterator[T]]], *, threads: int, most: int) -> Generator[T, None, None]:
    """The results of all works, in order; an exception of a work comes where its next result would.

    Threads are joined when the generator ends or is closed, each after the result that it is working on.

    Args:
        works: make the iterators, each in the thread that then asks it.
        threads: at least 1.
        most: results of one work that wait, at most.
    """
    shared = _Shared(works, threads, most)
    workers = [threading.Thread(target=shared.work, name=f"reader-{n}", daemon=True) for n in range(threads)]
    try:
        for worker in workers:
            start_thread(worker)
        yield from shared.results()
    finally:
        shared.stop()
        for worker in workers:
            if worker.ident is not None:
                worker.join()


class _Shared(Generic[T]):
    """State of threads and consumer, under one lock."""

    def __init__(self, works: Sequence[Callable[[], Iterator[T]]], threads: int, most: int) -> None:
        self._works, self._most, self._ahead = works, most, _AHEAD * threads
        self._changed = threading.Condition()
        self._begun = dict[int, _Results[T]]()
        self._next = 0  # work to be begun
        self._now = 0  # work whose results are handed out
        self._is_stopped = False

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def results(self) -> Iterator[T]:
        while self._now < len(self._works):
            with self._changed:
                self._changed.wait_for(self._has_result)
                results = self._begun[self._now]
                has_result = bool(results.waiting)
                if has_result:
                    result = results.waiting.popleft()
                else:
                    del self._begun[self._now]
                    self._now += 1
                self._changed.notify_all()
            if has_result:
                yield result
            elif results.error is not None:
                raise results.error

    def _has_result(self) -> bool:
        results = self._begun.get(self._now)
        return results is not None and (bool(results.waiting) or results.is_done)

    def work(self) -> None:
        """Run in a thread: one work after another."""
        while (number := self._begin()) is not None:
            results, error = self._begun[number], None
            try:
                for result in self._works[number]():
                    if not self._put(results, result):
                        return
            except BaseException as raised:  # handed to the consumer
                error = raised
            with self._changed:
                results.is_done, results.error = True, error
                self._changed.notify_all()

    def _begin(self) -> int | None:
        """The next work; None: there is nothing left to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or self._next < self._now + self._ahead)
            if self._is_stopped or self._next == len(self._works):
                return None
            self._begun[self._next] = _Results()
            self._next += 1
            return self._next - 1

    def _put(self, results: _Results[T], result: T) -> bool:
        """Leave a result for the consumer, once there is room; False: nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or len(results.waiting) < self._most)
            if not self._is_stopped:
                results.waiting.append(result)
                self._changed.notify_all()
            return not self._is_stopped


class _Note(NamedTuple):
    """The arguments of `RejectLog.count`."""

    file: int
    last_line: int
    bad: list[BadLine]


class _Notes(RejectLog):
    """Takes down what a reader of one piece would count."""

    def __init__(self) -> None:
        self.taken: list[_Note] = []

    def count(self, file: int, last_line: int, bad: list[BadLine]) -> None:
        self.taken.append(_Note(file, last_line, bad))

    def check(self) -> None:
        """The shares are checked where all is counted."""


class _Read(NamedTuple):
    """Some rows of a piece, and what is to be counted before they are used."""

    block: Block
    notes: list[_Note]
    num_bytes: int  # on disk, for these rows


class ParallelReader:
    """Reads the rows of some pieces as one reader would; see `RowSource.reader`.

    Args:
        threads: that read.
    """

    def __init__(
        self,
        source: RowSource,
        pieces: Sequence[int],
        *,
        start: Position | None,
        window: tuple[float, float],
        threads: int,
    ) -> None:
        self._log, self._num_bags = source.log, source.formats[pieces[0]].count("bags")
        first = start.file if start is not None else pieces[0]
        works = [
            partial(_read_piece, source, piece, start if piece == first else None, window)
            for piece in pieces
            if piece >= first
        ]
        self._results = side_by_side(works, threads=threads, most=_MOST_ROWS // BLOCK_ROWS)
        self._now: Block | None = None
        self._at = 0  # row of it that comes next
        self._bytes = 0  # on disk, of what was taken over

    def close(self) -> None:
        """Stop the threads."""
        self._results.close()

    def bytes_read(self) -> int:
        """As `RowReader.bytes_read`."""
        return self._bytes

    def read(self, block: Block) -> int:
        """As `RowReader.read`."""
        row, room = 0, len(block.file_index)
        while row < room and (self._now is not None or self._next()):
            assert self._now is not None
            size = min(room - row, self._now.num_rows - self._at)
            _copy(self._now, self._at, size, block, row, self._num_bags)
            row, self._at = row + size, self._at + size
            if self._at == self._now.num_rows:
                self._now = None
        block.num_rows = row
        return row

    def _next(self) -> bool:
        """Bring the next block that has rows; count what was read with it."""
        for block, notes, num_bytes in self._results:
            for note in notes:
                self._log.count(*note)
            self._bytes += num_bytes
            if block.num_rows:
                self._now, self._at = block, 0
                return True
        self._log.check()
        return False


def _read_piece(source: RowSource, piece: int, start: Position | None, window: tuple[float, float]) -> Iterator[_Read]:
    notes = _Notes()
    with closing(source.noted_in(notes).reader([piece], start=start, window=window)) as reader:
        rows, before = BLOCK_ROWS, 0
        while rows == BLOCK_ROWS:
            block = Block.empty(source.formats[piece], BLOCK_ROWS)
            try:
                rows = reader.read(block)
            except BaseException:
                yield _Read(replace(block, num_rows=0), notes.taken, 0)  # what is bad is counted before
                raise
            now = reader.bytes_read()
            yield _Read(block, notes.taken, now - before)
            notes.taken, before = [], now


def _copy(source: Block, at: int, size: int, target: Block, row: int, num_bags: int) -> None:
    """Rows of a block into another one, which has room for all but values of bags."""
    here, there = slice(at, at + size), slice(row, row + size)
    target.file_index[there] = source.file_index[here]
    for name in ("labels", "dense", "times", "lines"):
        getattr(target.columns, name)[there] = getattr(source.columns, name)[here]
    for name in ("keys", "present"):
        getattr(target.columns, name)[:, there] = getattr(source.columns, name)[:, here]
    if not num_bags:
        return
    ends, all_ends = source.columns.bag_ends[at * num_bags : (at + size) * num_bags + 1], target.columns.bag_ends
    first, count = int(all_ends[row * num_bags]), int(ends[-1] - ends[0])
    target.reserve_bags(first + count)
    target.columns.bag_keys[first : first + count] = source.columns.bag_keys[ends[0] : ends[-1]]
    np.add(ends[1:], first - ends[0], out=all_ends[row * num_bags + 1 : (row + size) * num_bags + 1])
