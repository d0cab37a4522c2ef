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
def pool_plain(first, last, out, bags, weights, flip, past_caches):
    """Pool the bags [first, last) if all rows are in one tier and nothing is scaled.

    flip: -1 where rows are ~location, otherwise 0.
    """
    bag_vectors, bag_starts, inverse, locations = bags[:4]
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
def pool_mixed(first, last, out, bags, device_weights, host_weights):
    """Pool the bags [first, last) in general.

    Rows of both tiers alternate within a bag, so each is added to the output row in memory: slower than `pool_plain`,
    which keeps a sum in registers.
    """
    bag_vectors, bag_starts, inverse, locations, scales = bags
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
def pool_range(first, last, out, bags, device_weights, host_weights):
    """Pool the bags [first, last): see `pool`."""
    _, bag_starts, inverse, locations, scales = bags
    past_caches = out.size >= PAST_CACHES and may_pass_caches(out)
    num_host = count_on_host(bag_starts[first], bag_starts[last], inverse, locations)
    if scales.size == 0 and num_host == 0:
        pool_plain(first, last, out, bags, device_weights, 0, past_caches)
    elif scales.size == 0 and num_host == bag_starts[last] - bag_starts[first]:
        pool_plain(first, last, out, bags, host_weights, -1, past_caches)
    else:
        pool_mixed(first, last, out, bags, device_weights, host_weights)


@kernel()
def pool_chunk(chunk, num_chunks, out, bags, device_weights, host_weights):
    num_bags = bags[0].size
    first, last = chunk * num_bags // num_chunks, (chunk + 1) * num_bags // num_chunks
    pool_range(first, last, out, bags, device_weights, host_weights)


@kernel()
def pool(out, bags, device_weights, host_weights, num_chunks):
    """out[vectors[b]] = sum over the lookups p in bag b of scales[p] * row at locations[inverse[p]].

    out (V, D) float32. A sum starts from its first term and runs in lookup order; empty bags give zeros. Results do not
    depend on the number of chunks.
    """
    in_parallel(pool_chunk, num_chunks, num_chunks, out, bags, device_weights, host_weights)
