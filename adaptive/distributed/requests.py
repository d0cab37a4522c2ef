"""Requests: the rows that a rank looks up, as it asks their owners for them.

A rank finds the distinct rows of its samples and sends each owner, table by table, the numbers of those that it owns,
as many bytes as they need. The owner joins the requests of all ranks, table by table and within a table rank by rank,
to a batch of lookups that are not pooled. So the gradients of a row are added rank by rank.

    header    status, number, samples, largest messages, timestamp, rows of each table     to each owner, always
    numbers   (n,) uint32 or int64, group by group and table by table                      if all ranks have a batch

Letters: n requests in a group, U distinct rows, V vectors, W ranks, T tables of a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.arrays import Int64s
from adaptive.batch import Batch
from adaptive.config import TableConfig
from adaptive.distributed.ownership import owners_of_keys, owners_of_rows
from adaptive.distributed.peers import Channel, Peers
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import DistinctFinder, Lookups, group_lookups, lay_out_bags
from adaptive.embeddings.planning.plan import Pooling
from adaptive.errors import RanksError
from adaptive.kernels.scratch import ScratchPool

WIDE: Final = 1 << 32  # rows that 4 bytes can number
BEFORE_ALL: Final = -np.inf  # the timestamp of a rank without samples
FACTS: Final = 6  # columns of a header before the rows of each table


class Status(IntEnum):
    """Why a header is sent."""

    BATCH = 0
    END = 1  # this rank has no more batches
    LEFT = 2  # its loop has ended early
    FAILED = 3


@dataclass(frozen=True)
class Requested:
    """The lookups of this rank's samples in one group, and where the vectors of their rows arrive."""

    lookups: Lookups
    places: Int64s  # (U,) of each distinct row among the vectors from all owners
    sizes: list[int]  # (W,) rows requested of each owner

    def pooling(self) -> Pooling:
        """Return the forward pass, from the vectors of the requested rows (U, D)."""
        return self.lookups.bags.pooling(self.lookups.distinct.inverse, self.places)

    def sums(self) -> Pooling:
        """Return the pooling that sums gradients (V, D) by requested row, in lookup order."""
        lookups, number = self.lookups, len(self.places)
        return Pooling(
            num_vectors=number,
            bag_vectors=self.places.astype(np.int32),
            bag_starts=lookups.segments,
            bag_tables=np.zeros(number, np.int32),
            inverse=lookups.vectors,
            row_locations=np.arange(lookups.bags.num_vectors, dtype=np.int64),
            scales=lookups.scales,
        )


@dataclass(frozen=True)
class Served:
    """What all ranks request of this owner in one group."""

    sizes: list[int]  # (W,) rows requested by each rank
    by_table: Int64s  # (n,) requests of all ranks, rank by rank -> in the order of the owner's batch
    by_rank: Int64s  # and back
    features: tuple[str, ...]  # of the owner's batch, one for each table
    counts: list[int]  # (T,) requests of each table


@dataclass(frozen=True)
class Prepared:
    """A batch of this rank, and what it requests."""

    batch: Batch
    requested: list[Requested]  # of each group; empty without samples
    counts: Int64s  # (W, tables of all groups) rows requested of each owner
    numbers: list[NDArray[Any]]  # of each group: (n,) the owners' numbers of these rows, owner by owner


@dataclass(frozen=True)
class Exchanged:
    """A batch whose requests have been exchanged."""

    batch: Batch  # this rank's samples, maybe none
    owned: Batch  # the lookups of all ranks in the rows that this rank owns
    requested: list[Requested]  # of each group; empty without samples
    served: list[Served]
    samples: int  # of all ranks
    first: int  # position of this rank's first sample among them
    largest: int  # rows, in bytes, that go from one rank to another at most


