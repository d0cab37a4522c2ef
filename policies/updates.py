"""Leave out the updates of rows that have stopped moving, as Slipstream does (https://arxiv.org/abs/2404.04270), as far
as its abstract and summaries tell; the paper's body could not be read.

Costs accuracy almost at once (docs/skipping.md): compare it with `defer`, which loses nothing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import RowStats, SkipRule
from policies.inputs import probed


class Updates(SkipRule):
    """Updates of the rows that move least are left out until they are found to move again.

    A row that is left out does not move, so nothing is learnt of it: at one in `probe_every` questions, chosen by a
    hash of row and batch, it is let through until its movement is known anew.

    Args:
        target_skip: share of the watched rows' updates that is left out, at most: rows are taken in the order of their
            movement per visit, and the threshold in use is reported.
        threshold: movement per visit up to which a row is saturated, in the place of a target.
        hysteresis: a saturated row stays so while it moves up to `hysteresis` times the threshold.
        probe_every: see above; 0: never.
        warmup: batches before anything is left out.

    Attributes:
        found_threshold: the threshold in use.
    """

    leaves_out = True
    at_most = 1

    def __init__(
        self,
        *,
        target_skip: float = 0.2,
        threshold: float | None = None,
        hysteresis: float = 1.5,
        probe_every: int = 8,
        warmup: int = 100,
    ) -> None:
        if not 0 <= target_skip <= 1 or (threshold is not None and threshold < 0):
            raise ValueError(
                f"target_skip={target_skip}, threshold={threshold}: needed 0 to 1, and a threshold of 0 or more"
            )
        if hysteresis < 1 or probe_every < 0 or warmup < 0:
            raise ValueError("needed hysteresis >= 1, probe_every >= 0, warmup >= 0")
        self.target_skip, self.threshold, self.hysteresis = target_skip, threshold, hysteresis
        self.probe_every, self.warmup = probe_every, warmup
        self.found_threshold = 0.0 if threshold is None else threshold

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        moved = rows.drift / np.maximum(rows.drift_visits, 1)  # NaN: unknown, or an update was left out
        known = ~np.isnan(moved)
        weights = np.minimum(rows.accesses, rows.step + 1)  # about as many batches have looked the row up
        if self.threshold is None:
            self.found_threshold = self._find(moved, known, weights)
        limit = np.where(rows.saturated, self.hysteresis * self.found_threshold, self.found_threshold)
        resting = np.where(known, moved <= limit, rows.saturated) & ~(
            rows.saturated & probed(rows.rows, rows.step, self.probe_every)
        )
        return np.where(resting, 0, 1)

    def _find(self, moved: NDArray[np.floating[Any]], known: NDArray[np.bool_], weights: NDArray[np.int64]) -> float:
        """The largest movement such that rows which move no more have at most the wanted share of the updates.

        Rows whose movement is unknown because they are left out count as resting."""
        order = np.argsort(np.where(known, moved, -1.0), kind="stable")
        shares = np.cumsum(weights[order]) / max(int(weights.sum()), 1)
        count = int(np.searchsorted(shares, self.target_skip, side="right"))
        resting = order[:count][known[order[:count]]]
        return float(moved[resting].max()) if len(resting) else 0.0
