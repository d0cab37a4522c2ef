"""Requests: the rows of each owner that one rank looks up, and their numbers of lookups.

The requester (`RequestBuilder`) writes the rows that its blocks look up into a message for each owner. The responses of
all owners form one array of rows for each group: owner by owner, block by block, table by table, in order of first
lookup. Gradients are sent in the same order.

The owner (`RequestMerger`) plans the requests of all ranks as a batch of lookups that are not pooled: rank by rank, so
block by block of the global batch, and table by table within a block. Each request is a separate vector, in this order.
A row's gradients are therefore summed block by block, whichever rank has a block.

A message contains, for each group of tables, of all blocks of the requester one after the other:

    counts   (blocks, tables) int32    rows requested
    index    (n,) uint32, or uint64    of each row in its table, block by block, table by table
    lookups  (n,) uint8                of each row in its block, at most 255
    many     uint32                    lookups of the rows for which that says 255, in order

*Groups with keys.* Each rank has the whole index of keys, so it must know all keys of a batch. A requester sends every
rank the same message: the keys (int64, in place of `index`) of all its blocks, and `KEY_FACTS`: a checksum of the
tables' rules, and the latest timestamp.
When the batch is planned, its keys get rows on every rank, which then knows who requests which row of whom
(`KeyMerger`). A batch that is only read requests rows: each rank finds its own in its index.

Letters: n requests in a group, U distinct rows of a block or among requests, W ranks, K blocks, T tables of a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.embeddings.exchange.row_cache import SkipMasks
from adaptive.embeddings.planning.key_tables import NO_TIME, GroupKeys
from adaptive.embeddings.planning.layout import Group, OwnedGroup
from adaptive.embeddings.planning.lookups import Bags, DistinctFinder, Lookups, group_lookups
from adaptive.embeddings.planning.plan import Pooling, RowUpdates, no_rows
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.owners import BITS
from adaptive.embeddings.ranks.transport import Bytes, as_bytes
from adaptive.errors import RanksError
from adaptive.kernels.planning import keys as kernels
from adaptive.kernels.planning.lookups import Distinct
from adaptive.kernels.scratch import ScratchPool

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
MANY: Final = 255
MOST: Final = 2**31 - 1  # lookups of a batch
WIDE: Final = 1 << 32  # rows of a table that 4 bytes can number
KEY_FACTS: Final = np.dtype([("rules", np.int64), ("latest", np.float64)])


class Requests(NamedTuple):
    """Requests of one rank to one owner, or of keys to all ranks, in one group."""

    counts: Int64s  # (blocks of the requester, T)
    tables: Int64s  # (n,)
    rows: Int64s  # (n,) of the undivided group, or keys
    lookups: Int64s  # (n,)


def pack_requests(group: Group, requests: Requests, *, are_keys: bool = False) -> Bytes:
    """Return the message for requests; `group` is undivided."""
    index = requests.rows
    if not are_keys:
        index = (index - group.table_starts[requests.tables]).astype(choose_index_type(group))
    few = np.minimum(requests.lookups, MANY).astype(np.uint8)
    many = requests.lookups[requests.lookups >= MANY].astype(np.uint32)
    return np.concatenate([as_bytes(requests.counts.astype(np.int32)), as_bytes(index), as_bytes(few), as_bytes(many)])


def unpack_requests(
    group: Group, message: Bytes, num_blocks: int, sender: str, *, are_keys: bool = False
) -> tuple[Requests, Bytes]:
    """Return the requests at the beginning of a message, and the rest of the message.

    Raises:
        RanksError: if they are cut short, or contain rows that the tables do not have or impossible lookups.
    """
    rest = message

    def invalid(expected: str, got: str) -> RanksError:
        return RanksError(
            f"requests of {sender}: expected {expected}, got {got}. The message was damaged, or ranks differ: use the "
            "same version of adaptive and the same tables on all ranks."
        )

    def take(kind: type[np.generic] | np.dtype[Any], number: int) -> NDArray[Any]:
        nonlocal rest
        size = number * np.dtype(kind).itemsize
        if len(rest) < size:
            raise invalid(f"at least {size} bytes", str(len(rest)))
        array, rest = np.frombuffer(rest[:size].tobytes(), kind), rest[size:]
        return array

    counts = take(np.int32, num_blocks * len(group.tables)).astype(np.int64)
    if (counts < 0).any():
        raise invalid("counts of at least 0", str(counts.min()))
    number = int(counts.sum())
    index = take(np.int64 if are_keys else choose_index_type(group), number).astype(np.int64)
    lookups = take(np.uint8, number).astype(np.int64)
    many = np.flatnonzero(lookups == MANY)
    lookups[many] = take(np.uint32, len(many))
    if (lookups[many] < MANY).any() or int(lookups.sum()) > MOST:
        raise invalid(f"at most {MOST} lookups, and the shortest form of their counts", str(int(lookups.sum())))
    tables = _tables_of(counts.reshape(num_blocks, -1))
    is_outside = not are_keys and bool((index < 0).any() or (index >= group.table_sizes[tables]).any())
    if is_outside or (lookups < 1).any():
        raise invalid("rows of the tables, looked up at least once", "others")
    rows = index if are_keys else index + group.table_starts[tables]
    return Requests(counts.reshape(num_blocks, -1), tables, rows, lookups), rest


def pack_key_facts(keys: GroupKeys, latest: float) -> Bytes:
    """Return the message that follows requests of keys; `latest`: timestamp of the blocks."""
    return as_bytes(np.array([(keys.rules, latest)], KEY_FACTS))


def unpack_key_facts(keys: GroupKeys, message: Bytes, sender: str) -> tuple[float, Bytes]:
    """Return the timestamp at the beginning of a message, and the rest of the message.

    Raises:
        RanksError: if it is cut short, is no timestamp, or the sender's tables have other rules.
    """
    size = KEY_FACTS.itemsize
    facts = np.frombuffer(message[:size].tobytes(), KEY_FACTS) if len(message) >= size else np.zeros(1, KEY_FACTS)
    rules, latest = facts[0].tolist()
    names = ", ".join(table.config.name for table in keys.tables)
    if rules != keys.rules or not latest >= NO_TIME:
        raise RanksError(
            f"requests of {sender}: expected keys of tables {names} with the rules and the seed of this rank, got "
            "others. Create the same tables on all ranks, with the same version of adaptive."
        )
    return latest, message[size:]


def choose_index_type(group: Group) -> np.dtype[Any]:
    """Return the dtype for the index of a row in its table."""
    return np.dtype(np.uint32 if int(group.table_sizes.max()) <= WIDE else np.uint64)


# --- the requester ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RequestedBlock:
    """One block of one group: its lookups, and the place (U,) of each of its distinct rows."""

    lookups: Lookups
    places: Int64s

    def pooling(self) -> Pooling:
        """Return the pooling of the forward pass, from the requested rows (n, D)."""
        return self.lookups.bags.pooling(self.lookups.distinct.inverse, self.places)

    def sums(self, vectors: NDArray[np.int32], num_vectors: int, skipped: Bools | None) -> Pooling:
        """Return the pooling that sums the gradients of the block by row, in lookup order.

        `vectors` (U,): output vector of each distinct row; `skipped` (U,): rows whose gradient is not needed.
        """
        lookups = self.lookups
        updates = RowUpdates(lookups.distinct.rows, self.places, lookups.segments, lookups.vectors, lookups.scales)
        if skipped is not None:
            sent = np.flatnonzero(~skipped)
            updates, vectors = updates.take(sent), vectors[sent]
        return Pooling(
            num_vectors=num_vectors,
            bag_vectors=vectors,
            bag_starts=updates.segments,
            bag_tables=np.zeros(len(updates.rows), np.int32),
            inverse=updates.vectors,
            row_locations=np.arange(self.lookups.bags.num_vectors, dtype=np.int64),
            scales=updates.scales,
        )


@dataclass(frozen=True)
class RequestedRows:
    """Requests of a rank to all owners in one group. None as long as the keys of the blocks have no rows."""

    blocks: tuple[RequestedBlock | None, ...]  # of the rank; None for a block without samples
    rows: Int64s  # (n,) of the undivided group
    sizes: Int64s  # (W,) rows requested of each owner
    masks: SkipMasks | None = None  # from the owners; None if everything is sent

    @property
    def skipped(self) -> Bools | None:
        """(n,) True for rows whose gradient is not sent; None if there are none."""
        return None if self.masks is None or not self.masks.skipped.any() else self.masks.skipped


class RequestBuilder:
    """Makes requests from batches. For one thread."""

    def __init__(self, groups: Sequence[Group], keys: Sequence[GroupKeys | None], size: int) -> None:
        """`groups`: as this rank owns them; `keys`: of those with keys; `size`: number of ranks."""
        self._groups, self._keys, self._size = groups, keys, size
        self._finders = [DistinctFinder(group.undivided) for group in groups]
        self._grouped = ScratchPool()

    def build(
        self, blocks: Sequence[Batch | None], *, only_read: bool = False
    ) -> tuple[list[RequestedRows], list[Bytes]]:
        """Return the requests of a rank's blocks in each group, and the message for each owner.

        `only_read`: keys have their present rows, and none gets one.

        Raises:
            InputError: for an id that a table does not have, or a wrong timestamp.
        """
        requested, parts = list[RequestedRows](), list[list[Bytes]]()
        for group, keys, finder in zip(self._groups, self._keys, self._finders, strict=True):
            lookups = [None if block is None else finder.find_lookups(block) for block in blocks]
            if keys is not None and only_read:
                lookups = [of_block and self._with_present_rows(keys, of_block) for of_block in lookups]
            if keys is None or only_read:
                of_group, to_owners = self.request(group, lookups)
                messages = [pack_requests(group.undivided, requests) for requests in to_owners]
            else:
                of_group = _without_rows(lookups, self._size)
                latest = max([NO_TIME, *(keys.latest_time(block) for block in blocks if block is not None)])
                message = pack_requests(group.undivided, _request_keys(group, lookups), are_keys=True)
                messages = [np.concatenate([message, pack_key_facts(keys, latest)])] * self._size
            requested.append(of_group)
            parts.append(messages)
        return requested, [np.concatenate(message) for message in zip(*parts, strict=True)]

    def _with_present_rows(self, keys: GroupKeys, lookups: Lookups) -> Lookups:
        return group_lookups(keys.find(lookups.distinct), lookups.bags, self._grouped)

    def request(self, group: Group, blocks: Sequence[Lookups | None]) -> tuple[RequestedRows, list[Requests]]:
        """Return the requests of a rank's blocks in a group, and those to each owner."""
        num_tables = len(group.tables)
        rows, lookups, numbers = _distinct_of(blocks)
        block_of = np.repeat(np.arange(len(blocks)), numbers)
        tables = group.undivided.tables_of(rows).astype(np.int64)
        owners = np.zeros(len(rows), np.int64)
        if isinstance(group, OwnedGroup):
            owners = group.owners.buckets_of(rows, tables) * self._size >> BITS
        order = np.argsort(owners.astype(np.uint16), kind="stable")  # radix sort: a third of the time
        places = np.empty(len(rows), np.int64)
        places[order] = np.arange(len(rows))
        sizes = np.bincount(owners, minlength=self._size)
        cells = (owners * len(blocks) + block_of) * num_tables + tables
        counts = np.bincount(cells, minlength=self._size * len(blocks) * num_tables)
        counts = counts.reshape(self._size, len(blocks), num_tables)
        rows, tables, lookups = rows[order], tables[order], lookups[order]
        bounds = np.cumsum(sizes)[:-1]
        by_owner = zip(*(np.split(array, bounds) for array in (tables, rows, lookups)), strict=True)
        to_owners = [Requests(of_owner, *columns) for of_owner, columns in zip(counts, by_owner, strict=True)]
        places_of_blocks = np.split(places, np.cumsum(numbers)[:-1])
        requested = [
            None if of_block is None else RequestedBlock(of_block, its_places)
            for of_block, its_places in zip(blocks, places_of_blocks, strict=True)
        ]
        return RequestedRows(tuple(requested), rows, sizes), to_owners


