"""All rows stay on the host: the baseline of DLRM (https://arxiv.org/abs/1906.00091).

Look-ups, pooling and updates happen where the rows lie; pooled vectors and their gradients cross the link. XDL is not
this: there all dense weights cross as well, both ways at each step (FAE, arXiv 2103.00686, 5.2.3); `simulate
--dense-bytes N` models it.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats


class Hybrid(Policy):
    """No row ever comes onto the device."""

    misses = "host"
    device_rows = "0"

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return np.zeros(len(rows))
