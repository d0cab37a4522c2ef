"""Keep the rows that save most time per byte (RecShard, https://arxiv.org/abs/2201.10095).

RecShard describes each table, from a small sample, by the distribution of its lookups over its rows (cumulative, in 100
steps), by the lookups per sample (pooling) and by the share of samples with any lookup (coverage). A solver chooses how
many of each table's most frequent rows go to fast memory. A lookup costs the row's bytes divided by the bandwidth of
its memory. On the device a byte costs less than on the host, so per byte a row saves in proportion to its lookups:
taking the most looked-up rows first solves the same problem for one device. The solver for several devices is not part
of this.

Placement is decided once; rows in slow memory are used there.

Run: adaptive-train run --policy examples/policies/recshard.py:RecShard
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, ByRow, Calibrates, RowStats, TierView
from adaptive.policies.samples import check_range, check_state, count_rows


class RecShard(Calibrates):
    """A row is worth its expected lookups per sample: a wide row saves more and takes more room, in proportion.

    Rows within one step of the distribution count the same, which reduces sampling noise. A
    table's rows that are not in the sample share the lookups expected to go to such rows, which are as many as went to
    rows seen once (Good-Turing estimate). So a rare row of a small table is worth more than one of a large table.

    Args:
        steps: number of steps of each table's distribution, with equal numbers of lookups.
    """

    misses = "host"

    def __init__(self, *, steps: int = 100) -> None:
        check_range(1, steps=steps)
        self.steps = steps
        self._rates = ByRow(np.float64)  # expected lookups per sample; 0: not in the sample
        self._unseen: NDArray[np.float64] = np.zeros(0)  # (tables,) the same of a row that is not in the sample

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        samples = sum(batch.num_samples for batch in sample)
        if not samples:
            return
        rows, counts = count_rows(sample, view)
        starts = view.table_starts
        borders = np.searchsorted(rows, starts)
        rates, self._unseen = np.zeros(len(rows)), np.zeros(len(starts) - 1)
        for table, (first, last) in enumerate(pairwise(borders)):
            of_table = counts[first:last]
            unseen = int(starts[table + 1] - starts[table]) - len(of_table)
            beyond = int((of_table == 1).sum()) if unseen else 0  # lookups expected to go to rows not seen so far
            share_seen = 1 - beyond / max(int(of_table.sum()), 1)
            self._unseen[table] = beyond / max(unseen, 1) / samples
            rates[first:last] = np.maximum(  # being in the sample makes no row less likely
                share_seen * _smoothed(of_table, self.steps) / samples, self._unseen[table]
            )
        self._rates.restore(rows, rates)

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        if not len(self._unseen):
            return np.zeros(len(rows))
        rates = self._rates[rows.rows]
        return np.where(rates > 0, rates, self._unseen[rows.table])

    def state_dict(self) -> dict[str, NDArray[Any]]:
        rows = self._rates.rows()
        return {"rows": rows, "rates": self._rates[rows], "unseen": self._unseen}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, "rows", "rates", "unseen")
        self._rates.restore(state["rows"], state["rates"])
        self._unseen = state["unseen"]


def _smoothed(counts: NDArray[np.int64], steps: int) -> NDArray[np.float64]:
    """Replace each count by the mean of its step of the cumulative distribution."""
    if not len(counts):
        return np.zeros(0)
    order = np.argsort(-counts, kind="stable")
    sorted_counts = counts[order].astype(np.float64)
    starts = np.cumsum(sorted_counts) - sorted_counts
    step = np.floor(starts / sorted_counts.sum() * steps).astype(np.int64)
    means = np.bincount(step, sorted_counts) / np.maximum(np.bincount(step), 1)
    smoothed = np.empty(len(counts))
    smoothed[order] = means[step]
    return smoothed
