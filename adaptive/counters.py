"""What reports are made of: `Counter`, the columns of every table of counts, and `Stopwatch`, time by stage.

Both stand here once, so that kernels, tiers and reports agree.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
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


class Counter(IntEnum):
    """Columns of a counter array: int64 (tables, len(Counter)), one row per table.

    A batch is counted when it is planned, and reported once it is trained; evaluation is not counted.
    """

    LOOKUPS = 0
    """Ids looked up."""
    UNIQUE_ROWS = 1
    """Distinct rows of a batch, summed over batches."""
    LOOKUP_HITS = 2
    """Look-ups whose row was on the device when the batch was planned."""
    ROW_HITS = 3
    """Distinct rows that were on the device when the batch was planned."""
    FETCHED = 4
    """Rows copied from the host to the device (rows still at their initial value count too)."""
    WRITTEN_BACK = 5
    """Changed rows copied from the device to the host because they left the device."""
    PROMOTED = 6
    """Rows that came onto the device."""
    DEMOTED = 7
    """Rows that left the device, changed or not."""
    SKIPPED_UPDATES = 8
    """Row updates not written: dropped because the row was saturated, or deferred."""
    SKIPPED_LOOKUPS = 9
    """Look-ups of rows whose update was not written."""
    BYTES_H2D = 10
    """Bytes from host to device: fetched rows with their state, vectors pooled (in part) on the host, and plans that
    are sent to a device."""
    BYTES_D2H = 11
    """Bytes from device to host: rows written back, and gradients of vectors pooled on the host."""
    DEFERRED_UPDATES = 12
    """Of the skipped updates, those whose gradient was kept, to be applied with a later one."""
