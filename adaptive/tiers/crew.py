"""`Crew`: threads that share the loops of planning (`tier.plan_threads`), where planning limits a fast device.

A loop is cut into parts that write to nothing in common: tables of a batch, or stretches of its distinct rows. What is
computed does not depend on who does which part, so plans are equal for any number of threads. The kernels release the
GIL; the crew works only while the thread that asks waits for it.

Measured on two cores, 26 tables, 16,384 samples: two threads plan in 0.94 of one's time; with 2,048 samples in 1.06.
Loops over rows halve, but a third of the work is serial, and each part takes its turn in Python. So the default is one.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

LEAST_ITEMS: Final = 1 << 15  # of a part: below that, waking a thread for it takes longer than doing it
PARTS_PER_THREAD: Final = 2  # parts are not equally long

Work = Callable[[int, int], None]  # (worker, part)


class Crew:
    """`size` threads, the asking one included.

    Args:
        size: 1 has no threads and does everything itself.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._calls: list[threading.Lock] = []  # of each helper: released when there is something to do
        self._job: _Job | None = None
        self._ending = False

    @contextmanager
    def working(self) -> Iterator[None]:
        """Inside, the threads are there. Outside, whoever asks does the work alone."""
        assert not self._calls
        self._ending = False
        threads: list[threading.Thread] = []
        try:
            for number in range(1, self.size):
                call = threading.Lock()
                call.acquire()
                name = f"adaptive-plan-{number}"
                thread = threading.Thread(target=self._help, args=(number, call), name=name, daemon=True)
                thread.start()
                threads.append(thread)
                self._calls.append(call)
            yield
        finally:
            self._ending = True
            self._call(len(threads))
            self._calls.clear()
            for thread in threads:
                thread.join()

    def share(self, parts: int, work: Work) -> None:
        """Do work(worker, part) for every part in range(parts); workers are numbered from 0 to size - 1.

        From one thread at a time. Raises what the first of the parts that failed raised, when all are done.
        """
        if parts < 2 or not self._calls:
            for part in range(parts):
                work(0, part)
            return
        self._job = job = _Job(parts, work)
        self._call(parts - 1)
        try:
            job.take_parts(0)
        finally:  # nobody writes to the asking thread's arrays when it goes on
            job.finished.acquire()
            self._job = None
        if job.errors:
            raise job.errors[min(job.errors)]

    def _call(self, helpers: int) -> None:
        for call in self._calls[:helpers]:
            if call.locked():  # or else the helper has not come since the last call, and will find this job
                call.release()

    def _help(self, worker: int, call: threading.Lock) -> None:
        while call.acquire() and not self._ending:
            if (job := self._job) is not None:
                job.take_parts(worker)

    def cut(self, num_items: int) -> list[slice]:
        """Stretches of so many items, to be shared; at least one."""
        parts = max(1, min(PARTS_PER_THREAD * self.size, num_items // LEAST_ITEMS)) if self.size > 1 else 1
        bounds = [num_items * part // parts for part in range(parts + 1)]
        return [slice(first, last) for first, last in itertools.pairwise(bounds)]

    def cut_runs(self, sizes: Sequence[int]) -> list[slice]:
        """Runs of things (tables, features) with about as many items each, to be shared; at least one.

        Args:
            sizes: items of each thing.
        """
        if self.size == 1:
            return [slice(0, len(sizes))]
        ends = np.cumsum(sizes)
        stops = [stretch.stop for stretch in self.cut(int(ends[-1]))]
        bounds = [0, *(np.searchsorted(ends, stops[:-1]) + 1).tolist(), len(sizes)]
        return [slice(first, last) for first, last in itertools.pairwise(bounds) if first < last]


class _Job:
    """Parts that are taken one by one, by whoever is free."""

    def __init__(self, parts: int, work: Work) -> None:
        self.errors: dict[int, BaseException] = {}
        self.finished = threading.Lock()  # released when all are done
        self.finished.acquire()
        self._parts, self._work = parts, work
        self._next = itertools.count()
        self._left = parts
        self._lock = threading.Lock()

    def take_parts(self, worker: int) -> None:
        while (part := next(self._next)) < self._parts:
            try:
                self._work(worker, part)
            except BaseException as error:  # raised by the thread that asked
                self.errors[part] = error
            with self._lock:
                self._left -= 1
                if not self._left:
                    self.finished.release()


ALONE: Final = Crew(1)
