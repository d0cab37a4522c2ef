"""`SequenceDataset`: batches of samples that are sequences, from wherever `Samples` takes them.

Letters: B samples, S steps of a sample (the history and, last, the candidate), F features of a step, D dense inputs of
a step.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, Origin, one_hot_batch
from adaptive.data.dataset import Dataset, Feature
from adaptive.data.options import DataOptions
from adaptive.data.shuffle import in_blocks
from adaptive.errors import ConfigError, InputError


class Samples(ABC):
    """Samples that can be taken by their number, from 0."""

    num_samples: int

    @abstractmethod
    def take(self, wanted: NDArray[np.int64]) -> Batch:
        """The batch of the samples of these numbers, in their order."""


@dataclass(frozen=True)
class Part:
    """The samples [start, stop)."""

    samples: Samples
    start: int
    stop: int

    def batches(self, size: int) -> Iterator[Batch]:
        """Batches of `size` samples; the last one may be smaller."""
        if size < 1:
            raise ConfigError(f"batch_size: at least 1 needed, found {size}")
        for first in range(self.start, self.stop, size):
            yield self.samples.take(np.arange(first, min(first + size, self.stop)))


class SequenceDataset(Dataset):
    """Sequences as a data set: feature `TABLE_t` is what step t looks up in a table; the last t is the candidate's.

    Args:
        tables: name -> rows.
        steps: S.
        num_dense: D.
        identity: what identifies the data, for the fingerprint.
        bad: bad lines so far by cause, which the reader may go on counting.
    """

    def __init__(
        self,
        tables: Mapping[str, int],
        train: Part,
        evaluation: Part | None,
        *,
        steps: int,
        num_dense: int,
        identity: dict[str, object],
        shuffle: tuple[int, int] = (0, 0),
        bad: Mapping[str, int] | None = None,
    ) -> None:
        self.features = tuple(Feature(f"{name}_{t}", rows) for name, rows in tables.items() for t in range(steps))
        self.tables = tuple(name for name in tables for _ in range(steps))
        self.steps, self.num_dense = steps, num_dense * steps
        self._train, self._evaluation = train, evaluation
        self._shuffle_buffer, self._seed = shuffle
        self._identity, self._bad = identity, dict(bad or {})

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        """Batches of the training part, in its order or shuffled in blocks."""
        return in_blocks(
            self._train.batches, batch_size, shuffle_buffer=self._shuffle_buffer, seed=self._seed, epoch=epoch
        )

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        return iter(()) if self._evaluation is None else self._evaluation.batches(batch_size)

    def num_train_samples(self) -> int:
        return self._train.stop - self._train.start

    def fingerprint(self) -> dict[str, object]:
        return self._identity

    def rejects(self) -> dict[str, int]:
        return self._bad


def step_times(steps: int) -> NDArray[np.float32]:
    """(S,) the dense input of each step where the data have none: its number over S, as TBSM's preparation has it."""
    return (np.arange(steps) / steps).astype(np.float32)


def batch_of(
    ids: NDArray[np.int64],
    dense: NDArray[np.float32],
    labels: NDArray[np.float32],
    origin: Origin | None = None,
) -> Batch:
    """The batch of ids (B, F, S), dense inputs (B, S, D) and labels (B,)."""
    samples = len(labels)
    flat = np.ascontiguousarray(dense.reshape(samples, -1))
    return one_hot_batch(flat, ids.reshape(samples, -1), labels, origin).mark_unshared()


def held_out(samples: Samples, options: DataOptions) -> tuple[Part, Part | None]:
    """All samples for training, or without the last fraction that `data.holdout` keeps for evaluation.

    Raises:
        InputError: if that leaves none for training.
    """
    if options.eval_part != "all":
        raise ConfigError("eval_part divides rows of criteo:, csv: and parquet: only; remove it")
    total = samples.num_samples
    cut = total - ceil(total * (options.holdout or 0.0))
    if not cut:
        raise InputError(f"data.holdout = {options.holdout:g} of {total:,} samples leaves none for training; lower it")
    return Part(samples, 0, cut), Part(samples, cut, total) if cut < total else None
