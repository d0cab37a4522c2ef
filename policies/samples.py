"""Helpers of policies and skip rules: lookups, queues of batches, checks.

Letters: B samples, N lookups of a batch, n rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, TierView


def count_rows(sample: Sequence[Batch], view: TierView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(n,) each: rows that a sample looks up, ascending, and their lookups."""
    return np.unique(np.concatenate([view.rows(batch) for batch in sample]), return_counts=True)


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
