"""Counters and timers, defined once for kernels, tiers and reports."""

from collections.abc import Callable
from enum import IntEnum
from time import perf_counter


class Stopwatch:
    """Sums time per stage. Each stage is timed by one thread only, so no lock is needed.

    Args:
        now: clock in seconds; tests pass their own.
    """

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self._seconds: dict[str, float] = {}

    def stage(self, name: str) -> "_Stage":
        """Return a context manager that adds the time spent inside to a stage."""
        return _Stage(name, self._now, self._seconds)

    def total_ms(self) -> dict[str, float]:
        """Milliseconds per stage since the start."""
        return {name: seconds * 1e3 for name, seconds in list(self._seconds.items())}


class _Stage:
    """A class, because a generator takes 2 us, and a training step enters a dozen stages."""

    def __init__(self, name: str, now: Callable[[], float], seconds: dict[str, float]) -> None:
        self._name, self._now, self._seconds = name, now, seconds

    def __enter__(self) -> None:
        self._started = self._now()

    def __exit__(self, *error: object) -> None:
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + self._now() - self._started


class Counter(IntEnum):
    """Columns of a counter array: int64 (tables, len(Counter)), one row per table.

    Each trained batch is counted once, as it was planned. Evaluation is not counted.
    """

    LOOKUPS = 0
    """Ids looked up."""
    UNIQUE_ROWS = 1
    """Distinct rows of a batch, summed over batches."""
    LOOKUP_HITS = 2
    """Lookups whose row was on the device when the batch was planned."""
    ROW_HITS = 3
    """Distinct rows that were on the device when the batch was planned."""
    FETCHED = 4
    """Rows copied from the host to the device, including rows still at their initial value."""
    WRITTEN_BACK = 5
    """Changed rows copied from the device to the host because they were evicted."""
    ADMITTED = 6
    """Rows admitted to the device."""
    EVICTED = 7
    """Rows evicted from the device, changed or not."""
    SKIPPED_UPDATES = 8
    """Row updates not written: skipped because the row was saturated, or deferred."""
    SKIPPED_LOOKUPS = 9
    """Lookups of rows whose update was not written."""
    BYTES_H2D = 10
    """Bytes from host to device: fetched rows with their state, vectors pooled (in part) on the host, and plans."""
    BYTES_D2H = 11
    """Bytes from device to host: rows written back, and gradients of vectors pooled on the host."""
    DEFERRED_UPDATES = 12
    """Of the skipped updates, those whose gradient was accumulated to be applied later."""
    ADMITTED_KEYS = 13
    """Keys that got a row."""
    EXPIRED_KEYS = 14
    """Keys that lost their row because they were not looked up for `TableConfig.expire`."""
    EVICTED_KEYS = 15
    """Keys that lost their row to other keys because the table was full."""
    UNADMITTED_LOOKUPS = 16
    """Lookups of keys without a row, which read their table's row for such keys."""
