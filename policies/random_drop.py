"""Drop inputs at random: the controls that every way of dropping inputs has to beat.

Slipstream (https://arxiv.org/abs/2404.04270) drops inputs whose rows have stopped moving. A run that drops as many at
random shows how well it chose. Negative downsampling drops by the label alone: He et al., "Practical lessons from
predicting clicks on ads at Facebook", ADKDD 2014. Here the kept negatives are weighted, so predictions need no
recalibration.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Policy, RowStats, SkipRule, TierView
from adaptive.policies.samples import KeptInputs, WeightSums, check_range, check_state, weighted


class RandomDrop(Policy):
    """A row is worth its lookups so far. The skip rule drops a random share of every batch.

    Args:
        share: of the inputs to drop; skipping must be switched on (`SkipConfig`).
        by: `chance`: any inputs. `label`: negatives only, and those that are kept weigh as much as all of them.
        keep_steps: fill batches whose size is the kept share of the original one, so that a run takes as many steps as
            without dropping; otherwise batches keep their size.
        seed: of the random choice.
    """

    order = ("accesses",)

    def __init__(
        self,
        *,
        share: float = 0.1,
        by: Literal["chance", "label"] = "chance",
        keep_steps: bool = False,
        seed: int = 0,
    ) -> None:
        self.rule = Drop(share=share, by=by, keep_steps=keep_steps, seed=seed)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.accesses


class Drop(SkipRule):
    """Drop the same random share of every batch.

    Args:
        share: of the inputs to drop, exact to the input, so that a run can repeat the share of another one.
        by: `chance`: any inputs. `label`: negatives only (the first label is 0), of which one in
            every batch is kept. Those that are kept are weighted, in `Batch.extras["weight"]`, by all over kept ones.
        keep_steps: fill smaller batches, so that a run takes as many steps as without dropping.
        seed: of the random choice.

    Attributes:
        seen_inputs, dropped_inputs: samples read and dropped so far.
    """

    reported = ("effective_share",)

    drops_inputs = reads_inputs_only = True
    most = 1
    warmup = 0

    def __init__(
        self,
        *,
        share: float = 0.1,
        by: Literal["chance", "label"] = "chance",
        keep_steps: bool = False,
        seed: int = 0,
    ) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"share={share}: expected at least 0 and less than 1")
        check_range(0, seed=seed)
        self.share, self.by, self.keep_steps, self.seed = share, by, keep_steps, seed
        self.seen_inputs = self.dropped_inputs = 0
        self._weights = WeightSums()
        self._owed = 0  # inputs still to drop: a batch may have too few negatives

    @property
    def effective_share(self) -> float:
        return self._weights.effective_share

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        refill, size = KeptInputs(self), 0
        for batch in batches:
            size = size or batch.num_samples
            share, first = self.share, self.seen_inputs
            refill.size = max(1, round(size * (1 - share * self.keep_steps)))
            # Seeded by position, so that a resumed run continues as the saved one would have.
            order = np.random.default_rng([self.seed, self.seen_inputs]).permutation(batch.num_samples)
            end = first + batch.num_samples
            self._owed += _num_dropped(end, share) - _num_dropped(first, share)
            if self.by == "chance":
                chosen = order >= self._owed
            else:
                batch, chosen = _choose_by_label(batch, order, self._owed, 1 - share)
                self._weights.add(batch.extras["weight"][chosen])
            self._owed -= int((~chosen).sum())
            yield from refill.add(batch, chosen)
        yield from refill.rest()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        inputs = np.array([self.seen_inputs, self.dropped_inputs, self._owed])
        return {"inputs": inputs, "weights": self._weights.values.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, "inputs", "weights")
        self._weights.values[:] = state["weights"]
        self.seen_inputs, self.dropped_inputs, self._owed = (int(number) for number in state["inputs"])


def _choose_by_label(
    batch: Batch, order: NDArray[np.int64], wanted: int, scale: float
) -> tuple[Batch, NDArray[np.bool_]]:
    """Drop the `wanted` negatives that come first in `order` (B,); return the weighted batch, and which inputs stay.

    scale: the share of inputs that stay, which makes the mean weighted loss of those that stay that of all inputs.
    """
    negatives = np.flatnonzero(batch.labels == 0)
    dropped = negatives[np.argsort(order[negatives])][: max(min(wanted, len(negatives) - 1), 0)]
    weights = np.full(batch.num_samples, scale)
    weights[negatives] *= len(negatives) / max(len(negatives) - len(dropped), 1)
    chosen = np.ones(batch.num_samples, np.bool_)
    chosen[dropped] = False
    return weighted(batch, weights), chosen


def _num_dropped(num_inputs: int, share: float) -> int:
    """Number of the first `num_inputs` inputs that are dropped."""
    return int(share * num_inputs * (1 + 2**-50))  # 31 / 55 * 55 is a little less than 31
