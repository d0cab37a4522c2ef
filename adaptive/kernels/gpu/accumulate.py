"""Deferral: gradients of popular rows wait in sums."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.gpu.launch import dense, tile_of
from adaptive.kernels.gpu.sums import CHUNK, chunk_sums, sum_gradients


@triton.jit(do_not_specialize=["num_places", "num_rows"])
def accumulate_kernel(
    entries,
    segments,
    vectors,
    scales,
    gradients,
    chunks,
    sums,
    pending,
    num_places,
    num_rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SCALED: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    live = rows < num_rows
    places = tl.load(entries + rows, mask=live, other=0)
    going_on = tl.load(pending + places, mask=live, other=0)[:, None] != 0
    starts = tl.load(segments + rows, mask=live, other=0)
    counts = tl.load(segments + rows + 1, mask=live, other=0) - starts
    totals = sum_gradients(
        starts, counts, vectors, scales, gradients, chunks, num_places, columns, WIDTH, BLOCK, ROWS, SCALED, CHUNKED
    )
    inside = live[:, None] & (columns < WIDTH)
    to = sums + places[:, None] * WIDTH + columns
    before = tl.load(to, mask=inside & going_on, other=0.0)
    tl.store(to, tl.where(going_on, before + totals, totals), mask=inside)


def accumulate(
    entries: Tensor,
    segments: Tensor,
    vectors: Tensor,
    scales: Tensor,
    gradients: Tensor,
    sums: Tensor,
    pending: Tensor,
    *,
    exact: bool = True,
) -> None:
    """Add each row's gradient (summed as in `update`) to sums[entries[u]], or start that sum; mark it pending.

    entries (U,) int64, each once; sums (H, D) float32; pending (H,) bool; the others, and `exact`, as in `update`.
    """
    dense(entries, segments, vectors, scales, gradients, sums, pending)
    num_rows, width = len(entries), sums.shape[1]
    if num_rows == 0:
        return
    chunked = not exact and len(vectors) > CHUNK
    chunks, num_places = chunk_sums(segments, vectors, scales, gradients) if chunked else (gradients, 0)
    tile = tile_of(width)
    accumulate_kernel[(tile.programs(num_rows),)](
        entries,
        segments,
        vectors,
        scales,
        gradients,
        chunks,
        sums,
        pending.view(torch.uint8),
        num_places,
        num_rows,
        WIDTH=width,
        BLOCK=tile.block,
        ROWS=tile.rows,
        SCALED=len(scales) > 0,
        CHUNKED=chunked,
        **tile.options,
    )
    pending.index_fill_(0, entries, True)  # not by the kernel: one thread would set what others have yet to read
