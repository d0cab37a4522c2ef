"""Gather and pool: the vectors of a batch from rows in slots and, where a plan leaves them there, on the host."""

import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.arithmetic import UNROLL, load_rows, minus_zeros
from adaptive.kernels.rows.gpu.launch import dense, tile_of

# Programs of one warp reached 70 % of a GPU's memory bandwidth in others' look-ups, of two 90 %. With more, bags would
# wait for longer ones. An update's programs have one: rows differ far more in their look-ups than bags do.
POOL_WARPS = 2


@triton.jit(do_not_specialize=["num_bags"])
def pool_kernel(
    weights,
    host_weights,
    locations,
    bag_vectors,
    bag_starts,
    scales,
    out,
    num_bags,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    HOST: tl.constexpr,
    SCALED: tl.constexpr,
):
    bags = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    live = bags < num_bags
    starts = tl.load(bag_starts + bags, mask=live, other=0)
    lengths = tl.load(bag_starts + bags + 1, mask=live, other=0) - starts
    totals = minus_zeros(ROWS, BLOCK)
    for t in tl.range(tl.max(lengths, axis=0), loop_unroll_factor=UNROLL):
        going_on = t < lengths
        places = tl.load(locations + starts + t, mask=going_on, other=0)
        values = load_rows(weights, host_weights, places, going_on, columns, WIDTH, WIDTH, HOST)
        if SCALED:
            values = tl.load(scales + starts + t, mask=going_on, other=1.0)[:, None] * values
        totals += values
    totals = tl.where(lengths[:, None] > 0, totals, 0.0)
    vectors = tl.load(bag_vectors + bags, mask=live, other=0).to(tl.int64)
    tl.store(out + vectors[:, None] * WIDTH + columns, totals, mask=live[:, None] & (columns < WIDTH))


def pool(
    weights: Tensor,
    host_weights: Tensor | None,
    locations: Tensor,
    bag_vectors: Tensor,
    bag_starts: Tensor,
    scales: Tensor,
    out: Tensor,
) -> None:
    """out[bag_vectors[b]] = sum over look-ups p of bag b of scales[p] * row at locations[p]; empty bags give zeros.

    weights (slots, D) and host_weights (rows, D), pinned, float32, float16 or bfloat16; locations (N,) int64;
    bag_vectors (B,) int32 or int64; bag_starts (B + 1,) int64; scales (N,) float32, or empty: all 1; out (V, D)
    float32. A sum starts from its first term and runs in look-up order: bits as `cpu.pool.pool`. Without
    host_weights no location may be < 0; its row would be NaN.
    """
    dense(weights, host_weights, locations, bag_vectors, bag_starts, scales, out)
    num_bags, width = len(bag_vectors), out.shape[1]
    assert host_weights is not None or locations.is_cuda or not bool((locations < 0).any())
    if num_bags == 0:
        return
    tile = tile_of(width, warps=POOL_WARPS)
    pool_kernel[(tile.programs(num_bags),)](
        weights,
        weights if host_weights is None else host_weights,
        locations,
        bag_vectors,
        bag_starts,
        scales,
        out,
        num_bags,
        WIDTH=width,
        BLOCK=tile.block,
        ROWS=tile.rows,
        HOST=host_weights is not None,
        SCALED=len(scales) > 0,
        **tile.options,
    )
