"""Write rows less often: gradients of popular rows, or of rows at rest, wait in a sum, and nothing is lost.

By visits, a row waits the longer the more visits it has had, as `adaptive.Deferral` says. By movement, it waits for
k = bound / movement per visit visits: *movement per visit* is how far the row moved between two snapshots, relative to
its length, over the batches that looked it up meanwhile. So it is behind by about `bound` of its length at most when
its sum is applied, and a row that moves again waits less as soon as that has been measured. Slipstream
(https://arxiv.org/abs/2404.04270) leaves such rows out, as far as its abstract and summaries tell; here their gradients
are summed and applied later.
"""

from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive import RowStats, SkipRule

BOUNDS: Final = {
    "sgd": 0.02,
    "adagrad": 0.2,
    "rowwiseadagrad": 0.2,
    "adam": 0.1,
}  # guesses by a few runs; see docs/benchmarks.md
MOST: Final = {"sgd": 16}  # visits that a sum may hold: under SGD one step with k gradients is one k-fold step
MOST_OTHERS: Final = 64
MOST_BY_VISITS: Final = {"sgd": 4}
MOST_BY_VISITS_OTHERS: Final = 8


class Defer(SkipRule):
    """Gradients of rows at rest wait in a sum, which every k-th visit applies; nothing is left out.

    Args:
        by: `visits`: k = visits / every, whatever the row does; `movement`: k = bound / movement per visit; `least`:
            the smaller of both. By visits less was lost for as much left out, so far (docs/benchmarks.md).
        bound: movement, relative to the row, that may be outstanding; none: by optimizer.
        every: visits of a row per unit of k, where visits count.
        at_most: the largest k; none: by optimizer, 64, and 16 under plain SGD; where visits count 8, and 4.
        warmup: batches before any gradient waits; the harm, where any, is early.
    """

    def __init__(
        self,
        *,
        by: Literal["movement", "visits", "least"] = "visits",
        bound: float | None = None,
        every: int = 32,
        at_most: int | None = None,
        warmup: int = 100,
    ) -> None:
        if bound is not None and bound <= 0:
            raise ValueError(f"bound={bound}: needed more than 0")
        if every < 1 or warmup < 0 or (at_most is not None and not 1 <= at_most <= 255):
            raise ValueError(
                f"needed every >= 1, at_most from 1 to 255, warmup >= 0, found every={every}, at_most={at_most}, "
                f"warmup={warmup}"
            )
        self.by, self.every, self.warmup = by, every, warmup
        self.watches = by != "visits"
        self._bound, self._at_most = bound, at_most
        self.begin("adagrad")

    def begin(self, optimizer: str) -> None:
        self.bound = self._bound or BOUNDS.get(optimizer, BOUNDS["adagrad"])
        by_visits = MOST_BY_VISITS.get(optimizer, MOST_BY_VISITS_OTHERS)
        most = by_visits if self.by == "visits" else MOST.get(optimizer, MOST_OTHERS)
        self.at_most = self._at_most or most

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        answers = np.full(len(rows), self.at_most, np.int64)
        if self.by != "visits":
            answers = np.minimum(answers, self._by_movement(rows))
        if self.by != "movement":
            answers = np.minimum(answers, rows.visits // self.every)
        return np.maximum(answers, 1)

    def _by_movement(self, rows: RowStats) -> NDArray[np.int64]:
        """(n,) bound / movement per visit; 1 where no movement is known."""
        moved = np.where(np.isnan(rows.drift), np.inf, rows.drift)
        least = self.bound / self.at_most  # so that the quotient is no larger than at_most
        per_visit: NDArray[Any] = np.maximum(moved / np.maximum(rows.drift_visits, 1), least)
        return (self.bound / per_visit + 1e-6).astype(np.int64)
