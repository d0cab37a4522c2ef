"""Skip inputs that a cheap prediction gets right already, and weight the others so that the expected gradient stays.

Every gradient of a sample has the factor probability - label. A sample with a small one has little left to teach. It is
kept with a probability in proportion to this residual, and weighted by the inverse if it is kept. So the expected
gradient is that of all samples, and with `factor` c its variance is about 1 + 1/c of theirs. Fithian and Hastie, "Local
case-control sampling", Annals of Statistics 42(5), 2014, https://arxiv.org/abs/1306.3706.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, ClickPredictor, InputRule
from adaptive.policies.samples import check_range, check_state, uniform

BINS: Final = 256  # of the residuals, from 0 to 1
MIDDLES: Final = (np.arange(BINS) + 0.5) / BINS
# To predict, and to take batches apart, costs 8% of a step of the default model on two cores, so steps over fewer
# inputs save more than that only from about this skipped share on.
LEAST_SKIPPED: Final = 0.15
# Of the warm-up, its end: the prediction is good enough then, and the steps before show what a rule saves.
LEARNS: Final = 0.4
FADES: Final = 0.95  # share of a residual's count that a batch leaves: predictions get better all the time
# Over five seeds of the default stream half as many steps cost no AUC (+0.0000); whole batches, a quarter of the steps,
# cost 0.0009. A step takes time however few inputs it has.
FILLS: Final = 2
RESTS: Final = 4  # warm-ups of rest after the first attempt where too few inputs would go; then twice as many each time
MOST_RESTS: Final = 64


class Predicted(InputRule):
    """Skip predictable inputs, with inverse-probability weights in `Batch.extras["weight"]`.

    The prediction is a logistic regression that learns from inputs in the look-ahead. It needs labels from 0 to 1.
    Where less than 15% of the inputs would go, skipping does not pay: nothing is skipped, and the rule rests until it
    tries again, each time twice as long.
    Kept inputs fill batches of twice the kept share of the original size, at most all of it, so a run takes half as
    many steps as without skipping, each of them shorter. A lookup's gradient stays what it was: weights are twice as
    large.

    Args:
        factor: an input with residual r is kept with probability factor * r, at most 1.
        min_keep: the least probability with which an input is kept; 1 / `min_keep` bounds the weights.
        rate: learning rate of the prediction.
        warmup: batches before anything is skipped; the prediction learns from their last 40%.
        seed: of the random choice.

    Attributes:
        current_factor: the factor in use; 0: nothing is skipped.
        skippable_share: share of the inputs that would go, as of the latest choice; 0 before the first one.
    """

    reported = ("current_factor", "rest", "skippable_share")

    def __init__(
        self,
        *,
        factor: float = 5.0,
        min_keep: float = 0.1,
        rate: float = 0.05,
        warmup: int = 100,
        seed: int = 0,
    ) -> None:
        check_range(0, factor=factor, rate=rate, seed=seed)
        check_range(0.001, 1, min_keep=min_keep)
        check_range(1, warmup=warmup)
        self.factor, self.min_keep = factor, min_keep
        self.rate, self.warmup, self.seed = rate, warmup, seed
        self.current_factor = self.skippable_share = 0.0
        self._learns = max(1, round(LEARNS * warmup))
        self.rest = warmup - self._learns
        self._next_choice = self._learns  # in so many batches
        self._rests = RESTS  # warm-ups of the next rest
        self._size = 0  # inputs of the first batch
        self._kept_share = 1.0
        self._residuals = np.zeros(BINS)  # inputs by residual, earlier ones fade
        self._predictor = ClickPredictor(rate=rate)

    @property
    def pays(self) -> bool:  # type: ignore[override]
        """False from an attempt at which too few inputs would go until one at which enough do."""
        return self._rests == RESTS

    def keep(self, batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        self._size = self._size or batch.num_samples
        if not self._next_choice:
            self._choose()
        self.batch_share = max(1, round(self._size * min(1, FILLS * self._kept_share))) / self._size
        if batch.num_samples and not 0 <= batch.labels.min() <= batch.labels.max() <= 1:  # also if one is NaN
            raise ValueError("expected labels from 0 to 1, by which `predicted` skips; got others")
        residuals = np.abs(self._predictor.residuals(batch, rows, self.num_rows))
        self._next_choice -= 1
        if self._next_choice < self._learns:  # earlier ones would have faded before the choice: 0.95^40 = 0.13
            bins = np.minimum(residuals * np.float32(BINS), BINS - 1).astype(np.int64)
            self._residuals *= FADES
            self._residuals += np.bincount(bins, minlength=BINS)
        kept = self._probability(residuals)
        numbers = np.arange(self.seen_inputs, self.seen_inputs + batch.num_samples)
        return np.where(uniform(numbers, self.seed) < kept, self.batch_share / kept, 0.0)

    def _choose(self) -> None:
        """Choose by the latest residuals whether inputs are skipped, and the size of batches.

        The size changes by 5% or more: shapes that change slow a step down.
        """
        counts = self._residuals / self._residuals.sum()
        self.current_factor = self.factor
        share = float(counts @ self._probability(MIDDLES))
        self._next_choice = self.warmup
        self.skippable_share = 1 - share
        if share > 1 - LEAST_SKIPPED:
            self.current_factor, self._kept_share = 0.0, 1.0
            self.rest, self._next_choice = self._rests * self.warmup, self._learns
            self._rests = min(2 * self._rests, MOST_RESTS)
            return
        self._rests = RESTS
        if abs(share - self._kept_share) > 0.05 * self._kept_share:
            self._kept_share = share

    def _probability(self, residuals: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return the probability with which inputs of these residuals (n,) are kept."""
        if not self.current_factor:
            return np.ones(len(residuals))
        return np.clip(np.float64(self.current_factor) * residuals, self.min_keep, 1)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {
            "next_choice": np.array([self._next_choice]),
            "next_rest": np.array([self._rests]),
            "shares": np.array([self.current_factor, self._kept_share, self.skippable_share]),
            "residuals": self._residuals.copy(),
            **self._predictor.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, *self.state_dict())
        (self._next_choice,), (self._rests,) = map(int, state["next_choice"]), map(int, state["next_rest"])
        self.current_factor, self._kept_share, self.skippable_share = map(float, state["shares"])
        self._residuals[:] = state["residuals"]
        self._predictor.load_state_dict(state)
