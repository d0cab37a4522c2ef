"""Evict the least recently used rows (https://doi.org/10.1147/sj.92.0078)."""

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats


class LRU(Policy):
    """A row is worth the number of the latest batch that looked it up."""

    order = ("last_access",)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.last_access
