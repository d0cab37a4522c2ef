"""Rows of one rank in the order of a checkpoint, and rows of all ranks put together, on all of them.

Rows are numbered as in the undivided group. All ranks call this together, in the same order. Letters: n rows of all
ranks, m of this one.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.planning.layout import Group, OwnedGroup
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.owners import BITS
from adaptive.storage.arrays import Blocks
from adaptive.storage.shards import PIECES, Part

Int64s = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
SENT_BYTES: Final = 8 << 20  # of an array that cross at once


class RowOrder:
    """Rows (m,) of this rank in the order of a checkpoint: piece after piece, ascending in each. A process that has all
    rows has one piece."""

    def __init__(self, group: Group, rows: Int64s) -> None:
        """`rows`: of the undivided group."""
        self.order: Int64s | slice = slice(None)
        counts = np.array([len(rows)])
        if isinstance(group, OwnedGroup):
            pieces = group.owners.buckets_of(rows, group.undivided.tables_of(rows)) * PIECES >> BITS
            self.order, counts = np.lexsort((rows, pieces)), np.bincount(pieces, minlength=PIECES)
        elif (np.diff(rows) < 0).any():
            self.order = np.argsort(rows)
        self.rows, self.counts = rows[self.order], counts.tolist()

    def parts(self, prefix: str, key: str, columns: Mapping[str, NDArray[Any]]) -> dict[str, Part]:
        """Their numbers, and columns (m, ...) that are in the order of the rows before."""
        return {
            prefix + key: self.part(self.rows, prefix + key),
            **{prefix + name: self.part(column[self.order], prefix + key) for name, column in columns.items()},
        }

    def part(self, value: NDArray[Any] | Blocks, key: str) -> Part:
        """An array that is in the order of the checkpoint."""
        return Part(value, key, self.counts)


class Gatherer:
    """Puts arrays of all ranks together."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def joined(self, array: NDArray[Any]) -> NDArray[Any]:
        """(n, ...) the arrays (m, ...) of all ranks, of one type and width, behind one another."""
        row_shape = array.shape[1:]
        length = max(1, SENT_BYTES // max(1, array.dtype.itemsize * int(np.prod(row_shape))))
        lengths = self._ranks.gather_facts(len(array))
        pieces: list[list[NDArray[Any]]] = [[] for _ in lengths]
        for first in range(0, max(lengths), length):
            for rank, piece in enumerate(self._ranks.gather_arrays(array[first : first + length])):
                pieces[rank].append(piece)
        flat = np.concatenate([np.zeros(0, array.dtype), *(piece for of_rank in pieces for piece in of_rank)])
        return flat.reshape(sum(lengths), *row_shape)

    def merged(self, rows: Int64s, column: NDArray[Any]) -> NDArray[Any]:
        """(n, ...) the columns (m, ...) of the rows (m,) of each rank, in order of rows."""
        order = np.argsort(self.joined(rows))
        return self.joined(column)[order]


def gatherer_of(pipeline: Pipeline) -> Gatherer | None:
    """What puts rows of several ranks together; None if this rank has all rows."""
    ranks = pipeline.exchange.ranks
    return None if ranks.size == 1 else Gatherer(ranks)


def in_memory(saved: Mapping[str, NDArray[Any] | Part], gatherer: Gatherer | None) -> Arrays:
    """Arrays of the rows of all ranks, in order of rows. Keys stand before what they are keys of."""
    arrays: Arrays = {}
    orders: dict[str, Int64s] = {}
    for name, value in saved.items():
        if not isinstance(value, Part):
            arrays[name] = value
            continue
        array = value.value.whole() if isinstance(value.value, Blocks) else value.value
        if gatherer is not None:
            array = gatherer.joined(array)
            if name == value.key:
                orders[name] = np.argsort(array)
            array = array[orders[value.key]]
        arrays[name] = array
    return arrays


def select_owned(group: Group, rows: Int64s, *columns: NDArray[Any]) -> tuple[Any, ...]:
    """Of rows (n,) of the undivided group those that this rank owns, by their local numbers, and their columns."""
    local = group.owned_rows(rows)
    mine = np.flatnonzero(local >= 0)
    if len(mine) == len(rows):
        return local, *columns
    return local[mine], *(column[mine] for column in columns)
