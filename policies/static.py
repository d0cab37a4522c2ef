"""The most frequent rows of a sample stay (the calibrator of FAE, https://arxiv.org/abs/2103.00686).

What is popular is decided once, before training; a row the sample did not hold is the first to leave.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Policy, RowStats, TierView
from adaptive.policies.samples import check_state


class Static(Policy):
    """A row is worth its lookups in the sample."""

    def __init__(self) -> None:
        self._rows: NDArray[np.int64] = np.zeros(0, np.int64)  # sorted, of the sample
        self._counts: NDArray[np.int64] = np.zeros(0, np.int64)  # aligned with _rows

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        if sample:
            seen = np.concatenate([view.rows(batch) for batch in sample])
            self._rows, self._counts = np.unique(seen, return_counts=True)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        if not len(self._rows):
            return np.zeros(len(rows), np.int64)
        places = np.minimum(np.searchsorted(self._rows, rows.rows), len(self._rows) - 1)
        return np.where(self._rows[places] == rows.rows, self._counts[places], 0)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"rows": self._rows, "counts": self._counts}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, "rows", "counts")
        if len(state["rows"]) != len(state["counts"]):
            raise ValueError("Static: expected rows and counts of one length")
        self._rows, self._counts = state["rows"], state["counts"]
