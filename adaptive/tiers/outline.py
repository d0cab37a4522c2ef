"""`Outline`: all that can be said of a batch before it is known where its rows lie.

It depends on the batch alone, so outlines of several batches are made at once and ahead of planning, which takes them
in order: `tier.plan_threads`, for fast devices with large batches. Without threads an outline is made when its batch
is read.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import TierConfig
from adaptive.cores import usable_cores
from adaptive.kernels import lookups, planning
from adaptive.tiers.distinct import Distinct, DistinctFinder
from adaptive.tiers.layout import Group
from adaptive.tiers.plan import Pooling

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Bags:
    """Which look-ups make which vectors, of one group."""

    num_vectors: int
    vectors: NDArray[np.int32]  # (bags,)
    starts: Int64s  # (bags + 1,)
    tables: NDArray[np.int32]  # (bags,) table of the group
    scales: NDArray[np.float32]  # (N,), or empty: all 1

    def pooling(self, inverse: NDArray[np.int32], locations: Int64s) -> Pooling:
        """The forward pass, with the distinct rows at `locations` (U,)."""
        found = np.empty(len(inverse), np.int64)
        planning.lookup_locations(inverse, locations, found)
        return Pooling(self.num_vectors, self.vectors, self.starts, self.tables, found, self.scales)


@dataclass(frozen=True)
class Outline:
    """What one batch asks of one group of tables: its distinct rows, its bags, and its look-ups by row."""

    distinct: Distinct
    bags: Bags
    segments: Int64s  # (U + 1,) where the look-ups of each distinct row start below
    vectors: NDArray[np.int32]  # (N,) which vector's gradient each look-up gets
    scales: NDArray[np.float32]  # (N,), or empty: all 1


def plan_threads(tier: TierConfig, device: torch.device) -> int:
    """The threads that `tier.plan_threads` means, the look-ahead thread included."""
    if tier.plan_threads != "auto":
        return tier.plan_threads
    return 1 if device.type == "cpu" else max(1, min(3, usable_cores() // 4))


class Outliner:
    """Makes outlines for a look-ahead.

    Args:
        groups: an outline is made for each.
        helpers: threads that make them; 0: whoever asks.
    """

    def __init__(self, groups: Sequence[Group], helpers: int) -> None:
        self.helpers = helpers
        self._groups = tuple(groups)
        self._finders: SimpleQueue[list[DistinctFinder]] = SimpleQueue()  # those that no thread uses now
        for _ in range(max(1, helpers)):
            self._finders.put([DistinctFinder(group) for group in groups])
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Inside, the helpers are there. Outside, whoever asks makes the outline."""
        if not self.helpers:
            yield
            return
        with ThreadPoolExecutor(self.helpers, "adaptive-outline") as self._pool:
            try:
                yield
            finally:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None

    @property
    def num_ahead(self) -> int:
        """Batches that are worth reading ahead, now."""
        return 0 if self._pool is None else self.helpers

    def start(self, batch: Batch) -> Callable[[], list[Outline]]:
        """Have the outlines made, one for each group; the result waits for them and raises what making them raised."""
        if self._pool is None:
            made = self._make(batch)
            return lambda: made
        return self._pool.submit(self._make, batch).result

    def _make(self, batch: Batch) -> list[Outline]:
        finders = self._finders.get()
        try:
            return [_outline(group, batch, finder) for group, finder in zip(self._groups, finders, strict=True)]
        finally:
            self._finders.put(finders)


def lay_out_bags(group: Group, batch: Batch) -> Bags:
    """Pooled features fill columns of a (B, columns, D) block; the vectors of un-pooled features follow behind it,
    feature by feature, one per position."""
    samples = batch.num_samples
    sizes = [batch.num_lookups(feature.position) for feature in group.features]
    alone = sum(size for feature, size in zip(group.features, sizes, strict=True) if feature.column < 0)
    num_bags, num_vectors = alone + samples * group.num_columns, alone + samples * group.num_columns
    starts, vectors = np.empty(num_bags + 1, np.int64), np.empty(num_bags, np.int32)
    tables, scales = np.empty(num_bags, np.int32), _scales(group, batch, sum(sizes))
    columns = group.feature_columns
    lookups.lay_out_bags(batch.offsets, samples, *columns, group.num_columns, starts, vectors, tables, scales)
    return Bags(num_vectors, vectors, starts, tables, scales)


def _scales(group: Group, batch: Batch, num_lookups: int) -> NDArray[np.float32]:
    """(N,) weights of look-ups in the group's order; places for those of mean pooling; empty where all are 1."""
    if batch.weights is not None:
        parts = [batch.weights[batch.feature_span(feature.position)] for feature in group.features]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if any(feature.mean for feature in group.features):
        return np.ones(num_lookups, np.float32)
    return np.zeros(0, np.float32)


def _outline(group: Group, batch: Batch, finder: DistinctFinder) -> Outline:
    distinct, bags = finder.find(batch), lay_out_bags(group, batch)
    num_rows, num_lookups = len(distinct.rows), len(distinct.inverse)
    cursors, segments = np.empty(num_rows, np.int64), np.empty(num_rows + 1, np.int64)
    vectors, origins = np.empty(num_lookups, np.int32), np.empty(len(bags.scales), np.int64)
    lookups.fill_segments(
        distinct.inverse, distinct.counts, bags.starts, bags.vectors, cursors, segments, vectors, origins
    )
    scales = bags.scales[origins] if len(bags.scales) else bags.scales
    return Outline(distinct, bags, segments, vectors, scales)
