"""Policies that skip, for the tests of the guard; loaded by runs from this file."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Deferral, Policy, RowStats, TierView


class Plain(Policy):
    """Rows are worth their look-ups."""

    def score(self, rows: RowStats) -> NDArray[Any]:
        return rows.accesses


class OnHost(Plain):
    """Missed rows stay on the host."""

    misses = "host"


class Freeze(Plain):
    """Every watched row is saturated: nothing is learnt any more."""

    def saturated(self, rows: RowStats) -> NDArray[np.bool_]:
        return np.ones(len(rows), np.bool_)


class FreezeFew(Plain):
    """One row in 40 is saturated."""

    def saturated(self, rows: RowStats) -> NDArray[np.bool_]:
        return rows.rows % 40 == 39


class FreezeLate(Plain):
    """Nothing is saturated before batch 100, everything from then on."""

    def saturated(self, rows: RowStats) -> NDArray[np.bool_]:
        return np.full(len(rows), rows.step >= 100)


class Defer(Plain):
    deferral = Deferral(every=4, at_most=4, warmup=5)


class DeferOne(Plain):
    """Every update is the plain one."""

    deferral = Deferral(every=4, at_most=1, warmup=5)


class DropHalf(Plain):
    """Every second input is dropped; the rest comes in batches of what is left."""

    drops_inputs = True

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            numbers = self.seen_inputs + np.arange(batch.num_samples)
            kept = np.flatnonzero((numbers % 2 == 0) | ~self.allows(numbers))
            self.seen_inputs += batch.num_samples
            self.dropped_inputs += batch.num_samples - len(kept)
            yield batch.take(kept)


class DropHalfInTwo(DropHalf):
    """What is left of a batch is trained as two."""

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in super().arrange(batches, view):
            half = batch.num_samples // 2
            yield batch.take(np.arange(half))
            yield batch.take(np.arange(half, batch.num_samples))
