"""The built-in stream of click data: seeded, stateless, with known probabilities.

Every value is a function of (seed, sample index, feature), so any block of samples can be made anywhere, any number
of times, and memory does not grow with samples or rows. What a sample's click depends on is in `teacher`,
who is looked up how often in `fields`.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.data.dataset import Dataset, Feature
from adaptive.data.kernels import synthetic as kernels
from adaptive.data.synthetic.config import SyntheticConfig
from adaptive.data.synthetic.fields import key_of, make_fields
from adaptive.data.synthetic.teacher import POOLED, calibrate, make_teacher
from adaptive.errors import ConfigError, InputError

__all__ = ["Synthetic", "SyntheticConfig"]

GENERATOR = 1  # goes up when the same settings give other samples
LATENT_CORRELATION = 0.8  # of the first dense input with the sample's latent number
CALIBRATION_SAMPLES = 200_000  # the Bayes AUC of so many samples varies by 0.0005, of a twentieth of them by 0.0022
CALIBRATION_VALUES = 10_000_000  # look-ups and dense inputs in them, at most; but at least a twentieth of the samples
ADDED = ("num_dense", "tables", "lookups", "labels")  # settings that there were not from the beginning
BLOCK = 8192  # samples made at a time while calibrating, so that they stay in the cache


class Synthetic(Dataset):
    """The stream of a `SyntheticConfig`: features C1, C2, ... (26 by default), dense inputs I1, I2, ... (13).

    Samples [0, num_train) are the training part, the same in every epoch; the evaluation part follows behind them,
    and behind the drift where there is one. Click-through rate 0.25 and Bayes AUC 0.80 hold before the drift.
    """

    def __init__(self, config: SyntheticConfig | None = None) -> None:
        self.config = config or SyntheticConfig()
        self.num_dense = self.config.num_dense
        self._fields = make_fields(self.config)
        self.features = tuple(Feature(f"C{f + 1}", int(size)) for f, size in enumerate(self._fields["size"]))
        self._latent_key = key_of(self.config.seed, "latent")
        self._label_key = key_of(self.config.seed, "label")
        further = [f"label_{number}" for number in range(2, self.config.labels + 1)]
        self.labels = ("label", *further) if further else ()
        self._further_keys = [key_of(self.config.seed, name) for name in further]
        self._dense_keys = np.array([key_of(self.config.seed, f"I{d + 1}") for d in range(self.num_dense)], np.uint64)
        self._teacher = make_teacher(self.config, self._fields)
        self._calibration = calibrate(self.config, self._calibration_parts())

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        return self._batches(0, self.config.num_train, batch_size)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        return self._batches(self.config.num_train, self.config.num_samples, batch_size)

    def num_train_samples(self) -> int:
        return self.config.num_train

    def fingerprint(self) -> dict[str, object]:
        """Of a shape only what is not the default, as in runs from before there were other shapes."""
        default = {name: SyntheticConfig.model_fields[name].default for name in ADDED}
        found = self.config.model_dump(mode="json")
        settings = {name: value for name, value in found.items() if name not in default or value != default[name]}
        return {"source": "synthetic", "generator": GENERATOR, **settings}

    def samples(self, start: int, stop: int) -> tuple[Batch, NDArray[np.float64]]:
        """The samples [start, stop) and the probability of a click of each, float64 (stop - start,).

        Raises:
            InputError: if the range does not lie within the training and evaluation samples.
        """
        if not 0 <= start <= stop <= self.config.num_samples:
            raise InputError(
                f"synthetic: samples [{start}, {stop}) asked for, but there are [0, {self.config.num_samples}); "
                "raise num_train or num_eval"
            )
        begin = self.config.drift_begin
        first_drifted = stop - start if begin is None else begin - start
        ids, dense = self._inputs(start, stop, first_drifted)
        parts = self._teacher.signal(ids, dense, first_drifted)
        probability = self._calibration.probability(parts)
        labels = np.empty(stop - start, np.float32)
        kernels.draw_labels(self._label_key, start, probability, labels)
        offsets, extras = np.arange(0, ids.size + 1, self.config.lookups), self._further_labels(start, parts)
        batch = Batch(dense=dense, ids=ids.reshape(-1), offsets=offsets, labels=labels, extras=extras)
        return batch.mark_unshared(), probability

    def _further_labels(self, start: int, parts: NDArray[np.float64]) -> dict[str, NDArray[np.float32]]:
        """Labels of the samples from `start` on, given the parts of their logits (3, B): of the second label the part
        of dense inputs counts against it, of the third that of pairs of ids, of the fourth both."""
        found = {}
        for number, key in enumerate(self._further_keys, start=1):
            signs = np.array([1.0, -1.0 if number & 2 else 1.0, -1.0 if number & 1 else 1.0])
            labels = np.empty(parts.shape[1], np.float32)
            kernels.draw_labels(key, start, self._calibration.probability(parts * signs[:, None]), labels)
            found[self.labels[number]] = labels
        return found

    def _batches(self, start: int, stop: int, batch_size: int) -> Iterator[Batch]:
        if batch_size < 1:
            raise ConfigError(f"batch_size: at least 1 needed, found {batch_size}")
        return (self.samples(first, min(first + batch_size, stop))[0] for first in range(start, stop, batch_size))

    def _inputs(self, start: int, stop: int, first_drifted: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids (F, B), feature-major as batches are, and dense inputs (B, D)."""
        latent = np.empty(stop - start)
        dense = np.empty((stop - start, self.num_dense), np.float32)
        ids = np.empty((len(self._fields), stop - start, self.config.lookups), np.int64)
        kernels.draw_normals(self._latent_key, start, latent)
        if self.num_dense:
            kernels.draw_dense(self._dense_keys, start, LATENT_CORRELATION, latent, dense)
        kernels.draw_ids(self._fields, start, first_drifted, latent, ids)
        return ids, dense

    def _calibration_parts(self) -> NDArray[np.float64]:
        """Parts of the logits (3, B) of the first samples, as they are without drift."""
        values = self.num_dense + self.config.tables * self.config.lookups
        samples = min(CALIBRATION_SAMPLES, max(CALIBRATION_VALUES // values, CALIBRATION_SAMPLES // 20))
        samples -= samples % POOLED
        parts = np.empty((3, samples))
        for start in range(0, samples, BLOCK):
            stop = min(start + BLOCK, samples)
            ids, dense = self._inputs(start, stop, BLOCK)
            parts[:, start:stop] = self._teacher.signal(ids, dense, BLOCK)
        return parts
