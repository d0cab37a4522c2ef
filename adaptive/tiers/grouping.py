"""From a batch's ids to the two descriptions the kernels need: bags to pool, and look-ups grouped by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.kernels import planning
from adaptive.tiers.crew import ALONE, Crew
from adaptive.tiers.layout import FeatureSlot, Group
from adaptive.tiers.plan import Grouping, Pooling

Int64s = NDArray[np.int64]


def describe_bags(
    group: Group, batch: Batch, inverse: NDArray[np.int32], locations: Int64s, crew: Crew = ALONE
) -> Pooling:
    """The forward pass of one group: pooled features fill columns of a (B, columns, D) block; the vectors of
    un-pooled features follow behind it, feature by feature, one per position."""
    samples, columns = batch.num_samples, group.num_columns
    sizes = [batch.num_lookups(feature.position) for feature in group.features]
    places, next_vector = _places(group, samples, sizes)
    num_bags = places[-1].bags.stop
    starts, vectors = np.empty(num_bags + 1, np.int64), np.empty(num_bags, np.int32)
    tables = np.empty(num_bags, np.int32)
    scales = _scales(group, batch, len(inverse))

    def describe(feature: FeatureSlot, place: _Place) -> None:
        planning.lay_out_bags(
            batch.offsets,
            samples,
            feature.position,
            feature.column,
            columns,
            place.first_vector,
            starts[place.bags],
            vectors[place.bags],
            scales[place.lookups],
            feature.mean and len(scales) > 0,
        )
        starts[place.bags] += place.lookups.start
        tables[place.bags] = feature.table

    def describe_run(worker: int, number: int) -> None:
        run = runs[number]
        for feature, place in zip(group.features[run], places[run], strict=True):
            describe(feature, place)
        own = slice(places[run.start].lookups.start, places[run.stop - 1].lookups.stop)
        planning.lookup_locations(inverse[own], locations, lookups[own])

    runs = crew.cut_runs(sizes)
    lookups = np.empty(len(inverse), np.int64)
    crew.share(len(runs), describe_run)
    starts[num_bags] = len(inverse)
    return Pooling(next_vector, vectors, starts, tables, lookups, scales)


class _Place(NamedTuple):
    """Where one feature stands in the group."""

    lookups: slice
    bags: slice
    first_vector: int  # if it is not pooled


def _places(group: Group, samples: int, sizes: Sequence[int]) -> tuple[list[_Place], int]:
    """The place of each feature, and the number of vectors."""
    found = []
    at = bag = 0
    vector = samples * group.num_columns
    for feature, size in zip(group.features, sizes, strict=True):
        bags = samples if feature.column >= 0 else size
        found.append(_Place(slice(at, at + size), slice(bag, bag + bags), vector))
        at, bag = at + size, bag + bags
        vector += size if feature.column < 0 else 0
    return found, vector


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
    fates: NDArray[np.uint8],
    pooling: Pooling,
    crew: Crew = ALONE,
) -> Updates:
    """The update of one group without the rows that are skipped; those with a running sum are apart."""
    num_rows, num_lookups = len(rows), len(inverse)
    scaled = len(pooling.scales) > 0
    cursors, segments = np.empty(num_rows, np.int64), np.empty(num_rows + 1, np.int64)
    updated, vectors = np.empty(num_rows, np.int64), np.empty(num_lookups, np.int32)
    origins = np.empty(num_lookups if scaled else 0, np.int64)
    kept, first = planning.lay_out_segments(counts, fates, cursors, segments, updated)
    runs = _bags_by_tables(pooling, crew)

    def fill(worker: int, number: int) -> None:
        own = runs[number]
        starts = pooling.bag_starts[own.start : own.stop + 1]
        planning.fill_segments(inverse, starts, pooling.bag_vectors[own], cursors, vectors, origins)

    crew.share(len(runs), fill)
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


def _bags_by_tables(pooling: Pooling, crew: Crew) -> list[slice]:
    """The bags of runs of tables, for a crew to share."""
    num_bags = len(pooling.bag_tables)
    if crew.size == 1 or not num_bags:
        return [slice(0, num_bags)]
    ends = np.searchsorted(pooling.bag_tables, np.arange(pooling.bag_tables[-1] + 1), side="right")
    bounds = [0, *ends.tolist()]
    runs = crew.cut_runs(np.diff(pooling.bag_starts[bounds]).tolist())
    return [slice(bounds[run.start], bounds[run.stop]) for run in runs]
