"""All rows stay on the host: the baseline of DLRM (https://arxiv.org/abs/1906.00091).

Lookups, pooling and updates run on the host; only pooled vectors and their gradients cross the link. XDL differs: it
also moves all dense weights, both ways at each step (FAE, arXiv 2103.00686, 5.2.3); `simulate --dense-bytes N` models
it.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats


class Hybrid(Policy):
    """No row is ever admitted to the device."""

    misses = "host"
    device_rows = "0"

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return np.zeros(len(rows))
