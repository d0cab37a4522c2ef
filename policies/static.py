"""Keep the most frequent rows of a sample (FAE's calibrator, arXiv 2103.00686).

https://arxiv.org/abs/2103.00686. Popularity is decided once, before training. Rows that are not in the sample are
evicted first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, ByRow, Calibrates, RowStats, TierView
from adaptive.policies.samples import check_state, count_rows


class Static(Calibrates):
    """A row is worth its lookups in the sample."""

    def __init__(self) -> None:
        self._counts = ByRow(np.int64)

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        if sample:
            self._counts.restore(*count_rows(sample, view))

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return self._counts[rows.rows]

    def state_dict(self) -> dict[str, NDArray[Any]]:
        rows = self._counts.rows()
        return {"rows": rows, "counts": self._counts[rows]}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, "rows", "counts")
        self._counts.restore(state["rows"], state["counts"])
