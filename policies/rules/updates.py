"""Leave out the updates of rows that have stopped moving, as Slipstream does (https://arxiv.org/abs/2404.04270), as far
as its abstract and summaries tell; the paper's body could not be read.

Costs accuracy almost at once (docs/explanation/skipping.md): compare it with `defer`, which loses nothing.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import RowStats, SkipRule
from adaptive.policies.samples import ByRow, check_range, check_state, movement, probed


class Updates(SkipRule):
    """Updates of the rows that move least are left out until they are found to move again.

    A row that is left out does not move, so nothing is learnt of it: at one in `probe_every` questions, chosen by a
    hash of row and batch, it is let through until its movement is known anew.

    Args:
        target_skip: share of the watched rows' updates that is left out, at most: rows are taken in the order of their
            movement per visit, and the threshold in use is reported.
        threshold: movement per visit up to which a row is saturated, in the place of a target.
        hysteresis: a row that is saturated, or was when it was let through, is so while it moves up to `hysteresis`
            times the threshold.
        probe_every: see above; 0: never.
        warmup: batches before anything is left out. Before a model's loss has left its first plateau no row moves
            much, and freezing rows then would freeze an untrained model.

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
        self._let_through = ByRow(np.bool_)  # saturated before, and not judged since

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        moved = movement(rows)
        known = ~np.isnan(moved)
        if self.threshold is None:
            self.found_threshold = self._find(moved, rows)
        was_resting = rows.saturated | self._let_through[rows.rows]
        limit = np.where(was_resting, self.hysteresis * self.found_threshold, self.found_threshold)
        let_through = rows.saturated & probed(rows.rows, rows.step, self.probe_every)
        resting = np.where(known, moved <= limit, rows.saturated) & ~let_through
        self._let_through[rows.rows] = was_resting & ~resting & (let_through | ~known)
        return np.where(resting, 0, 1)

    def _find(self, moved: NDArray[np.float64], rows: RowStats) -> float:
        """The largest movement such that rows which move no more have at most the wanted share of the updates.

        Rows whose movement is unknown because they are left out count as resting; other unknown ones as moving.
        """
        weights = np.minimum(rows.accesses, rows.step + 1)  # about as many batches have looked the row up
        order = np.argsort(np.where(np.isnan(moved), np.where(rows.saturated, -1.0, np.inf), moved), kind="stable")
        shares = np.cumsum(weights[order]) / max(int(weights.sum()), 1)
        count = int(np.searchsorted(shares, self.target_skip, side="right"))
        resting = moved[order[:count]]
        known = resting[~np.isnan(resting)]
        return float(known.max()) if len(known) else 0.0

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"threshold": np.array([self.found_threshold]), "let_through": self._let_through.rows()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, *self.state_dict())
        self.found_threshold = float(state["threshold"][0])
        self._let_through.restore(state["let_through"], True)
