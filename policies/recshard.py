"""A cost model: what does a row save on the device, per byte of it? (RecShard, https://arxiv.org/abs/2201.10095)

RecShard looks at a small sample, describes each table by how its lookups spread over its rows (a cumulative
distribution in 100 steps), by how many lookups a sample makes (pooling) and by how many samples make any (coverage),
and lets a solver choose how many of each table's most frequent rows go to fast memory, where a lookup of a row costs
its bytes divided by the bandwidth of the memory it lies in. Here the same cost, per row and byte, is the score; taking
the best rows first solves the same problem for one device. The solver for several devices is not part of this.

Placement is decided once; rows of slow memory are used where they lie.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Policy, RowStats, TierView
from adaptive.policies.samples import check_range, check_state

_GIGA = 1e9


class RecShard(Policy):
    """A row is worth the seconds per sample that it saves on the device, for each of its bytes.

    That is its expected lookups per sample times the difference of what a byte costs in either memory: a wide row
    saves more and takes more room, in proportion. Rows within a step of the distribution count alike, so that chance in
    the sample matters less. A table's rows that the sample does not hold share the lookups that are expected to go to
    such rows: as many as went to rows seen once (Good and Turing's estimate). So a rare row of a small table is worth
    more than one of a large table.

    Args:
        steps: of each table's distribution, of equal numbers of lookups.
        device_bandwidth, host_bandwidth: of either memory, GB/s. They set the unit of the score; the order of rows
            depends only on which one is larger.
    """

    misses = "host"

    def __init__(self, *, steps: int = 100, device_bandwidth: float = 2000, host_bandwidth: float = 50) -> None:
        check_range(1, steps=steps)
        if not 0 < host_bandwidth < device_bandwidth:
            raise ValueError(
                f"device_bandwidth={device_bandwidth}, host_bandwidth={host_bandwidth}: expected more than 0, and more "
                f"on the device"
            )
        self.steps = steps
        self._saved_per_byte = (1 / host_bandwidth - 1 / device_bandwidth) / _GIGA
        self._rows: NDArray[np.int64] = np.zeros(0, np.int64)  # sorted, of the sample
        self._rates: NDArray[np.float64] = np.zeros(0)  # aligned: expected lookups per sample
        self._unseen: NDArray[np.float64] = np.zeros(0)  # the same of a row not in the sample, by table

    def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
        samples = sum(batch.num_samples for batch in sample)
        if not samples:
            return
        self._rows, counts = np.unique(np.concatenate([view.rows(batch) for batch in sample]), return_counts=True)
        starts = view.table_starts
        borders = np.searchsorted(self._rows, starts)
        self._rates, self._unseen = np.zeros(len(self._rows)), np.zeros(len(starts) - 1)
        for table, (first, last) in enumerate(pairwise(borders)):
            mine = counts[first:last]
            unseen = int(starts[table + 1] - starts[table]) - len(mine)
            beyond = int((mine == 1).sum()) if unseen else 0  # lookups out of all that go to rows not seen so far
            share_seen = 1 - beyond / max(int(mine.sum()), 1)
            self._unseen[table] = beyond / max(unseen, 1) / samples
            self._rates[first:last] = np.maximum(
                share_seen * _smoothed(mine, self.steps) / samples, self._unseen[table]
            )  # to have been seen makes no row less likely

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        if not len(self._unseen):
            return np.zeros(len(rows))
        rates = self._unseen[rows.table]
        if len(self._rows):
            places = np.minimum(np.searchsorted(self._rows, rows.rows), len(self._rows) - 1)
            rates = np.where(self._rows[places] == rows.rows, self._rates[places], rates)
        return rates * self._saved_per_byte

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"rows": self._rows, "rates": self._rates, "unseen": self._unseen}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, "rows", "rates", "unseen")
        if len(state["rows"]) != len(state["rates"]):
            raise ValueError("RecShard: expected rows and rates of one length")
        self._rows, self._rates, self._unseen = state["rows"], state["rates"], state["unseen"]


def _smoothed(counts: NDArray[np.int64], steps: int) -> NDArray[np.float64]:
    """Counts, each replaced by the mean of its step of the cumulative distribution over rows, most frequent first."""
    if not len(counts):
        return np.zeros(0)
    order = np.argsort(-counts, kind="stable")
    sorted_counts = counts[order].astype(np.float64)
    before = np.cumsum(sorted_counts) - sorted_counts
    step = np.floor(before / sorted_counts.sum() * steps).astype(np.int64)
    means = np.bincount(step, sorted_counts) / np.maximum(np.bincount(step), 1)
    smoothed = np.empty(len(counts))
    smoothed[order] = means[step]
    return smoothed
