"""`GroupPlan`: everything decided about a batch and a group before it is trained; `GroupPart`: a part of a batch.

There is one plan and one row update per batch, in the batch's order of lookups. A part (micro-batch) is a run of
samples. It has its own vectors in the forward pass, and their gradients go back to their places among the batch's.

Letters: N lookups, B bags, V output vectors, U distinct rows or rows to update, G grouped lookups. A *location* is a
slot of the device tier (>= 0) or ~row of the host tier (< 0).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Bools, Floats, Int32s, Int64s
from adaptive.batch import Batch
from adaptive.embeddings.planning.layout import Group
from adaptive.kernels.planning import lookups


def no_rows() -> Int64s:
    return np.zeros(0, np.int64)


def joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays one after the other; a single one as it is."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class OnDevice:
    """Lookups of a batch in arrays on the device, which planning passes on."""


@dataclass(frozen=True)
class Pooling:
    """The forward pass: rows -> vectors. Lookup p reads row_locations[inverse[p]]."""

    num_vectors: int
    bag_vectors: Int32s  # (B,)
    bag_starts: Int64s  # (B + 1,)
    bag_tables: Int32s  # (B,) table of the group
    inverse: Int32s  # (N,) lookup -> distinct row; empty: on the device
    row_locations: Int64s  # (U,)
    scales: Floats  # (N,), or empty: all 1
    num_samples: int = 0  # > 0: bag b fills vector b % num_samples * (V // num_samples) + b // num_samples, V = B

    @property
    def locations(self) -> Int64s:
        """(N,) location of each lookup, gathered at each call."""
        return self.row_locations[self.inverse]


def take_segments(
    chosen: Int64s | Int32s, starts: Int64s, places: Int32s, scales: Floats
) -> tuple[Int64s, Int32s, Floats]:
    """Return the lookups of the rows or bags `chosen` (n,) alone, ascending: starts (n + 1,), places and scales.

    starts (U + 1,): of the lookups of each in `places` (N,), and in `scales` (N,) or empty.
    """
    taken = np.empty(len(chosen) + 1, np.int64), np.empty_like(places), np.empty_like(scales)
    lookups.take_segments(chosen, (starts, places, scales), taken)
    end = int(taken[0][-1])
    return taken[0], taken[1][:end], taken[2][:end]


@dataclass(frozen=True)
class RowUpdates:
    """The row update: the vectors whose gradients belong to each row, in lookup order."""

    rows: Int64s  # (U,) group rows
    locations: Int64s  # (U,)
    segments: Int64s  # (U + 1,) start of each row's lookups in `vectors` and `scales`
    vectors: Int32s  # (G,); empty: on the device
    scales: Floats  # (G,), or empty: all 1, or on the device

    def take(self, chosen: Int64s | Int32s) -> "RowUpdates":
        """Return the update of the rows `chosen` (n,) alone, ascending; itself if these are all rows."""
        if len(chosen) == len(self.rows):
            return self
        segments = take_segments(chosen, self.segments, self.vectors, self.scales)
        return RowUpdates(self.rows[chosen], self.locations[chosen], *segments)


@dataclass(frozen=True)
class Moves:
    """Rows to move before the batch is trained: write back, fetch, late fetch."""

    back_slots: Int64s = field(default_factory=no_rows)
    back_rows: Int64s = field(default_factory=no_rows)
    fetch_slots: Int64s = field(default_factory=no_rows)
    fetch_rows: Int64s = field(default_factory=no_rows)
    fetch_initial: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    fresh_rows: Int64s = field(default_factory=no_rows)  # used on the host, where they get their initial values
    late_slots: Int64s = field(default_factory=no_rows)  # of rows that batches in flight still update on the host,
    late_rows: Int64s = field(default_factory=no_rows)  # fetched once the batch before this one is trained


@dataclass(frozen=True)
class Deferred:
    """The rows of an update by what happens to them, if the gradients of some are accumulated in sums.

    `now` and `summed` are positions in `RowUpdates.rows`, ascending; updates of other rows are skipped.
    """

    now: Int32s  # (n,) rows that are updated now
    summed: Int32s  # (m,) rows whose gradients are added to sums
    entries: Int32s  # (m,) their rows of the table of sums
    applied: Int32s  # (k,) positions in `summed` of the sums that are applied after the batch, ascending
    applied_visits: Int32s  # (k,) gradients in each of these sums
    written: Int32s  # (n + k,) rows `now`, then those whose sum is applied
    rows: Int64s  # (n + k,) group rows of `written`


@dataclass(frozen=True)
class GroupPlan:
    """Everything decided about one batch and one group of tables: moves, pooling, row updates."""

    number: int
    pooling: Pooling
    row_updates: RowUpdates  # with `deferred`, of all distinct rows
    moves: Moves
    tally: Int64s  # (tables of the group, counters)
    hot_counts: Int64s  # (2, tables of the group) hot and saturated rows as of the rule's latest call, for reports
    deferred: Deferred | None = None
    norm_lines: int = 0  # of norms that the planner reads: 1: those of updates, 2: those of the rows before them, too
    on_device: OnDevice | None = None  # if the device has lookups; no row is used on the host then

    @property
    def written_rows(self) -> Int64s:
        """(n,) rows that the batch updates: those updated now, then those whose sum is applied."""
        return self.row_updates.rows if self.deferred is None else self.deferred.rows

    @property
    def written_locations(self) -> Int64s:
        """(n,) locations of `written_rows`."""
        locations = self.row_updates.locations
        return locations if self.deferred is None else locations[self.deferred.written]

    @property
    def is_late(self) -> bool:
        """True if rows are fetched only right before the batch is trained."""
        return len(self.moves.late_rows) > 0


@dataclass(frozen=True)
class Feedback:
    """Measurements of one group's rows after a trained batch, for the planning thread."""

    rows: Int64s  # (U,) rows that were updated, the last k of them with a sum of gradients
    norms: Floats  # (1 or 2, U) L2 norm of each update and, if the plan wants it, of the row before it
    applied_visits: Int32s = field(default_factory=lambda: np.zeros(0, np.int32))  # (k,) gradients in each sum


