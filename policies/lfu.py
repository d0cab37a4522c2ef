"""Evict the least frequently used rows, optionally with aging.

After LRFU (https://doi.org/10.1109/TC.2001.970573), which discounts every lookup by its own age and keeps that sum per
row. Here the whole count is discounted by the age of the latest lookup, which needs no state: a row that is looked up
again gets its full count back.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats


class LFU(Policy):
    """A row is worth its lookups so far, halved for every `half_life` batches without one.

    Args:
        half_life: in batches; None: no aging. If popularity drifts, choose about a tenth of the batches in which it
            turns over.
    """

    order: tuple[str, ...] = ("accesses", "last_access")

    def __init__(self, *, half_life: float | None = None) -> None:
        if half_life is not None and not half_life > 0:
            raise ValueError(f"half_life={half_life}: expected more than 0 batches, or none for no aging")
        self.half_life = half_life
        if half_life is not None:
            self.order = ()

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        age = (rows.step - rows.last_access).astype(np.float64)
        if self.half_life is None:  # equal counts are common; ties are broken by the latest lookup
            return rows.accesses - age / (rows.step + 2)
        # The logarithm keeps the order and cannot underflow.
        score: NDArray[np.float64] = np.log2(np.maximum(rows.accesses, 1)) - age / self.half_life
        return score
