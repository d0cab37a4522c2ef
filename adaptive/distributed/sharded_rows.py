"""`ShardedRows`: the rows of all ranks, and `regroup`: rows saved by some ranks, for another number of them.

A shard is what a rank saves: the arrays of its own module (`adaptive.embeddings.engine.row_arrays`), with its
own row numbers. A single process saves one shard, whose numbers are those of the tables. The same number of ranks loads
each its own shard. Otherwise a rank reads all shards, and takes and renumbers what it owns.

Both numberings ascend together, so rows that are selected from a shard are in order, and shards are merged by row.

Keys go to their owners, each with its row's values, state and records. The row that stands for keys without one is that
of the first shard. Two things start again: the hot rows of a skip rule, because saved values include accumulated
updates and counts of lookups stay, so they are hot again at once; and counts of keys without a row (`admit`), because
cells of a sketch do not say which keys they have counted.

Letters: n entries of a shard, m entries that a rank takes, D width, W ranks.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Int64s
from adaptive.config import TableConfig
from adaptive.distributed.ownership import Share, owners_of_keys, owners_of_rows
from adaptive.distributed.peers import Peers
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.row_store import RowStore, check_rows
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import CheckpointError, ConfigError
from adaptive.storage.arrays import Stored, whole

logger = logging.getLogger("adaptive.distributed")

Shard = Mapping[str, NDArray[Any] | Stored]
SEEN: Final = ("accesses", "last_access", "update_norm")


class ShardedRows(RowStore):
    """Reads and loads the rows of all ranks; saves those of this one, as `RowStore` does."""

    def __init__(self, local: TieredEmbeddingBag, peers: Peers, groups: Sequence[Group]) -> None:
        """`groups`: of the whole tables."""
        super().__init__(local.runtime.pipeline, local.statistics)
        self._local, self._peers, self._groups = local, peers, tuple(groups)

    def _find(self, name: str) -> tuple[Group, TableConfig, np.uint64]:
        """Return the group of a table, the whole table, and its key."""
        tiered, number = self._find_table(name)
        group = self._groups[self._pipeline.tiered_groups.index(tiered)]
        return group, group.tables[number], group.table_keys[number]

    def table_keys(self, name: str) -> Int64s:
        """Return the keys (n,) of a table that have a row on any rank, ascending. All ranks call it together."""
        return np.sort(np.concatenate(self._peers.rows.gather(super().table_keys(name), "keys")))

    def table_weights(self, name: str, rows: NDArray[np.integer[Any]] | None = None) -> NDArray[np.float32]:
        """Return a copy (num_embeddings, D) of a table, or of some rows, on all ranks, which call it together.

        With keys, (n + 1, D): the rows of `table_keys` in its order, then the first rank's for keys without a row.
        """
        whole_table = self._gathered(name)
        if rows is None:
            return whole_table
        check_rows(name, rows, len(whole_table))
        some: NDArray[np.float32] = whole_table[rows]
        return some

    def _gathered(self, name: str) -> NDArray[np.float32]:
        """Return a whole table, also for some rows: ranks may ask for different ones."""
        group, table, table_key = self._find(name)
        own, gather = np.concatenate(list(super().table_blocks(name))), self._peers.rows.gather
        of_ranks = [part.reshape(-1, group.embedding_dim) for part in gather(own.reshape(-1), f"table {name}")]
        if group.has_keys:
            keys = np.concatenate(gather(super().table_keys(name), "keys"))
            rows = np.concatenate([of_rank[:-1] for of_rank in of_ranks])
            return np.concatenate([rows[np.argsort(keys)], of_ranks[0][-1:]])
        joined = np.empty((self._peers.size * len(own), group.embedding_dim), np.float32)
        for rank, of_rank in enumerate(of_ranks):
            joined[_whole_rows(np.arange(len(own)), rank, self._peers.size, table_key)] = of_rank
        return joined[: table.num_embeddings]

    def table_blocks(self, name: str, block_bytes: int = 8 << 20) -> Iterator[NDArray[np.float32]]:
        """Yield `table_weights`, in one block."""
        yield self.table_weights(name)

    def load_table(self, name: str, vectors: NDArray[np.float32]) -> None:
        """Set rows 0 ... n - 1 of a table to `vectors` (n, D), equal on all ranks; see `RowStore.load_table`."""
        _, table, table_key = self._find(name)
        if vectors.ndim != 2 or len(vectors) > table.num_embeddings:
            raise ConfigError(
                f"table {name!r}: expected up to ({table.num_embeddings}, {table.embedding_dim}) vectors, got "
                f"{vectors.shape}. Give one vector for each of the first n rows."
            )
        rank, size = self._peers.rank, self._peers.size
        rows = _whole_rows(np.arange(-(-table.num_embeddings // size)), rank, size, table_key)
        super().load_table(name, vectors[rows[rows < len(vectors)]])

    def load_shards(self, shards: Sequence[Shard]) -> None:
        """Load what any number of ranks have saved: the `state_arrays` of each, in the order of ranks.

        Raises:
            CheckpointError: if they are of other tables or another optimizer. Then nothing has changed.
        """
        rank, size = self._peers.rank, self._peers.size
        arrays: Shard = shards[rank] if len(shards) == size else {}
        if len(shards) != size:
            arrays = regroup(shards, self._groups, rank, size)
        self.load_state_arrays(arrays)


def regroup(shards: Sequence[Shard], groups: Sequence[Group], rank: int, size: int) -> dict[str, Any]:
    """Return the arrays of `rank` among `size` ranks, from the shards of another number; large ones stay `Stored`.

    Args:
        shards: in the order of the ranks that saved them.
        groups: of the whole tables.
        rank, size: 0 and 1 for a process alone.

    Raises:
        CheckpointError: if they are of other tables.
    """
    if counting := [table.name for group in groups for table in group.tables if table.keys and table.admit > 1]:
        text = "tables %s: saved by %d ranks, loaded by %d: counts of keys without a row start again"
        logger.warning(text, ", ".join(counting), len(shards), size)
    first = shards[0]
    arrays: dict[str, Any] = {name: whole(first[name]) for name in ("next_batch", "rate") if name in first}
    arrays["next_batch"] = np.max([whole(shard["next_batch"]) for shard in shards], axis=0)
    for number, group in enumerate(groups):
        prefix = f"rows{number}."
        parts = [{n.removeprefix(prefix): v for n, v in shard.items() if n.startswith(prefix)} for shard in shards]
        _check(parts, group, prefix)
        regrouped = _regroup(parts, group, rank, size)
        arrays |= {prefix + name: value for name, value in regrouped.items()}
    return arrays


def _check(parts: Sequence[Shard], group: Group, prefix: str) -> None:
    expected = [-(-table.num_embeddings // len(parts)) + group.has_keys for table in group.tables]
    for part in parts:
        saved = whole(part["table_starts"]) if "table_starts" in part else np.zeros(0, np.int64)
        if np.diff(saved).tolist() != expected:
            raise CheckpointError(
                f"checkpoint array {prefix}table_starts: expected tables of {expected} rows on each of {len(parts)} "
                f"ranks, got {np.diff(saved).tolist()}. Load it into tables of the same sizes."
            )


def _whole_rows(rows: Int64s, rank: int, size: int, table_keys: Any) -> Int64s:
    """Return the rows in the whole tables of a rank's rows (n,) in each."""
    keys = np.broadcast_to(np.asarray(table_keys, np.uint64), rows.shape)
    return rows * size + Share(rank, size).places(rows, keys)


