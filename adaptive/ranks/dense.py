"""The dense part: gradients of all blocks, summed in the order of blocks, by whoever has the slice.

    slices of all blocks' gradients  -- exchange -->  slice r of every block, on rank r
    slice r: (block 0 + block 1) + block 2 ...        the same order, whoever computed which block
    sums                             -- exchange -->  everywhere

Bytes sent are those of a ring's all-reduce; unlike there, the order of additions does not depend on the number of
ranks, nor on the library that sends.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from adaptive.ranks.ranks import Ranks
from adaptive.ranks.wire import Kind

Floats = NDArray[np.float32]


def sum_blocks(ranks: Ranks, blocks: Sequence[Floats | None], size: int) -> Floats | None:
    """(size,) the sum over all blocks of all ranks, in order; a block may have none. None if no block has any.

    Args:
        blocks: (size,) of each block of this rank.
    """
    bounds = [rank * size // ranks.size for rank in range(ranks.size + 1)]
    there = [block is not None for block in blocks]
    mine = [block for block in blocks if block is not None]
    flags = np.array(there, np.uint8)
    parts = []
    for first, last in pairwise(bounds):
        parts.append(np.concatenate([flags, *(block[first:last].view(np.uint8) for block in mine)]))
    found = ranks.rows.exchange(Kind.DENSE, parts=parts).parts
    own = bounds[ranks.rank + 1] - bounds[ranks.rank]
    total: Floats | None = None
    for rank, part in enumerate(found):
        count = len(ranks.blocks_of(rank))
        values = np.frombuffer(part[count:].tobytes(), np.float32).reshape(int(part[:count].sum()), own)
        for block in values:  # one after the other: numpy's own sum over an axis may pair them
            total = block.copy() if total is None else np.add(total, block, out=total)
    everywhere = np.zeros(0, np.float32) if total is None else total
    sums = ranks.rows.exchange(Kind.SUMS, parts=[everywhere.view(np.uint8)] * ranks.size).parts
    whole = np.concatenate([np.frombuffer(part.tobytes(), np.float32) for part in sums])
    return whole if len(whole) == size and (size or total is not None) else None
