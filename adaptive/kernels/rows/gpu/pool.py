"""Gather and pool: vectors of a batch from rows in slots and, where planned, on the host."""

import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.arithmetic import UNROLL, load_rows, minus_zeros
from adaptive.kernels.rows.gpu.bfloat16 import bits_of
from adaptive.kernels.rows.gpu.launch import assert_contiguous, tile_of

# Others measured 70% of a GPU's memory bandwidth with programs of one warp, 90% with two. With more, bags would wait
# for longer ones. An update's programs have one warp: rows differ far more in their lookups than bags do.
POOL_WARPS = 2


@triton.jit(do_not_specialize=["num_bags", "num_samples", "num_columns"])
def pool_kernel(
    weights, host_weights, row_locations, inverse, bag_vectors, bag_starts, scales, out,
    num_bags, num_samples, num_columns,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HOST: tl.constexpr, SCALED: tl.constexpr, SINGLE: tl.constexpr, IN_ORDER: tl.constexpr,
):  # fmt: skip
    """A tile's bags advance together, one lookup of each bag a round.

    A bag that has ended adds -0.0, which changes nothing. Rounds are unrolled so that several rows are in flight from
    memory before the first is added.
    """
    bags = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    live = bags < num_bags
    if SINGLE:
        starts = bags.to(tl.int64)
        lengths = live.to(tl.int64)
    else:
        starts = tl.load(bag_starts + bags, mask=live, other=0)
        lengths = tl.load(bag_starts + bags + 1, mask=live, other=0) - starts
    totals = minus_zeros(ROWS, BLOCK)
    for t in tl.range(tl.max(lengths, axis=0), loop_unroll_factor=UNROLL):
        has_lookup = t < lengths
        rows = tl.load(inverse + starts + t, mask=has_lookup, other=0)
        places = tl.load(row_locations + rows, mask=has_lookup, other=0)
        values = load_rows(weights, host_weights, places, has_lookup, columns, WIDTH, HOST)
        if SCALED:
            values = tl.load(scales + starts + t, mask=has_lookup, other=1.0)[:, None] * values
        totals += values
    totals = tl.where(lengths[:, None] > 0, totals, 0.0)
    if IN_ORDER:
        vectors = (bags % num_samples).to(tl.int64) * num_columns + bags // num_samples
    else:
        vectors = tl.load(bag_vectors + bags, mask=live, other=0).to(tl.int64)
    tl.store(out + vectors[:, None] * WIDTH + columns, totals, mask=live[:, None] & (columns < WIDTH))


def pool(
    weights: Tensor,
    host_weights: Tensor | None,
    row_locations: Tensor,
    inverse: Tensor,
    bag_vectors: Tensor,
    bag_starts: Tensor,
    scales: Tensor,
    out: Tensor,
    num_samples: int = 0,
) -> None:
    """out[bag_vectors[b]] = sum over p in bag b of scales[p] * the row of lookup p.

    The row of lookup p is at row_locations[inverse[p]]. weights (slots, D) and host_weights (rows, D), pinned, float32
    or bfloat16; row_locations (U,) int64 of distinct rows; inverse (N,) int32 or int64; bag_vectors (B,) int32 or
    int64; bag_starts (B + 1,) int64, or empty: each bag has one lookup; scales (N,) float32, or empty: all 1; out
    (V, D) float32.
    num_samples > 0: bag b fills vector b % num_samples * (V // num_samples) + b // num_samples, V bags in all, and
    bag_vectors is not read. A sum starts from its first term and runs in lookup order, and empty bags give zeros: bits
    as `cpu.pool.pool`. Without host_weights no location may be < 0; its row would be NaN.
    """
    weights, host_weights = bits_of(weights), None if host_weights is None else bits_of(host_weights)
    assert_contiguous(weights, host_weights, row_locations, inverse, bag_vectors, bag_starts, scales, out)
    num_bags, width = len(out) if num_samples else len(bag_vectors), out.shape[1]
    assert len(bag_starts) in (0, num_bags + 1) and (len(bag_starts) or len(inverse) == num_bags)
    assert host_weights is not None or row_locations.is_cuda or not bool((row_locations[inverse.long()] < 0).any())
    if num_bags == 0:
        return
    tile = tile_of(width, warps=POOL_WARPS)
    pool_kernel[(tile.programs(num_bags),)](
        weights, weights if host_weights is None else host_weights,
        row_locations, inverse, bag_vectors, bag_starts, scales, out,
        num_bags, num_samples, num_bags // max(num_samples, 1),
        WIDTH=width, BLOCK=tile.block, ROWS=tile.rows, HOST=host_weights is not None, SCALED=len(scales) > 0,
        SINGLE=len(bag_starts) == 0, IN_ORDER=num_samples > 0, **tile.options,
    )  # fmt: skip
