"""Read the rows of a part with several threads, in the order of a single reader.

Each thread takes the next piece (a text file), fills blocks from it, records bad rows, and works ahead
until its limit of blocks is reached. The consumer takes blocks and bad rows in order, so batches, rejects and errors do
not depend on the number of threads.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from queue import Full, Queue, SimpleQueue
from typing import NamedTuple, TypeVar

import numpy as np

from adaptive.data.rows.rejects import BadLine, RejectLog
from adaptive.data.rows.row_source import Block, Position, RowSource
from adaptive.system import start_thread

T = TypeVar("T")
_Item = tuple[T] | BaseException | None  # a result; an error; None at the end

BLOCK_ROWS = 1 << 14
_MOST_ROWS = 1 << 18  # read ahead of a piece, at most
_AHEAD = 2  # pieces for each thread that may be started before the consumer needs them


def side_by_side(works: Iterable[Callable[[], Iterator[T]]], *, threads: int, most: int) -> Generator[T, None, None]:
    """Yield the results of all works, in order.

    An exception of a work is raised in place of its next result. Threads are joined when the generator ends or is
    closed, each after its current result.

    Args:
        works: functions that make iterators, taken as they start; each is called and iterated in one worker thread.
        threads: at least 1.
        most: results of a work that may wait for the consumer.
    """
    remaining, lock = iter(works), threading.Lock()
    started = SimpleQueue[Queue[_Item[T]] | None]()  # the results of each work, in order; None after the last one
    may_start, is_stopped = threading.Semaphore(_AHEAD * threads), threading.Event()

    def put(results: Queue[_Item[T]], item: _Item[T]) -> None:
        while not is_stopped.is_set():
            with suppress(Full):  # look again now and then if the consumer has stopped
                results.put(item, timeout=0.1)
                return

    def run() -> None:
        while may_start.acquire() and not is_stopped.is_set():
            with lock:
                work = next(remaining, None)
                if work is None:
                    started.put(None)
                    return
                results = Queue[_Item[T]](most)
                started.put(results)
            error = None
            try:
                for result in work():
                    put(results, (result,))
                    if is_stopped.is_set():
                        return
            except BaseException as raised:  # the consumer raises it
                error = raised
            put(results, error)

    workers = [threading.Thread(target=run, name=f"reader-{n}", daemon=True) for n in range(threads)]
    try:
        for worker in workers:
            start_thread(worker)
        while (results := started.get()) is not None:
            while isinstance(item := results.get(), tuple):
                yield item[0]
            if item is not None:
                raise item
            may_start.release()
    finally:
        is_stopped.set()
        may_start.release(threads)
        for worker in workers:
            if worker.ident is not None:
                worker.join()


class _Notes(RejectLog):
    """Records the calls of the reader of one piece, for the consumer to repeat in order."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int, list[BadLine]]] = []

    def count(self, file: int, last_line: int, bad: list[BadLine]) -> None:
        self.taken.append((file, last_line, bad))

    def check(self) -> None:
        """Do nothing: the log that counts all pieces checks the shares."""


class _Read(NamedTuple):
    """Some rows of a piece, and the calls of the log to make before using them."""

    block: Block
    notes: list[tuple[int, int, list[BadLine]]]  # arguments of `RejectLog.count`
    num_bytes: int  # on disk, for these rows


class ParallelReader:
    """Reads the rows of some pieces with several threads; see `RowSource.reader`."""

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
        self._at = 0  # its next row
        self._bytes = 0  # on disk, of the blocks taken so far

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
        """Take the next block that has rows, and pass on its notes; return False at the end."""
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
        rows, bytes_done = BLOCK_ROWS, 0
        while rows == BLOCK_ROWS:
            block = Block.empty(source.formats[piece], BLOCK_ROWS)
            try:
                rows = reader.read(block)
            except BaseException:
                yield _Read(replace(block, num_rows=0), notes.taken, 0)  # bad rows up to the error count
                raise
            bytes_now = reader.bytes_read()
            yield _Read(block, notes.taken, bytes_now - bytes_done)
            notes.taken, bytes_done = [], bytes_now


def _copy(source: Block, at: int, size: int, target: Block, row: int, num_bags: int) -> None:
    """Copy rows of a block into another one, which has room for all but values of bags."""
    from_rows, to_rows = slice(at, at + size), slice(row, row + size)
    target.file_index[to_rows] = source.file_index[from_rows]
    for name in ("labels", "dense", "times", "lines"):
        getattr(target.columns, name)[to_rows] = getattr(source.columns, name)[from_rows]
    for name in ("keys", "present"):
        getattr(target.columns, name)[:, to_rows] = getattr(source.columns, name)[:, from_rows]
    if not num_bags:
        return
    ends, all_ends = source.columns.bag_ends[at * num_bags : (at + size) * num_bags + 1], target.columns.bag_ends
    first, count = int(all_ends[row * num_bags]), int(ends[-1] - ends[0])
    target.reserve_bags(first + count)
    target.columns.bag_keys[first : first + count] = source.columns.bag_keys[ends[0] : ends[-1]]
    np.add(ends[1:], first - ends[0], out=all_ends[row * num_bags + 1 : (row + size) * num_bags + 1])
