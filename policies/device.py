"""All rows on the device: the GPU-only baseline, possible where the tables fit.

Measured against the hybrid baseline in https://arxiv.org/abs/2011.05497 (Acun et al., HPCA 2021).
"""

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats


class Device(Policy):
    """Every row has a slot, so none is evicted."""

    device_rows = "100%"

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return np.zeros(len(rows))
