"""Rows of one rank in the order of a checkpoint, and rows gathered from all ranks.

Rows are numbered as in the undivided group. All ranks call these functions together, in the same order.

Letters: n rows of all ranks, m rows of this rank.
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
SENT_BYTES: Final = 8 << 20  # of an array that are sent at once


class RowOrder:
    """Rows (m,) of this rank in the order of a checkpoint: piece by piece, ascending in each."""

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
        """Return the parts with the rows' numbers and with columns (m, ...) in that order."""
        return {
            prefix + key: self.part(self.rows, prefix + key),
            **{prefix + name: self.part(column[self.order], prefix + key) for name, column in columns.items()},
        }

    def part(self, value: NDArray[Any] | Blocks, key: str) -> Part:
        """Return the part for an array (m, ...) that is already in the order of the checkpoint."""
        return Part(value, key, self.counts)


class Gatherer:
    """Gathers arrays of all ranks on every rank."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def joined(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the arrays (m, ...) of all ranks, concatenated to (n, ...)."""
        row_shape = array.shape[1:]
        length = max(1, SENT_BYTES // max(1, array.dtype.itemsize * int(np.prod(row_shape))))
        lengths = self._ranks.gather_facts(len(array))
        pieces: list[list[NDArray[Any]]] = [[] for _ in lengths]
        for first in range(0, max(lengths), length):
            for rank, piece in enumerate(self._ranks.gather_arrays(array[first : first + length])):
                pieces[rank].append(piece)
        flat = np.concatenate([np.zeros(0, array.dtype), *(piece for of_rank in pieces for piece in of_rank)])
        return flat.reshape(sum(lengths), *row_shape)

    def spread(self, rows: Int64s, column: NDArray[Any], order: Int64s) -> NDArray[Any]:
        """Return the columns (m, ...) of the rows (m,) of all ranks, as (n, ...) in the order of the same rows (n,)."""
        joined = self.joined(rows)
        by_row = np.argsort(joined)
        return self.joined(column)[by_row[np.searchsorted(joined, order, sorter=by_row)]]


def make_gatherer(pipeline: Pipeline) -> Gatherer | None:
    """Return the gatherer of several ranks; None if this rank owns all rows."""
    ranks = pipeline.exchange.ranks
    return None if ranks.size == 1 else Gatherer(ranks)


def in_memory(saved: Mapping[str, NDArray[Any] | Part], gatherer: Gatherer | None) -> Arrays:
    """Return arrays of the rows of all ranks, in row order. In `saved`, keys come first."""
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
    """Return the owned numbers and columns of those rows (n,) that this rank owns."""
    owned_rows = group.owned_rows(rows)
    is_owned = np.flatnonzero(owned_rows >= 0)
    if len(is_owned) == len(rows):
        return owned_rows, *columns
    return owned_rows[is_owned], *(column[is_owned] for column in columns)
