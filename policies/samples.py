"""What policies and rules share: sums over a sample's lookups, refilled and waiting batches, facts about rows, checks.

Letters: B samples, N lookups of a batch, n rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, RowStats, concatenate

Scalar = TypeVar("Scalar", bound=np.generic)


def samples_of_lookups(batch: Batch) -> NDArray[np.int64]:
    """(N,) the sample that each lookup belongs to."""
    bags = np.tile(np.arange(batch.num_samples), batch.num_features)
    return np.repeat(bags, np.diff(batch.offsets))


def count_lookups(batch: Batch, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(B,) how many of each sample's lookups are among the chosen (N,)."""
    counts: NDArray[np.int64]
    if batch.one_each:
        counts = chosen.reshape(batch.num_features, batch.num_samples).sum(axis=0)
        return counts
    before = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(chosen, out=before[1:])
    per_bag = np.diff(before[batch.offsets])
    counts = per_bag.reshape(batch.num_features, batch.num_samples).sum(axis=0)
    return counts


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
        while len(samples) and self._count + len(samples) >= self.size:
            needed = self.size - self._count
            self._wait(batch, samples[:needed])
            samples = samples[needed:]
            self.filled += 1
            yield self._join()
        self._wait(batch, samples)

    def rest(self) -> Iterator[Batch]:
        """What is left, as one smaller batch, if anything is."""
        if self._count:
            yield self._join()

    def _wait(self, batch: Batch, samples: NDArray[np.int64]) -> None:
        if len(samples):
            self._waiting.append(batch if len(samples) == batch.num_samples else batch.take(samples))
            self._count += len(samples)

    def _join(self) -> Batch:
        joined = concatenate(self._waiting)
        self._waiting, self._count = [], 0
        return joined


def greatest(batch: Batch, values: NDArray[Scalar]) -> NDArray[Scalar]:
    """(B,) the greatest of the values (N,) of each sample's lookups, 0 if it has none or they are below."""
    largest = np.zeros(batch.num_samples, values.dtype)
    if batch.one_each:
        np.max(values.reshape(batch.num_features, batch.num_samples), axis=0, initial=0, out=largest)
        return largest
    np.maximum.at(largest, samples_of_lookups(batch), values)
    return largest


