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


@kernel(noalias=True)
def swap_rows(first, last, moves, slot_arrays, host_arrays):
    """For i in [first, last): copy the row in slots[i] to the i-th last of the host's `back_rows`, then rows[i] to it.

    moves: back_rows, slots, rows (int64, all different), and initial (bool): where it is set, the slot keeps its row.
    *_arrays: weights and state. Each slot enters the cache once: on one thread two thirds of the time of copying first
    one way, then the other.
    """
    back_rows, slots, rows, initial = moves
    weights, state = slot_arrays
    host_weights, host_state = host_arrays
    end = back_rows.size - 1
    for i in range(first, last):
        if i + AHEAD < last:
            slot, back, row = slots[i + AHEAD], back_rows[end - i - AHEAD], rows[i + AHEAD]
            row = back if initial[i + AHEAD] else row  # it may have no memory yet
            prefetch_row(weights, slot)
            prefetch_row(host_weights, back)
            prefetch_row(host_weights, row)
            if state.shape[1] > 0:
                prefetch_row(state, slot)
                prefetch_row(host_state, back)
                prefetch_row(host_state, row)
        slot, back = slots[i], back_rows[end - i]
        row = back if initial[i] else rows[i]
        copy_row(host_weights, back, weights, slot)
        copy_row(weights, slot, host_weights, row)
        for s in range(state.shape[1]):
            host_state[back, s] = state[slot, s]
            state[slot, s] = host_state[row, s]


@kernel()
def swap_share(c, bounds, moves, slot_arrays, host_arrays):
    swap_rows(bounds[c], bounds[c + 1], moves, slot_arrays, host_arrays)


@kernel()
def swap_shares(bounds, moves, slot_arrays, host_arrays):
    """`swap_rows` by several threads; bounds (C + 1,) int64 are those of their shares of the slots."""
    in_parallel(swap_share, bounds.size - 1, bounds, moves, slot_arrays, host_arrays)
