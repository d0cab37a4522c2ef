"""The parts of a batch (micro-batches), described from the plan of the whole batch.

There is one plan and one row update per batch, in the batch's order of lookups. A part is a run of samples. It has its
own vectors in the forward pass, and their gradients go back to their places among the batch's.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from adaptive.batch import Batch
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.plan import GroupPlan, Pooling
from adaptive.embeddings.planning.planner import SlotChanges


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


def describe_parts(group: Group, batch: Batch, plan: GroupPlan, changes: SlotChanges) -> tuple[GroupPart, ...]:
    """Describe the parts of a planned batch; empty if it has none.

    Args:
        group: the tables.
        batch: the whole batch.
        plan: of the whole batch.
        changes: the distinct rows that get slots with this batch.
    """
    parts = []
    coming = np.zeros(len(changes.distinct.rows), np.bool_)
    coming[changes.admitted] = True
    arriving = coming[changes.distinct.inverse]
    for first, last in pairwise(accumulate(batch.part_sizes, initial=0)):
        runs = _runs(group, batch, first, last)
        places = _places(group, plan.pooling, runs, first, last)
        pooling = _pooling(group, plan.pooling, runs, first, last)
        waits = _on_host(pooling, plan) or any(arriving[run.lookups].any() for run in runs)
        parts.append(GroupPart(places, pooling, waits))
    return tuple(parts)


def _on_host(pooling: Pooling, plan: GroupPlan) -> bool:
    """True if the part may use rows on the host that get their initial values for this batch."""
    return len(plan.moves.fresh_rows) > 0 and bool((pooling.locations < 0).any())


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
