"""Fill batches with chosen samples (`Refill`), and weight samples (`weighted`)."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from adaptive.batch.batch import Batch
from adaptive.batch.batch_parts import concatenate


class Refill:
    """Collects samples, in order, into batches of one size; 0: that of the first batch."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self._waiting: list[Batch] = []
        self._count = 0

    def add(self, batch: Batch, chosen: NDArray[np.bool_]) -> Iterator[Batch]:
        """Add the chosen (B,) samples; yields the batches that are full."""
        self.size = self.size or batch.num_samples
        samples = np.flatnonzero(chosen)
        while len(samples) and self._count + len(samples) >= self.size:
            needed = self.size - self._count
            self._wait(batch, samples[:needed])
            samples = samples[needed:]
            yield self._join()
        self._wait(batch, samples)

    def rest(self) -> Iterator[Batch]:
        """Yield the remaining samples as one smaller batch, if there are any."""
        if self._count:
            yield self._join()

    def _wait(self, batch: Batch, samples: NDArray[np.int64]) -> None:
        if len(samples):
            self._waiting.append(batch if len(samples) == batch.num_samples else batch.take(samples))
            self._count += len(samples)

    def _join(self) -> Batch:
        if any("weight" in batch.extras for batch in self._waiting):
            ones = [np.ones(batch.num_samples) for batch in self._waiting]
            self._waiting = [weighted(batch, weights) for batch, weights in zip(self._waiting, ones, strict=True)]
        joined = concatenate(self._waiting)
        self._waiting, self._count = [], 0
        return joined


def weighted(batch: Batch, weights: NDArray[np.float64]) -> Batch:
    """Return the batch with weights (B,) of its samples, times those that it has, in `Batch.extras["weight"]`."""
    weights = weights * batch.extras.get("weight", 1)
    return replace(batch, extras={**batch.extras, "weight": weights.astype(np.float32)}).mark_unshared()
