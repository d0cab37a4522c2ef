"""What policies that look at whole inputs share: sums over a sample's look-ups, refilled batches, facts about rows.

Letters: B samples, N look-ups of a batch.
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, concatenate

Scalar = TypeVar("Scalar", bound=np.generic)


def samples_of_lookups(batch: Batch) -> NDArray[np.int64]:
    """(N,) the sample that each look-up belongs to."""
    bags = np.tile(np.arange(batch.num_samples), batch.num_features)
    return np.repeat(bags, np.diff(batch.offsets))


def count_lookups(batch: Batch, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(B,) how many of each sample's look-ups are among the chosen (N,)."""
    if len(batch.ids) == len(batch.offsets) - 1 and (np.diff(batch.offsets) == 1).all():  # one id a bag
        counts: NDArray[np.int64] = chosen.reshape(batch.num_features, batch.num_samples).sum(axis=0)
        return counts
    return np.bincount(samples_of_lookups(batch)[chosen], minlength=batch.num_samples)


class Refill:
    """Samples put together, in order, to batches of one size: the given one, or 0: that of the first batch."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.filled = 0  # batches
        self._waiting: list[Batch] = []
        self._count = 0

    @property
    def num_waiting(self) -> int:
        """Samples that do not fill a batch yet."""
        return self._count

    def add(self, batch: Batch, chosen: NDArray[np.bool_]) -> Iterator[Batch]:
        """Take the chosen (B,) samples; yields the batches that have become full."""
        self.size = self.size or batch.num_samples
        samples = np.flatnonzero(chosen)
        if len(samples):
            self._waiting.append(batch if len(samples) == batch.num_samples else batch.take(samples))
            self._count += len(samples)
        while self._count >= self.size:
            self.filled += 1
            yield self._cut(self.size)

    def rest(self) -> Iterator[Batch]:
        """What is left, as one smaller batch, if anything is."""
        if self._count:
            yield self._cut(self._count)

    def _cut(self, size: int) -> Batch:
        joined = concatenate(self._waiting)
        self._count -= size
        self._waiting = [joined.take(np.arange(size, joined.num_samples))] if self._count else []
        return joined.take(np.arange(size)) if self._count else joined


class ByRow(Generic[Scalar]):
    """One value for each row, 0 unless written. Memory that was never written to is not taken."""

    def __init__(self, dtype: type[Scalar]) -> None:
        self._values: NDArray[Scalar] = np.zeros(0, dtype)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Scalar]:
        inside = rows < len(self._values)
        if inside.all():
            return self._values[rows]
        found = np.zeros(len(rows), self._values.dtype)
        found[inside] = self._values[rows[inside]]
        return found

    def __setitem__(self, rows: NDArray[np.int64], values: Any) -> None:
        if len(rows):
            needed = int(rows.max()) + 1
            if needed > len(self._values):
                self.reserve(max(needed, 2 * len(self._values)))
            self._values[rows] = values

    def reserve(self, num_rows: int) -> None:
        """Make room for rows below `num_rows` at once, where their number is known."""
        if num_rows > len(self._values):
            grown = np.zeros(num_rows, self._values.dtype)
            grown[: len(self._values)] = self._values
            self._values = grown

    def rows(self) -> NDArray[np.int64]:
        """Rows whose value is not 0, in order."""
        return np.flatnonzero(self._values)
