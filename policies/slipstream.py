"""Skip the updates of rows that have stopped moving (Slipstream, https://arxiv.org/abs/2404.04270).

The paper calls such rows stale; here they are *saturated*, because "stale" means out of date elsewhere. Popular
rows are compared with a snapshot of themselves. A row that moved less than `threshold` between two snapshots
although it was looked up often is saturated: it is still looked up, but its gradient is not computed any more.

Skipping costs accuracy, and more the longer a row is left alone. The defaults therefore skip little: rows have a
warm-up, and each saturated row is let through now and then (probing) to see whether it would move again. Measured
once on the built-in stream (row-wise Adagrad, 782 batches of 512, seed 0, warm-up 100):

    threshold   look-ups skipped   change of AUC
    0.02                   0.8 %        +0.00001
    0.03                   3.0 %        -0.00009
    0.05                   6.9 %        -0.00055

Rows slow down as a run goes on, so longer runs skip more at the same threshold: compare with an un-skipped run.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive import Policy, RowStats

_MASK = (1 << 64) - 1
_MIX_ROW, _MIX_STEP, _MIX_LAST = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xBF58476D1CE4E5B9  # odd: bijections


class Slipstream(Policy):
    """Rows are worth their look-ups so far; popular rows that stand still are not updated.

    Args:
        threshold: relative movement, ||row - snapshot|| / ||row||, up to which a row becomes saturated. It is per
            interval between snapshots (`SkipConfig.interval`); a longer interval needs a larger threshold.
        min_accesses: look-ups between two snapshots below which their difference says nothing.
        warmup: batches before any row is saturated. Before a model's loss has left its first plateau no row moves
            much, and freezing them then would freeze an untrained model.
        hysteresis: a saturated row stays so while it moves up to `hysteresis * threshold`; 1: no hysteresis.
        probe_every: a saturated row is let through at one in `probe_every` questions, chosen by a hash of row and
            batch, and judged anew by how far it then moves; 0: never.
    """

    def __init__(
        self,
        *,
        threshold: float = 0.02,
        min_accesses: int = 64,
        warmup: int = 100,
        hysteresis: float = 1.5,
        probe_every: int = 8,
    ) -> None:
        _check("threshold", threshold, 0)
        _check("min_accesses", min_accesses, 1)
        _check("warmup", warmup, 0)
        _check("hysteresis", hysteresis, 1)
        _check("probe_every", probe_every, 0)
        self.threshold = threshold
        self.min_accesses = min_accesses
        self.warmup = warmup
        self.hysteresis = hysteresis
        self.probe_every = probe_every

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.accesses

    def saturated(self, rows: RowStats) -> NDArray[np.bool_]:
        if rows.step < self.warmup:
            return np.zeros(len(rows), np.bool_)
        # No movement at all (or NaN) means that no update was let through: it says nothing, the verdict stands.
        measured = (rows.drift > 0) & (rows.drift_accesses >= self.min_accesses)
        limit = np.where(rows.saturated, self.hysteresis * self.threshold, self.threshold)
        return np.where(measured, rows.drift <= limit, rows.saturated) & ~self._probed(rows)

    def _probed(self, rows: RowStats) -> NDArray[np.bool_]:
        if not self.probe_every:
            return np.zeros(len(rows), np.bool_)
        mixed = rows.rows.astype(np.uint64) * np.uint64(_MIX_ROW)  # wraps, as a hash should
        mixed ^= np.uint64(rows.step * _MIX_STEP & _MASK)
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(_MIX_LAST)
        chosen: NDArray[np.bool_] = (mixed >> np.uint64(33)) % np.uint64(self.probe_every) == 0
        return chosen


def _check(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise ValueError(f"{name}={value}: needed at least {least}")