def _without_rows(blocks: Sequence[Lookups | None], size: int) -> RequestedRows:
    """Return the requests of blocks whose keys have no rows yet."""
    requested = tuple(None if of_block is None else RequestedBlock(of_block, no_rows()) for of_block in blocks)
    return RequestedRows(requested, no_rows(), np.zeros(size, np.int64))


def _request_keys(group: Group, blocks: Sequence[Lookups | None]) -> Requests:
    """Return the requests of the keys of a rank's blocks."""
    counts = np.zeros((len(blocks), len(group.tables)), np.int64)
    for of_block, block in zip(counts, blocks, strict=True):
        if block is not None:
            of_block[:] = np.diff(block.distinct.table_ends, prepend=np.int64(0))
    keys, lookups, _ = _distinct_of(blocks)
    return Requests(counts, _tables_of(counts), keys, lookups)


def _distinct_of(blocks: Sequence[Lookups | None]) -> tuple[Int64s, Int64s, list[int]]:
    """Return the distinct rows or keys (n,) of all blocks, their lookups (n,), and how many are of each block."""
    distinct = [None if lookups is None else lookups.distinct for lookups in blocks]
    rows = np.concatenate([no_rows(), *(block.rows for block in distinct if block is not None)])
    lookups = np.concatenate([no_rows(), *(block.counts for block in distinct if block is not None)])
    return rows, lookups, [0 if block is None else len(block.rows) for block in distinct]


