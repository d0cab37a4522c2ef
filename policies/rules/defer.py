"""Write popular or resting rows less often, by accumulating their updates.

Nothing is lost. A row is written at every k-th visit.

- By visits, k = visits / every: the more visits, the longer a row may wait.
- By movement, k is the number of visits in which the row moves by `bound` of its length. Between two snapshots `m`
  visits apart the row moved by `drift`, mostly back and forth. Movement then grows with the square root of the visits,
  as in a random walk, so k = m * (bound / drift)^2, at most m.

By default k is that by visits: movement skips no more at the same cost, and takes a snapshot of every watched row.
`least` takes the smaller of both, and writes a row that moves three times as much as usual at every visit until that
has become usual. Slipstream (https://arxiv.org/abs/2404.04270) skips the updates of such rows, according to its
abstract and summaries. docs/explanation/skipping.md measures what each way costs.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive import RowStats, SkipRule
from adaptive.policies.samples import ByRow, check_range, check_state, movement

# Defaults by optimizer, as measured for docs/explanation/skipping.md; others are as Adagrad. Under SGD a step with the
# sum of k gradients is one k-fold step.
EVERY: Final = {"sgd": 32, "adam": 32}
EVERY_OTHERS: Final = 24
MOST: Final = {"sgd": 4, "adam": 8}
MOST_OTHERS: Final = 16
MOST_BY_MOVEMENT: Final = {"sgd": 8}
MOST_BY_MOVEMENT_OTHERS: Final = 64
BOUND: Final = 0.12  # by movement
BOUND_WITH_VISITS: Final = 0.3
MOVES_AGAIN: Final = 3.0  # a row moves again at this multiple of its usual movement


class Defer(SkipRule):
    """Apply the accumulated updates of resting rows at every k-th visit. Nothing is lost.

    Args:
        by: `visits`: k = visits / every; `movement`: the visits in which the row moves by `bound`; `least`: the smaller
            of both.
        bound: expected movement of a row, relative to its length, while updates are accumulated; none: 0.3, or 0.12 by
            movement.
        every: visits of a row per unit of k; none: 24, or 32 under SGD and Adam.
        at_most: largest k; none: 16, under Adam 8, under SGD 4; by movement 64, under SGD 8.
        warmup: batches before anything is accumulated; harm, if any, is done early.
    """

    def __init__(
        self,
        *,
        by: Literal["visits", "least", "movement"] = "visits",
        bound: float | None = None,
        every: int | None = None,
        at_most: int | None = None,
        warmup: int = 100,
    ) -> None:
        if bound is not None and not 0 < bound < float("inf"):
            raise ValueError(f"bound={bound}: expected more than 0")
        if bound is not None and by == "visits":
            raise ValueError(f"bound={bound}: expected by=least or by=movement with it")
        check_range(1, every=every)
        check_range(1, 255, at_most=at_most)
        check_range(0, warmup=warmup)
        self.by, self.warmup, self.mode = by, warmup, f"by {by}"
        self.watches = self.asks = by != "visits"
        self._settings = (bound, every, at_most)
        self._usual = ByRow(np.float32)  # movement per visit, 0: unknown
        self._latest = ByRow(np.float32)  # latest measured drift
        self._moving = ByRow(np.bool_)  # whether the row moved again by then
        self.begin("adagrad")

    def begin(self, optimizer: str) -> None:
        bound, every, at_most = self._settings
        by_movement = self.by == "movement"
        self.bound = bound or (BOUND if by_movement else BOUND_WITH_VISITS)
        self.every = 1 if by_movement else every or EVERY.get(optimizer, EVERY_OTHERS)
        limits, others = (MOST_BY_MOVEMENT, MOST_BY_MOVEMENT_OTHERS) if by_movement else (MOST, MOST_OTHERS)
        self.at_most = at_most or limits.get(optimizer, others)

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        answers = np.minimum(self._by_movement(rows), self.at_most)
        return np.maximum(np.where(self._moves_again(rows), 1, answers), 1)

    def _by_movement(self, rows: RowStats) -> NDArray[np.int64]:
        """(n,) visits in which the row moves by `bound`, at most those measured; 0 if unknown."""
        moved = np.where(np.isnan(rows.drift), np.inf, rows.drift).astype(np.float64)
        ratio = np.minimum(self.bound / np.maximum(moved, self.bound / 2), 1.0)
        wanted: NDArray[Any] = rows.drift_visits * ratio * ratio
        return (wanted + 1e-6).astype(np.int64)

    def _moves_again(self, rows: RowStats) -> NDArray[np.bool_]:
        """(n,) True if the row's latest measured movement is much larger than usual.

        The usual movement follows new measurements slowly, and doubles with each measurement of a row that moves again.
        """
        moved = movement(rows).astype(np.float32)
        moved = np.where(np.isfinite(moved), moved, np.float32(0))  # 0: unknown
        usual, latest = self._usual[rows.rows], self._latest[rows.rows]
        is_larger: NDArray[np.bool_] = (usual > 0) & (moved > MOVES_AGAIN * usual)
        follows = np.where(is_larger, 2 * usual, usual + (moved - usual) / 4)
        is_new = (moved > 0) & (rows.drift != latest)
        self._usual[rows.rows] = np.where(is_new, np.where(usual > 0, follows, moved), usual)
        self._latest[rows.rows] = np.where(moved > 0, rows.drift, latest)
        moves = np.where(is_new, is_larger, self._moving[rows.rows])
        self._moving[rows.rows] = moves
        return moves

    def expired(self, number: int, rows: NDArray[np.int64]) -> None:
        for values in (self._usual, self._latest, self._moving):
            values.forget(rows)

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
