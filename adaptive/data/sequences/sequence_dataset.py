"""`SequenceDataset`: batches of samples that are sequences, from wherever `Samples` takes them; two sources of such.

Letters: B samples, S steps of a sample (the history and, last, the candidate), F features of a step, D dense inputs of
a step.

The built-in stream is seeded, stateless, with known probabilities. A user likes three categories, and three in five
steps of the history are items of these; so is half of the candidates. All else are items of any category. Popular
users, categories and items come more often. A click depends on nothing but the share of the history's steps whose
category is the candidate's:

    probability = 1 / (1 + exp(-(BIAS + GAIN * share)))

so a model must hold the candidate against the history, or learn each user by heart. Every value is a function of (seed,
sample), so any block of samples can be made anywhere, any number of times.

`tbsm:PATH[,PATH...]` reads what TBSM's preparation leaves, such as `taobao_train_t20.npz`: arrays of sequences with
their labels.

| key | shape | values |
|---|---|---|
| `X_cat` | (features, samples, steps) | whole numbers from 0: rows |
| `X_int` | (dense inputs, samples, steps) | finite numbers |
| `y` | (samples,) | 0 or 1, of the last step |

Three features are user, item and category, others c1, c2, ...; each has a table of as many rows as the largest id of
all files needs. Arrays are held in memory. Pickled arrays are refused.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from adaptive.batch import Batch, Origin, one_hot_batch
from adaptive.data.data_options import DataOptions, SequencesConfig
from adaptive.data.dataset import Dataset, Feature
from adaptive.data.npz import check_array, fits_float32, load_arrays
from adaptive.data.rows.data_files import find_parts
from adaptive.data.sampling import in_blocks, numbers
from adaptive.errors import ConfigError, InputError

KEYS = ("X_cat", "X_int", "y")
TAOBAO = ("user", "item", "category")


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

    @classmethod
    def whole(cls, samples: Samples) -> "Part":
        return cls(samples, 0, samples.num_samples)

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
        shuffle: samples that are shuffled together, and the seed.
        bad: bad lines so far by cause.
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
    ids: NDArray[np.int64], dense: NDArray[np.float32], labels: NDArray[np.float32], origin: Origin | None = None
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
    total = samples.num_samples
    cut = total - ceil(total * (options.holdout or 0.0))
    if not cut:
        raise InputError(f"data.holdout = {options.holdout:g} of {total:,} samples leaves none for training; lower it")
    return Part(samples, 0, cut), Part(samples, cut, total) if cut < total else None


GENERATOR = 1  # goes up when the same settings give other samples
BIAS, GAIN = -2.0, 15.0
LIKED = 3  # categories of a user
LIKED_STEPS, LIKED_CANDIDATES = 0.6, 0.5  # shares that are of liked categories
SKEW, ITEM_SKEW = 2, 3  # a rank of n is floor(n * u^skew), with u even in [0, 1)


def open_sequences(paths: str, options: DataOptions, run_dir: Path | None) -> SequenceDataset:
    """The data set `sequences`, with `options.history` steps before each candidate."""
    config, history = options.sequences, options.history
    samples = Stream(config, history)
    end = config.num_train + config.num_eval
    return SequenceDataset(
        {"user": config.users, "item": config.items, "category": config.categories},
        Part(samples, 0, config.num_train),
        Part(samples, config.num_train, end) if config.num_eval else None,
        steps=history + 1,
        num_dense=1,
        identity={"source": "sequences", "generator": GENERATOR, "history": history, **config.model_dump(mode="json")},
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
        """The samples of these numbers, and the probability of a click of each, float64 (B,)."""
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
        """(B, each) numbers in [0, 1) of the samples, which must follow each other."""
        assert (np.diff(wanted) == 1).all()
        first = int(wanted[0]) if len(wanted) else 0
        return numbers(first * each, len(wanted) * each, 2 * self.config.seed).reshape(len(wanted), each)

    def _items(self, category: NDArray[np.int64], u: NDArray[np.float64]) -> NDArray[np.int64]:
        """An item of each category: category c has the items c, c + categories, c + 2 * categories, ..."""
        members = (self.config.items - category - 1) // self.config.categories + 1
        rank = np.minimum((u**ITEM_SKEW * members).astype(np.int64), members - 1)
        items: NDArray[np.int64] = category + rank * self.config.categories
        return items


def _rank(u: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """Ranks below `size`, low ones more often."""
    return np.minimum((u**SKEW * size).astype(np.int64), size - 1)


def open_tbsm(paths: str, options: DataOptions, run_dir: Path | None) -> SequenceDataset:
    """The data set of `tbsm:PATH[,PATH...]`."""
    files, num_train = find_parts(paths, options.eval_data)
    contents = [read_processed(file.path) for file in files]
    for content in contents[1:]:
        if content.shape != contents[0].shape:
            raise InputError(f"{content.path}: {content.shape}, but {contents[0].path}: {contents[0].shape}")
    train, evaluation = held_out(Processed(contents[:num_train]), options)
    if num_train < len(files):
        evaluation = Part.whole(Processed(contents[num_train:]))
    features, _, steps = contents[0].ids.shape
    names = TAOBAO if features == len(TAOBAO) else [f"c{f + 1}" for f in range(features)]
    rows = np.max([content.ids.max(axis=(1, 2)) for content in contents], axis=0) + 1
    return SequenceDataset(
        dict(zip(names, rows.tolist(), strict=True)),
        train,
        evaluation,
        steps=steps,
        num_dense=len(contents[0].dense),
        identity={"files": [file.fingerprint() for file in files], "format": "tbsm", **options.identity()},
        shuffle=(options.shuffle_buffer, options.seed),
    )


@dataclass(frozen=True)
class Content:
    """The arrays of one file, checked."""

    path: Path
    ids: NDArray[Any]  # (F, N, S)
    dense: NDArray[np.float32]  # (D, N, S)
    labels: NDArray[np.float32]  # (N,)

    @property
    def shape(self) -> str:
        """What must be equal in all files, in words."""
        features, _, steps = self.ids.shape
        return f"{features} features and {len(self.dense)} dense inputs at {steps} steps"


def read_processed(path: Path) -> Content:
    """The arrays of a file.

    Raises:
        InputError: if it cannot be read, or an array is missing or not what it should be; names file and key.
    """
    ids, dense, labels = load_arrays(path, KEYS, "TBSM's", "tbsm: needs")
    check_array(
        ids.ndim == 3 and ids.dtype.kind in "iu", path, "X_cat", "whole numbers (features, samples, steps)", ids
    )
    check_array(
        0 not in ids.shape and ids.shape[2] > 1, path, "X_cat", "at least a feature, a sample and two steps", ids
    )
    check_array(int(ids.min()) >= 0, path, "X_cat", "ids from 0", ids, f"{ids.min()}")
    check_array(int(ids.max()) < 2**63, path, "X_cat", "ids below 2^63", ids, f"{ids.max()}")
    check_array(dense.ndim == 3 and dense.dtype.kind in "iuf", path, "X_int", "numbers (inputs, samples, steps)", dense)
    needed = f"{ids.shape[1]} samples at {ids.shape[2]} steps, as X_cat"
    check_array(dense.shape[1:] == ids.shape[1:], path, "X_int", needed, dense)
    check_array(fits_float32(dense), path, "X_int", "finite float32 numbers", dense, "others among them")
    dense = dense.astype(np.float32)
    check_array(labels.ndim == 1 and labels.dtype.kind in "biuf", path, "y", "numbers (samples,)", labels)
    check_array(len(labels) == ids.shape[1], path, "y", f"{ids.shape[1]} samples, as X_cat", labels)
    check_array(bool(np.isin(labels, (0, 1)).all()), path, "y", "labels 0 and 1", labels, "others among them")
    return Content(path, ids, dense, labels.astype(np.float32))


class Processed(Samples):
    """The samples of some files, one file after another; `Origin` has the number of a sample in its file, from 1."""

    def __init__(self, contents: list[Content]) -> None:
        self._ids = np.concatenate([content.ids for content in contents], axis=1)
        self._dense = np.concatenate([content.dense for content in contents], axis=1)
        self._labels = np.concatenate([content.labels for content in contents])
        self._files = tuple(str(content.path) for content in contents)
        self._starts = np.cumsum([0, *(len(content.labels) for content in contents)])
        self.num_samples = len(self._labels)

    def take(self, wanted: NDArray[np.int64]) -> Batch:
        file = np.searchsorted(self._starts, wanted, side="right") - 1
        return batch_of(
            self._ids[:, wanted].transpose(1, 0, 2).astype(np.int64),
            self._dense[:, wanted].transpose(1, 2, 0),
            self._labels[wanted],
            Origin(self._files, file.astype(np.int32), wanted - self._starts[file] + 1),
        )
