"""Rows as bytes: those of all groups for one rank are one message, group after group, in the order of requests.

With `wire="bf16"` values cross as bfloat16, rounded to nearest, ties to even. What a rank gives to itself is rounded,
too: so what is trained does not depend on who owns a row. Rows and sums stay float32.

Letters: m rows of a group that cross, rank after rank; W ranks; D width.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.channel import Exchanged
from adaptive.embeddings.ranks.transport import Bytes
from adaptive.errors import RanksError

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]


class Crossing:
    """Rows of all groups, as they cross between ranks."""

    def __init__(self, ranks: Ranks, groups: Sequence[Group], *, rounds: bool) -> None:
        """`rounds`: to bfloat16."""
        self._ranks = ranks
        self._widths = [group.embedding_dim for group in groups]
        self._rounds = rounds
        self.value_bytes = 2 if self._rounds else 4

    def pack(self, rows: Sequence[Floats], counts: Sequence[Int64s]) -> list[Bytes]:
        """The part for each rank of the rows (m, D) of each group; `counts` (W,) of them are for each rank."""
        parts: list[list[Floats]] = [[] for _ in range(self._ranks.size)]
        for one, numbers in zip(rows, counts, strict=True):
            last = 0
            for part, number in zip(parts, numbers.tolist(), strict=True):
                part.append(np.ascontiguousarray(one[last : last + number]).reshape(-1))
                last += number
        return [self._to_wire(np.concatenate(part) if len(part) > 1 else part[0]) for part in parts]

    def _to_wire(self, values: Floats) -> Bytes:
        if not self._rounds:
            return values.view(np.uint8)
        rounded: Bytes = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint8)
        return rounded

    def _from_wire(self, part: Bytes) -> Floats:
        if not self._rounds:
            return part.view(np.float32)
        bits = part.view(np.uint16).astype(np.uint32)
        return np.left_shift(bits, 16, out=bits).view(np.float32)

    def unpack(self, found: Exchanged, counts: Sequence[Int64s], *, may_be_empty: bool = False) -> list[Floats]:
        """Rows (m, D) of each group. A part of a rank may be empty instead, for zeros, if it says so.

        Raises:
            RanksError: if a part is not as long as the rows that are expected.
        """
        numbers, widths = [one.tolist() for one in counts], self._widths
        values = [
            self._values_of(found, rank, [one[rank] for one in numbers], may_be_empty=may_be_empty)
            for rank in range(self._ranks.size)
        ]
        pieces = [_whole([of_rank[place] for of_rank in values]) for place in range(len(widths))]
        return [piece.reshape(-1, width) for piece, width in zip(pieces, widths, strict=True)]

    def _values_of(self, found: Exchanged, rank: int, counts: Sequence[int], *, may_be_empty: bool) -> list[Floats]:
        """Values (rows * D,) of each group from one rank."""
        sizes, part = [number * width for number, width in zip(counts, self._widths, strict=True)], found.parts[rank]
        if may_be_empty and not len(part):
            return [np.zeros(size, np.float32) for size in sizes]
        needed = self.value_bytes * sum(sizes)
        if len(part) != needed:
            raise RanksError(
                f"{self._ranks.name} needs {needed} bytes of rows from rank {rank}, found {len(part)}: "
                f"{found.headers[rank].text}"
            )
        return np.split(self._from_wire(part), np.cumsum(sizes)[:-1])


def _whole(parts: Sequence[Floats]) -> Floats:
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def count_chosen(sizes: Int64s, chosen: Bools | None) -> Int64s:
    """(W,) how many of each rank's requests (n,) are chosen; `sizes` of all; None: all are."""
    if chosen is None:
        return sizes
    before, ends = np.concatenate([[0], np.cumsum(chosen)]), np.cumsum(sizes)
    found: Int64s = before[ends] - before[ends - sizes]
    return found
