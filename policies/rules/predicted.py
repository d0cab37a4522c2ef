"""Skip inputs that a cheap prediction gets right already, and weight the others so that the expected gradient stays.

Every gradient of a sample has the factor probability - label. A sample with a small one has little left to teach. It is
kept with a probability in proportion to this residual, and weighted by the inverse if it is kept. So the expected
gradient is that of all samples, and with `factor` c its variance is about 1 + 1/c of theirs. Fithian and Hastie, "Local
case-control sampling", Annals of Statistics 42(5), 2014, https://arxiv.org/abs/1306.3706.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, ClickPredictor, RowStats, SkipRule, TierView
from adaptive.policies.samples import Refill, check_range, check_state, uniform


class Predicted(SkipRule):
    """Skip predictable inputs, with inverse-probability weights in `Batch.extras["weight"]`.

    The prediction is a logistic regression that learns from every input in the look-ahead. It needs labels from 0 to 1;
    of several labels it predicts the first. Where it knows nothing, nothing is skipped. Kept inputs fill batches whose
    size is the kept share of the original one, so a run takes as many steps as without skipping, each of them shorter.

    Args:
        factor: an input with residual r is kept with probability factor * r, at most 1.
        min_keep: the least probability with which an input is kept; 1 / `min_keep` bounds the weights.
        rate: learning rate of the prediction.
        warmup: batches from which it learns before anything is skipped.
        seed: of the random choice.

    Attributes:
        seen_inputs, dropped_inputs: inputs read, and inputs left out, so far.
        effective_share: (sum w)^2 / (n * sum w^2) over the n inputs kept since the warm-up, w their weights: the share
            of equally weighted inputs that would estimate the gradient as well.
    """

    drops_inputs = True
    watches = asks = False
    at_most = 1
    reported = ("seen_inputs", "dropped_inputs", "effective_share")

    def __init__(
        self, *, factor: float = 5.0, min_keep: float = 0.1, rate: float = 0.1, warmup: int = 100, seed: int = 0
    ) -> None:
        check_range(0, factor=factor, rate=rate, seed=seed)
        check_range(0.001, 1, min_keep=min_keep)
        check_range(1, warmup=warmup)
        self.factor, self.min_keep, self.rate, self.warmup, self.seed = factor, min_keep, rate, warmup, seed
        self.seen_inputs = self.dropped_inputs = 0
        self._batches = 0
        self._kept_share = 1.0  # size of a filled batch over that of a batch as read
        self._measured = np.zeros(2)  # sum of keep probabilities, inputs: since the share was measured
        self._weights = np.zeros(3)  # number, sum, sum of squares of the weights since the warm-up
        self._predictor = ClickPredictor(rate=rate)

    @property
    def effective_share(self) -> float:
        count, total, squares = self._weights
        return float(total * total / (count * squares)) if count else 1.0

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        return np.ones(len(rows), np.int64)

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        refill, size = Refill(), 0
        for batch in batches:
            size = size or batch.num_samples
            self._measure_kept_share()
            refill.size = max(1, round(size * self._kept_share))
            if not ((batch.labels >= 0) & (batch.labels <= 1)).all():  # NaN is neither
                raise ValueError("expected labels from 0 to 1, by which `predicted` skips; got others")
            residuals = np.abs(self._predictor.residuals(batch, view.rows(batch), view.num_rows))
            yield from refill.add(*self._sample(batch, residuals, refill.size / size))
        if refill.filled:  # a small last batch would weigh its few inputs like a full one its many
            self.dropped_inputs += refill.num_waiting
        else:
            yield from refill.rest()

    def _measure_kept_share(self) -> None:
        """Adapt the size of batches every `warmup` batches, by 5% or more: shapes that change slow a step down."""
        if self._batches and self._batches % self.warmup == 0:
            share = float(self._measured[0] / self._measured[1])
            self._measured[:] = 0
            if abs(share - self._kept_share) > 0.05 * self._kept_share:
                self._kept_share = share

    def _sample(self, batch: Batch, residuals: NDArray[np.float32], scale: float) -> tuple[Batch, NDArray[np.bool_]]:
        """Return the batch with weights, and which of its inputs (B,) are kept."""
        numbers = self.seen_inputs + np.arange(batch.num_samples)
        keep = np.clip(self.factor * residuals.astype(np.float64), self.min_keep, 1)
        self._measured += keep.sum(), len(keep)
        skips = self._batches >= self.warmup
        keep[~self.allows(numbers) | (not skips)] = 1
        chosen = uniform(numbers, self.seed) < keep
        weights = scale / keep
        if skips:
            self._weights += chosen.sum(), weights[chosen].sum(), (weights[chosen] ** 2).sum()
        self._batches += 1
        self.seen_inputs += len(chosen)
        self.dropped_inputs += int((~chosen).sum())
        weights *= batch.extras.get("weight", 1)
        extras = {**batch.extras, "weight": weights.astype(np.float32)}
        return replace(batch, extras=extras).mark_unshared(), chosen

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {
            "inputs": np.array([self.seen_inputs, self.dropped_inputs, self._batches]),
            "sums": np.array([self._kept_share, *self._measured, *self._weights]),
            **self._predictor.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, *self.state_dict())
        self.seen_inputs, self.dropped_inputs, self._batches = map(int, state["inputs"])
        self._kept_share, *sums = map(float, state["sums"])
        self._measured[:], self._weights[:] = sums[:2], sums[2:]
        self._predictor.load_state_dict(state)
