"""Pieces of work done by threads side by side, their results handed out in the order of the pieces.

A thread takes the next piece and works ahead until as many results wait as may; the consumer gets the first piece's
results, then the second's, and so on: what comes out does not depend on the number of threads.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from adaptive.system import start_thread

T = TypeVar("T")

_AHEAD = 2  # pieces for each thread that may be begun before the consumer comes to them


@dataclass
class _Piece(Generic[T]):
    """What has become of a piece so far."""

    waiting: deque[T] = field(default_factory=deque)
    is_done: bool = False
    error: BaseException | None = None


def side_by_side(works: Sequence[Callable[[], Iterator[T]]], *, threads: int, most: int) -> Generator[T, None, None]:
    """The results of all works, in order; an exception of a work comes where its next result would.

    Threads are joined when the generator ends or is closed, each after the result that it is about.

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
    """What threads and consumer share, under one lock."""

    def __init__(self, works: Sequence[Callable[[], Iterator[T]]], threads: int, most: int) -> None:
        self._works, self._most, self._ahead = works, most, _AHEAD * threads
        self._changed = threading.Condition()
        self._pieces = dict[int, _Piece[T]]()
        self._next = 0  # piece to be begun
        self._now = 0  # piece whose results are handed out
        self._is_stopped = False

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def results(self) -> Iterator[T]:
        while self._now < len(self._works):
            with self._changed:
                self._changed.wait_for(self._has_result)
                piece = self._pieces[self._now]
                found = piece.waiting.popleft() if piece.waiting else None
                is_over = found is None
                if is_over:
                    del self._pieces[self._now]
                    self._now += 1
                self._changed.notify_all()
            if found is not None:
                yield found
            elif piece.error is not None:
                raise piece.error

    def _has_result(self) -> bool:
        piece = self._pieces.get(self._now)
        return piece is not None and (bool(piece.waiting) or piece.is_done)

    def work(self) -> None:
        """What a thread does: one piece after another."""
        while (number := self._begin()) is not None:
            error: BaseException | None = None
            try:
                for result in self._works[number]():
                    if not self._put(self._pieces[number], result):
                        return
            except BaseException as raised:  # handed to the consumer
                error = raised
            with self._changed:
                self._pieces[number].is_done, self._pieces[number].error = True, error
                self._changed.notify_all()

    def _begin(self) -> int | None:
        """The next piece; None: there is nothing left to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or self._next < self._now + self._ahead)
            if self._is_stopped or self._next == len(self._works):
                return None
            number = self._next
            self._next += 1
            self._pieces[number] = _Piece()
            return number

    def _put(self, piece: _Piece[T], result: T) -> bool:
        """Leave a result for the consumer, once there is room; False: nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or len(piece.waiting) < self._most)
            if self._is_stopped:
                return False
            piece.waiting.append(result)
            self._changed.notify_all()
            return True