@dataclass(frozen=True)
class GroupPart:
    """One part of a batch and one group of tables."""

    places: tuple[slice, ...]  # of the part's vectors among the batch's, in order
    pooling: Pooling
    waits: bool  # True if it needs rows that are admitted with this batch


@dataclass(frozen=True)
class _Run:
    """The bags, lookups and vectors of one feature of a part, as numbered in the plan."""

    bags: slice
    lookups: slice
    column: int  # -1: not pooled


def describe_parts(group: Group, batch: Batch, plan: GroupPlan, admitted: Int64s) -> tuple[GroupPart, ...]:
    """Describe the parts of a planned batch; empty if it has none.

    Args:
        group: the tables.
        batch: the whole batch.
        plan: of the whole batch.
        admitted: the distinct rows that get slots with this batch.
    """
    parts = []
    coming = np.zeros(len(plan.pooling.row_locations), np.bool_)
    coming[admitted] = True
    arriving = coming[plan.pooling.inverse]
    for first, last in pairwise(accumulate(batch.part_sizes, initial=0)):
        runs = _runs(group, batch, first, last)
        places = _places(group, plan.pooling, runs, first, last)
        pooling = _pooling(group, plan.pooling, runs, first, last)
        # Rows on the host that get their initial values for this batch, or any that are fetched.
        waits = len(plan.moves.fresh_rows) > 0 and bool((pooling.locations < 0).any())
        waits = waits or any(arriving[run.lookups].any() for run in runs)
        parts.append(GroupPart(places, pooling, waits))
    return tuple(parts)


def _runs(group: Group, batch: Batch, first: int, last: int) -> list[_Run]:
    runs, bag, lookup = [], 0, 0
    for feature in group.features:
        offsets = batch.offsets[feature.position * batch.num_samples :]
        start, stop, size = (offsets[[first, last, batch.num_samples]] - offsets[0]).tolist()
        pooled = feature.column >= 0
        bags = slice(bag + first, bag + last) if pooled else slice(bag + start, bag + stop)
        runs.append(_Run(bags, slice(lookup + start, lookup + stop), feature.column))
        bag += batch.num_samples if pooled else size
        lookup += size
    return runs


def _places(group: Group, whole: Pooling, runs: list[_Run], first: int, last: int) -> tuple[slice, ...]:
    """Slices of the part's vectors: one for pooled features, one per other feature."""
    places = [slice(first * group.num_columns, last * group.num_columns)]
    for run in runs:
        if run.column < 0 and run.bags.stop > run.bags.start:
            start = int(whole.bag_vectors[run.bags.start])
            places.append(slice(start, start + run.bags.stop - run.bags.start))
    return tuple(places)


def _pooling(group: Group, whole: Pooling, runs: list[_Run], first: int, last: int) -> Pooling:
    vectors, starts = [whole.bag_vectors[:0]], []
    num_vectors, num_lookups = (last - first) * group.num_columns, 0
    for run in runs:
        bags = whole.bag_vectors[run.bags]
        if run.column >= 0:
            vectors.append(bags - np.int32(first * group.num_columns))
        else:
            vectors.append(np.arange(num_vectors, num_vectors + len(bags), dtype=np.int32))
            num_vectors += len(bags)
        starts.append(whole.bag_starts[run.bags] - (run.lookups.start - num_lookups))
        num_lookups += run.lookups.stop - run.lookups.start
    lookups = [run.lookups for run in runs]
    return Pooling(
        num_vectors,
        np.concatenate(vectors),
        np.concatenate([*starts, np.array([num_lookups])]),
        np.concatenate([whole.bag_tables[:0], *(whole.bag_tables[run.bags] for run in runs)]),
        np.concatenate([whole.inverse[:0], *(whole.inverse[run] for run in lookups)]),
        whole.row_locations,
        np.concatenate([whole.scales[run] for run in lookups]) if len(whole.scales) else whole.scales,
    )
