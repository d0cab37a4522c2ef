"""Backward and optimizer in one pass: each row's gradients are summed, the step is taken in place and measured.

A program handles a few rows that no other one touches: nothing is added atomically, nothing depends on timing. Rows of
float16 or bfloat16 are read as float32, stepped in float32, and stored rounded to nearest even.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.cpu import steps
from adaptive.kernels.rows.gpu.arithmetic import kept_square_sum, load_rows, store_rows
from adaptive.kernels.rows.gpu.launch import MAX_PROGRAMS, dense, tile_of
from adaptive.kernels.rows.gpu.steps import (
    adagrad_delta,
    adam_delta,
    kept_norm,
    rowwise_adagrad_scale,
    waiting_squares,
)
from adaptive.kernels.rows.gpu.sums import sum_gradients, taken_before

SGD_ = tl.constexpr(steps.SGD_)
ADAGRAD = tl.constexpr(steps.ADAGRAD)
ROWWISE_ADAGRAD = tl.constexpr(steps.ROWWISE_ADAGRAD)
ADAM = tl.constexpr(steps.ADAM)


@triton.jit(do_not_specialize=["num_places", "num_rows", "num_tiles", "num_corrections"])
def update_kernel(
    weights,
    state,
    host_weights,
    host_state,
    locations,
    segments,
    vectors,
    scales,
    gradients,
    squares,
    sums,
    corrections,
    norms,
    scratch,
    num_places,
    num_rows,
    num_tiles,
    num_corrections,
    learning_rate,
    epsilon,
    decay1,
    decay2,
    KIND: tl.constexpr,
    WIDTH: tl.constexpr,
    STATE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    HOST: tl.constexpr,
    SCALED: tl.constexpr,
    SUMS: tl.constexpr,
    SUMMED: tl.constexpr,
):
    lr = tl.full([1, 1], learning_rate, tl.float32)
    eps = tl.full([1, 1], epsilon, tl.float32)
    beta1 = tl.full([1, 1], decay1, tl.float32)
    beta2 = tl.full([1, 1], decay2, tl.float32)
    columns = tl.arange(0, BLOCK)[None, :]
    only = tl.arange(0, 1)[None, :]
    kept = scratch + tl.program_id(0) * (ROWS * BLOCK)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        live = rows < num_rows
        places = tl.load(locations + rows, mask=live, other=0)
        before = load_rows(weights, host_weights, places, live, columns, WIDTH, WIDTH, HOST)
        starts = tl.load(segments + rows, mask=live, other=0)
        counts = tl.load(segments + rows + 1, mask=live, other=0) - starts
        gradient = sum_gradients(
            starts, counts, vectors, scales, gradients, sums, num_places, columns, WIDTH, BLOCK, ROWS, SCALED, SUMS
        )
        if KIND == ROWWISE_ADAGRAD:
            scale = rowwise_adagrad_scale(
                kept, gradient, squares, vectors, starts, state, host_state, places, live, lr, eps,
                WIDTH, BLOCK, ROWS, HOST, SUMMED,
            )  # fmt: skip
            delta = scale * gradient
            norm = tl.sqrt_rn(kept_square_sum(kept, scale, WIDTH, BLOCK, ROWS))
        elif KIND == ADAM:
            number = tl.full([ROWS, 1], 1.0, tl.float32)
            if SUMMED:
                number = waiting_squares(squares + WIDTH, vectors, starts, live, only, WIDTH + 1, 1)
            count = number + load_rows(state + 2 * WIDTH, host_state + 2 * WIDTH, places, live, only, STATE, 1, HOST)
            delta = adam_delta(
                gradient, squares, vectors, starts, state, host_state, places, live, columns, number, count,
                corrections, num_corrections, eps, beta1, beta2, WIDTH, STATE, HOST, SUMMED,
            )  # fmt: skip
            norm = kept_norm(kept, delta, BLOCK, ROWS, WIDTH)
            store_rows(state + 2 * WIDTH, host_state + 2 * WIDTH, places, live, only, count, STATE, 1, HOST)
        else:
            if KIND == ADAGRAD:
                delta = adagrad_delta(
                    gradient, squares, vectors, starts, state, host_state, places, live, columns, lr, eps,
                    WIDTH, HOST, SUMMED,
                )  # fmt: skip
            else:
                delta = lr * gradient
            norm = kept_norm(kept, delta, BLOCK, ROWS, WIDTH)
        store_rows(weights, host_weights, places, live, columns, before - delta, WIDTH, WIDTH, HOST)
        tl.store(norms + rows[:, None] + only, norm, mask=live[:, None])
        tl.debug_barrier()  # before the next tile overwrites what is kept


def update(
    weights: Tensor,
    state: Tensor,
    host_weights: Tensor | None,
    host_state: Tensor | None,
    locations: Tensor,
    segments: Tensor,
    vectors: Tensor,
    scales: Tensor,
    gradients: Tensor,
    kind: int,
    settings: list[float],
    corrections: Tensor,
    norms: Tensor,
    *,
    squares: Tensor | None = None,
    hot: Tensor | None = None,
    exact: bool = True,
) -> None:
    """Take one optimizer step of the rows at `locations` with their summed gradients, in place.

    weights (slots, D) float32, float16 or bfloat16; state (slots, S) float32; host_* the same for rows of the host,
    pinned, or None if no location is < 0; locations (U,) int64, each row once; row u's look-ups are
    [segments[u], segments[u + 1]) (int64, none empty) of vectors (G,) int32 or int64, rows of gradients (V, D)
    float32, and scales (G,) float32, or empty: all 1. kind, settings and corrections: of `adaptive.optim`. norms
    (U,) float32 receives the L2 norms of the changes, before they are rounded to a narrower format.

    squares: if given, `gradients` and these are what `accumulate` has filled; each row has one look-up, not scaled: its
    sum. States then grow by the row of squares (V, S) in place of the gradient's own, as `cpu.deferred` says.

    hot: (h,) int32 all rows with more than 64 look-ups, see `kernels.rows.hot`; None: not known, which is slower where
    there are any. It changes no bit.

    exact: sum in look-up order; bits as `cpu.update.update`. Otherwise rows of more than 32 look-ups are summed as
    `kernels.rows.gpu.sums` says: always in the same way, much faster for very frequent rows, rounded differently.
    """
    assert (host_weights is None) == (host_state is None)
    assert host_weights is not None or locations.is_cuda or not bool((locations < 0).any())
    dense(weights, state, host_weights, host_state, locations, segments)
    dense(vectors, scales, gradients, squares, corrections, norms)
    num_rows, width = len(locations), weights.shape[1]
    summed = squares is not None and kind != steps.SGD_
    beside = width + 1 if kind == steps.ADAM else state.shape[1]
    assert squares is None or squares.shape == (len(gradients), beside)
    if num_rows == 0:
        return
    # Sums that wait are one look-up each.
    taken = taken_before(segments, vectors, scales, gradients, hot, exact=exact or squares is not None)
    tile = tile_of(width)
    num_tiles = tile.programs(num_rows)
    programs = min(num_tiles, MAX_PROGRAMS)
    update_kernel[(programs,)](
        weights,
        state,
        weights if host_weights is None else host_weights,
        state if host_state is None else host_state,
        locations,
        segments,
        vectors,
        scales,
        gradients,
        gradients if squares is None else squares,
        taken.sums,
        corrections,
        norms,
        torch.empty(programs * tile.rows * tile.block, dtype=torch.float32, device=weights.device),
        taken.num_places,
        num_rows,
        num_tiles,
        len(corrections),
        settings[steps.LR],
        settings[steps.EPS],
        settings[steps.BETA1],
        settings[steps.BETA2],
        KIND=kind,
        WIDTH=width,
        STATE=state.shape[1],
        BLOCK=tile.block,
        ROWS=tile.rows,
        HOST=host_weights is not None,
        SCALED=len(scales) > 0,
        SUMS=taken.how,
        SUMMED=summed,
        **tile.options,
    )
