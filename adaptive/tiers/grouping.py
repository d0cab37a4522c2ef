"""From a batch's ids to the two descriptions the kernels need: bags to pool, and look-ups grouped by row."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.kernels import planning
from adaptive.tiers.layout import Group
from adaptive.tiers.plan import Grouping, Pooling

Int64s = NDArray[np.int64]


def describe_bags(group: Group, batch: Batch, inverse: NDArray[np.int32], locations: Int64s) -> Pooling:
    """The forward pass of one group: pooled features fill columns of a (B, columns, D) block; the vectors of
    un-pooled features follow behind it, feature by feature, one per position."""
    samples = batch.num_samples
    num_lookups = len(inverse)
    columns = group.num_columns
    max_bags = sum(
        samples if feature.column >= 0 else batch.num_lookups(feature.position) for feature in group.features
    )
    starts, vectors = np.empty(max_bags + 1, np.int64), np.empty(max_bags, np.int32)
    tables = np.empty(max_bags, np.int32)
    scales = _scales(group, batch, num_lookups)
    bag = at = 0
    next_vector = samples * columns
    for feature in group.features:
        size = batch.num_lookups(feature.position)
        count = planning.lay_out_bags(
            batch.offsets,
            samples,
            feature.position,
            feature.column,
            columns,
            next_vector,
            starts[bag:],
            vectors[bag:],
            scales[at : at + size],
            feature.mean and len(scales) > 0,
        )
        starts[bag : bag + count] += at
        tables[bag : bag + count] = feature.table
        if feature.column < 0:
            next_vector += size
        bag, at = bag + count, at + size
    starts[bag] = at
    lookups = np.empty(num_lookups, np.int64)
    planning.lookup_locations(inverse, locations, lookups)
    return Pooling(next_vector, vectors[:bag], starts[: bag + 1], tables[:bag], lookups, scales)


@dataclass(frozen=True)
class Updates:
    """The rows of a batch to update, in two groups; `now` and `later` are places among its distinct rows."""

    grouping: Grouping  # of the rows `now`
    now: Int64s
    later: Int64s
    segments: Int64s  # of the rows `later`, as in `Grouping`
    vectors: NDArray[np.int32]
    scales: NDArray[np.float32]


def group_updates(
    rows: Int64s,
    counts: NDArray[np.int32],
    locations: Int64s,
    inverse: NDArray[np.int32],
    skipped: NDArray[np.bool_],
    later: NDArray[np.bool_],
    pooling: Pooling,
) -> Updates:
    """The update of one group without the rows that are skipped; those to be updated later are apart."""
    num_rows, num_lookups = len(rows), len(inverse)
    scaled = len(pooling.scales) > 0
    cursors, segments = np.empty(num_rows, np.int64), np.empty(num_rows + 1, np.int64)
    updated, vectors = np.empty(num_rows, np.int64), np.empty(num_lookups, np.int32)
    origins = np.empty(num_lookups if scaled else 0, np.int64)
    kept, first = planning.group_by_row(
        counts,
        skipped,
        later,
        inverse,
        pooling.bag_starts,
        pooling.bag_vectors,
        cursors,
        segments,
        updated,
        vectors,
        origins,
    )
    now, middle, grouped = updated[:first], int(segments[first]), int(segments[kept])
    scales = pooling.scales[origins[:grouped]] if scaled else pooling.scales
    grouping = Grouping(rows[now], locations[now], segments[: first + 1], vectors[:middle], scales[:middle])
    return Updates(
        grouping,
        now,
        updated[first:kept],
        segments[first : kept + 1] - middle,
        vectors[middle:grouped],
        scales[middle:],
    )


def _scales(group: Group, batch: Batch, num_lookups: int) -> NDArray[np.float32]:
    """(N,) weights of look-ups in the group's order; ones to be filled for mean pooling; empty where all are 1."""
    if batch.weights is not None:
        parts = [batch.weights[batch.feature_span(feature.position)] for feature in group.features]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if any(feature.mean for feature in group.features):
        return np.ones(num_lookups, np.float32)
    return np.zeros(0, np.float32)
