"""What happens to rows on the CPU: pool, update, copy, initial values.

Letters: B bags, N look-ups, V output vectors, U rows to update, D width of a row, S width of its state.

A *location* says where a row lies: `>= 0` a slot of the device tier, `< 0` row `~location` of the host tier.
Both tiers are passed to every kernel, so a bag is summed in look-up order wherever its rows lie; this is why
placement cannot change the numbers. Sums over a row are taken in four fixed parts, so results do not depend on the
machine. What is done to whole rows is written with `row_ops` and `row_sums`: LLVM vectorises a loop of unknown length
for long rows, and a row of 16 values would be left to the scalar remainder.
"""

import math

import numba
import numpy as np

from adaptive.kernels.jit import kernel
from adaptive.kernels.prefetch import prefetch_row
from adaptive.kernels.row_ops import Scalar, row_op, square_root
from adaptive.kernels.row_sums import (
    finish_stores,
    may_pass_caches,
    square_sum,
    sum_rows,
    sum_rows_past_caches,
    sum_scaled_rows,
)

AHEAD = 16  # rows fetched into the cache ahead of use; 8 to 48 measure alike
PAST_CACHES = 1 << 19  # floats of an output that is stored past the caches: 2 MB, as large as those of one core

SGD_, ADAGRAD, ROWWISE_ADAGRAD, ADAM = 0, 1, 2, 3
LR, EPS, BETA1, BETA2, FIRST = 0, 1, 2, 3, 4  # places in `settings`

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX1 = np.uint64(0xBF58476D1CE4E5B9)
MIX2 = np.uint64(0x94D049BB133111EB)
S27, S30, S31, S40 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(40)


@row_op
def copy_row(out, row):
    """out[i] = rows[j]"""
    return row


@row_op
def scale_row(out, row, scale: Scalar):
    """out[i] = scale * rows[j]"""
    return scale * row


@row_op
def add_scaled_row(out, row, scale: Scalar):
    """out[i] += scale * rows[j]"""
    return out + scale * row


@kernel(inline=True)
def clear_row(out, i):
    for d in range(out.shape[1]):
        out[i, d] = np.float32(0.0)


@kernel(noalias=True)
def pool_plain(first, last, out, bag_vectors, bag_starts, locations, weights, flip, past_caches):
    """The bags [first, last) when all rows lie in one tier and nothing is scaled. `flip`: rows are ~location."""
    # Unsigned indices throughout: numba need not look for negative ones, which makes this 1.4 times faster.
    for bag in range(np.uint64(first), np.uint64(last)):
        vector = np.uint64(bag_vectors[bag])
        start, stop = np.uint64(bag_starts[bag]), np.uint64(bag_starts[bag + np.uint64(1)])
        if start == stop:
            clear_row(out, vector)
        elif past_caches:
            sum_rows_past_caches(out, vector, weights, locations, flip, start, stop)
        else:
            sum_rows(out, vector, weights, locations, flip, start, stop)
    finish_stores()


@kernel(noalias=True)
def pool_mixed(first, last, out, bag_vectors, bag_starts, locations, scales, device_weights, host_weights):
    """The bags [first, last) in general."""
    scaled = scales.size > 0
    for bag in range(first, last):
        vector = bag_vectors[bag]
        start, stop = bag_starts[bag], bag_starts[bag + 1]
        if start == stop:
            for d in range(out.shape[1]):
                out[vector, d] = np.float32(0.0)
        for p in range(start, stop):
            location = locations[p]
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
def pool_range(first, last, out, bag_vectors, bag_starts, locations, scales, device_weights, host_weights):
    """The bags [first, last): see `pool`."""
    # np.int64(0) and not 0 below: for each literal the kernel would be compiled anew.
    past_caches = out.size >= PAST_CACHES and may_pass_caches(out)
    num_host = 0
    for p in range(bag_starts[first], bag_starts[last]):
        num_host += locations[p] < 0
    if scales.size == 0 and num_host == 0:
        pool_plain(first, last, out, bag_vectors, bag_starts, locations, device_weights, np.int64(0), past_caches)
    elif scales.size == 0 and num_host == bag_starts[last] - bag_starts[first]:
        pool_plain(first, last, out, bag_vectors, bag_starts, locations, host_weights, np.int64(-1), past_caches)
    else:
        pool_mixed(first, last, out, bag_vectors, bag_starts, locations, scales, device_weights, host_weights)


