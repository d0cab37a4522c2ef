"""Weight decay of the rows that are about to be updated.

Letters and locations: see `kernels.rows.cpu`. A separate pass before the update: without decay it costs nothing, and
the update's formulas are the same.
"""

import numpy as np

from adaptive.kernels.jit import in_parallel, kernel
from adaptive.kernels.rows.cpu.initial import mix
from adaptive.kernels.vector.bfloat16 import NEAREST
from adaptive.kernels.vector.row_ops import AHEAD, Scalar, prefetch_row, row_op


@row_op
def scale_row(rows, factor: Scalar):
    """rows[i] *= factor"""
    return rows * factor


@kernel()
def decay_chunk(chunk, num_chunks, arrays):
    """Scale the rows of one chunk. arrays: all of `decay` but num_chunks."""
    flip, locations, factor, keys, weights = arrays
    num_rows = locations.size
    last = (chunk + 1) * num_rows // num_chunks
    for u in range(chunk * num_rows // num_chunks, last):
        location = locations[u]
        if (location < 0) != (flip < 0):
            continue
        if u + AHEAD < last and (locations[u + AHEAD] < 0) == (flip < 0):
            prefetch_row(weights, locations[u + AHEAD] ^ flip)
        scale_row(weights, np.uint64(location ^ flip), factor, mix(keys[u]) if keys.size > 0 else NEAREST)


@kernel()
def decay(flip, locations, factor, keys, weights, num_chunks):
    """weights[i] *= factor for the rows of one tier.

    These are slots i = location (flip 0), or rows i = ~location of the host (flip -1).
    locations (n,) int64, each row once; factor float32; keys (n,) uint64 or empty, as in `update.update`; weights
    (rows, D) float32 or bfloat16, which are rounded here and by the update, with keys that are not related.
    """
    in_parallel(decay_chunk, num_chunks, num_chunks, (flip, locations, factor, keys, weights))
