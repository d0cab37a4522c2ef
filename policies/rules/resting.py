"""What the skip rules share: how far a row moves in a visit, which rows are let through, checks of parameters.

Letters: n rows.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import RowStats


def movement(rows: RowStats) -> NDArray[np.float64]:
    """(n,) how far each row moves in a visit, relative to its length, as a random walk that covered its drift in as
    many visits: so rows compare whose snapshots lie differently far apart. NaN: unknown, or an update was left out."""
    moved: NDArray[np.float64] = rows.drift.astype(np.float64) / np.sqrt(np.maximum(rows.drift_visits, 1))
    return moved


def probed(rows: NDArray[np.int64], step: int, every: int) -> NDArray[np.bool_]:
    """(n,) whether a row, or an input, is let through: one in `every`, by a hash of number and batch; 0: never."""
    if not every:
        return np.zeros(len(rows), np.bool_)
    mixed = rows.astype(np.uint64) * np.uint64(_MIX_ROW)  # wraps, as a hash should
    mixed ^= np.uint64(step * _MIX_STEP & (1 << 64) - 1)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(_MIX_LAST)
    chosen: NDArray[np.bool_] = (mixed >> np.uint64(33)) % np.uint64(every) == 0
    return chosen


_MIX_ROW, _MIX_STEP, _MIX_LAST = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xBF58476D1CE4E5B9  # odd: bijections


def check_range(least: float, most: float = float("inf"), /, **values: Any) -> None:
    """Check parameters; None is no value.

    Raises:
        ValueError: for one that is not a number from `least` to `most`; names it.
    """
    for name, value in values.items():
        if value is not None and not least <= value <= most:
            upper = f", at most {most:g}" if most < float("inf") else ""
            raise ValueError(f"{name}={value}: needed at least {least:g}{upper}")