@kernel(parallel=True)
def pool(out, bag_vectors, bag_starts, locations, scales, device_weights, host_weights, num_chunks):
    """out[bag_vectors[b]] = sum over look-ups p of bag b of scales[p] * row at locations[p]; empty bags give zeros.

    out (V, D) float32; bag_vectors (B,) int32; bag_starts (B + 1,) int64; locations (N,) int64; scales (N,) float32
    or empty (all 1); *_weights (rows, D) float32. A sum starts from its first term and runs in look-up order.
    """
    num_bags = bag_vectors.size
    for chunk in numba.prange(num_chunks):
        pool_range(
            chunk * num_bags // num_chunks,
            (chunk + 1) * num_bags // num_chunks,
            out,
            bag_vectors,
            bag_starts,
            locations,
            scales,
            device_weights,
            host_weights,
        )


@kernel(inline=True)
def sum_gradients(out, i, start, stop, vectors, scales, gradients):
    """out[i] = sum over p in [start, stop) of scales[p] * gradients[vectors[p]], in order."""
    if scales.size > 0:
        sum_scaled_rows(out, i, gradients, vectors, 0, start, stop, scales)
    else:
        sum_rows(out, i, gradients, vectors, 0, start, stop)


@row_op
def sgd_step(weights, delta, g, lr: Scalar):
    change = lr * g
    return weights - change, change


def adagrad(weights, total, g, lr, eps):
    """New weights, change and state; `total` is the new state. Called by the row operations of Adagrad."""
    change = lr * g / (square_root(total) + eps)
    return weights - change, change, total


@row_op
def adagrad_step(weights, delta, state, g, lr: Scalar, eps: Scalar):
    return adagrad(weights, state + g * g, g, lr, eps)


@row_op
def adam_step(
    weights, delta, first, second, g, size: Scalar, beta1: Scalar, rest1: Scalar, beta2: Scalar, rest2: Scalar,
    eps: Scalar,
):  # fmt: skip
    first = beta1 * first + rest1 * g
    second = beta2 * second + rest2 * (g * g)
    change = size * first / (square_root(second) + eps)
    return weights - change, change, first, second


@kernel(inline=True)
def mean_square(rows, i):
    return square_sum(rows, i) / np.float32(rows.shape[1])


@kernel(inline=True)
def norm(delta):
    """L2 norm of delta[0]."""
    return np.float32(math.sqrt(square_sum(delta, 0)))


@kernel(inline=True)
def rowwise_adagrad_step(weights, state, i, g, j, mean, delta, settings):
    """The state (1,) grows by `mean`."""
    total = state[i, 0] + mean
    state[i, 0] = total
    sgd_step(weights, i, delta, 0, g, j, settings[LR] / (np.sqrt(total) + settings[EPS]))


@kernel(inline=True)
def apply_update(weights, state, i, g, j, delta, kind, settings, corrections):
    """Take one optimizer step of row i with gradient g[j] (D,); returns the L2 norm of the change.

    delta (1, D) is scratch. A gradient of zero is an update too: Adam's moments decay.
    """
    if kind == SGD_:
        sgd_step(weights, i, delta, 0, g, j, settings[LR])
    elif kind == ADAGRAD:
        adagrad_step(weights, i, delta, 0, state, i, g, j, settings[LR], settings[EPS])
    elif kind == ROWWISE_ADAGRAD:
        rowwise_adagrad_step(weights, state, i, g, j, mean_square(g, j), delta, settings)
    else:
        dim = delta.shape[1]
        one = np.float32(1.0)
        beta1, beta2 = settings[BETA1], settings[BETA2]
        # A float32 counts to 2**24 exactly; by then every correction is 1.
        state[i, 2 * dim] += one
        size = corrections[min(int(state[i, 2 * dim]), corrections.size) - 1]
        adam_step(
            weights, i, delta, 0, state, i, state[:, dim:], i, g, j, size, beta1, one - beta1, beta2, one - beta2,
            settings[EPS],
        )  # fmt: skip
    return norm(delta)


@kernel(noalias=True)
def update_tier(
    first,
    last,
    flip,
    row_locations,
    segments,
    vectors,
    scales,
    gradients,
    weights,
    state,
    kind,
    settings,
    corrections,
    norms,
    g,
    delta,
):
    """The rows [first, last) that lie in one tier: slots (flip 0), or rows ~location of the host (flip -1)."""
    ahead = np.uint64(AHEAD)
    for u in range(np.uint64(first), np.uint64(last)):
        location = row_locations[u]
        if (location < 0) != (flip < 0):
            continue
        if u + ahead < np.uint64(last) and (row_locations[u + ahead] < 0) == (flip < 0):
            coming = row_locations[u + ahead] ^ flip
            prefetch_row(weights, coming)
            if state.shape[1] > 0:
                prefetch_row(state, coming)
        start, stop = np.uint64(segments[u]), np.uint64(segments[u + np.uint64(1)])
        sum_gradients(g, 0, start, stop, vectors, scales, gradients)
        norms[u] = apply_update(weights, state, np.uint64(location ^ flip), g, 0, delta, kind, settings, corrections)


