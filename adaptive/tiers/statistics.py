"""`Statistics`: what the tiers did since they were last asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Statistics:
    """Counts belong to trained batches; gauges (`*_rows`) are of now. Tables are in the order of `table_names`."""

    batches: int
    counts: NDArray[np.int64]  # (tables, len(Counter))
    resident_rows: NDArray[np.int64]  # (tables,) on the device
    saturated_rows: NDArray[np.int64]  # (tables,) whose updates are skipped
    times_ms: dict[str, float]  # summed over the batches, per stage
    update_norm_edges: NDArray[np.float64]  # (n + 1,)
    update_norm_counts: NDArray[np.int64]  # (n,) row updates by L2 norm
    update_norm_sum: float
    batches_in_parts: int = 0  # of the batches
    batches_waited: int = 0  # of those in parts: training had to wait for rows between two parts


class Stopwatch:
    """Sums time per stage. Each stage is timed by one thread only, so no lock is needed."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = perf_counter()
        try:
            yield
        finally:
            self.add(name, perf_counter() - started)

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def total_ms(self) -> dict[str, float]:
        """Milliseconds per stage since the start."""
        return {name: seconds * 1e3 for name, seconds in list(self._seconds.items())}