class Coming:
    """Batches to be read; tells whether there are more, for which one is read ahead."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._next = next(batches, None)

    @property
    def more(self) -> bool:
        return self._next is not None

    def take(self, number: int) -> Iterator[Batch]:
        """The next `number` batches, or all there are."""
        while number and self._next is not None:
            batch, self._next, number = self._next, next(self._batches, None), number - 1
            yield batch


class Spool:
    """Batches that wait for their turn, in order: in memory, and beyond `memory` bytes in an unnamed temporary file.

    The file lies in the folder of temporary files (TMPDIR) and is gone with the process, however that ends.
    """

    def __init__(self, memory: int) -> None:
        self._file = SpooledTemporaryFile(max_size=memory)  # noqa: SIM115 (`__exit__` closes it)
        self._waiting: list[Batch] = []  # without arrays of samples, which lie in the file

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def add(self, batch: Batch) -> None:
        """Put a batch behind the others. Not while they are being drained."""
        for array in (batch.dense, batch.ids, batch.offsets, batch.labels, batch.weights, *_others(batch)):
            if array is not None:
                np.lib.format.write_array(self._file, array, allow_pickle=False)
        self._waiting.append(_hollow(batch))

    def drain(self) -> Iterator[Batch]:
        """All batches, in order; then there are none."""
        self._file.seek(0)
        for hollow in self._waiting:
            dense, ids, offsets, labels = (self._read() for _ in range(4))
            weights = None if hollow.weights is None else self._read()
            origin = hollow.origin
            if origin is not None:
                origin = replace(origin, file_index=self._read(), lines=self._read())
            extras = {name: self._read() for name in hollow.extras}
            yield Batch(dense, ids, offsets, labels, weights, origin, features=hollow.features, extras=extras)
        self._waiting = []
        self._file.seek(0)
        self._file.truncate()

    def _read(self) -> NDArray[Any]:
        return np.lib.format.read_array(self._file, allow_pickle=False)


def _others(batch: Batch) -> tuple[NDArray[Any], ...]:
    origin = () if batch.origin is None else (batch.origin.file_index, batch.origin.lines)
    return (*origin, *batch.extras.values())


def _hollow(batch: Batch) -> Batch:
    """What a batch has besides its arrays: whether lookups have weights, names of files, features and extras."""
    return batch.take(np.zeros(0, np.int64))


class ByRow(Generic[Scalar]):
    """One value for each row, 0 unless written. Memory that was never written to is not taken."""

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

    def reserve(self, num_rows: int) -> None:
        """Make room for rows below `num_rows` at once, where their number is known."""
        if num_rows > len(self._values):
            grown = np.zeros(num_rows, self._values.dtype)
            grown[: len(self._values)] = self._values
            self._values = grown

    def restore(self, rows: NDArray[np.int64], values: Any) -> None:
        """Have these values (n,) of rows (n,), and 0 of all others.

        Raises:
            ValueError: for a row below 0, or values of another number.
        """
        if len(rows) and rows.min() < 0:
            raise ValueError(f"a state of rows from 0 on is needed, found {rows.min()}")
        self._values = np.zeros(0, self._values.dtype)
        self[rows] = values

    def rows(self) -> NDArray[np.int64]:
        """Rows whose value is not 0, in order."""
        return np.flatnonzero(self._values)


def movement(rows: RowStats) -> NDArray[np.float64]:
    """(n,) how far each row moves in a visit, relative to its length, as a random walk that covered its drift in as
    many visits: so rows compare whose snapshots lie differently far apart. NaN: unknown, or an update was left out."""
    moved: NDArray[np.float64] = rows.drift.astype(np.float64) / np.sqrt(np.maximum(rows.drift_visits, 1))
    return moved


def probed(rows: NDArray[np.int64], step: int, every: int) -> NDArray[np.bool_]:
    """(n,) whether a row, or an input, is let through: one in `every`, by a hash of number and batch; 0: never."""
    if not every:
        return np.zeros(len(rows), np.bool_)
    mixed = rows.astype(np.uint64) * np.uint64(_MIX_ROW)  # wraps, as a hash should
    mixed ^= np.uint64(step * _MIX_STEP & (1 << 64) - 1)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(_MIX_LAST)
    chosen: NDArray[np.bool_] = (mixed >> np.uint64(33)) % np.uint64(every) == 0
    return chosen


_MIX_ROW, _MIX_STEP, _MIX_LAST = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xBF58476D1CE4E5B9  # odd: bijections


def check_range(least: float, most: float = float("inf"), /, **values: Any) -> None:
    """Check parameters; None is no value.

    Raises:
        ValueError: for one that is not a number from `least` to `most`; names it.
    """
    for name, value in values.items():
        if value is not None and not least <= value <= most:
            upper = f", at most {most:g}" if most < float("inf") else ""
            raise ValueError(f"{name}={value}: expected at least {least:g}{upper}")


def check_shares(**values: float | None) -> None:
    """Check parameters that are shares; None is no value.

    Raises:
        ValueError: for one that is not a number above 0 and up to 1; names it.
    """
    for name, value in values.items():
        if value is not None and not 0 < value <= 1:
            raise ValueError(f"{name}={value}: expected more than 0, at most 1")


def check_state(owner: object, state: Mapping[str, NDArray[Any]], *names: str) -> None:
    """Check that a state has these arrays and no others.

    Raises:
        ValueError: if it has not; names whose state it is.
    """
    if sorted(state) != sorted(names):
        raise ValueError(
            f"{type(owner).__name__}: expected a state of {', '.join(names) or 'nothing'}, got {', '.join(state)}"
        )
