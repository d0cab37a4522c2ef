"""Drop inputs at random: the control that every way of dropping inputs has to beat.

Slipstream (https://arxiv.org/abs/2404.04270) drops inputs whose rows have stopped moving. A run that drops as many at
random shows how well it chose.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats
from adaptive.policies.rules.drop import Drop


class RandomDrop(Policy):
    """A row is worth its lookups so far. The skip rule drops a random share of every batch.

    Args:
        share: of the inputs to drop; skipping must be switched on (`SkipConfig`).
        seed: of the random choice.
    """

    order = ("accesses",)

    def __init__(self, *, share: float = 0.1, seed: int = 0) -> None:
        self.rule = Drop(share=share, seed=seed)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.accesses
