"""Evict rows with the farthest next use (ScratchPipe, https://arxiv.org/abs/2205.04702).

ScratchPipe reads the ids of upcoming batches, so that every row is on the device when its batch trains. The same ids
show which rows will be used again, and when.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive import NEVER, Policy, RowStats
from adaptive.policies.samples import check_range


class ScratchPipe(Policy):
    """Keep rows that the window uses, soonest first, then the most recently used ones.

    Args:
        window: batches whose ids are read beyond the planned ones. A longer window gives fewer wrong guesses, and takes
            memory for the ids.
    """

    def __init__(self, *, window: int = 16) -> None:
        check_range(1, window=window)
        self.window = window

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        ahead = np.where(rows.next_access == NEVER, 0, rows.next_access - rows.step)
        behind = rows.step - rows.last_access
        return np.where(rows.next_access == NEVER, -1.0 - behind, 1.0 / (1.0 + ahead))
