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
class Prepared:
    """A batch of this rank, and what it requests."""

    batch: Batch
    requested: list[Requested]  # of each group; empty without samples
    counts: Int64s  # (W, tables of all groups) rows requested of each owner
    numbers: list[list[NDArray[Any]]]  # of each group and owner: (n,) the owner's numbers of these rows


@dataclass(frozen=True)
class Exchanged:
    """A batch whose requests have been exchanged."""

    batch: Batch  # this rank's samples, maybe none
    owned: Batch  # the lookups of all ranks in the rows that this rank owns
    requested: list[Requested]  # of each group; empty without samples
    asked: list[Int64s]  # of each group: (W, T) rows that this rank requests of each owner
    served: list[Int64s]  # of each group: (W, T) rows that each rank requests of this owner
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
        sizes = {table.name: table.num_embeddings for table in tables}
        self._dtypes = [
            np.dtype(np.int64 if g.has_keys or max(sizes[t.name] for t in g.tables) > WIDE else np.uint32)
            for g in groups
        ]
        # Columns of a header: the tables, group by group, each with its bytes.
        names = [table.name for group in groups for table in group.tables]
        self._columns = [names.index(table.name) for table in tables]
        self._groups_of = np.repeat(np.arange(len(groups)), [len(group.tables) for group in groups])
        self._number_bytes = np.array([dtype.itemsize for dtype in self._dtypes])[self._groups_of]
        self._row_bytes = np.array([4 * group.embedding_dim for group in groups])[self._groups_of]
        self._timed = any(table.expire_seconds is not None for table in tables)

    def prepare(self, batch: Batch) -> Prepared:
        """Find the rows that a batch, maybe without samples, requests of each owner.

        Raises:
            InputError: for an id that a table does not have.
        """
        if not batch.num_samples:
            return Prepared(batch, [], np.zeros((self._peers.size, len(self._columns)), np.int64), [])
        requested, counts, numbers = zip(*(self._find(n, batch) for n in range(len(self._groups))), strict=True)
        return Prepared(batch, [*requested], np.concatenate(counts, axis=1), [*numbers])

    def exchange(self, prepared: Prepared, number: int) -> Exchanged | None:
        """Exchange the requests of a batch; None if some rank has no more batches.

        Raises:
            AdaptiveError: of another rank.
        """
        batch, rank = prepared.batch, self._peers.rank
        headers = self._swap_headers(Status.BATCH, number, prepared)
        if (headers[:, 0] != Status.BATCH).any():
            return None
        received = headers[:, FACTS:]
        ids = self._swap_numbers(prepared, received, int(headers[:, 3].max()))
        asked, served = (
            [counts[:, self._groups_of == group] for group in range(len(self._groups))]
            for counts in (prepared.counts, received)
        )
        samples = headers[:, 2]
        latest = float(np.ascontiguousarray(headers[:, 5]).view(np.float64).max())
        return Exchanged(
            batch,
            self._batch(ids, latest),
            prepared.requested,
            asked,
            served,
            int(samples.sum()),
            int(samples[:rank].sum()),
            int(headers[:, 4].max()),
        )

    def end(self, status: Status, number: int) -> NDArray[np.int64]:
        """Tell all ranks that this one has no further batch; return the status of each."""
        return self._swap_headers(status, number, None)[:, 0]

    def _swap_headers(self, status: Status, number: int, prepared: Prepared | None) -> NDArray[np.int64]:
        rows, latest = np.zeros((self._peers.size, FACTS + len(self._columns)), np.int64), BEFORE_ALL
        if prepared is not None:
            batch, counts = prepared.batch, prepared.counts
            rows[:, 2] = batch.num_samples
            rows[:, 3], rows[:, 4] = (counts @ self._number_bytes).max(), (counts @ self._row_bytes).max()
            rows[:, FACTS:] = counts
            if self._timed and (times := batch.extras.get("timestamp")) is not None and len(times):
                latest = float(np.max(times))
        rows[:, 0], rows[:, 1], rows[:, 5] = status, number, np.float64(latest).view(np.int64)
        headers = self._channel.swap_rows(rows, f"batch {number}")
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

    def _find(self, place: int, batch: Batch) -> tuple[Requested, Int64s, list[NDArray[Any]]]:
        """Return the requests of a group, how many (W, T), and for each owner its numbers (n,) of them."""
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
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        by_owner = np.split(numbers[order].astype(self._dtypes[place]), np.cumsum(counts.sum(axis=1))[:-1])
        return Requested(lookups, places), counts, by_owner

    def _swap_numbers(self, prepared: Prepared, received: Int64s, largest: int) -> list[NDArray[Any]]:
        """Return this owner's numbers of the requested rows (n,) of each table, rank by rank."""
        raw = [part.view(np.uint8) for of_owner in zip(*prepared.numbers, strict=True) for part in of_owner]
        sent = torch.from_numpy(np.concatenate([*raw, np.zeros(0, np.uint8)]))
        to, of = ((counts @ self._number_bytes).tolist() for counts in (prepared.counts, received))
        swapped = self._channel.swap(sent, to, of, largest, "lookups").numpy()
        pieces = np.split(swapped, np.cumsum(received * self._number_bytes)[:-1])  # rank by rank, table by table
        return [
            np.concatenate(pieces[column :: len(self._columns)]).view(self._dtypes[self._groups_of[column]])
            for column in self._columns
        ]

    def _batch(self, ids: Sequence[NDArray[Any]], latest: float) -> Batch:
        """Return the owner's batch: one sample, in which each table has the requests of all ranks."""
        return Batch(
            dense=np.zeros((1, 0), np.float32),
            ids=np.concatenate(ids, dtype=np.int64),
            offsets=np.cumsum([0, *map(len, ids)], dtype=np.int64),
            labels=np.zeros(1, np.float32),
            extras={"timestamp": np.array([latest])} if latest != BEFORE_ALL else {},
        ).mark_unshared()