def _tables_of(counts: NDArray[np.integer[Any]]) -> Int64s:
    """Return the table (n,) of each of the rows that blocks have of each table, counts (K, T)."""
    return np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())


# --- the owner -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnerRequests:
    """Requests of all ranks to this owner in one group."""

    lookups: Lookups  # for the planner
    sizes: Int64s  # (W,) requests of each rank
    masks: SkipMasks | None = None  # for all requests; None if everything is sent


class RequestMerger:
    """Makes lookups for the planner from all ranks' requests, for one group and thread.

    Args:
        group: as this rank owns it; undivided with keys, to find those of all ranks.
        name: of this rank, for messages.
    """

    def __init__(self, group: Group, name: str) -> None:
        self._group, self._name = group, name
        self._finder, self._grouped = DistinctFinder(group), ScratchPool()
        self._tables = np.arange(len(group.tables), dtype=np.int32)
        self._small = np.min_scalar_type(len(group.tables))

    def merge(self, requests: Sequence[Requests]) -> OwnerRequests:
        """Return the requests of all ranks, in the order of ranks.

        Raises:
            RanksError: for a row that this rank does not own.
        """
        group, sizes = self._group, np.array([len(of_rank.rows) for of_rank in requests])
        _, tables, group_rows, times = (np.concatenate(column) for column in zip(*requests, strict=True))
        rows = group.owned_rows(group_rows, tables)
        if isinstance(group, OwnedGroup) and len(rows) and rows.min() < 0:
            row = int(group_rows[rows.argmin()])
            raise RanksError(
                f"{self._name}: expected requests of rows that it owns, got one of row {row}, which another rank owns. "
                "Use the same version of adaptive and the same tables on all ranks."
            )
        order = np.argsort(tables.astype(self._small), kind="stable")  # radix sort, if there are few tables
        ids = rows[order]
        if not group.has_keys:  # those are found by any numbers, also by their rows
            ids -= group.table_starts[tables[order]]
        table_counts = np.bincount(tables, minlength=len(self._tables))
        ends = np.cumsum(table_counts)
        spans = np.stack([ends - table_counts, ends], axis=1)
        distinct, bad = self._finder.find_in_spans((ids, spans, self._tables), len(ids))  # counts are of requests
        assert bad is None
        bags = Bags(
            num_vectors=len(rows),
            vectors=order.astype(np.int32),
            starts=np.arange(len(rows) + 1),
            tables=tables[order].astype(np.int32),
            scales=np.zeros(0, np.float32),
        )
        lookups = group_lookups(distinct, bags, self._grouped)
        accesses = np.bincount(distinct.inverse, weights=times[order], minlength=len(distinct.rows)).astype(np.int32)
        return OwnerRequests(replace(lookups, distinct=distinct._replace(counts=accesses)), sizes)


