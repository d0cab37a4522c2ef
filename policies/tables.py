"""Keep whole tables on the device, by lookups per byte (mixed placement).

One of the four placements in https://arxiv.org/abs/2011.05497 (Acun et al., HPCA 2021, IV.B): some tables are in GPU
memory, the others in system memory, decided before training. Lookups are counted in the calibration sample. The paper
places whole tables; here rows of a table are admitted as they are looked up, and of the last table that fits in part,
the first rows stay. Slots that no better table needs yet are lent to rows of the others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Calibrates, RowStats, TierView
from adaptive.policies.samples import check_state


class Tables(Calibrates):
    """A row is worth its table's lookups in the sample per byte of the table."""

    misses = "host"

    def __init__(self) -> None:
        self._worth: NDArray[np.float64] = np.zeros(0)  # (tables,) lookups per byte

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        if sample:
            starts = view.table_starts
            tables = np.searchsorted(starts, np.concatenate([view.rows(batch) for batch in sample]), "right") - 1
            self._worth = np.bincount(tables, minlength=len(starts) - 1) / (np.diff(starts) * view.row_bytes)

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return self._worth[rows.table] if len(self._worth) else np.zeros(len(rows))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"worth": self._worth}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, "worth")
        self._worth = state["worth"]
