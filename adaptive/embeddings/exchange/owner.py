"""The owner's side: what all ranks ask of it, as a batch of look-ups that are not pooled.

Requests stand in the order in which they came: rank by rank, so block by block of the global batch, and table by table
within a block. Each is a vector of its own, in this order; a row's gradients are therefore summed block by block.

Letters: n requests in a group, U distinct rows among them, W ranks, T tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.exchange.requests import Requests
from adaptive.embeddings.exchange.skip_masks import Answer
from adaptive.embeddings.planning.layout import Group, OwnedGroup
from adaptive.embeddings.planning.lookups import Bags, Distinct, DistinctFinder, Lookups
from adaptive.embeddings.planning.plan import no_rows
from adaptive.errors import RanksError
from adaptive.kernels.planning import lookups as kernels

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class ServedGroup:
    """What all ranks ask of this owner in one group."""

    lookups: Lookups  # as the planner takes it
    sizes: Int64s  # (W,) requests of each rank
    answer: Answer | None = None  # to all of them; None: there is nothing to say


class Server:
    """Makes look-ups of requests, for one group. For one thread."""

    def __init__(self, group: Group, name: str) -> None:
        """`group`: as the rank owns it; `name`: of the rank."""
        self._group, self._name = group, name
        self._finder = DistinctFinder(group)
        self._tables = np.arange(len(group.tables), dtype=np.int32)
        self._small = np.min_scalar_type(len(group.tables))

    def serve(self, asked: Sequence[Requests]) -> ServedGroup:
        """What all ranks ask, in order of ranks.

        Raises:
            RanksError: for a row that this rank does not own.
        """
        tables = np.concatenate([one.tables for one in asked])
        whole_rows = np.concatenate([one.rows for one in asked])
        group = self._group
        rows = group.owners.local_of(whole_rows, tables) if isinstance(group, OwnedGroup) else whole_rows
        if len(rows) and rows.min() < 0:
            wrong = int(whole_rows[rows.argmin()])
            raise RanksError(f"{self._name} was asked for row {wrong}, which another rank owns")
        order = np.argsort(tables.astype(self._small), kind="stable")  # by digits, if they are few
        ids = rows[order] - self._group.table_starts[tables[order]]
        distinct = self._distinct(ids, tables)
        num_requests, num_rows = len(rows), len(distinct.rows)
        vectors = order.astype(np.int32)
        bags = Bags(
            num_vectors=num_requests,
            vectors=vectors,
            starts=np.arange(num_requests + 1),
            tables=tables[order].astype(np.int32),
            scales=np.zeros(0, np.float32),
        )
        segments, grouped = np.empty(num_rows + 1, np.int64), np.empty(num_requests, np.int32)
        kernels.fill_segments(distinct.inverse, distinct.counts, bags.starts, vectors, segments, grouped, no_rows())
        times = np.concatenate([one.lookups for one in asked])[order]
        accesses = np.bincount(distinct.inverse, weights=times, minlength=num_rows).astype(np.int32)
        known = Distinct(distinct.rows, accesses, distinct.inverse, distinct.table_ends)
        sizes = np.array([len(one.rows) for one in asked])
        return ServedGroup(Lookups(known, bags, segments, grouped, bags.scales), sizes)

    def _distinct(self, ids: Int64s, tables: Int64s) -> Distinct:
        """The distinct rows of requests (n,) that are ordered by table; counts are of requests."""
        sizes = np.bincount(tables, minlength=len(self._tables))
        ends = np.cumsum(sizes)
        found, bad = self._finder.find_in_spans(ids, np.stack([ends - sizes, ends], axis=1), self._tables)
        assert bad is None
        return found
