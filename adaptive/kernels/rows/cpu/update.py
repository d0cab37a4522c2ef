"""Updates of rows from gradients of vectors. Letters, locations: see `kernels.rows.cpu`."""

import numpy as np

from adaptive.kernels.jit import in_parallel, kernel
from adaptive.kernels.rows.cpu.steps import apply_update, measure_row
from adaptive.kernels.vector.bfloat16 import NEAREST
from adaptive.kernels.vector.row_ops import AHEAD, prefetch_row
from adaptive.kernels.vector.row_sums import (
    CHUNK_LOOKUPS,
    add_rows,
    add_scaled_rows,
    square_sum,
    sum_rows,
    sum_scaled_rows,
)


@kernel(inline=True)
def sum_gradients(out, i, start, stop, vectors, scales, gradients):
    """out[i] = sum over p in [start, stop) of scales[p] * gradients[vectors[p]], in order, in chunks of 64.

    Returns the sum of its squares. Separate passes for these and for those of the change took a sixth of the update.
    """
    if stop - start > np.uint64(CHUNK_LOOKUPS):
        return sum_chunks(out, i, start, stop, vectors, scales, gradients)
    if scales.size > 0:
        return sum_scaled_rows(out, i, gradients, vectors, 0, start, stop, scales)
    return sum_rows(out, i, gradients, vectors, 0, start, stop)


@kernel()
def sum_chunks(out, i, start, stop, vectors, scales, gradients):
    """Sum each chunk of 64 terms in order, then the chunks in order: a GPU sums the chunks at the same time.

    By itself: as a part of the loop over rows it slows down rows with one lookup by a tenth.
    """
    for first in range(start, stop, np.uint64(CHUNK_LOOKUPS)):
        end = min(first + np.uint64(CHUNK_LOOKUPS), stop)
        if scales.size > 0:
            if first == start:
                sum_scaled_rows(out, i, gradients, vectors, 0, first, end, scales)
            else:
                add_scaled_rows(out, i, gradients, vectors, 0, first, end, scales)
        elif first == start:
            sum_rows(out, i, gradients, vectors, 0, first, end)
        else:
            add_rows(out, i, gradients, vectors, 0, first, end)
    return square_sum(out, i)


@kernel(noalias=True)
def update_tier(first, last, flip, lookups, weights, state, rule, results, g):
    """Update the rows of [first, last) that are in one tier.

    These are slots (flip 0), or rows ~location of the host (flip -1). Rows and states of later updates are prefetched
    here; `sum_rows` prefetches the gradients of later lookups.
    """
    row_locations, segments, vectors, scales, gradients = lookups
    keys, norms = results
    ahead = np.uint64(AHEAD)
    for u in range(np.uint64(first), np.uint64(last)):
        location = row_locations[u]
        if (location < 0) != (flip < 0):
            continue
        if u + ahead < np.uint64(last) and (row_locations[u + ahead] < 0) == (flip < 0):
            next_row = row_locations[u + ahead] ^ flip
            prefetch_row(weights, next_row)
            if state.shape[1] > 0:
                prefetch_row(state, next_row)
        start, stop = np.uint64(segments[u]), np.uint64(segments[u + np.uint64(1)])
        squares = sum_gradients(g, 0, start, stop, vectors, scales, gradients)
        row, key = np.uint64(location ^ flip), keys[u] if keys.size > 0 else NEAREST
        measure_row(weights, row, norms, u)
        norms[0, u] = apply_update(weights, state, row, g, 0, squares, rule, key)


@kernel()
def update_range(first, last, lookups, tiers, rule, results, g):
    """Update the rows [first, last): see `update`. g (1, D) is this chunk's scratch.

    One tier after the other: a loop over both would decide for each row, and cannot promise that arrays do not overlap.
    """
    row_locations, num_host = lookups[0], 0
    device_weights, device_state, host_weights, host_state = tiers
    for u in range(first, last):
        num_host += row_locations[u] < 0
    if num_host < last - first:
        update_tier(first, last, 0, lookups, device_weights, device_state, rule, results, g)
    if num_host > 0:
        update_tier(first, last, -1, lookups, host_weights, host_state, rule, results, g)


@kernel()
def chunk_start(segments, chunk, num_chunks):
    """Return the first row of a chunk; rows and lookups together are divided evenly."""
    num_rows = segments.size - 1
    target = chunk * (num_rows + segments[num_rows]) // num_chunks
    low, high = 0, num_rows
    while low < high:
        middle = (low + high) // 2
        if middle + segments[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low


@kernel()
def update_chunk(chunk, lookups, tiers, rule, results, scratch):
    _, segments, _, _, gradients = lookups
    num_chunks, dim = scratch.shape[0], gradients.shape[1]
    first, last = chunk_start(segments, chunk, num_chunks), chunk_start(segments, chunk + 1, num_chunks)
    update_range(first, last, lookups, tiers, rule, results, scratch[chunk : chunk + 1, :dim])


@kernel()
def update(lookups, tiers, rule, results, scratch):
    """Sum each row's gradients, take the optimizer step in place and measure it, in one pass.

    scratch (chunks, >= D) float32. One thread handles a row, so results do not depend on the number of chunks.
    """
    in_parallel(update_chunk, scratch.shape[0], lookups, tiers, rule, results, scratch)
