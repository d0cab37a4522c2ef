"""Keep the most frequent rows of a sample (FAE's calibrator, arXiv 2103.00686).

https://arxiv.org/abs/2103.00686. Popularity is decided once, before training. Rows that are not in the sample are
evicted first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Calibrates, RowStats, TierView
from adaptive.policies.samples import check_state, count_rows, lookup


class Static(Calibrates):
    """A row is worth its lookups in the sample."""

    def __init__(self) -> None:
        self._rows: NDArray[np.int64] = np.zeros(0, np.int64)  # of the sample, ascending
        self._counts: NDArray[np.int64] = np.zeros(0, np.int64)  # aligned with _rows

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        if sample:
            self._rows, self._counts = count_rows(sample, view)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return lookup(rows.rows, self._rows, self._counts, np.int64(0))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"rows": self._rows, "counts": self._counts}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, "rows", "counts")
        if len(state["rows"]) != len(state["counts"]):
            raise ValueError("Static: expected rows and counts of one length")
        self._rows, self._counts = state["rows"], state["counts"]