class Requester:
    """Exchanges requests with all ranks. For one thread.

    Args:
        peers: the ranks.
        channel: of the thread.
        groups: of the whole tables.
        tables: as the owner has them, in the order of its batches' features.
    """

    def __init__(self, peers: Peers, channel: Channel, groups: Sequence[Group], tables: Sequence[TableConfig]) -> None:
        self._peers, self._channel, self._groups = peers, channel, tuple(groups)
        self._finders, self._grouped = [DistinctFinder(group) for group in groups], ScratchPool()
        self._order = [table.name for table in tables]
        sizes = {table.name: table.num_embeddings for table in tables}
        self._dtypes = [
            np.dtype(np.int64 if g.has_keys or max(sizes[t.name] for t in g.tables) > WIDE else np.uint32)
            for g in groups
        ]
        tables_of_groups = [len(group.tables) for group in groups]
        self._number_bytes = np.repeat([dtype.itemsize for dtype in self._dtypes], tables_of_groups)
        self._row_bytes = np.repeat([4 * group.embedding_dim for group in groups], tables_of_groups)
        self._timed = any(table.expire_seconds is not None for table in tables)

    def prepare(self, batch: Batch) -> Prepared:
        """Find the rows that a batch, maybe without samples, requests of each owner.

        Raises:
            InputError: for an id that a table does not have.
        """
        if not batch.num_samples:
            return Prepared(batch, [], np.zeros((self._peers.size, len(self._order)), np.int64), [])
        requested, counts, numbers = zip(*(self._find(n, batch) for n in range(len(self._groups))), strict=True)
        return Prepared(batch, [*requested], np.concatenate(counts, axis=1), [*numbers])

    def exchange(self, prepared: Prepared, number: int) -> Exchanged | None:
        """Exchange the requests of a batch; None if some rank has no more batches.

        Raises:
            AdaptiveError: of another rank.
        """
        batch, peers = prepared.batch, self._peers
        headers = self._swap_headers(Status.BATCH, number, prepared)
        if (headers[:, 0] != Status.BATCH).any():
            return None
        received = headers[:, FACTS:]
        numbers = self._swap_numbers(prepared, received, int(headers[:, 3].max()))
        served, ids, first = list[Served](), dict[str, Int64s](), 0
        for group, of_group in zip(self._groups, numbers, strict=True):
            served.append(_serve(group, of_group, received[:, first : first + len(group.tables)], ids))
            first += len(group.tables)
        samples = headers[:, 2]
        latest = float(np.ascontiguousarray(headers[:, 5]).view(np.float64).max())
        return Exchanged(
            batch,
            self._batch(ids, latest),
            prepared.requested,
            served,
            int(samples.sum()),
            int(samples[: peers.rank].sum()),
            int(headers[:, 4].max()),
        )

    def end(self, status: Status, number: int) -> NDArray[np.int64]:
        """Tell all ranks that this one has no further batch; return the status of each."""
        return self._swap_headers(status, number, None)[:, 0]

    def _swap_headers(self, status: Status, number: int, prepared: Prepared | None) -> NDArray[np.int64]:
        rows, latest = np.zeros((self._peers.size, FACTS + len(self._order)), np.int64), BEFORE_ALL
        if prepared is not None:
            batch, counts = prepared.batch, prepared.counts
            rows[:, 2] = batch.num_samples
            rows[:, 3], rows[:, 4] = (counts @ self._number_bytes).max(), (counts @ self._row_bytes).max()
            rows[:, FACTS:] = counts
            if self._timed and (times := batch.extras.get("timestamp")) is not None and len(times):
                latest = float(np.max(times))
        rows[:, 0], rows[:, 1], rows[:, 5] = status, number, np.float64(latest).view(np.int64)
        headers = self._channel.swap_rows(rows, f"batch {number}") if self._peers.size > 1 else rows
        others = headers[headers[:, 0] == Status.BATCH]
        if status is Status.BATCH and (others[:, 1] != number).any():
            rank = int(np.flatnonzero((headers[:, 0] == Status.BATCH) & (headers[:, 1] != number))[0])
            raise RanksError(
                f"ranks are out of step: expected batch {number} as on {self._peers.name}, got batch "
                f"{headers[rank, 1]} on {self._peers.names[rank]}. Make the same calls in the same order on all ranks."
            )
        if (headers[:, 0] == Status.FAILED).any() and status is not Status.FAILED:
            rank = int(np.flatnonzero(headers[:, 0] == Status.FAILED)[0])
            raise self._peers.failure() or RanksError(f"{self._peers.names[rank]}: its loop has failed.")
        return headers

    def _find(self, place: int, batch: Batch) -> tuple[Requested, Int64s, NDArray[Any]]:
        """Return the requests of a group, (W, T) their numbers, and the owners' numbers (U,) of rows, by owner."""
        group, size, num_tables = self._groups[place], self._peers.size, len(self._groups[place].tables)
        distinct, bags = self._finders[place].find(batch), lay_out_bags(group, batch)
        lookups = group_lookups(distinct, bags, self._grouped)
        tables = np.repeat(np.arange(num_tables), np.diff(distinct.table_ends, prepend=0))
        if group.has_keys:
            numbers, spans = distinct.rows, np.split(distinct.rows, distinct.table_ends[:-1])
            owners = np.concatenate(
                [owners_of_keys(keys, key, size) for keys, key in zip(spans, group.table_keys, strict=True)]
            )
        else:
            owners, numbers = owners_of_rows(distinct.rows - group.table_starts[tables], group.table_keys[tables], size)
        order = np.argsort(owners.astype(np.uint16), kind="stable")  # radix sort: a third of the time
        counts = np.bincount(owners * num_tables + tables, minlength=size * num_tables).reshape(size, num_tables)
        return (
            Requested(lookups, _inverse(order), counts.sum(axis=1).tolist()),
            counts,
            numbers[order].astype(self._dtypes[place]),
        )

    def _swap_numbers(self, prepared: Prepared, received: Int64s, largest: int) -> list[NDArray[Any]]:
        """Return (n,) the owner's numbers of rows that all ranks request in each group, rank by rank."""
        ends = np.cumsum([len(group.tables) for group in self._groups])[:-1]
        sizes, lengths = (
            np.array([of_group.sum(axis=1) for of_group in np.split(counts, ends, axis=1)])
            for counts in (prepared.counts, received)
        )  # (groups, W)
        items = np.array([dtype.itemsize for dtype in self._dtypes])[:, None]
        parts = [
            np.split(of_group, np.cumsum(of_size)[:-1])
            for of_group, of_size in zip(prepared.numbers, sizes, strict=False)
        ]
        raw = [part.view(np.uint8) for of_owner in zip(*parts, strict=True) for part in of_owner]
        sent = torch.from_numpy(np.concatenate(raw)) if raw else torch.zeros(0, dtype=torch.uint8)
        to, of = ((numbers * items).sum(axis=0).tolist() for numbers in (sizes, lengths))
        swapped = self._channel.swap(sent, to, of, largest, "lookups").numpy()
        pieces = np.split(swapped, np.cumsum((lengths * items).T.reshape(-1))[:-1])
        return [
            np.concatenate([piece.copy().view(dtype) for piece in pieces[place :: len(self._groups)]])
            for place, dtype in enumerate(self._dtypes)
        ]

    def _batch(self, ids: dict[str, Int64s], latest: float) -> Batch:
        """Return the owner's batch: one sample, in which each table has the lookups of all ranks."""
        parts = [ids[name] for name in self._order]
        return Batch(
            dense=np.zeros((1, 0), np.float32),
            ids=np.concatenate(parts),
            offsets=np.cumsum([0, *map(len, parts)], dtype=np.int64),
            labels=np.zeros(1, np.float32),
            extras={"timestamp": np.array([latest])} if latest != BEFORE_ALL else {},
        ).mark_unshared()


