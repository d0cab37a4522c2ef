"""Backward and optimizer in one pass: sum each row's gradients, step in place, measure.

A program handles a few rows that no other one touches: nothing is added atomically, nothing depends on timing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.cpu import steps
from adaptive.kernels.rows.gpu.arithmetic import load_slots, store_slots, stored_square_sum, tiles_to_change
from adaptive.kernels.rows.gpu.bfloat16 import as_float32, as_stored, bits_of, load_keys
from adaptive.kernels.rows.gpu.launch import MAX_PROGRAMS, assert_contiguous, tile_of
from adaptive.kernels.rows.gpu.steps import (
    adagrad_delta,
    adam_delta,
    ftrl_weights,
    norm_of,
    pending_squares,
    rowwise_adagrad_scale,
)
from adaptive.kernels.rows.gpu.sums import sum_gradients, sum_hot_rows

SGD_ = tl.constexpr(steps.SGD_)
ADAGRAD = tl.constexpr(steps.ADAGRAD)
ROWWISE_ADAGRAD = tl.constexpr(steps.ROWWISE_ADAGRAD)
ADAM = tl.constexpr(steps.ADAM)
FTRL = tl.constexpr(steps.FTRL)


@triton.jit(do_not_specialize=["num_rows", "num_tiles", "num_corrections"])
def update_kernel(
    weights, state, slots, segments, vectors, scales, gradients, squares, hot_sums, corrections, keys, found_inf,
    norms, scratch, num_rows, num_tiles, num_corrections, learning_rate, epsilon, decay1, decay2,
    KIND: tl.constexpr, WIDTH: tl.constexpr, STATE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    SCALED: tl.constexpr, SUMMED: tl.constexpr, STOCHASTIC: tl.constexpr, LENGTHS: tl.constexpr,
    FLAGGED: tl.constexpr,
):  # fmt: skip
    """Programs take tile after tile: each needs scratch for sums of squares in a fixed order."""
    lr = tl.full([1, 1], learning_rate, tl.float32)
    eps = tl.full([1, 1], epsilon, tl.float32)
    beta1 = tl.full([1, 1], decay1, tl.float32)
    beta2 = tl.full([1, 1], decay2, tl.float32)
    columns = tl.arange(0, BLOCK)[None, :]
    only = tl.arange(0, 1)[None, :]
    scratch += tl.program_id(0) * (ROWS * BLOCK)
    tiles = tiles_to_change(num_tiles, found_inf, FLAGGED)
    if FLAGGED:
        for tile in range(tl.program_id(0) + tiles, num_tiles, tl.num_programs(0)):  # none of them, or all
            rows = tile * ROWS + tl.arange(0, ROWS)
            tl.store(norms + rows, tl.full([ROWS], float("nan"), tl.float32), mask=rows < num_rows)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        live = rows < num_rows
        places = tl.load(slots + rows, mask=live, other=0)
        old = as_float32(load_slots(weights, places, live, columns, WIDTH, WIDTH))
        if LENGTHS:
            length = norm_of(scratch, old, WIDTH, BLOCK, ROWS)
            tl.store(norms + num_rows.to(tl.int64) + rows[:, None] + only, length, mask=live[:, None])
            tl.debug_barrier()  # before the scratch is used again
        row_keys = load_keys(keys, rows, live, STOCHASTIC)
        starts = tl.load(segments + rows, mask=live, other=0)
        counts = tl.load(segments + rows + 1, mask=live, other=0) - starts
        gradient = sum_gradients(
            starts, counts, vectors, scales, gradients, hot_sums, columns, WIDTH, BLOCK, ROWS, SCALED
        )
        if KIND == ROWWISE_ADAGRAD:
            scale = rowwise_adagrad_scale(
                scratch, gradient, squares, vectors, starts, state, places, live, lr, eps,
                WIDTH, BLOCK, ROWS, SUMMED,
            )  # fmt: skip
            delta = scale * gradient
            norm = tl.sqrt_rn(stored_square_sum(scratch, scale, WIDTH, BLOCK, ROWS))
        elif KIND == ADAM:
            number = tl.full([ROWS, 1], 1.0, tl.float32)
            if SUMMED:
                number = pending_squares(squares + WIDTH, vectors, starts, live, only, WIDTH + 1, 1)
            count = number + load_slots(state + 2 * WIDTH, places, live, only, STATE, 1)
            delta = adam_delta(
                gradient, squares, vectors, starts, state, places, live, columns, number, count,
                corrections, num_corrections, eps, beta1, beta2, WIDTH, STATE, SUMMED,
            )  # fmt: skip
            norm = norm_of(scratch, delta, WIDTH, BLOCK, ROWS)
            store_slots(state + 2 * WIDTH, places, live, only, count, STATE, 1)
        elif KIND == FTRL:
            changed = ftrl_weights(
                old, gradient, squares, vectors, starts, state, places, live, columns, lr, eps, beta1, beta2,
                WIDTH, SUMMED,
            )  # fmt: skip
            delta = old - changed
            norm = norm_of(scratch, delta, WIDTH, BLOCK, ROWS)
        else:
            if KIND == ADAGRAD:
                delta = adagrad_delta(
                    gradient, squares, vectors, starts, state, places, live, columns, lr, eps,
                    WIDTH, SUMMED,
                )  # fmt: skip
            else:
                delta = lr * gradient
            norm = norm_of(scratch, delta, WIDTH, BLOCK, ROWS)
        values = changed if KIND == FTRL else old - delta
        new = as_stored(weights, values, row_keys, columns, STOCHASTIC)
        store_slots(weights, places, live, columns, new, WIDTH, WIDTH)
        tl.store(norms + rows[:, None] + only, norm, mask=live[:, None])
        tl.debug_barrier()  # before the next tile overwrites the scratch


def update(
    weights: Tensor,
    state: Tensor,
    slots: Tensor,
    segments: Tensor,
    vectors: Tensor,
    scales: Tensor,
    gradients: Tensor,
    kind: int,
    settings: list[float],
    corrections: Tensor,
    norms: Tensor,
    *,
    hot: Tensor,
    squares: Tensor | None = None,
    keys: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Take one optimizer step of the rows in `slots` with their summed gradients, in place.

    weights (slots, D) float32 or bfloat16; state (slots, S) float32; slots (U,) int64, each once; row u's lookups are
    [segments[u], segments[u + 1]) (int64, none empty) of vectors (G,) int32 or int64, rows of gradients (V, D)
    float32, and scales (G,) float32, or empty: all 1. kind, settings and corrections: of `adaptive.optim`. norms
    (1 or 2, U) float32 receives the L2 norms of the changes and, in a second line, those of the rows before them. Sums
    run in lookup order, in chunks of 64; bits as `cpu.update.update`.

    hot: (2c,) int32 the chunks of all rows with more than 64 lookups (`kernels.planning.lookups.hot_chunks`).

    squares: if given, `gradients` and these are what `accumulate` has filled; each row has one lookup, not scaled: its
    sum. States then grow by the row of squares (V, S) in place of the gradient's own, as `cpu.deferred` says.

    keys: (U,) int64 with the bits of uint64, which round bfloat16 (`cpu.rounding`); None: to nearest.

    found_inf: () float32. If it is not 0 then, no row changes, and the first line of norms is NaN.
    """
    weights = bits_of(weights)
    assert slots.is_cuda or not bool((slots < 0).any())
    assert_contiguous(weights, state, slots, segments, vectors, scales, gradients, squares, corrections, norms, keys)
    num_rows, width = len(slots), weights.shape[1]
    summed = squares is not None and kind != steps.SGD_
    squares_width = {steps.ADAM: width + 1, steps.FTRL: width}.get(kind, state.shape[1])
    assert squares is None or squares.shape == (len(gradients), squares_width)
    if num_rows == 0:
        return
    if kind == steps.FTRL and settings[steps.LR] == 0:  # frozen
        norms.zero_()
        return
    hot_sums = sum_hot_rows(hot, segments, vectors, scales, gradients)
    tile = tile_of(width)
    num_tiles = tile.programs(num_rows)
    programs = min(num_tiles, MAX_PROGRAMS)
    scratch = torch.empty(programs * tile.rows * tile.block, dtype=torch.float32, device=weights.device)
    update_kernel[(programs,)](
        weights, state, slots, segments, vectors, scales, gradients, gradients if squares is None else squares,
        hot_sums, corrections, slots if keys is None else keys, norms if found_inf is None else found_inf,
        norms, scratch, num_rows, num_tiles, len(corrections),
        settings[steps.LR], settings[steps.EPS], settings[steps.BETA1], settings[steps.BETA2],
        KIND=kind, WIDTH=width, STATE=state.shape[1], BLOCK=tile.block, ROWS=tile.rows,
        SCALED=len(scales) > 0, SUMMED=summed, STOCHASTIC=keys is not None, LENGTHS=len(norms) > 1,
        FLAGGED=found_inf is not None, **tile.options,
    )  # fmt: skip
