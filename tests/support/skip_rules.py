"""Skip rules of a line, for policies of tests to carry."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adaptive import RowStats, SkipRule
from adaptive.policies.rules.defer import Defer


class LeaveOut(SkipRule):
    """Leaves the updates of the chosen rows out; gradients of the others wait by their visits, if `at_most` allows."""

    leaves_out = True

    def __init__(
        self, choose: Callable[[RowStats], NDArray[np.bool_]], *, every: int = 1, at_most: int = 1, warmup: int = 0
    ) -> None:
        self.choose, self.every, self.at_most, self.warmup = choose, every, at_most, warmup

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        return np.where(self.choose(rows), 0, self.at_most)


def everything(rows: RowStats) -> NDArray[np.bool_]:
    return np.ones(len(rows), np.bool_)


def waits(every: int, at_most: int, warmup: int = 0) -> Defer:
    """Gradients wait by visits alone."""
    return Defer(by="visits", every=every, at_most=at_most, warmup=warmup)
