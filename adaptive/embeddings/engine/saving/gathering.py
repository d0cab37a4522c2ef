"""Rows of all ranks put together, on all of them: arrays that do not tell how many ranks there were.

Rows are numbered as in the undivided group and stand in that order. Values and state come block by block. All ranks
call all of this together and iterate over the same blocks in the same order.

Letters: n rows of all ranks, m of this one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.transport import as_bytes
from adaptive.embeddings.ranks.wire import Kind

Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]


class Gatherer:
    """Puts arrays of all ranks together."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def all_of(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        """Each rank's array (any length, ...), of one type and width."""
        found = self._ranks.rows.exchange(Kind.FACTS, parts=[as_bytes(array)] * self._ranks.size).parts
        width = int(np.prod(array.shape[1:], dtype=np.int64))
        kept = [np.frombuffer(part.tobytes(), array.dtype) for part in found]
        return [one.reshape(len(one) // max(width, 1), *array.shape[1:]) for one in kept]

    def merged(self, rows: Int64s, columns: Arrays) -> tuple[Int64s, Arrays]:
        """Rows (m,) of the undivided group with columns (m, ...) of each rank -> those of all (n,), in order."""
        parts = {name: np.concatenate(self.all_of(column)) for name, column in columns.items()}
        found = np.concatenate(self.all_of(rows))
        for name, column in columns.items():
            if column.ndim > 1 and not column.shape[1]:  # state of rows that have none
                parts[name] = np.zeros((len(found), 0), column.dtype)
        order = np.argsort(found)
        return found[order], {name: column[order] for name, column in parts.items()}

    def blocks(self, own: Int64s, everyones: Int64s, length: int, read: Callable[[Int64s], Floats]) -> Iterator[Floats]:
        """Values (length, ...) of the rows of all ranks, block by block.

        Args:
            own: (m,) ascending rows of this rank.
            everyones: (n,) ascending.
            read: positions in `own` -> values.
        """
        bounds = everyones[::length]
        for number, first in enumerate(bounds):
            last = bounds[number + 1] if number + 1 < len(bounds) else np.iinfo(np.int64).max
            mine = np.arange(*np.searchsorted(own, [first, last]))
            _, found = self.merged(own[mine], {"values": read(mine)})
            yield found["values"]


def select_owned(group: Group, rows: Int64s, *columns: NDArray[Any]) -> tuple[Any, ...]:
    """Of rows (n,) of the undivided group those that this rank owns, by their local numbers, and their columns."""
    local = group.owned_rows(rows)
    mine = np.flatnonzero(local >= 0)
    if len(mine) == len(rows):
        return local, *columns
    return local[mine], *(column[mine] for column in columns)
