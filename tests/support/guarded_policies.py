"""Policies that skip, for the tests of the guard; loaded by runs from this file."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Policy, RowStats, SkipRule, TierView
from support.skip_rules import LeaveOut, everything, waits


class Plain(Policy):
    """Rows are worth their look-ups."""

    def score(self, rows: RowStats) -> NDArray[Any]:
        return rows.accesses


class OnHost(Plain):
    """Missed rows stay on the host."""

    misses = "host"


class Freeze(Plain):
    """Every watched row is saturated: nothing is learnt any more."""

    def __init__(self) -> None:
        self.rule = LeaveOut(everything)


class FreezeLate(Plain):
    """Nothing is saturated before batch 100, everything from then on."""

    def __init__(self) -> None:
        self.rule = LeaveOut(lambda rows: np.full(len(rows), rows.step >= 100))


class Defer(Plain):
    def __init__(self) -> None:
        self.rule = waits(every=4, at_most=4, warmup=5)


class DeferOne(Plain):
    """Every update is the plain one."""

    def __init__(self) -> None:
        self.rule = waits(every=4, at_most=1, warmup=5)


class Half(SkipRule):
    """Every second input is dropped; the rest comes in batches of what is left, or, `in_two`, each trained as two."""

    drops_inputs = True
    watches = asks = False
    at_most = 1
    warmup = 0

    def __init__(self, in_two: bool = False) -> None:
        self.in_two = in_two

    def visits(self, rows: RowStats) -> NDArray[Any]:
        raise AssertionError("not asked")

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            numbers = self.seen_inputs + np.arange(batch.num_samples)
            kept = np.flatnonzero((numbers % 2 == 0) | ~self.allows(numbers))
            self.seen_inputs += batch.num_samples
            self.dropped_inputs += batch.num_samples - len(kept)
            for part in np.split(kept, [len(kept) // 2] if self.in_two else []):
                yield batch.take(part)


class DropHalf(Plain):
    def __init__(self) -> None:
        self.rule = Half()


class DropHalfInTwo(Plain):
    def __init__(self) -> None:
        self.rule = Half(in_two=True)
