"""Skip the updates of rows that have stopped moving, as Slipstream does.

https://arxiv.org/abs/2404.04270, according to its abstract and summaries; the paper's body could not be read. It costs
accuracy almost at once (docs/explanation/skipping.md): compare it with `defer`, which loses nothing.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import RowStats, SkipRule
from adaptive.policies.samples import ByRow, check_range, check_state, movement, probed


class Updates(SkipRule):
    """Skip the updates of the rows that move least, until they move again.

    A skipped row does not move, so its movement is unknown. At one in `probe_every` calls of `visits`, chosen by a hash
    of row and batch, it is updated again until its movement is measured.

    Args:
        target_skip: largest share of the watched rows' updates to skip, in order of the rows' movement per visit. The
            threshold in use is reported.
        threshold: movement per visit up to which a row is saturated, instead of a target.
        hysteresis: a saturated row stays saturated up to `hysteresis` times the threshold.
        probe_every: see above; 0: never.
        warmup: batches before anything is skipped. No row moves much before the loss leaves its first plateau, and
            skipping then would freeze an untrained model.

    Attributes:
        found_threshold: the threshold in use.
    """

    leaves_out = True
    at_most = 1
    reported = ("found_threshold",)

    def __init__(
        self,
        *,
        target_skip: float = 0.2,
        threshold: float | None = None,
        hysteresis: float = 1.5,
        probe_every: int = 8,
        warmup: int = 100,
    ) -> None:
        check_range(0, 1, target_skip=target_skip)
        check_range(0, threshold=threshold, probe_every=probe_every, warmup=warmup)
        check_range(1, hysteresis=hysteresis)
        self.target_skip, self.threshold, self.hysteresis = target_skip, threshold, hysteresis
        self.probe_every, self.warmup = probe_every, warmup
        self.found_threshold = 0.0 if threshold is None else threshold
        self._probing = ByRow(np.bool_)  # was saturated, and is not measured since

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        moved = movement(rows)
        is_measured = ~np.isnan(moved)
        if self.threshold is None:
            self.found_threshold = self._find(moved, rows)
        was_resting = rows.saturated | self._probing[rows.rows]
        limit = np.where(was_resting, self.hysteresis * self.found_threshold, self.found_threshold)
        probes = rows.saturated & probed(rows.rows, rows.step, self.probe_every)
        resting = np.where(is_measured, moved <= limit, rows.saturated) & ~probes
        self._probing[rows.rows] = was_resting & ~resting & (probes | ~is_measured)
        return np.where(resting, 0, 1)

    def _find(self, moved: NDArray[np.float64], rows: RowStats) -> float:
        """Find the largest threshold that skips at most the target share of updates.

        Rows with unknown movement count as resting if they are saturated, else as moving.
        """
        weights = np.minimum(rows.accesses, rows.step + 1)  # about the number of batches that looked up the row
        order = np.argsort(np.where(np.isnan(moved), np.where(rows.saturated, -1.0, np.inf), moved), kind="stable")
        shares = np.cumsum(weights[order]) / max(int(weights.sum()), 1)
        count = int(np.searchsorted(shares, self.target_skip, side="right"))
        resting = moved[order[:count]]
        return float(np.nanmax(resting)) if not np.isnan(resting).all() else 0.0

    def expired(self, number: int, rows: NDArray[np.int64]) -> None:
        self._probing.forget(rows)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"threshold": np.array([self.found_threshold]), "let_through": self._probing.rows()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, *self.state_dict())
        self.found_threshold = float(state["threshold"][0])
        self._probing.restore(state["let_through"], True)