class KeyMerger:
    """Makes requests of rows from all ranks' requests of keys, for one group with keys and thread."""

    def __init__(self, group: Group, keys: GroupKeys, ranks: Ranks, builder: RequestBuilder) -> None:
        """`group`: as this rank owns it; `builder`: of requests, in the same thread."""
        self._group, self.keys, self._ranks, self._builder = group, keys, ranks, builder
        self._merger_of_keys, self._rows = (RequestMerger(each, ranks.name) for each in (group.undivided, group))
        self._grouped = ScratchPool()

    def find_keys(self, requests: Sequence[Requests]) -> OwnerRequests:
        """Return the requests of all ranks with their distinct keys, in the order of first lookup."""
        return self._merger_of_keys.merge(requests)

    def give_rows(
        self, blocks: Sequence[RequestedBlock | None], requests: Sequence[Requests], lookups: Lookups, rows: Int64s
    ) -> tuple[RequestedRows, OwnerRequests, Int64s]:
        """Return this rank's requests, those to it, and (T,) how many lookups of its blocks are of keys without a row.

        Args:
            blocks: of this rank, with keys; changes their lookups.
            requests: of keys, by all ranks.
            lookups: of the distinct keys (U,), from `find_keys`.
            rows: (U,) row of each key, the first one of its table without one.
        """
        ranks, num_tables = self._ranks, len(self._group.tables)
        num_keys = np.concatenate([of_rank.counts for of_rank in requests])  # (K, T)
        times = np.concatenate([of_rank.lookups for of_rank in requests]).astype(np.int32)
        requested, group_rows = np.empty((2, len(times)), np.int64)
        requested[lookups.bags.vectors] = rows[lookups.distinct.inverse]
        merged, counts = np.empty((2, len(times)), np.int32)
        row_ends, shared = np.zeros((2, ranks.blocks, num_tables), np.int64)
        key_ends, starts = np.cumsum(num_keys), np.tile(self._group.undivided.table_starts[:-1], ranks.blocks)
        of_rows = group_rows, counts, row_ends.reshape(-1)
        kernels.merge_unadmitted(requested, times, key_ends, starts, merged, *of_rows, shared.reshape(-1))
        # The first key and row of each block.
        first_keys, first_rows = (np.append(0, ends.reshape(-1, num_tables)[:, -1]) for ends in (key_ends, row_ends))

        with_rows = list[Lookups | None]()
        for number, block in zip(ranks.own_blocks, blocks, strict=True):
            if block is None:
                with_rows.append(None)
                continue
            first, last = first_rows[number : number + 2].tolist()
            inverse = block.lookups.distinct.inverse
            kernels.renumber(inverse, merged[first_keys[number] : first_keys[number + 1]] - np.int32(first))
            distinct = Distinct(group_rows[first:last], counts[first:last], inverse, row_ends[number] - first)
            with_rows.append(group_lookups(distinct, block.lookups.bags, self._grouped))

        tables = _tables_of(np.diff(row_ends.reshape(-1), prepend=np.int64(0)).reshape(row_ends.shape))
        columns = tables, group_rows[: len(tables)], counts[: len(tables)].astype(np.int64)
        is_owned = self._group.owned_rows(columns[1], tables) >= 0
        to_this_rank = []
        for rank in range(ranks.size):
            blocks_of_rank = ranks.blocks_of(rank)
            of_rank = slice(int(first_rows[blocks_of_rank.start]), int(first_rows[blocks_of_rank.stop]))
            its_tables, its_rows, its_lookups = (column[of_rank][is_owned[of_rank]] for column in columns)
            to_this_rank.append(Requests(num_keys[:0], its_tables, its_rows, its_lookups))
        own_rows, _ = self._builder.request(self._group, with_rows)
        without_row = shared[ranks.own_blocks.start : ranks.own_blocks.stop].sum(axis=0)
        return own_rows, self._rows.merge(to_this_rank), without_row
