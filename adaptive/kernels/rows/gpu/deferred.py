"""Deferral: gradients of popular rows accumulate in sums, and their squares next to them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.arithmetic import store_tile, tiles_to_change
from adaptive.kernels.rows.gpu.launch import MAX_PROGRAMS, assert_contiguous, tile_of
from adaptive.kernels.rows.gpu.steps import stored_mean_square
from adaptive.kernels.rows.gpu.sums import sum_gradients, sum_hot_rows


@triton.jit(do_not_specialize=["num_rows", "num_tiles"])
def accumulate_kernel(
    entries, segments, vectors, scales, gradients, hot_sums, sums, squares, pending, found_inf, scratch,
    num_rows, num_tiles,
    WIDTH: tl.constexpr, SQUARES: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, SCALED: tl.constexpr,
    FLAGGED: tl.constexpr,
):  # fmt: skip
    """Programs take tile after tile: each needs scratch for `stored_mean_square`."""
    columns = tl.arange(0, BLOCK)[None, :]
    scratch += tl.program_id(0) * (ROWS * BLOCK)
    for tile in range(tl.program_id(0), tiles_to_change(num_tiles, found_inf, FLAGGED), tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        live = rows < num_rows
        places = tl.load(entries + rows, mask=live, other=0)[:, None]
        is_pending = tl.load(pending + places, mask=live[:, None], other=0) != 0
        starts = tl.load(segments + rows, mask=live, other=0)
        counts = tl.load(segments + rows + 1, mask=live, other=0) - starts
        totals = sum_gradients(
            starts, counts, vectors, scales, gradients, hot_sums, columns, WIDTH, BLOCK, ROWS, SCALED
        )
        inside = live[:, None] & (columns < WIDTH)
        add_or_start(sums + places * WIDTH + columns, totals, inside, is_pending)
        if SQUARES == 1:
            mean_to = squares + places + tl.arange(0, 1)[None, :]
            old_mean = tl.load(mean_to, mask=live[:, None] & is_pending, other=0.0)
            store_tile(scratch, totals, BLOCK, ROWS)
            mean = stored_mean_square(scratch, WIDTH, BLOCK, ROWS)
            tl.store(mean_to, tl.where(is_pending, old_mean + mean, mean), mask=live[:, None])
            tl.debug_barrier()  # before the next tile overwrites the scratch
        elif SQUARES > 1:
            add_or_start(squares + places * SQUARES + columns, totals * totals, inside, is_pending)
            if SQUARES > WIDTH:
                number_to = squares + places * SQUARES + WIDTH + tl.arange(0, 1)[None, :]
                number = 1.0 + tl.load(number_to, mask=live[:, None] & is_pending, other=0.0)
                tl.debug_barrier()  # a row's number is read by many threads and written by one
                tl.store(number_to, number, mask=live[:, None])


@triton.jit
def add_or_start(to, values, inside, is_pending):
    """Add `values` (R, C) to sums that are pending (R, 1), or start them.

    The thread that reads a number also writes it, so no barrier is needed.
    """
    old = tl.load(to, mask=inside & is_pending, other=0.0)
    tl.store(to, tl.where(is_pending, old + values, values), mask=inside)


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
    hot: Tensor,
    found_inf: Tensor | None = None,
) -> None:
    """Add each row's gradient to sums[entries[u]], or start that sum; mark it pending.

    The gradient is summed as in `update`, which also has the other arguments. Its squares go to squares[entries[u]]:
    those of its elements if S = D, then a 1 if S = D + 1 (Adam counts gradients), their mean if S = 1 (row-wise),
    nothing if S = 0.

    entries (U,) int64, each once; sums (H, D) and squares (H, S) float32; pending (H,) bool. found_inf () float32: if
    it is not 0 then, nothing changes.
    Bits as `cpu.deferred.accumulate`.
    """
    assert_contiguous(entries, segments, vectors, scales, gradients, sums, squares, pending)
    num_rows, width = len(entries), sums.shape[1]
    assert squares.shape[1] in (0, 1, width, width + 1)
    if num_rows == 0:
        return
    hot_sums = sum_hot_rows(hot, segments, vectors, scales, gradients)
    tile = tile_of(width)
    num_tiles = tile.programs(num_rows)
    programs = min(num_tiles, MAX_PROGRAMS)
    scratch_size = programs * tile.rows * tile.block if squares.shape[1] == 1 else 0
    scratch = torch.empty(scratch_size, dtype=torch.float32, device=sums.device)
    accumulate_kernel[(programs,)](
        entries, segments, vectors, scales, gradients, hot_sums, sums, squares, pending.view(torch.uint8),
        sums if found_inf is None else found_inf, scratch, num_rows, num_tiles, WIDTH=width, SQUARES=squares.shape[1],
        BLOCK=tile.block, ROWS=tile.rows, SCALED=len(scales) > 0, FLAGGED=found_inf is not None, **tile.options,
    )  # fmt: skip
    # Not by the kernel: one thread would set what others have yet to read.
    if found_inf is None:
        pending.index_fill_(0, entries, True)
    else:
        pending.index_copy_(0, entries, pending[entries] | (found_inf == 0))
