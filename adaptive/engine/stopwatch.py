"""`Stopwatch`: time by stage, by the names that reports, TensorBoard and the README use (read, plan, fetch, ...)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter


class Stopwatch:
    """Sums time per stage. Each stage is timed by one thread only, so no lock is needed.

    Args:
        now: seconds; tests give their own clock.
    """

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a stage."""
        started = self._now()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._now() - started

    def total_ms(self) -> dict[str, float]:
        """Milliseconds per stage since the start."""
        return {name: seconds * 1e3 for name, seconds in list(self._seconds.items())}
