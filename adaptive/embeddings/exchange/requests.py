"""Requests as bytes: which rows of an owner the blocks of one rank ask for, and how often each is looked up there.

For each group of tables, of all blocks of the asker one after the other:

    counts   (blocks, tables) int32    rows asked for
    index    (n,) uint32, or uint64    of each row in its table, block by block, table by table
    lookups  (n,) uint8                of each row in its block; 255: see below
    many     uint32                    look-ups of the rows that stand as 255, in order

Letters: n requests, T tables of a group.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.ranks.transport import Bytes, as_bytes
from adaptive.errors import RanksError

Int64s = NDArray[np.int64]
MANY: Final = 255
MOST: Final = 2**31 - 1  # look-ups of a batch
WIDE: Final = 1 << 32  # rows of a table from which on 4 bytes do not do


@dataclass(frozen=True)
class Requests:
    """What one rank asks of one owner, in one group."""

    counts: Int64s  # (blocks of the asker, T)
    tables: Int64s  # (n,)
    rows: Int64s  # (n,) of the undivided group
    lookups: Int64s  # (n,)


def pack_requests(group: Group, counts: Int64s, tables: Int64s, rows: Int64s, lookups: Int64s) -> Bytes:
    """See the module; the arguments are those of `Requests`."""
    index = (rows - group.table_starts[tables]).astype(index_type(group))
    few = np.minimum(lookups, MANY).astype(np.uint8)
    many = lookups[lookups >= MANY].astype(np.uint32)
    return np.concatenate([as_bytes(counts.astype(np.int32)), as_bytes(index), as_bytes(few), as_bytes(many)])


def unpack_requests(group: Group, message: Bytes, num_blocks: int, sender: str) -> tuple[Requests, Bytes]:
    """The requests at the beginning of a message, and what follows them.

    Raises:
        RanksError: if they are cut short, or name rows that the tables do not have, or look-ups that no batch has.
    """
    reader = _Reader(message, sender)
    counts = reader.take(np.int32, num_blocks * len(group.tables)).astype(np.int64)
    if (counts < 0).any():
        raise RanksError(f"{sender} sent requests of a negative number of rows")
    number = int(counts.sum())
    index = reader.take(index_type(group), number).astype(np.int64)
    lookups = reader.take(np.uint8, number).astype(np.int64)
    many = np.flatnonzero(lookups == MANY)
    lookups[many] = reader.take(np.uint32, len(many))
    if (lookups[many] < MANY).any() or int(lookups.sum()) > MOST:
        raise RanksError(f"{sender} sent requests of numbers of look-ups that no batch has")
    tables = np.repeat(np.tile(np.arange(len(group.tables)), num_blocks), counts)
    sizes = group.table_sizes[tables]
    if (index < 0).any() or (index >= sizes).any() or (lookups < 1).any():
        raise RanksError(f"{sender} sent requests of rows that the tables do not have")
    found = Requests(counts.reshape(num_blocks, -1), tables, index + group.table_starts[tables], lookups)
    return found, reader.rest


class _Reader:
    """Takes arrays from the beginning of bytes."""

    def __init__(self, message: Bytes, sender: str) -> None:
        self.rest, self._sender = message, sender

    def take(self, kind: type[np.generic] | np.dtype[Any], number: int) -> NDArray[Any]:
        size = number * np.dtype(kind).itemsize
        if len(self.rest) < size:
            raise RanksError(
                f"{self._sender} sent requests that are cut short: {size} bytes lack {size - len(self.rest)}"
            )
        found, self.rest = self.rest[:size], self.rest[size:]
        return np.frombuffer(found.tobytes(), kind)


def index_type(group: Group) -> np.dtype[Any]:
    """Of the index of a row in its table."""
    return np.dtype(np.uint32 if int(group.table_sizes.max()) <= WIDE else np.uint64)
