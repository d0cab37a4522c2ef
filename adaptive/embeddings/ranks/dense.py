"""The dense part: gradients of all blocks, summed in the order of blocks, by whoever has the slice.

    slices of all blocks' gradients  -- a step's exchange -->  slice r of every block, on rank r
    slice r: (block 0 + block 1) + block 2 ...                 the same order, whoever computed which block
    sums                             -- exchange -->           everywhere

Bytes sent are those of a ring's all-reduce; unlike there, the order of additions does not depend on the number of
ranks, nor on the library that sends. Where it costs few bytes more, as on two ranks none, every block's gradients go
whole to all ranks instead, which all compute the same sums: without the second exchange.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.ranks.ranks import Ranks
from adaptive.embeddings.ranks.transport import Bytes
from adaptive.embeddings.ranks.wire import Kind

Floats = NDArray[np.float32]
ROUND: Final = 128 << 10  # bytes of a rank: sent as soon as an exchange more would be over


def goes_whole(ranks: int, blocks: int, size: int) -> bool:
    """Whether gradients (size,) of blocks cross as they are: a rank sends few bytes more than by slices."""
    whole, sliced = blocks * (ranks - 1), (blocks + ranks) * (ranks - 1) / ranks
    return 4 * size * (whole - sliced) <= ROUND * ranks


def slice_size(ranks: Ranks, size: int) -> int:
    """Of a block's gradients (size,), how many this rank adds."""
    return size if goes_whole(ranks.size, ranks.blocks, size) else int(np.diff(_bounds(ranks, size))[ranks.rank])


def slices_of(ranks: Ranks, blocks: Sequence[Floats], size: int) -> list[list[Floats]]:
    """For each rank what it adds of the gradients (size,) of this rank's blocks, in order."""
    if goes_whole(ranks.size, ranks.blocks, size):
        return [list(blocks)] * ranks.size
    return [[block[first:last] for block in blocks] for first, last in pairwise(_bounds(ranks, size))]


def sum_blocks(ranks: Ranks, slices: Iterable[Bytes], size: int) -> Floats | None:
    """(size,) the sum over all blocks of all ranks, in order; None if no block has gradients.

    Args:
        slices: from each rank, in order: what `slices_of` gave there for this one, of any number of blocks.
        size: of the gradients of a block.
    """
    total: Floats | None = None
    for part in slices:
        for block in part.view(np.float32).reshape(-1, max(1, slice_size(ranks, size))):
            # One after the other: numpy's own sum over an axis may pair them.
            total = block.copy() if total is None else np.add(total, block, out=total)
    if goes_whole(ranks.size, ranks.blocks, size):
        return total
    everywhere = np.zeros(0, np.float32) if total is None else total
    sums = ranks.rows.exchange(Kind.SUMS, parts=[everywhere.view(np.uint8)] * ranks.size).parts
    found: Floats = np.concatenate([part.view(np.float32) for part in sums])
    return found if len(found) == size else None


def _bounds(ranks: Ranks, size: int) -> list[int]:
    """Where each rank's slice begins, and where the last one ends."""
    return [rank * size // ranks.size for rank in range(ranks.size + 1)]
