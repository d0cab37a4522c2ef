"""The asker's side: what the blocks of a rank look up, and where each row stands in what its owner sends.

What comes from all owners is one array of rows for each group: owner by owner, block by block, table by table, in
order of first look-up. Gradients go back in the same order.

Letters: n requests of this rank in a group, U distinct rows of a block, W ranks, T tables of a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.embeddings.exchange.requests import pack_requests
from adaptive.embeddings.exchange.skip_masks import Answer, Bools
from adaptive.embeddings.planning.layout import Group, OwnedGroup
from adaptive.embeddings.planning.lookups import DistinctFinder, Lookups
from adaptive.embeddings.planning.plan import Pooling, no_rows
from adaptive.embeddings.planning.skipping import group_updates
from adaptive.embeddings.ranks.transport import Bytes
from adaptive.kernels.planning.books import NOW, SKIPPED

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class AskedBlock:
    """One block of one group: its look-ups, and the place of each of its distinct rows (U,) in what comes."""

    lookups: Lookups
    places: Int64s

    def pooling(self) -> Pooling:
        """The forward pass, from the rows that came."""
        return self.lookups.bags.pooling(self.lookups.distinct.inverse, self.places)

    def sums(self, vectors: NDArray[np.int32], num_vectors: int, left_out: Bools | None) -> Pooling:
        """The sums of the gradients of the block's vectors by row, in order of look-ups.

        Args:
            vectors: (U,) as which vector the sum of each distinct row is written.
            num_vectors: that are written.
            left_out: (U,) rows whose gradient nobody wants; None: there are none.
        """
        fates = np.zeros(0, np.uint8) if left_out is None else np.where(left_out, SKIPPED, NOW).astype(np.uint8)
        chosen = group_updates(self.lookups, self.places, fates)
        found = chosen.row_updates
        return Pooling(
            num_vectors=num_vectors,
            bag_vectors=vectors[chosen.now],
            bag_starts=found.segments,
            bag_tables=np.zeros(len(found.rows), np.int32),
            inverse=found.vectors,
            row_locations=np.arange(self.lookups.bags.num_vectors, dtype=np.int64),
            scales=found.scales,
        )


@dataclass(frozen=True)
class AskedGroup:
    """What a rank asks of all owners in one group."""

    blocks: tuple[AskedBlock | None, ...]  # of the rank; None: a block without a sample
    rows: Int64s  # (n,) of the undivided group
    sizes: Int64s  # (W,) rows asked of each owner
    answer: Answer | None = None  # of the owners; None: they have nothing to say

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def left_out(self) -> Bools | None:
        """(n,) rows whose gradient is not wanted; None: there are none."""
        return None if self.answer is None or not self.answer.left_out.any() else self.answer.left_out


class Asker:
    """Finds what batches look up and puts it into requests. For one thread."""

    def __init__(self, groups: Sequence[Group], size: int) -> None:
        """`groups`: as the rank owns them."""
        self._groups, self._size = groups, size
        self._finders = [DistinctFinder(group.whole) for group in groups]

    def ask(self, blocks: Sequence[Batch | None]) -> tuple[list[AskedGroup], list[Bytes]]:
        """What the blocks of a rank ask in each group, and the message for each owner.

        Raises:
            InputError: for an id that a table does not have.
        """
        groups: list[AskedGroup] = []
        messages: list[list[Bytes]] = [[] for _ in range(self._size)]
        for group, finder in zip(self._groups, self._finders, strict=True):
            asked, parts = self._ask_group(group, [None if one is None else finder.find_lookups(one) for one in blocks])
            groups.append(asked)
            for message, part in zip(messages, parts, strict=True):
                message.append(part)
        return groups, [np.concatenate(message) for message in messages]

    def _ask_group(self, group: Group, blocks: Sequence[Lookups | None]) -> tuple[AskedGroup, list[Bytes]]:
        whole, num_tables = group.whole, len(group.tables)
        found = [None if one is None else one.distinct for one in blocks]
        rows = np.concatenate([no_rows(), *(one.rows for one in found if one is not None)])
        lookups = np.concatenate([no_rows(), *(one.counts for one in found if one is not None)])
        numbers = [0 if one is None else len(one.rows) for one in found]
        of_block = np.repeat(np.arange(len(blocks)), numbers)
        tables = whole.tables_of(rows).astype(np.int64)
        owners = np.zeros(len(rows), np.int64)
        if isinstance(group, OwnedGroup):
            owners = group.owners.owners_of(rows, tables)
        order = np.argsort(owners.astype(np.uint16), kind="stable")  # by digits, in a third of the time
        places = np.empty(len(rows), np.int64)
        places[order] = np.arange(len(rows))
        sizes = np.bincount(owners, minlength=self._size)
        cells = (owners * len(blocks) + of_block) * num_tables + tables
        counts = np.bincount(cells, minlength=self._size * len(blocks) * num_tables)
        counts = counts.reshape(self._size, len(blocks), num_tables)
        parts, last = [], np.cumsum(sizes)
        rows, tables, lookups = rows[order], tables[order], lookups[order]
        for owner in range(self._size):
            mine = slice(last[owner] - sizes[owner], last[owner])
            parts.append(pack_requests(whole, counts[owner], tables[mine], rows[mine], lookups[mine]))
        ends = np.cumsum([0, *numbers])
        asked = [
            None if one is None else AskedBlock(one, places[ends[number] : ends[number + 1]])
            for number, one in enumerate(blocks)
        ]
        return AskedGroup(tuple(asked), rows, sizes), parts
