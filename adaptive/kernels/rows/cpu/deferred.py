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
from adaptive.kernels.rows.cpu.move import clear_row, copy_row
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
    rowwise_adagrad_step,
)
from adaptive.kernels.rows.cpu.update import chunk_start, sum_gradients
from adaptive.kernels.vector.bfloat16 import NEAREST
from adaptive.kernels.vector.row_ops import AHEAD, Scalar, prefetch_row, row_op, step_op


@row_op
def add_row(out, row):
    """out[i] += rows[j]"""
    return out + row


@row_op
def add_square_row(out, row):
    """out[i] += rows[j] * rows[j]"""
    return out + row * row


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


@kernel(noalias=True)
def accumulate(first, last, entries, segments, vectors, scales, gradients, sums, squares, pending, g):
    """Add gradients of the rows [first, last) to sums[entries[u]], or start these sums.

    The sums are marked as pending.
    entries (U,) int64, each once; gradients are summed as in `update.update`; pending (H,) bool; g (1, D) is scratch.
    Sums and squares are random rows of large arrays, so those of later rows are prefetched.
    """
    ahead, last_row, dim = np.uint64(AHEAD), np.uint64(last), g.shape[1]
    elements = squares[:, :dim]
    for u in range(np.uint64(first), last_row):
        if u + ahead < last_row:
            prefetch_sum(sums, squares, entries[u + ahead])
        entry, start, stop = np.uint64(entries[u]), np.uint64(segments[u]), np.uint64(segments[u + np.uint64(1)])
        square = sum_gradients(g, 0, start, stop, vectors, scales, gradients)
        if pending[entry]:
            add_row(sums, entry, g, 0)
        else:
            copy_row(sums, entry, g, 0)  # not added to 0.0, where -0.0 would lose its sign; squares have none
            clear_row(squares, entry)
            pending[entry] = True
        if squares.shape[1] == 1:
            squares[entry, 0] += square / np.float32(dim)
        elif squares.shape[1] > 0:
            add_square_row(elements, entry, g, 0)
        if squares.shape[1] > dim:
            squares[entry, dim] += np.float32(1.0)


@kernel(inline=True)
def apply_sum(weights, state, i, sums, squares, entry, kind, settings, corrections, key):
    """`steps.apply_update` with the gradient sums[entry]; the state grows by squares[entry]."""
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
        return apply_update(weights, state, i, sums, entry, ZERO, kind, settings, corrections, key)
    return np.float32(math.sqrt(change))


@kernel(noalias=True)
def apply_sums(
    first, last, flip, locations, entries, sums, squares, weights, state, kind, settings, corrections, keys, norms
):
    """Take one optimizer step with each sum of [first, last) whose row is in one tier.

    flip: as in `update.update_tier`. locations (n,) int64, each row once; entries (n,) int64; keys (n,) or empty, as
    in `update.update`; norms (n,) float32 receives the L2 norm of each change.
    """
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
        norms[u] = apply_sum(weights, state, row, sums, squares, entry, kind, settings, corrections, key)


@kernel()
def apply_chunk(chunk, num_chunks, num_rows, arrays):
    """`apply_sums` of one chunk. arrays: all of `update_from_sums` but num_chunks."""
    apply_sums(chunk * num_rows // num_chunks, (chunk + 1) * num_rows // num_chunks, *arrays)


@kernel()
def update_from_sums(
    flip, locations, entries, sums, squares, weights, state, kind, settings, corrections, keys, norms, num_chunks
):
    """`apply_sums` for all rows of one tier, or copies (flip 0)."""
    arrays = flip, locations, entries, sums, squares, weights, state, kind, settings, corrections, keys, norms
    in_parallel(apply_chunk, num_chunks, num_chunks, locations.size, arrays)


@kernel()
def defer_chunk(chunk, dim, scratch, added, due, tiers):
    """`defer` of one chunk: the arguments of `accumulate`; what is due; tables and rule."""
    segments, (sums, squares, pending) = added[1], added[5:]
    rows, locations, entries = due
    num_chunks = scratch.shape[0]
    first, last = chunk_start(segments, chunk, num_chunks), chunk_start(segments, chunk + 1, num_chunks)
    scratch_row = (scratch[chunk : chunk + 1, :dim],)
    accumulate(first, last, *(added + scratch_row))
    first_due, last_due = np.searchsorted(rows, first), np.searchsorted(rows, last)
    for i in range(first_due, last_due):
        pending[entries[i]] = False
    due_sums = locations, entries, sums, squares
    apply_sums(first_due, last_due, 0, *(due_sums + tiers[:2] + tiers[4:]))
    apply_sums(first_due, last_due, -1, *(due_sums + tiers[2:]))


@kernel()
def defer(
    entries, segments, vectors, scales, gradients, sums, squares, pending, due, due_locations, due_entries,
    device_weights, device_state, host_weights, host_state, kind, settings, corrections, keys, norms, scratch,
):  # fmt: skip
    """Add gradients to sums (`accumulate`), and apply the sums that are due (`apply_sums`).

    due (n,) int64 ascending: positions of the due rows among the U rows. The thread that has just finished a sum
    applies it. The other arguments are those of `update.update`; keys (n,) or empty, norms (n,).
    """
    added = entries, segments, vectors, scales, gradients, sums, squares, pending
    tiers = device_weights, device_state, host_weights, host_state, kind, settings, corrections, keys, norms
    due_sums = due, due_locations, due_entries
    in_parallel(defer_chunk, scratch.shape[0], gradients.shape[1], scratch, added, due_sums, tiers)
