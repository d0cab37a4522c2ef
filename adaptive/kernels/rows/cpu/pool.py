"""Forward pass: bags of rows become vectors. Letters, locations: see `kernels.rows.cpu`."""

import numpy as np

from adaptive.kernels.jit import at, in_parallel, kernel
from adaptive.kernels.rows.cpu.move import clear_row
from adaptive.kernels.vector.row_ops import Scalar, row_op
from adaptive.kernels.vector.row_sums import finish_stores, may_pass_caches, sum_found_rows, sum_found_rows_past_caches

PAST_CACHES = 1 << 19  # floats of an output that is stored past the caches: 2 MB, as large as those of one core


@row_op
def scale_row(out, row, scale: Scalar):
    """out[i] = scale * rows[j]"""
    return scale * row


@row_op
def add_scaled_row(out, row, scale: Scalar):
    """out[i] += scale * rows[j]"""
    return out + scale * row


@kernel(noalias=True)
def pool_plain(first, last, out, bag_vectors, bag_starts, inverse, locations, weights, flip, past_caches):
    """Pool the bags [first, last) if all rows are in one tier and nothing is scaled.

    flip: -1 where rows are ~location, otherwise 0.
    """
    # All indices are unsigned: numba then does not look for negative ones, which makes this 1.4 times faster.
    for bag in range(np.uint64(first), np.uint64(last)):
        vector = np.uint64(bag_vectors[bag])
        start, stop = np.uint64(bag_starts[bag]), np.uint64(bag_starts[bag + np.uint64(1)])
        if start == stop:
            clear_row(out, vector)
        elif past_caches:
            sum_found_rows_past_caches(out, vector, weights, locations, inverse, flip, start, stop)
        else:
            sum_found_rows(out, vector, weights, locations, inverse, flip, start, stop)
    finish_stores()


@kernel(noalias=True)
def pool_mixed(first, last, out, bag_vectors, bag_starts, inverse, locations, scales, device_weights, host_weights):
    """Pool the bags [first, last) in general.

    Rows of both tiers alternate within a bag, so each is added to the output row in memory: slower than `pool_plain`,
    which keeps a sum in registers.
    """
    scaled = scales.size > 0
    for bag in range(first, last):
        vector = bag_vectors[bag]
        start, stop = bag_starts[bag], bag_starts[bag + 1]
        if start == stop:
            clear_row(out, vector)
        for p in range(start, stop):
            location = locations[inverse[p]]
            scale = scales[p] if scaled else np.float32(1.0)
            if location >= 0:
                if p == start:
                    scale_row(out, vector, device_weights, location, scale)
                else:
                    add_scaled_row(out, vector, device_weights, location, scale)
            elif p == start:
                scale_row(out, vector, host_weights, ~location, scale)
            else:
                add_scaled_row(out, vector, host_weights, ~location, scale)


@kernel()
def count_on_host(first, last, inverse, locations):
    """Count the lookups [first, last) that read a row on the host."""
    any_row = False
    for u in range(locations.size):  # distinct rows first: they are fewer, and mostly none is on the host
        any_row |= locations[u] < 0
    if not any_row:
        return 0
    num_host = 0
    for p in range(first, last):
        num_host += locations[at(inverse[at(p)])] < 0
    return num_host


@kernel()
def pool_range(first, last, out, bag_vectors, bag_starts, inverse, locations, scales, device_weights, host_weights):
    """Pool the bags [first, last): see `pool`."""
    past_caches = out.size >= PAST_CACHES and may_pass_caches(out)
    num_host = count_on_host(bag_starts[first], bag_starts[last], inverse, locations)
    where = bag_vectors, bag_starts, inverse, locations
    if scales.size == 0 and num_host == 0:
        pool_plain(first, last, out, *where, device_weights, 0, past_caches)
    elif scales.size == 0 and num_host == bag_starts[last] - bag_starts[first]:
        pool_plain(first, last, out, *where, host_weights, -1, past_caches)
    else:
        pool_mixed(first, last, out, *where, scales, device_weights, host_weights)


@kernel()
def pool_chunk(chunk, num_chunks, num_bags, arrays):
    """Pool the bags of one chunk. arrays: those of `pool`."""
    pool_range(chunk * num_bags // num_chunks, (chunk + 1) * num_bags // num_chunks, *arrays)


@kernel()
def pool(out, bag_vectors, bag_starts, inverse, locations, scales, device_weights, host_weights, num_chunks):
    """out[bag_vectors[b]] = sum over p in bag b of scales[p] * row at locations[inverse[p]].

    out (V, D) float32; bag_vectors (B,) int32; bag_starts (B + 1,) int64; inverse (N,) int32; locations int64 of
    distinct rows; scales (N,) float32 or empty (all 1); *_weights (rows, D) float32. A sum starts from its first term
    and runs in lookup order; empty bags give zeros. Results do not depend on the number of chunks.
    """
    arrays = out, bag_vectors, bag_starts, inverse, locations, scales, device_weights, host_weights
    in_parallel(pool_chunk, num_chunks, num_chunks, bag_vectors.size, arrays)
