"""A small data set and model: 3 features, 2 dense inputs, clicks that depend on both. Lines come from two files."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, Origin, one_hot_batch
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset, Feature

SIZES = {"site": 40, "user": 300, "hour": 7}
SMALL_DLRM = {"embedding_dim": 4, "bottom_mlp": (8, 4), "top_mlp": (8, 1)}


class ToyData(Dataset):
    """`num_train` samples, then `num_eval`; `spoil` maps a training sample to the value of its first dense input."""

    def __init__(
        self,
        num_train: int = 640,
        num_eval: int = 256,
        *,
        spoil: dict[int, float] | None = None,
        seed: int = 0,
    ) -> None:
        self.features = tuple(Feature(name, size) for name, size in SIZES.items())
        self.num_dense = 2
        self._num_train, self._num_eval, self._seed = num_train, num_eval, seed
        rng, total = np.random.default_rng(seed), num_train + num_eval
        self._ids = np.stack([(rng.power(0.5, total) * size).astype(np.int64) for size in SIZES.values()], axis=1)
        self._dense = rng.normal(size=(total, 2)).astype(np.float32)
        effects = [rng.normal(size=size) for size in SIZES.values()]
        logits = self._dense[:, 0] + sum(effect[self._ids[:, f]] for f, effect in enumerate(effects)) - 1
        self._labels = (rng.random(total) < 1 / (1 + np.exp(-logits))).astype(np.float32)
        for sample, value in (spoil or {}).items():
            self._dense[sample, 0] = value

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        return self._batches(0, self._num_train, batch_size)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        return self._batches(self._num_train, self._num_train + self._num_eval, batch_size)

    def num_train_samples(self) -> int:
        return self._num_train

    def fingerprint(self) -> dict[str, object]:
        return {"name": "toy", "seed": self._seed, "samples": (self._num_train, self._num_eval)}

    def _batches(self, start: int, stop: int, batch_size: int) -> Iterator[Batch]:
        for first in range(start, stop, batch_size):
            samples = np.arange(first, min(first + batch_size, stop))
            dense, ids, labels = self._dense[samples], self._ids[samples], self._labels[samples]
            yield one_hot_batch(dense, ids, labels, _origin(samples))


def _origin(samples: NDArray[np.int64]) -> Origin:
    """The first 100 samples come from a.tsv, the rest from b.tsv; lines count from 1 in each."""
    later = samples >= 100
    return Origin(("a.tsv", "b.tsv"), later.astype(np.int32), samples - 100 * later + 1)


def toy_config(**changed: Any) -> TrainConfig:
    """Settings that fit: batches of 32, records every 4 steps."""
    given = {
        "model_options": SMALL_DLRM,
        "batch_size": 32,
        "eval_batch_size": 100,
        "log_every": 4,
        "calibrate": 2,
        "tensorboard": False,
        "tier": {"device_rows": "60%"},
    }
    return TrainConfig.model_validate(given | changed)
