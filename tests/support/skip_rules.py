"""Skip rules of a line, for policies of tests to carry."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adaptive import RowStats, SkipRule


class LeaveOut(SkipRule):
    """Leaves the updates of the chosen rows out; gradients of the others wait for `most` visits."""

    least = 0

    def __init__(self, choose: Callable[[RowStats], NDArray[np.bool_]], *, most: int = 1, warmup: int = 0) -> None:
        self.choose, self.most, self.warmup = choose, most, warmup

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        return np.where(self.choose(rows), 0, self.most)


def everything(rows: RowStats) -> NDArray[np.bool_]:
    return np.ones(len(rows), np.bool_)


class Waits(SkipRule):
    """Gradients of row r wait for 1 + r % `most` visits."""

    def __init__(self, *, most: int = 3, warmup: int = 0) -> None:
        self.most, self.warmup = most, warmup

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        return 1 + rows.rows % self.most


class Skips(SkipRule):
    """Leaves updates of rows out whose updates are small, but for one call in four."""

    least, most = 0, 1

    def __init__(self, *, bound: float = 0.3, warmup: int = 0) -> None:
        self.bound, self.warmup = bound, warmup

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        small = (rows.update_size < self.bound) & ((rows.rows + rows.step // 4) % 4 > 0)
        return np.where(small, 0, 1)
