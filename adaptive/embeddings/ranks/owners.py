"""Owners of rows: one formula for all tables and any number of ranks.

    block  = index >> 16                                            of the row in its table
    bucket = (40503 * index + hash(table, block)) mod 2^16          one to one within a block: 40503 is odd
    owner  = bucket * ranks >> 16                                   each rank has a run of buckets

An owner numbers its rows of a table block by block and, within a block, by bucket. Rows of the last block, which may be
incomplete, are numbered in the same order without gaps. Conversions in both directions are computed; only for last
blocks is a list stored.

Letters: n rows, T tables of a group, W ranks.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

BITS: Final = 16
SIZE: Final = 1 << BITS  # rows of a block, and buckets
FACTOR: Final = 40503
INVERSE: Final = pow(FACTOR, -1, SIZE)
FORMULA: Final = f"{FACTOR} * index + splitmix64(blake2b(table) + block), {BITS} bits"
"""Stored in checkpoints, to detect that their rows were assigned to buckets by another formula."""
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
MIX1, MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Owners:
    """Owners among `size` ranks of the rows of one group, and numbers of the rows of `rank`.

    `table_starts` (T + 1,): first row of each table in the group.

    Attributes:
        counts: (W, T) rows of each rank and table.
        owned_starts: (T + 1,) first owned row of each table.
    """

    def __init__(self, names: Sequence[str], table_starts: Int64s, rank: int, size: int) -> None:
        self.size = size
        self._starts = table_starts
        self._keys = np.array([_hash_name(name) for name in names], np.uint64)
        self._first = -(-rank * SIZE // size)  # of the rank's run of buckets
        self._run = -(-(rank + 1) * SIZE // size) - self._first
        sizes = np.diff(table_starts)
        self._full = sizes >> BITS  # complete blocks of each table
        tables = np.repeat(np.arange(len(names)), self._full + 1)
        self._block_starts = np.cumsum(self._full + 1) - self._full - 1  # first block of each table among all blocks
        blocks = np.arange(len(tables)) - self._block_starts[tables]
        self._shifts = self._hashes(tables, blocks).astype(np.uint16)  # offset of the buckets of each block
        self._is_last = blocks == self._full[tables]
        tails = sizes & (SIZE - 1)
        self._tail_starts = np.concatenate([[0], np.cumsum(tails)])
        self._tail_places = np.full(int(tails.sum()), -1, np.int32)
        self.counts = np.zeros((size, len(names)), np.int64)
        runs = np.diff([-(-r * SIZE // size) for r in range(size + 1)])
        tails_owned = []
        for table, tail in enumerate(tails):
            low = np.arange(tail)
            buckets = self._buckets(np.full(tail, table), (self._full[table] << BITS) + low)
            owners = buckets * size >> BITS
            owned = low[owners == rank]
            owned = owned[np.argsort(buckets[owned])]
            self._tail_places[self._tail_starts[table] + owned] = np.arange(len(owned))
            tails_owned.append(owned)
            self.counts[:, table] = self._full[table] * runs + np.bincount(owners, minlength=size)
        self._tail_owned = np.concatenate([np.zeros(0, np.int64), *tails_owned])
        self._owned_starts = np.concatenate([[0], np.cumsum(list(map(len, tails_owned)))])
        self.owned_starts: Int64s = np.concatenate([[0], np.cumsum(self.counts[rank])])

    def buckets_of(self, group_rows: Int64s, tables: NDArray[np.integer]) -> Int64s:
        """Return the buckets (n,) of group rows; rank `bucket * W >> BITS` of W owns each."""
        return self._buckets(tables, group_rows - self._starts[tables])

    def owned_rows(self, group_rows: Int64s, tables: NDArray[np.integer]) -> Int64s:
        """Return the owned numbers (n,) of group rows (n,); -1 for rows of other ranks."""
        index = group_rows - self._starts[tables]
        blocks = index >> BITS
        place = self._buckets(tables, index) - self._first  # in the rank's run
        is_owned = (place >= 0) & (place < self._run)
        owned: Int64s = blocks * self._run + place + self.owned_starts[tables]
        last = np.flatnonzero(self._is_last[self._block_starts[tables] + blocks])
        of = tables[last]
        tail = self._tail_places[self._tail_starts[of] + (index[last] & (SIZE - 1))]
        owned[last] += tail - place[last]
        owned[~is_owned] = -1
        return owned

    def group_rows(self, owned_rows: Int64s, tables: NDArray[np.integer]) -> Int64s:
        """Return the numbers in the group (n,) of owned rows (n,) in tables (n,)."""
        place = owned_rows - self.owned_starts[tables]
        in_full = self._full[tables] * self._run
        blocks = place // max(self._run, 1)
        buckets = self._first + place - blocks * self._run
        index = (blocks << BITS) + ((buckets - self._hashes(tables, blocks)) * INVERSE & (SIZE - 1))
        last = np.flatnonzero(place >= in_full)
        of = tables[last]
        tail = self._tail_owned[self._owned_starts[of] + place[last] - in_full[last]]
        index[last] = (self._full[of] << BITS) + tail
        group_rows: Int64s = index + self._starts[tables]
        return group_rows

    def _buckets(self, tables: NDArray[np.integer], index: Int64s) -> Int64s:
        low = index.astype(np.uint16)  # arithmetic with 16 bits is modulo 2^16
        low *= np.uint16(FACTOR)
        low += self._shifts[self._block_starts[tables] + (index >> BITS)]
        return low.astype(np.int64)

    def _hashes(self, tables: NDArray[np.integer], blocks: Int64s) -> Int64s:
        """Return the lowest 16 bits of the SplitMix64 finalizer."""
        word = self._keys[tables] + blocks.astype(np.uint64) * GOLDEN
        word = (word ^ (word >> np.uint64(30))) * MIX1
        word = (word ^ (word >> np.uint64(27))) * MIX2
        word ^= word >> np.uint64(31)
        low: Int64s = (word & np.uint64(SIZE - 1)).astype(np.int64)
        return low


def _hash_name(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
