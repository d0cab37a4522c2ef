"""Helpers of policies and skip rules: lookups, queues of batches, values by row, checks.

Letters: B samples, N lookups of a batch, n rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, SkipRule, TierView, concatenate

Scalar = TypeVar("Scalar", bound=np.generic)


def count_rows(sample: Sequence[Batch], view: TierView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(n,) each: rows that a sample looks up, ascending, and their lookups."""
    return np.unique(np.concatenate([view.rows(batch) for batch in sample]), return_counts=True)


def lookup(rows: NDArray[np.int64], keys: NDArray[np.int64], values: NDArray[Scalar], default: Any) -> NDArray[Scalar]:
    """(n,) values of rows (n,), by the `values` (m,) of ascending `keys` (m,), or `default`."""
    if not len(keys):
        return np.full(len(rows), default, values.dtype)
    places = np.minimum(np.searchsorted(keys, rows), len(keys) - 1)
    return np.where(keys[places] == rows, values[places], default)


def samples_of_lookups(batch: Batch) -> NDArray[np.int64]:
    """(N,) sample of each lookup."""
    bags = np.tile(np.arange(batch.num_samples), batch.num_features)
    return np.repeat(bags, np.diff(batch.offsets))


def count_lookups(batch: Batch, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(B,) number of each sample's lookups among the chosen ones (N,)."""
    counts: NDArray[np.int64]
    if batch.bag_size:
        counts = batch.by_sample(chosen).sum(axis=(0, 2))
        return counts
    sums = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(chosen, out=sums[1:])
    per_bag = np.diff(sums[batch.offsets])
    counts = per_bag.reshape(batch.num_features, batch.num_samples).sum(axis=0)
    return counts


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


class KeptInputs(Refill):
    """Collects the inputs that a rule keeps, and counts in the rule's `seen_inputs` and `dropped_inputs`.

    The remaining inputs at the end make a smaller batch. If inputs were dropped, it is weighted by its share of a full
    batch, so that each of its inputs counts as much as others do.
    """

    def __init__(self, rule: SkipRule) -> None:
        super().__init__()
        self._rule = rule
        self._has_dropped = False

    def add(self, batch: Batch, chosen: NDArray[np.bool_]) -> Iterator[Batch]:
        self._rule.seen_inputs += batch.num_samples
        dropped = len(chosen) - int(np.count_nonzero(chosen))
        self._rule.dropped_inputs += dropped
        self._has_dropped |= dropped > 0
        yield from super().add(batch, chosen)

    def rest(self) -> Iterator[Batch]:
        for batch in super().rest():
            share = batch.num_samples / self.size
            yield weighted(batch, np.full(batch.num_samples, share)) if self._has_dropped else batch


def weighted(batch: Batch, weights: NDArray[np.float64]) -> Batch:
    """Return the batch with weights (B,) of its samples, times those that it has, in `Batch.extras["weight"]`."""
    weights = weights * batch.extras.get("weight", 1)
    return replace(batch, extras={**batch.extras, "weight": weights.astype(np.float32)}).mark_unshared()


class WeightSums:
    """Number, sum and sum of squares of the weights of kept samples, (3,) `values`."""

    def __init__(self) -> None:
        self.values = np.zeros(3)

    def add(self, weights: NDArray[np.floating[Any]]) -> None:
        """Add the weights (n,) of samples."""
        self.values += len(weights), weights.sum(), (weights * weights).sum()

    @property
    def effective_share(self) -> float:
        """(sum w)^2 / (n * sum w^2), see `SkipRule.effective_share`."""
        count, total, squares = self.values
        return float(total * total / (count * squares)) if count else 1.0


class PeekableBatches:
    """Batches to be read, one of which is read ahead to know if there are more."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._next = next(batches, None)

    @property
    def more(self) -> bool:
        return self._next is not None

    def take(self, number: int) -> Iterator[Batch]:
        """Yield the next `number` batches, or all that are left."""
        while number and self._next is not None:
            batch, self._next, number = self._next, next(self._batches, None), number - 1
            yield batch


class Spool:
    """A queue of batches: in memory, and beyond `memory` bytes in an unnamed temporary file.

    The file is in the folder of temporary files (TMPDIR) and disappears with the process, even if that is killed.
    """

    def __init__(self, memory: int) -> None:
        self._file = SpooledTemporaryFile(max_size=memory)  # noqa: SIM115 (`__exit__` closes it)
        self._waiting: list[Batch] = []  # without samples, whose arrays are in the file

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def add(self, batch: Batch) -> None:
        """Append a batch. Not while the queue is being drained."""
        origin = () if batch.origin is None else (batch.origin.file_index, batch.origin.lines)
        arrays = (batch.dense, batch.ids, batch.offsets, batch.labels, batch.weights, *origin, *batch.extras.values())
        for array in arrays:
            if array is not None:
                np.lib.format.write_array(self._file, array, allow_pickle=False)
        self._waiting.append(batch.take(np.zeros(0, np.int64)))

    def drain(self) -> Iterator[Batch]:
        """Yield all batches, in order, and empty the queue."""
        self._file.seek(0)
        for empty in self._waiting:
            dense, ids, offsets, labels = (self._read() for _ in range(4))
            weights = None if empty.weights is None else self._read()
            origin = empty.origin
            if origin is not None:
                origin = replace(origin, file_index=self._read(), lines=self._read())
            extras = {name: self._read() for name in empty.extras}
            yield Batch(dense, ids, offsets, labels, weights, origin, features=empty.features, extras=extras)
        self._waiting = []
        self._file.seek(0)
        self._file.truncate()

    def _read(self) -> NDArray[Any]:
        return np.lib.format.read_array(self._file, allow_pickle=False)


class ByRow(Generic[Scalar]):
    """One value per row, 0 unless written. Pages that were never written take no memory."""

    def __init__(self, dtype: type[Scalar]) -> None:
        self._values: NDArray[Scalar] = np.zeros(0, dtype)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Scalar]:
        inside = rows < len(self._values)
        if inside.all():
            return self._values[rows]
        values = np.zeros(len(rows), self._values.dtype)
        values[inside] = self._values[rows[inside]]
        return values

    def __setitem__(self, rows: NDArray[np.int64], values: Any) -> None:
        if len(rows):
            needed = int(rows.max()) + 1
            if needed > len(self._values):
                self.reserve(max(needed, 2 * len(self._values)))
            self._values[rows] = values

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Set the values of rows (n,) to 0."""
        self._values[rows[rows < len(self._values)]] = 0

    def reserve(self, num_rows: int) -> None:
        """Make room for rows below `num_rows` at once."""
        if num_rows > len(self._values):
            grown = np.zeros(num_rows, self._values.dtype)
            grown[: len(self._values)] = self._values
            self._values = grown

    def restore(self, rows: NDArray[np.int64], values: Any) -> None:
        """Set these values (n,) of rows (n,), and 0 for all others.

        Raises:
            ValueError: for a row below 0, or another number of values.
        """
        if len(rows) and rows.min() < 0:
            raise ValueError(f"expected a state of rows of at least 0, got {rows.min()}")
        self._values = np.zeros(0, self._values.dtype)
        self[rows] = values

    def rows(self) -> NDArray[np.int64]:
        """Rows whose value is not 0, ascending."""
        return np.flatnonzero(self._values)


def uniform(numbers: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """Return a number from 0 up to 1 for each of these numbers (n,), by a hash."""
    mixed = (numbers.astype(np.uint64) ^ np.uint64(seed * _MIX_STEP & (1 << 64) - 1)) * np.uint64(_MIX_ROW)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(_MIX_LAST)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_MIX_ROW)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


_MIX_ROW, _MIX_STEP, _MIX_LAST = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xBF58476D1CE4E5B9  # odd, so bijections


def check_range(least: float, most: float = float("inf"), /, **values: Any) -> None:
    """Check that parameters are from `least` to `most`; None is skipped.

    Raises:
        ValueError: for other values.
    """
    for name, value in values.items():
        if value is not None and not least <= value <= most:
            upper = f", at most {most:g}" if most < float("inf") else ""
            raise ValueError(f"{name}={value}: expected at least {least:g}{upper}")


def check_shares(**values: float | None) -> None:
    """Check that parameters are shares, above 0 and at most 1; None is skipped.

    Raises:
        ValueError: for other values.
    """
    for name, value in values.items():
        if value is not None and not 0 < value <= 1:
            raise ValueError(f"{name}={value}: expected more than 0, at most 1")


def check_state(owner: object, state: Mapping[str, NDArray[Any]], *names: str) -> None:
    """Check that the state of a policy or rule has exactly these arrays.

    Raises:
        ValueError: if it has not.
    """
    if sorted(state) != sorted(names):
        raise ValueError(
            f"{type(owner).__name__}: expected a state of {', '.join(names) or 'nothing'}, got {', '.join(state)}"
        )
