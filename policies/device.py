"""All rows on the device: the GPU-only baseline, possible where the tables fit.

Measured against the hybrid baseline in https://arxiv.org/abs/2011.05497 (Acun et al., HPCA 2021).
"""

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats


class Device(Policy):
    """Every row has a slot, so none is evicted."""

    device_rows = "100%"
    order = ("last_access",)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.last_access
