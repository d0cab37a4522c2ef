"""Deferral: gradients of popular rows accumulate in sums, and their squares next to them.

Letters and locations: see `cpu`; H entries of the hot set. `sums` (H, D) float32; `squares` (H, S) float32, where S is
D for Adagrad and FTRL, 1 for row-wise Adagrad (the mean over the columns), D + 1 for Adam, whose last column counts the
gradients, and 0 for SGD, which needs none. Each visit adds its gradient to the sum and the gradient's square to the
squares. With FTRL and the Adagrad family the state grows as if every visit had been applied, and the step is that of
the sum.

With Adam a sum G of k gradients with squares Q stands for k updates with their mean G / k, of mean square Q / k:

    count += k
    first = beta1**k * first + (1 - beta1**k) * (G / k)        second the same, of beta2 and Q / k
    w -= k * size(count) * first / (sqrt(second) + eps)        size: the plain update's after `count` updates

The moments forget as much as in k updates, and the row moves as far; one update with G would do one k-th of that. A sum
of one visit is applied as `update.update` would have done, bit for bit, with any optimizer.
"""

import math

import numpy as np

from adaptive.kernels.jit import in_parallel, kernel
from adaptive.kernels.rows.cpu.steps import (
    ADAGRAD,
    ADAM,
    BETA,
    BETA1,
    BETA2,
    EPS,
    FTRL,
    L1,
    L2,
    LARGEST,
    LR,
    ROWWISE_ADAGRAD,
    TINY,
    ZERO,
    adagrad,
    adam,
    adam_size,
    apply_update,
    ftrl,
    measure_row,
    rowwise_adagrad_step,
)
from adaptive.kernels.rows.cpu.update import chunk_start, sum_gradients
from adaptive.kernels.vector.bfloat16 import NEAREST
from adaptive.kernels.vector.row_ops import AHEAD, Scalar, prefetch_row, row_op, step_op, where_less

BLOCK = 64  # rows whose gradients are summed together; 32 takes a twentieth longer, 128 the same


@row_op
def add_or_start(out, row, is_pending: Scalar, zero: Scalar):
    """out[i] += rows[j], or out[i] = rows[j], where 0.0 + rows[j] would lose the sign of -0.0."""
    return where_less(zero, is_pending, out + row, row)


@row_op
def add_or_start_square(out, row, is_pending: Scalar, zero: Scalar):
    """out[i] += rows[j] * rows[j], or out[i] = rows[j] * rows[j]"""
    square = row * row
    return where_less(zero, is_pending, out + square, square)


@step_op
def adagrad_sum_step(weights, state, squares, g, lr: Scalar, eps: Scalar):
    return adagrad(weights, state + squares, g, lr, eps)


@step_op
def ftrl_sum_step(
    weights, linear, total, squares, g, lr: Scalar, beta: Scalar, l1: Scalar, l2: Scalar, zero: Scalar,
    tiny: Scalar, largest: Scalar,
):  # fmt: skip
    return ftrl(weights, linear, total, squares, g, lr, beta, l1, l2, zero, tiny, largest)


@step_op
def adam_sum_step(
    weights, first, second, squares, g, number: Scalar, size: Scalar, beta1: Scalar, rest1: Scalar,
    beta2: Scalar, rest2: Scalar, eps: Scalar,
):  # fmt: skip
    return adam(weights, first, second, g / number, squares / number, size, beta1, rest1, beta2, rest2, eps)


@kernel(inline=True)
def power(base, exponent):
    """Return base**exponent for a whole number from 0 to 255, by squaring.

    The bits are the same on every device. Eight rounds for any exponent, so that vectors of exponents take the same
    path (`rows.gpu.steps.power`).
    """
    result, squared = np.float32(1.0), np.float32(base)
    for bit in range(8):
        if (int(exponent) >> bit) & 1:
            result *= squared
        squared *= squared
    return result


@kernel(inline=True)
def prefetch_sum(sums, squares, entry):
    prefetch_row(sums, entry)
    if squares.shape[1] > 0:
        prefetch_row(squares, entry)


@kernel(inline=True)
def add_to_sum(tables, entry, g, i, square):
    """Add a row's gradient g[i] to the sum of an entry, or start that sum; `square`: the sum of its squares.

    tables: sums, squares and pending. Without branches: whether a sum is pending is unpredictable.
    """
    sums, squares, pending = tables
    dim, is_pending = g.shape[1], np.float32(pending[entry])
    add_or_start(sums, entry, g, i, is_pending, ZERO)
    if squares.shape[1] == 1:
        squares[entry, 0] = (squares[entry, 0] if is_pending > ZERO else ZERO) + square / np.float32(dim)
    elif squares.shape[1] > 0:
        add_or_start_square(squares[:, :dim], entry, g, i, is_pending, ZERO)
    if squares.shape[1] > dim:
        squares[entry, dim] = (squares[entry, dim] if is_pending > ZERO else ZERO) + np.float32(1.0)
    pending[entry] = True


