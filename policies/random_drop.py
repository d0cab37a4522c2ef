"""Drop inputs at random: the controls that every way of dropping inputs has to beat.

Slipstream (https://arxiv.org/abs/2404.04270) drops inputs whose rows have stopped moving. A run that drops as many at
random shows how well it chose. Negative downsampling drops by the label alone: He et al., "Practical lessons from
predicting clicks on ads at Facebook", ADKDD 2014. Here the kept negatives are weighted, so predictions need no
recalibration.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, InputRule, Policy, RowStats
from adaptive.policies.samples import check_range, check_state


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


class Drop(InputRule):
    """Drop the same random share of every batch.

    Args:
        share: of the inputs to drop, exact to the input, so that a run can repeat the share of another one.
        by: `chance`: any inputs. `label`: negatives only (the first label is 0), of which one in
            every batch is kept. Those that are kept are weighted, in `Batch.extras["weight"]`, by all over kept ones.
        keep_steps: fill smaller batches, so that a run takes as many steps as without dropping.
        seed: of the random choice.
    """

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
        self.batch_share = 1 - share * keep_steps
        self._owed = 0  # inputs still to drop: a batch may have too few negatives

    def keep(self, batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        first, size = self.seen_inputs, batch.num_samples
        # Seeded by position, so that a resumed run continues as the saved one would have.
        order = np.random.default_rng([self.seed, first]).permutation(size)
        self._owed += _num_dropped(first + size, self.share) - _num_dropped(first, self.share)
        if self.by == "chance":
            weights = np.ones(size)
            weights[order < self._owed] = 0
        else:
            weights = (1 - self.share) * _weights_by_label(batch.labels, order, self._owed)
        self._owed -= int((weights == 0).sum())
        return weights

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"owed": np.array([self._owed])}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, "owed")
        (self._owed,) = map(int, state["owed"])


def _weights_by_label(labels: NDArray[np.float32], order: NDArray[np.int64], wanted: int) -> NDArray[np.float64]:
    """Drop the `wanted` negatives that come first in `order` (B,); the others weigh as much as all."""
    negatives = np.flatnonzero(labels == 0)
    dropped = negatives[np.argsort(order[negatives])][: max(min(wanted, len(negatives) - 1), 0)]
    weights = np.ones(len(labels))
    weights[negatives] = len(negatives) / max(len(negatives) - len(dropped), 1)
    weights[dropped] = 0
    return weights


def _num_dropped(num_inputs: int, share: float) -> int:
    """Number of the first `num_inputs` inputs that are dropped."""
    return int(share * num_inputs * (1 + 2**-50))  # 31 / 55 * 55 is a little less than 31
