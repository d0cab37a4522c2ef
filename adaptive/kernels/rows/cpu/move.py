"""Copies of rows with their state. Letters and locations: see `kernels.rows.cpu`."""

import numpy as np

from adaptive.kernels.jit import in_parallel, kernel
from adaptive.kernels.vector.row_ops import AHEAD, prefetch_row, row_op


@row_op
def copy_row(out, row):
    """out[i] = rows[j]"""
    return row


@kernel(inline=True)
def clear_row(out, i):
    for d in range(out.shape[1]):
        out[i, d] = np.float32(0.0)


@kernel(noalias=True)
def copy_rows(to_weights, to_state, to_rows, from_weights, from_state, from_rows):
    """Copy row from_rows[i] with its state to row to_rows[i].

    Both (n,) int64, targets distinct. Rows are in random order, so both sides of later copies are prefetched. States
    are mostly one number or as wide as the rows; the plain loop serves both.
    """
    for i in range(to_rows.size):
        if i + AHEAD < to_rows.size:
            prefetch_row(from_weights, from_rows[i + AHEAD])
            prefetch_row(to_weights, to_rows[i + AHEAD])
            if to_state.shape[1] > 0:
                prefetch_row(from_state, from_rows[i + AHEAD])
                prefetch_row(to_state, to_rows[i + AHEAD])
        copy_row(to_weights, to_rows[i], from_weights, from_rows[i])
        for s in range(to_state.shape[1]):
            to_state[to_rows[i], s] = from_state[from_rows[i], s]


@kernel()
def copy_share(c, bounds, to_weights, to_state, to_rows, source):
    first, last = bounds[c], bounds[c + 1]
    copy_rows(to_weights, to_state, to_rows[first:last], source[0], source[1], source[2][first:last])


@kernel()
def copy_shares(bounds, to_weights, to_state, to_rows, *source):
    """`copy_rows` by several threads; bounds (C + 1,) int64 are those of their shares of the rows."""
    in_parallel(copy_share, bounds.size - 1, bounds, to_weights, to_state, to_rows, source)
