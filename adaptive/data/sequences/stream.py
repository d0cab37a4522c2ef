"""The built-in stream of sequences: seeded, stateless, with known probabilities.

A user likes three categories, and three in five steps of the history are items of these; so is half of the candidates.
All else are items of any category. Popular users, categories and items come more often. A click depends on nothing but
the share of the history's steps whose category is the candidate's:

    probability = 1 / (1 + exp(-(BIAS + GAIN * share)))

so a model must hold the candidate against the history, or learn each user by heart. Every value is a function of (seed,
sample), so any block of samples can be made anywhere, any number of times.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from adaptive.batch import Batch
from adaptive.data.sampling import numbers
from adaptive.data.sequences.config import SequencesConfig
from adaptive.data.sequences.dataset import Part, Samples, SequenceDataset, batch_of, step_times

GENERATOR = 1  # goes up when the same settings give other samples
BIAS, GAIN = -2.0, 15.0
LIKED = 3  # categories of a user
LIKED_STEPS, LIKED_CANDIDATES = 0.6, 0.5  # shares that are of liked categories
SKEW, ITEM_SKEW = 2, 3  # a rank of n is floor(n * u^skew), with u even in [0, 1)


def open_sequences(config: SequencesConfig, history: int) -> SequenceDataset:
    """The data set `sequences`, with `history` steps before each candidate."""
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
