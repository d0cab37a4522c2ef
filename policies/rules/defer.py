"""Write rows less often: gradients of popular rows, or of rows at rest, wait in a sum, and nothing is lost.

By visits, a row waits the longer the more visits it has had: k = visits / every. By movement, it waits for as many
visits as it takes to move by `bound` of its length: between two snapshots that `m` visits lie apart a row moved by
`drift`, mostly to and fro, so that movement grows with the root of the visits (a random walk), and k = m * (bound /
drift)^2; never more than the m visits that were looked at. By default it is the smaller of both: visits say how far
behind a row may be, movement who is at rest. A row that moves three times as much as it used to, as after a drift,
waits for nothing until that has become usual.
Slipstream (https://arxiv.org/abs/2404.04270) leaves such rows out, as far as its abstract and summaries tell; here
their gradients are summed and applied later. What each way costs: docs/explanation/skipping.md.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive import RowStats, SkipRule
from adaptive.policies.samples import ByRow, check_range, check_state, movement

# By optimizer, as measured for docs/explanation/skipping.md; those that are not named are as Adagrad. Under SGD a step
# with the sum of k gradients is one k-fold step.
EVERY: Final = {"sgd": 32, "adam": 32}
EVERY_OTHERS: Final = 24
MOST: Final = {"sgd": 4, "adam": 8}
MOST_OTHERS: Final = 16
MOST_BY_MOVEMENT: Final = {"sgd": 8}
MOST_BY_MOVEMENT_OTHERS: Final = 64
BOUND: Final = 0.12  # where movement alone decides
BOUND_BESIDE_VISITS: Final = 0.3
AGAIN: Final = 3.0  # times as much as usual: a row moves again


class Defer(SkipRule):
    """Gradients of rows at rest wait in a sum, which every k-th visit applies; nothing is left out.

    Args:
        by: `visits`: k = visits / every, whatever the row does; `movement`: the visits in which it moves by `bound`;
            `least`: the smaller of both.
        bound: how far a row may be expected to move, relative to its length, while its gradients wait; none: 0.3, and
            0.12 where movement alone decides.
        every: visits of a row per unit of k; none: 24, and 32 under SGD and Adam.
        at_most: the largest k; none: 16, under Adam 8, under SGD 4; where movement alone decides 64, under SGD 8.
        warmup: batches before any gradient waits; the harm, where any, is early.
    """

    def __init__(
        self,
        *,
        by: Literal["least", "visits", "movement"] = "least",
        bound: float | None = None,
        every: int | None = None,
        at_most: int | None = None,
        warmup: int = 100,
    ) -> None:
        if bound is not None and not 0 < bound < float("inf"):
            raise ValueError(f"bound={bound}: expected more than 0")
        check_range(1, every=every)
        check_range(1, 255, at_most=at_most)
        check_range(0, warmup=warmup)
        self.by, self.warmup, self.mode = by, warmup, f"by {by}"
        self.watches = self.asks = by != "visits"
        self._given = (bound, every, at_most)
        self._usual = ByRow(np.float32)  # movement per visit, 0: not known
        self._latest = ByRow(np.float32)  # measurement that has been looked at
        self._moving = ByRow(np.bool_)  # what it said
        self.begin("adagrad")

    def begin(self, optimizer: str) -> None:
        bound, every, at_most = self._given
        alone = self.by == "movement"
        self.bound = bound or (BOUND if alone else BOUND_BESIDE_VISITS)
        self.every = 1 if alone else every or EVERY.get(optimizer, EVERY_OTHERS)
        usual, others = (MOST_BY_MOVEMENT, MOST_BY_MOVEMENT_OTHERS) if alone else (MOST, MOST_OTHERS)
        self.at_most = at_most or usual.get(optimizer, others)

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        answers = np.minimum(self._by_movement(rows), self.at_most)
        return np.maximum(np.where(self._moves_again(rows), 1, answers), 1)

    def _by_movement(self, rows: RowStats) -> NDArray[np.int64]:
        """(n,) visits in which the row moves by `bound`, at most as many as were looked at; 0 if that is not known."""
        moved = np.where(np.isnan(rows.drift), np.inf, rows.drift).astype(np.float64)
        ratio = np.minimum(self.bound / np.maximum(moved, self.bound / 2), 1.0)
        wanted: NDArray[Any] = rows.drift_visits * ratio * ratio
        return (wanted + 1e-6).astype(np.int64)

    def _moves_again(self, rows: RowStats) -> NDArray[np.bool_]:
        """(n,) whether the row moved much more than it used to, when that was measured last. What is usual follows new
        measurements slowly, and a row that goes on moving within some of its intervals."""
        moved = movement(rows).astype(np.float32)
        moved = np.where(np.isfinite(moved), moved, np.float32(0))  # 0: not known
        usual, latest = self._usual[rows.rows], self._latest[rows.rows]
        again: NDArray[np.bool_] = (usual > 0) & (moved > AGAIN * usual)
        follows = np.where(again, 2 * usual, usual + (moved - usual) / 4)
        new = (moved > 0) & (rows.drift != latest)
        self._usual[rows.rows] = np.where(new, np.where(usual > 0, follows, moved), usual)
        self._latest[rows.rows] = np.where(moved > 0, rows.drift, latest)
        moves = np.where(new, again, self._moving[rows.rows])
        self._moving[rows.rows] = moves
        return moves

    def state_dict(self) -> dict[str, NDArray[Any]]:
        if not self.watches:
            return {}
        rows = self._usual.rows()
        usual, latest, moving = self._usual[rows], self._latest[rows], self._moving[rows]
        return {"rows": rows, "usual": usual, "latest": latest, "moving": moving}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, *self.state_dict())
        if state:  # none by visits
            rows = state["rows"]
            self._usual.restore(rows, state["usual"])
            self._latest.restore(rows, state["latest"])
            self._moving.restore(rows, state["moving"])
