"""`SequenceDataset`: batches of samples that are sequences, and their built-in stream.

Letters: B samples, S steps of a sample (the history and, last, the candidate), F features of a step, D dense inputs of
a step.

The built-in stream is seeded and stateless, with known probabilities. A user likes three categories. Three in five
steps of the history, and half of the candidates, are items of these; all others are items of any category. Popular
users, categories and items occur more often. A click depends only on the share of the history's steps that have the
candidate's category:

    probability = 1 / (1 + exp(-(BIAS + GAIN * share)))

So a model must compare the candidate with the history, or memorize each user. Every value is a function of (seed,
sample), so any block of samples can be made anywhere, any number of times.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from adaptive.batch import Batch, Origin, one_hot_batch
from adaptive.data.data_options import DataOptions, SequencesConfig
from adaptive.data.dataset import Dataset, Feature
from adaptive.data.rows.split import count_training
from adaptive.data.sampling import in_blocks, numbers
from adaptive.errors import ConfigError


class Samples(ABC):
    """Samples that can be accessed by number, from 0."""

    num_samples: int

    @abstractmethod
    def take(self, wanted: NDArray[np.int64]) -> Batch:
        """Return the batch of the samples `wanted` (B,), in this order."""


@dataclass(frozen=True)
class Part:
    """The samples [start, stop)."""

    samples: Samples
    start: int
    stop: int

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield batches of `size` samples; the last one may be smaller."""
        if size < 1:
            raise ConfigError(f"batch_size: expected 1 or more, got {size}. Raise it.")
        for first in range(self.start, self.stop, size):
            yield self.samples.take(np.arange(first, min(first + size, self.stop)))


class SequenceDataset(Dataset):
    """Sequences as a data set. Feature `TABLE_t` is the lookup of step t in a table.

    The last step is the candidate.

    Args:
        tables: name -> rows.
        steps: S.
        num_dense: D.
        identity: facts that identify the data, for the fingerprint.
        shuffle: number of samples to shuffle together, and the seed.
        bad: number of bad lines by cause.
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
        """Return batches of the training part, in its order or shuffled in blocks."""
        read = self._train.batches
        return in_blocks(read, batch_size, shuffle_buffer=self._shuffle_buffer, seed=self._seed, epoch=epoch)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        return iter(()) if self._evaluation is None else self._evaluation.batches(batch_size)

    def num_train_samples(self) -> int:
        return self._train.stop - self._train.start

    def fingerprint(self) -> dict[str, object]:
        return self._identity

    def rejects(self) -> dict[str, int]:
        return self._bad


def step_times(steps: int) -> NDArray[np.float32]:
    """Return (S,) default dense inputs: step number over S, as in TBSM's preparation."""
    return (np.arange(steps) / steps).astype(np.float32)


def batch_of(
    ids: NDArray[np.int64], dense: NDArray[np.float32], labels: NDArray[np.float32], origin: Origin | None = None
) -> Batch:
    """Return the batch of ids (B, F, S), dense inputs (B, S, D) and labels (B,)."""
    samples = len(labels)
    flat = np.ascontiguousarray(dense.reshape(samples, -1))
    return one_hot_batch(flat, ids.reshape(samples, -1), labels, origin).mark_unshared()


def split_holdout(samples: Samples, holdout: float) -> tuple[Part, Part | None]:
    """Split off the last fraction `holdout`, if not 0; raise InputError if nothing is left."""
    total = samples.num_samples
    cut = count_training(total, holdout)
    return Part(samples, 0, cut), Part(samples, cut, total) if cut < total else None


GENERATOR = 1  # increase it when the same settings give other samples
BIAS, GAIN = -2.0, 15.0
LIKED = 3  # categories of a user
LIKED_STEPS, LIKED_CANDIDATES = 0.6, 0.5  # shares of liked categories
SKEW, ITEM_SKEW = 2, 3  # a rank of n is floor(n * u^skew), with u uniform in [0, 1)


def open_sequences(paths: str, options: DataOptions, run_dir: Path | None) -> SequenceDataset:
    """Open the data set `sequences`, with `options.history` steps before each candidate."""
    config, history = options.sequences, options.history
    samples, settings = Stream(config, history), config.model_dump(mode="json")
    train, evaluation = Part(samples, 0, config.num_train), Part(samples, config.num_train, samples.num_samples)
    return SequenceDataset(
        {"user": config.users, "item": config.items, "category": config.categories},
        train,
        evaluation if evaluation.stop > evaluation.start else None,
        steps=history + 1,
        num_dense=1,
        identity={"source": "sequences", "generator": GENERATOR, "history": history, **settings},
    )


class Stream(Samples):
    """The samples of a `SequencesConfig`."""

    def __init__(self, config: SequencesConfig, history: int) -> None:
        self.config, self.history = config, history
        self.num_samples = config.num_train + config.num_eval
        drawn = numbers(0, config.users * LIKED, 2 * config.seed + 1).reshape(config.users, LIKED)
        self._liked = _rank(drawn, config.categories)

    def take(self, wanted: NDArray[np.int64]) -> Batch:
        return self.draw(wanted)[0]

    def draw(self, wanted: NDArray[np.int64]) -> tuple[Batch, NDArray[np.float64]]:
        """Return the samples `wanted` (B,), and the probability of a click for each, float64 (B,)."""
        steps = self.history + 1
        u = self._numbers(wanted, 2 + 3 * steps)
        user, click, u = _rank(u[:, 0], self.config.users), u[:, 1], u[:, 2:].reshape(-1, 3, steps)
        share = np.full(steps, LIKED_STEPS)
        share[-1] = LIKED_CANDIDATES
        which = (u[:, 0] / share * LIKED).astype(np.int64)
        any_category = _rank(u[:, 1], self.config.categories)
        liked = self._liked[user[:, None], np.minimum(which, LIKED - 1)]
        category = np.where(which < LIKED, liked, any_category)
        probability = expit(BIAS + GAIN * (category[:, :-1] == category[:, -1:]).mean(axis=1))
        ids = np.stack([np.broadcast_to(user[:, None], category.shape), self._items(category, u[:, 2]), category], 1)
        dense = np.broadcast_to(step_times(steps)[:, None], (len(wanted), steps, 1))
        return batch_of(ids, dense, (click < probability).astype(np.float32)), probability

    def _numbers(self, wanted: NDArray[np.int64], each: int) -> NDArray[np.float64]:
        """Return (B, each) numbers in [0, 1) for the samples, whose numbers must be consecutive."""
        assert (np.diff(wanted) == 1).all()
        first = int(wanted[0]) if len(wanted) else 0
        return numbers(first * each, len(wanted) * each, 2 * self.config.seed).reshape(len(wanted), each)

    def _items(self, category: NDArray[np.int64], u: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return an item of each category c, out of c, c + categories, c + 2 * categories, ..."""
        members = (self.config.items - category - 1) // self.config.categories + 1
        rank = np.minimum((u**ITEM_SKEW * members).astype(np.int64), members - 1)
        items: NDArray[np.int64] = category + rank * self.config.categories
        return items


def _rank(u: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """Return ranks below `size`; low ones are more frequent."""
    return np.minimum((u**SKEW * size).astype(np.int64), size - 1)