def _serve(group: Group, numbers: NDArray[Any], counts: Int64s, ids: dict[str, Int64s]) -> Served:
    """Return the requests of all ranks in a group, with counts (W, T); adds the numbers of each table to `ids`."""
    num_ranks, num_tables = counts.shape
    tables = np.repeat(np.tile(np.arange(num_tables, dtype=np.uint16), num_ranks), counts.reshape(-1))
    by_table = np.argsort(tables, kind="stable")
    of_tables = counts.sum(axis=0)
    names = tuple(table.name for table in group.tables)
    spans = np.split(numbers[by_table].astype(np.int64), np.cumsum(of_tables)[:-1])
    ids.update(zip(names, spans, strict=True))
    return Served(counts.sum(axis=1).tolist(), by_table, _inverse(by_table), names, of_tables.tolist())


def _inverse(order: Int64s) -> Int64s:
    """Return the positions (n,) at which an order (n,) has 0, 1, ..."""
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    return positions


def to_owner_order(served: Served, values: Tensor) -> Tensor:
    """Return values (n, D), which came rank by rank, in the order of the owner's batch."""
    return values if len(served.sizes) == 1 else values[torch.from_numpy(served.by_table).to(values.device)]


def to_rank_order(served: Served, values: Tensor) -> Tensor:
    """Return values (n, D) of the owner's batch in the order of the requests, rank by rank."""
    return values if len(served.sizes) == 1 else values[torch.from_numpy(served.by_rank).to(values.device)]
