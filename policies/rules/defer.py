"""Postpone the updates of saturated rows: their gradients are summed and applied together.

Nothing is lost. A row is saturated if its latest updates moved it by less than 5% of its length each. Updates move a
row mostly back and forth, as in a random walk, so k of them move it by sqrt(k) times the size of one. A saturated row
accumulates its gradients over as many visits as move it by 5% in all, k = (5% / size)^2. A row that moves again is
updated at every visit. Slipstream (https://arxiv.org/abs/2404.04270) drops inputs of rows that hardly move;
docs/explanation/skipping.md measures what each way costs.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive import SATURATED, RowStats, SkipRule
from adaptive.policies.samples import check_range

# Defaults by optimizer, as measured for docs/explanation/skipping.md; others are as Adagrad. Under SGD a step with the
# sum of k gradients is one k-fold step.
MOST: Final = {"sgd": 4, "adam": 8}
MOST_OTHERS: Final = 16


class Defer(SkipRule):
    """Postpone updates of saturated rows and apply them together. Nothing is lost.

    Args:
        at_most: most visits whose gradients are summed; none: 16, under Adam 8, under SGD 4.
        warmup: batches before anything is postponed; harm, if any, is done early.
    """

    def __init__(self, *, at_most: int | None = None, warmup: int = 100) -> None:
        check_range(1, 255, at_most=at_most)
        check_range(0, warmup=warmup)
        self._at_most, self.warmup = at_most, warmup
        self.begin("adagrad")

    def begin(self, optimizer: str) -> None:
        self.most = self._at_most or MOST.get(optimizer, MOST_OTHERS)

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        sizes = np.where(rows.saturated, rows.update_size, SATURATED).astype(np.float64)  # NaN is not saturated
        ratio = SATURATED / np.maximum(sizes, SATURATED / 16)
        wanted: NDArray[np.int64] = (ratio * ratio + 1e-6).astype(np.int64)
        return np.minimum(wanted, self.most)
