"""Optimizer steps of a tile of rows, as `cpu.steps.apply_update` takes them.

Letters as in `arithmetic`. `slots` (R,); `columns` (1, C); `gradient` (R, C); settings (1, 1) float32. SUMMED: the
gradient is a sum of several, and `squares` has what the state grows by, see `pending_squares`. A number that belongs to
a whole row is read by many threads and written by one: reads come before a barrier, writes after it.
"""

import triton
import triton.language as tl

from adaptive.kernels.rows.gpu.arithmetic import load_slots, store_slots, store_tile, stored_square_sum


@triton.jit
def pending_squares(squares, vectors, starts, live, columns, STRIDE: tl.constexpr, WIDTH: tl.constexpr):
    """(R, C) the rows of `squares` that belong to the rows' sums; 1 outside.

    A row's only lookup is the entry of its sum. Rows are STRIDE values apart, WIDTH of them are read.
    """
    entries = tl.load(vectors + starts, mask=live, other=0).to(tl.int64)[:, None]
    return tl.load(squares + entries * STRIDE + columns, mask=live[:, None] & (columns < WIDTH), other=1.0)


@triton.jit
def adagrad_delta(
    gradient, squares, vectors, starts, state, slots, live, columns, lr, eps,
    WIDTH: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    """(R, C) what to subtract; stores the new accumulators."""
    grown = pending_squares(squares, vectors, starts, live, columns, WIDTH, WIDTH) if SUMMED else gradient * gradient
    total = load_slots(state, slots, live, columns, WIDTH, WIDTH) + grown
    store_slots(state, slots, live, columns, total, WIDTH, WIDTH)
    return tl.div_rn(lr * gradient, tl.sqrt_rn(total) + eps)


@triton.jit
def rowwise_adagrad_scale(
    scratch, gradient, squares, vectors, starts, state, slots, live, lr, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    """(R, 1) factor for the gradient, which is left in `scratch`; stores the accumulator."""
    only = tl.arange(0, 1)[None, :]
    old = load_slots(state, slots, live, only, 1, 1)
    store_tile(scratch, gradient, BLOCK, ROWS)
    if SUMMED:
        grown = pending_squares(squares, vectors, starts, live, only, 1, 1)
    else:
        grown = stored_mean_square(scratch, WIDTH, BLOCK, ROWS)
    total = old + grown
    store_slots(state, slots, live, only, total, 1, 1)
    return tl.div_rn(lr, tl.sqrt_rn(total) + eps)


@triton.jit
def adam_delta(
    gradient, squares, vectors, starts, state, slots, live, columns, number, count,
    corrections, num_corrections, eps, beta1, beta2,
    WIDTH: tl.constexpr, STATE: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    """(R, C) what to subtract; stores both moments.

    count (R, 1): the row's updates with this one, from 1; number (R, 1): how many of them it stands for, if SUMMED.
    """
    size = tl.load(corrections + tl.minimum(tl.maximum(count, 1.0), num_corrections.to(tl.float32)).to(tl.int32) - 1)
    square = gradient * gradient
    if SUMMED:
        square = tl.div_rn(pending_squares(squares, vectors, starts, live, columns, WIDTH + 1, WIDTH), number)
        gradient = tl.div_rn(gradient, number)
        size = number * size
        beta1 = power(beta1, number)
        beta2 = power(beta2, number)
    first = load_slots(state, slots, live, columns, STATE, WIDTH)
    second = load_slots(state + WIDTH, slots, live, columns, STATE, WIDTH)
    first = beta1 * first + (1.0 - beta1) * gradient
    second = beta2 * second + (1.0 - beta2) * square
    store_slots(state, slots, live, columns, first, STATE, WIDTH)
    store_slots(state + WIDTH, slots, live, columns, second, STATE, WIDTH)
    return tl.div_rn(size * first, tl.sqrt_rn(second) + eps)


@triton.jit
def ftrl_weights(
    old, gradient, squares, vectors, starts, state, slots, live, columns, lr, beta, l1, l2,
    WIDTH: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    """(R, C) the new weights, as `cpu.steps.ftrl`; stores the new state."""
    grown = pending_squares(squares, vectors, starts, live, columns, WIDTH, WIDTH) if SUMMED else gradient * gradient
    linear = load_slots(state, slots, live, columns, 2 * WIDTH, WIDTH)
    earlier = load_slots(state + WIDTH, slots, live, columns, 2 * WIDTH, WIDTH)
    total = earlier + grown
    root = tl.sqrt_rn(total)
    sign = tl.where(old > 0.0, l1, tl.where(old < 0.0, 0.0 - l1, 0.0))
    center = 0.0 - (old * (tl.div_rn(beta, lr) + l2) + sign)
    sigma = tl.div_rn(root - tl.sqrt_rn(earlier), lr + tl.zeros_like(root))
    linear = tl.where(earlier == 0.0, center, linear) + (gradient - sigma * old)
    shrunk = linear - tl.where(l1 < linear, l1, tl.where(linear < 0.0 - l1, 0.0 - l1, linear))
    moved = 0.0 - tl.div_rn(shrunk, tl.div_rn(beta + root, lr + tl.zeros_like(root)) + l2)
    store_slots(state, slots, live, columns, linear, 2 * WIDTH, WIDTH)
    store_slots(state + WIDTH, slots, live, columns, total, 2 * WIDTH, WIDTH)
    return tl.where((total == 0.0) | (total == float("inf")), old, moved)


@triton.jit
def power(base, exponents):
    """(R, 1) base (1, 1) to whole exponents (R, 1) from 0 to 255: `cpu.deferred.power`."""
    bits = exponents.to(tl.int32)
    result = tl.zeros_like(exponents) + 1.0
    for bit in tl.static_range(8):
        result = tl.where(((bits >> bit) & 1) != 0, result * base, result)
        base = base * base
    return result


@triton.jit
def norm_of(scratch, delta, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """(R, 1) L2 norms of delta (R, C), which is left in `scratch`."""
    store_tile(scratch, delta, BLOCK, ROWS)
    return tl.sqrt_rn(stored_square_sum(scratch, tl.full([1, 1], 1.0, tl.float32), WIDTH, BLOCK, ROWS))


@triton.jit
def stored_mean_square(scratch, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """(R, 1) mean squares of a stored tile: what it adds to row-wise Adagrad's state."""
    squares = stored_square_sum(scratch, tl.full([1, 1], 1.0, tl.float32), WIDTH, BLOCK, ROWS)
    return tl.div_rn(squares, tl.full([ROWS, 1], WIDTH, tl.float32))