@kernel()
def update_range(
    first,
    last,
    row_locations,
    segments,
    vectors,
    scales,
    gradients,
    device_weights,
    device_state,
    host_weights,
    host_state,
    kind,
    settings,
    corrections,
    norms,
    g,
    delta,
):
    """The rows [first, last): see `update`. g, delta (1, D) are this chunk's scratch. Rows of each tier in turn."""
    num_host = 0
    for u in range(first, last):
        num_host += row_locations[u] < 0
    if num_host < last - first:
        update_tier(
            first,
            last,
            np.int64(0),
            row_locations,
            segments,
            vectors,
            scales,
            gradients,
            device_weights,
            device_state,
            kind,
            settings,
            corrections,
            norms,
            g,
            delta,
        )
    if num_host > 0:
        update_tier(
            first,
            last,
            np.int64(-1),
            row_locations,
            segments,
            vectors,
            scales,
            gradients,
            host_weights,
            host_state,
            kind,
            settings,
            corrections,
            norms,
            g,
            delta,
        )


@kernel()
def chunk_start(segments, chunk, num_chunks):
    """First row of a chunk when rows and look-ups together are shared out evenly."""
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


@kernel(parallel=True)
def update(
    row_locations,
    segments,
    vectors,
    scales,
    gradients,
    device_weights,
    device_state,
    host_weights,
    host_state,
    kind,
    settings,
    corrections,
    norms,
    scratch,
):
    """One pass over the rows to update: sum the row's gradients, take the optimizer step in place, measure it.

    row_locations (U,) int64, each row once; its look-ups are [segments[u], segments[u + 1]) (int64, none empty) of
    vectors (int32, rows of `gradients`) and scales (float32, or empty: all 1); gradients (V, D) float32; *_weights
    (rows, D), *_state (rows, S) float32; norms (U,) float32 receives the L2 norm of each change; scratch
    (chunks, 2, >= D) float32. One thread handles a row, so results do not depend on the number of chunks.
    """
    num_chunks = scratch.shape[0]
    dim = gradients.shape[1]
    for chunk in numba.prange(num_chunks):
        update_range(
            chunk_start(segments, chunk, num_chunks),
            chunk_start(segments, chunk + 1, num_chunks),
            row_locations,
            segments,
            vectors,
            scales,
            gradients,
            device_weights,
            device_state,
            host_weights,
            host_state,
            kind,
            settings,
            corrections,
            norms,
            scratch[chunk, :1, :dim],
            scratch[chunk, 1:, :dim],
        )


@kernel(noalias=True)
def copy_rows(to_weights, to_state, to_rows, from_weights, from_state, from_rows):
    """Row from_rows[i] with its state becomes row to_rows[i]; both (n,) int64, targets distinct."""
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
def mix(x):
    """A bijection of 64-bit words that scatters well (the finaliser of SplitMix64)."""
    x = (x ^ (x >> S30)) * MIX1
    x = (x ^ (x >> S27)) * MIX2
    return x ^ (x >> S31)


@kernel()
def initial_rows(to_weights, to_state, to_rows, rows, table_starts, table_keys, table_bounds, first_state):
    """Write the initial values of `rows` (n,) to rows `to_rows` of weights and state.

    Values are uniform in +-table_bounds[t], a function of (table_keys[t], index, column) alone: no row needs to be
    written before it is first used, and initial values do not depend on which tables share a width or a machine.
    """
    for i in range(rows.size):
        table = np.searchsorted(table_starts, rows[i], side="right") - 1
        key = mix(table_keys[table] + np.uint64(rows[i] - table_starts[table]) * GOLDEN)
        bound = table_bounds[table]
        for d in range(to_weights.shape[1]):
            word = mix(key + np.uint64(d + 1) * GOLDEN)
            unit = np.float32(np.int64(word >> S40)) * np.float32(2.0**-23) - np.float32(1.0)
            to_weights[to_rows[i], d] = bound * unit
        for s in range(to_state.shape[1]):
            to_state[to_rows[i], s] = first_state
