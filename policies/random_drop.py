"""Leave inputs out at random: the control that every way of dropping inputs has to beat.

Slipstream (https://arxiv.org/abs/2404.04270) drops inputs whose rows have stopped moving. A run next to it that drops
as many without looking shows how well it chose.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats
from adaptive.policies.rules.drop import Drop


class RandomDrop(Policy):
    """Rows are worth their lookups so far; its skip rule drops the same share of every mini-batch, chosen at random.

    Args:
        share: of the inputs, dropped; needs skipping to be switched on (`SkipConfig`).
        seed: of the choice.
    """

    order = ("accesses",)

    def __init__(self, *, share: float = 0.1, seed: int = 0) -> None:
        self.rule = Drop(share=share, seed=seed)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.accesses