@kernel(noalias=True)
def accumulate(first, last, lookups, tables, g):
    """Add gradients of the rows [first, last) to sums[entries[u]], or start these sums.

    Locations of the lookups are entries. tables: sums, squares and pending (H,) bool, which marks the sums; g (1, D) is
    scratch. Sums and squares are random rows of large arrays, so those of later rows are prefetched.
    """
    entries, segments, vectors, scales, gradients = lookups
    sums, squares, _ = tables
    ahead, last_row = np.uint64(AHEAD), np.uint64(last)
    for u in range(np.uint64(first), last_row):
        if u + ahead < last_row:
            prefetch_sum(sums, squares, entries[u + ahead])
        entry, start, stop = np.uint64(entries[u]), np.uint64(segments[u]), np.uint64(segments[u + np.uint64(1)])
        square = sum_gradients(g, 0, start, stop, vectors, scales, gradients)
        add_to_sum(tables, entry, g, 0, square)


@kernel(inline=True)
def apply_sum(weights, state, i, sums, squares, entry, rule, key):
    """`steps.apply_update` with the gradient sums[entry]; the state grows by squares[entry]."""
    kind, settings, corrections = rule
    dim = sums.shape[1]
    if kind == ADAGRAD:
        change = adagrad_sum_step(weights, i, state, i, squares, entry, sums, entry, settings[LR], settings[EPS], key)
    elif kind == ROWWISE_ADAGRAD:
        change = rowwise_adagrad_step(weights, state, i, sums, entry, squares[entry, 0], settings, key)
    elif kind == ADAM:
        number, unit = squares[entry, dim], np.float32(1.0)
        beta1, beta2 = power(settings[BETA1], number), power(settings[BETA2], number)
        size = number * adam_size(state, i, dim, number, corrections)
        change = adam_sum_step(
            weights, i, state, i, state[:, dim:], i, squares, entry, sums, entry,
            number, size, beta1, unit - beta1, beta2, unit - beta2, settings[EPS], key,
        )  # fmt: skip
    elif kind == FTRL and settings[LR] > ZERO:
        change = ftrl_sum_step(
            weights, i, state, i, state[:, dim:], i, squares, entry, sums, entry,
            settings[LR], settings[BETA], settings[L1], settings[L2], ZERO, TINY, LARGEST, key,
        )  # fmt: skip
    else:  # it uses no squares
        return apply_update(weights, state, i, sums, entry, ZERO, rule, key)
    return np.float32(math.sqrt(change))


@kernel(noalias=True)
def apply_sums(first, last, flip, places, sums_squares, weights, state, rule, results):
    """Take one optimizer step with each sum of [first, last) whose row is in one tier.

    flip: as in `update.update_tier`. places: locations (n,) int64, each row once, and entries (n,) int64.
    """
    (locations, entries), (sums, squares), (keys, norms) = places, sums_squares, results
    ahead, last_row = np.uint64(AHEAD), np.uint64(last)
    for u in range(np.uint64(first), last_row):
        location = locations[u]
        if (location < 0) != (flip < 0):
            continue
        if u + ahead < last_row and (locations[u + ahead] < 0) == (flip < 0):
            next_row = locations[u + ahead] ^ flip
            prefetch_row(weights, next_row)
            if state.shape[1] > 0:
                prefetch_row(state, next_row)
            prefetch_sum(sums, squares, entries[u + ahead])
        row, entry, key = np.uint64(location ^ flip), np.uint64(entries[u]), keys[u] if keys.size > 0 else NEAREST
        measure_row(weights, row, norms, u)
        norms[0, u] = apply_sum(weights, state, row, sums, squares, entry, rule, key)


@kernel()
def apply_chunk(chunk, num_chunks, flip, places, sums_squares, weights, state, rule, results):
    num_rows = places[0].size
    first, last = chunk * num_rows // num_chunks, (chunk + 1) * num_rows // num_chunks
    apply_sums(first, last, flip, places, sums_squares, weights, state, rule, results)


@kernel()
def update_from_sums(flip, places, sums_squares, weights, state, rule, results, num_chunks):
    """`apply_sums` for all rows of one tier, or copies (flip 0)."""
    in_parallel(apply_chunk, num_chunks, num_chunks, flip, places, sums_squares, weights, state, rule, results)


@kernel(inline=True)
def update_block(span, flip, now, tier, rule, results, of_block):
    """Update those of the rows now[first:last] that are in one tier. of_block: first row, gradients, their squares."""
    (first, last), (locations, weights, state), (keys, norms) = span, tier, results
    begin, g, totals = of_block
    for i in range(first, last):
        u = np.uint64(now[i])
        location = locations[u]
        if (location < 0) == (flip < 0):
            row, place, key = np.uint64(location ^ flip), u - begin, keys[i] if keys.size > 0 else NEAREST
            measure_row(weights, row, norms, i)
            norms[0, i] = apply_update(weights, state, row, g, place, totals[place], rule, key)


