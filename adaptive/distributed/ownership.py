"""Which rank owns a row or a key, and the owner's own numbers of its rows.

Rows of a table are taken in blocks of W consecutive ones, W ranks. In each block every rank owns one row, and which one
follows from a hash of the table and the block:

    block = row // W        owner = (row + hash(table, block)) mod W        number at the owner = block

So every rank has the same number of rows, neighbors are never on one rank, and nothing needs to be stored. If W does
not divide a table's rows, the last number of some ranks stands for no row and is never looked up.

A key belongs to the rank that a hash of the table and the key names. The owner gives it a row, as a table with keys
does.

Letters: n rows or keys, T tables, W ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Int64s
from adaptive.config import TableConfig
from adaptive.kernels.planning.keys import hash_keys

GOLDEN, MIX1, MIX2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
OF_KEYS = np.uint64(0xD6E8FEB86659FD93)  # owners of keys are independent of their places in the owner's index


@dataclass(frozen=True)
class Share:
    """The rows that rank `rank` of `number` owns: `adaptive.embeddings.planning.layout.Share`."""

    rank: int
    number: int

    def places(self, blocks: Int64s, table_keys: NDArray[np.uint64]) -> Int64s:
        """Return the position (n,) of this rank's row in each block (n,), of tables with these keys (n,)."""
        places: Int64s = (self.rank - _hashes(blocks, table_keys, self.number)) % self.number
        return places


def owners_of_rows(rows: Int64s, table_keys: NDArray[np.uint64], number: int) -> tuple[Int64s, Int64s]:
    """Return the owner (n,) of rows (n,) of tables with keys (n,), and their numbers (n,) there."""
    blocks = rows // number
    owners: Int64s = (rows - blocks * number + _hashes(blocks, table_keys, number)) % number
    return owners, blocks


def owners_of_keys(keys: Int64s, table_key: np.uint64, number: int) -> Int64s:
    """Return the owner (n,) of keys (n,) of one table."""
    hashes = np.empty(len(keys), np.uint64)
    hash_keys(keys, table_key ^ OF_KEYS, hashes)
    return ((hashes >> np.uint64(32)) * np.uint64(number) >> np.uint64(32)).astype(np.int64)


def _hashes(blocks: Int64s, table_keys: NDArray[np.uint64], number: int) -> Int64s:
    """Return hashes (n,) from 0 to `number` - 1."""
    word = table_keys + blocks.view(np.uint64) * GOLDEN
    word = (word ^ (word >> np.uint64(30))) * MIX1
    word = (word ^ (word >> np.uint64(27))) * MIX2
    hashes: Int64s = (((word ^ (word >> np.uint64(31))) >> np.uint64(32)) % np.uint64(number)).view(np.int64)
    return hashes


def owned_tables(tables: Sequence[TableConfig], number: int) -> list[TableConfig]:
    """Return the tables as each of `number` ranks has them: with its rows, not pooled, one feature each.

    Initial values are within the bounds of the whole tables.
    """
    return [
        table.model_copy(
            update={
                "num_embeddings": -(-table.num_embeddings // number),
                "features": (),
                "pooling": "none",
                "init_bound": table.num_embeddings**-0.5 if table.init_bound is None else table.init_bound,
            }
        )
        for table in tables
    ]
