"""Deferral: gradients of popular rows wait in sums, and beside them what they add to the optimizer's state."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.launch import MAX_PROGRAMS, dense, tile_of
from adaptive.kernels.rows.gpu.steps import keep, kept_mean_square
from adaptive.kernels.rows.gpu.sums import sum_gradients, taken_before


@triton.jit(do_not_specialize=["num_rows", "num_tiles"])
def accumulate_kernel(
    entries,
    segments,
    vectors,
    scales,
    gradients,
    taken,
    sums,
    squares,
    pending,
    scratch,
    num_rows,
    num_tiles,
    WIDTH: tl.constexpr,
    SQUARES: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SCALED: tl.constexpr,
    APART: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)[None, :]
    kept = scratch + tl.program_id(0) * (ROWS * BLOCK)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        live = rows < num_rows
        places = tl.load(entries + rows, mask=live, other=0)[:, None]
        going_on = tl.load(pending + places, mask=live[:, None], other=0) != 0
        starts = tl.load(segments + rows, mask=live, other=0)
        counts = tl.load(segments + rows + 1, mask=live, other=0) - starts
        totals = sum_gradients(
            starts, counts, vectors, scales, gradients, taken, columns, WIDTH, BLOCK, ROWS, SCALED, APART
        )
        inside = live[:, None] & (columns < WIDTH)
        add_or_start(sums + places * WIDTH + columns, totals, inside, going_on)
        if SQUARES == 1:
            mean_to = squares + places + tl.arange(0, 1)[None, :]
            before = tl.load(mean_to, mask=live[:, None] & going_on, other=0.0)
            keep(kept, totals, BLOCK, ROWS)
            mean = kept_mean_square(kept, WIDTH, BLOCK, ROWS)
            tl.store(mean_to, tl.where(going_on, before + mean, mean), mask=live[:, None])
            tl.debug_barrier()  # before the next tile overwrites what is kept
        elif SQUARES > 1:
            add_or_start(squares + places * SQUARES + columns, totals * totals, inside, going_on)
            if SQUARES > WIDTH:
                number_to = squares + places * SQUARES + WIDTH + tl.arange(0, 1)[None, :]
                number = 1.0 + tl.load(number_to, mask=live[:, None] & going_on, other=0.0)
                tl.debug_barrier()  # a row's number is read by many threads and written by one
                tl.store(number_to, number, mask=live[:, None])


@triton.jit
def add_or_start(to, values, inside, going_on):
    """Add `values` (R, C) to what is `going_on` (R, 1), or store them; each number is one thread's alone."""
    before = tl.load(to, mask=inside & going_on, other=0.0)
    tl.store(to, tl.where(going_on, before + values, values), mask=inside)


def accumulate(
    entries: Tensor,
    segments: Tensor,
    vectors: Tensor,
    scales: Tensor,
    gradients: Tensor,
    sums: Tensor,
    squares: Tensor,
    pending: Tensor,
    *,
    hot: Tensor | None = None,
) -> None:
    """Add each row's gradient (summed as in `update`) to sums[entries[u]], or start that sum; mark it pending.

    What this gradient would add to the optimizer's state goes to squares[entries[u]] likewise: the squares of its
    elements if S = D, then a 1 if S = D + 1 (Adam counts gradients), their mean if S = 1 (row-wise), nothing if S = 0.

    entries (U,) int64, each once; sums (H, D) and squares (H, S) float32; pending (H,) bool; the others as in
    `update`. Bits as `cpu.deferred.accumulate`.
    """
    dense(entries, segments, vectors, scales, gradients, sums, squares, pending)
    num_rows, width = len(entries), sums.shape[1]
    assert squares.shape[1] in (0, 1, width, width + 1)
    if num_rows == 0:
        return
    taken, apart = taken_before(segments, vectors, scales, gradients, hot)
    tile = tile_of(width)
    num_tiles = tile.programs(num_rows)
    programs = min(num_tiles, MAX_PROGRAMS)
    kept = programs * tile.rows * tile.block if squares.shape[1] == 1 else 0
    accumulate_kernel[(programs,)](
        entries,
        segments,
        vectors,
        scales,
        gradients,
        taken,
        sums,
        squares,
        pending.view(torch.uint8),
        torch.empty(kept, dtype=torch.float32, device=sums.device),
        num_rows,
        num_tiles,
        WIDTH=width,
        SQUARES=squares.shape[1],
        BLOCK=tile.block,
        ROWS=tile.rows,
        SCALED=len(scales) > 0,
        APART=apart,
        **tile.options,
    )
    pending.index_fill_(0, entries, True)  # not by the kernel: one thread would set what others have yet to read