@kernel(inline=True)
def apply_block(span, flip, divided, sums_squares, tier, rule, results):
    """Apply those of the sums in applied[first:last] whose row is in one tier."""
    (first, last), (now, summed, entries, applied), (sums, squares) = span, divided, sums_squares
    (locations, weights, state), (keys, norms) = tier, results
    for i in range(first, last):
        at = np.uint64(applied[i])
        location, entry, place = locations[np.uint64(summed[at])], np.uint64(entries[at]), now.size + i
        if (location < 0) == (flip < 0):
            row, key = np.uint64(location ^ flip), keys[place] if keys.size > 0 else NEAREST
            measure_row(weights, row, norms, place)
            norms[0, place] = apply_sum(weights, state, row, sums, squares, entry, rule, key)


@kernel(inline=True)
def prefetch_slot(weights, state, location):
    """Prefetch a row in a slot; a row on the host is used without."""
    prefetch_row(weights, max(location, 0))
    if state.shape[1] > 0:
        prefetch_row(state, max(location, 0))


@kernel(noalias=True)
def defer_range(rows, divided, lookups, tables, tiers, rule, results, gradient_rows):
    """`defer` for the rows [first, last); gradient_rows: (BLOCK, D) and (BLOCK,) are scratch.

    In blocks of rows: first the gradients of all rows are summed, in lookup order, then the rows of each list use them.
    A loop that decides row by row takes a sixth longer, because what happens to a row is unpredictable. Lists whose
    rows sum their own gradients take a fifth longer: the next one's lookups are not those that `sum_rows` prefetches.
    """
    (first, last), (now, summed, entries, applied), (g, totals) = rows, divided, gradient_rows
    locations, segments, vectors, scales, gradients = lookups
    (sums, squares, pending), (weights, state, host_weights, host_state) = tables, tiers
    device, host, num_host = (locations, weights, state), (locations, host_weights, host_state), 0
    for u in range(first, last):
        num_host += locations[u] < 0
    first_now, first_sum = np.searchsorted(now, first), np.searchsorted(summed, first)
    first_applied = np.searchsorted(applied, first_sum)
    for begin in range(first, last, BLOCK):
        end, last_now, last_sum, last_applied = min(begin + BLOCK, last), first_now, first_sum, first_applied
        while last_now < now.size and now[last_now] < end:
            prefetch_slot(weights, state, locations[now[last_now]])
            last_now += 1
        while last_sum < summed.size and summed[last_sum] < end:
            prefetch_sum(sums, squares, entries[last_sum])
            last_sum += 1
        while last_applied < applied.size and applied[last_applied] < last_sum:
            prefetch_slot(weights, state, locations[summed[applied[last_applied]]])
            last_applied += 1
        begin_row = np.uint64(begin)
        for u in range(begin_row, np.uint64(end)):
            start, stop, place = np.uint64(segments[u]), np.uint64(segments[u + np.uint64(1)]), u - begin_row
            totals[place] = sum_gradients(g, place, start, stop, vectors, scales, gradients)
        update_block((first_now, last_now), 0, now, device, rule, results, (begin_row, g, totals))
        for i in range(first_sum, last_sum):
            place = np.uint64(summed[i]) - begin_row
            add_to_sum(tables, np.uint64(entries[i]), g, place, totals[place])
        apply_block((first_applied, last_applied), 0, divided, (sums, squares), device, rule, results)
        if num_host > 0:
            update_block((first_now, last_now), -1, now, host, rule, results, (begin_row, g, totals))
            apply_block((first_applied, last_applied), -1, divided, (sums, squares), host, rule, results)
        for i in range(first_applied, last_applied):
            pending[entries[applied[i]]] = False
        first_now, first_sum, first_applied = last_now, last_sum, last_applied


@kernel()
def defer_chunk(chunk, divided, lookups, tables, tiers, rule, results, scratch):
    _, segments, _, _, gradients = lookups
    num_chunks, dim = scratch.shape[0] // BLOCK, gradients.shape[1]
    rows = chunk_start(segments, chunk, num_chunks), chunk_start(segments, chunk + 1, num_chunks)
    g = scratch[chunk * BLOCK : (chunk + 1) * BLOCK]
    defer_range(rows, divided, lookups, tables, tiers, rule, results, (g[:, :dim], g[:, dim]))


@kernel()
def defer(divided, lookups, tables, tiers, rule, results, scratch):
    """Update the rows `now`, add the gradients of the rows `summed` to sums, and apply the sums `applied`.

    divided: now (n,) and summed (m,) int32, ascending: different rows of the U; entries (m,) int32: their rows of sums
    and squares, each once; applied (k,) int32, ascending: positions among the m. tables: sums, squares and pending (H,)
    bool. Results are of the rows `now`, then of those applied: keys (n + k,), or empty, and norms (1 or 2, n + k).
    scratch (chunks * BLOCK, > D).
    """
    num_chunks = scratch.shape[0] // BLOCK
    in_parallel(defer_chunk, num_chunks, divided, lookups, tables, tiers, rule, results, scratch)