def _regroup(parts: Sequence[Shard], group: Group, rank: int, size: int) -> dict[str, Any]:
    """Return the arrays of one group, without its prefix."""
    sizes = [-(-table.num_embeddings // size) + group.has_keys for table in group.tables]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    maps, used = _maps_of_keys(parts, group, starts, rank, size) if group.has_keys else (None, starts)

    def new_rows(shard: int, rows: Int64s) -> Int64s:
        """Return the numbers (n,) that rows (n,) of a shard have at `rank`; -1 for those of others."""
        if maps is not None:
            return maps[shard][rows]
        old_starts, keys = whole(parts[shard]["table_starts"]), group.table_keys
        tables = np.searchsorted(old_starts, rows, side="right") - 1
        in_table = _whole_rows(rows - old_starts[tables], shard, len(parts), keys[tables])
        owners, numbers = owners_of_rows(in_table, keys[tables], size)
        return np.where(owners == rank, numbers + starts[tables], -1)

    def take(key: str, *names: str) -> dict[str, Any]:
        """Return the taken ones of an array of row numbers, ascending, and their columns."""
        new = [new_rows(shard, whole(part[key])) for shard, part in enumerate(parts)]
        places = [np.flatnonzero(numbers >= 0) for numbers in new]
        joined = np.concatenate([numbers[at] for numbers, at in zip(new, places, strict=True)])
        order = np.argsort(joined, kind="stable")
        return {key: joined[order], **{name: _joined([part[name] for part in parts], places, order) for name in names}}

    first = parts[0]
    arrays: dict[str, Any] = {name: whole(first[name]) for name in ("table_keys", "first_state", "table_bounds")}
    arrays |= {"table_starts": starts, **take("changed", "weights", "state")}
    arrays |= take("seen", *(name for name in SEEN if all(name in part for part in parts)))
    if group.has_keys:
        arrays |= take("keyed", "keys", "key_access") | _key_states(parts, used - starts[:-1])
    return arrays


def _maps_of_keys(
    parts: Sequence[Shard], group: Group, starts: Int64s, rank: int, size: int
) -> tuple[list[Int64s], Int64s]:
    """Number the rows of keys again, shard by shard; row 0 of each table is that of the first shard.

    Returns for each shard the new number of each row, or -1; and (T,) the first unused row of each table.
    """
    used, maps = starts[:-1] + 1, list[Int64s]()
    for shard, part in enumerate(parts):
        old_starts, rows, keys = whole(part["table_starts"]), whole(part["keyed"]), whole(part["keys"])
        new = np.full(int(old_starts[-1]), -1, np.int64)
        if shard == 0:
            new[old_starts[:-1]] = starts[:-1]
        tables = np.searchsorted(old_starts, rows, side="right") - 1
        for table, table_key in enumerate(group.table_keys):
            of_table = np.flatnonzero(tables == table)
            own = of_table[owners_of_keys(keys[of_table], table_key, size) == rank]
            own = own[: int(starts[table + 1] - used[table])]  # the last keys of a full table lose their rows
            new[rows[own]] = used[table] + np.arange(len(own))
            used[table] += len(own)
        maps.append(new)
    return maps, used


def _key_states(parts: Sequence[Shard], used: Int64s) -> dict[str, Any]:
    """Return the state of key tables with so many used rows (T,): times as saved, and empty counts."""
    arrays: dict[str, Any] = {}
    for t, number in enumerate(used):
        clocks = [whole(part[f"keys{t}.clock"]) for part in parts]
        clock = clocks[0].copy()
        clock[0] = (-1, max(of_part[0, 1] for of_part in clocks))
        state = {"freed": np.zeros(0, np.int64), "used": np.array([number, 0], np.int64), "clock": clock}
        state |= {"cell_blocks": np.zeros(0, np.int64), "cells": whole(parts[0][f"keys{t}.cells"])[:0]}
        arrays |= {f"keys{t}.{name}": array for name, array in state.items()}
    return arrays


def _joined(columns: Sequence[NDArray[Any] | Stored], places: Sequence[Int64s], order: Int64s) -> Any:
    """Return the entries at `places` of each shard's column, in this order; in files if one of them is."""
    if any(isinstance(column, Stored) for column in columns):
        return _Selected(columns, places, order)
    return np.concatenate([whole(c)[at] for c, at in zip(columns, places, strict=True)])[order]


class _Selected(Stored):
    """Entries of several shards' columns as one array, which is read by blocks.

    Args:
        columns: of the shards.
        places: (m,) ascending positions in each that are taken.
        order: of these entries, joined.
    """

    def __init__(self, columns: Sequence[NDArray[Any] | Stored], places: Sequence[Int64s], order: Int64s) -> None:
        self._columns, self._places, self._order = columns, places, order
        self.dtype, self.shape = columns[0].dtype, (len(order), *columns[0].shape[1:])
        self._starts = np.cumsum([0, *map(len, places)])

    def read(self, first: int = 0, last: int | None = None) -> NDArray[Any]:
        wanted = self._order[first : len(self._order) if last is None else last]
        result = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        for number, (column, places) in enumerate(zip(self._columns, self._places, strict=True)):
            mine = np.flatnonzero((wanted >= self._starts[number]) & (wanted < self._starts[number + 1]))
            if len(mine):
                at = places[wanted[mine] - self._starts[number]]
                begin, end = int(at.min()), int(at.max()) + 1
                block = column.read(begin, end) if isinstance(column, Stored) else column[begin:end]
                result[mine] = block[at - begin]
        return result
