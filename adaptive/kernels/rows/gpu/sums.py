"""Sums of each row's gradients, in chunks of 64 lookups.

One program that adds 100,000 lookups one after the other takes longer than all other rows together. An addition
takes 4 cycles, waiting for a term from memory 500; what counts is how many terms are in flight at once. So the sums of
*hot* rows (more than 64 lookups, `hot_chunks`) are taken by two separate launches: one warp for 32 columns of a chunk,
32 lookups in flight, and one for 32 columns of a row, which adds its chunks in order. Call 64 positions of the grouped
lookups a block: at most one hot row starts in a block, and its sum is stored at the block's number.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.arithmetic import minus_zeros
from adaptive.kernels.rows.gpu.launch import EXACT_ARITHMETIC, tile_of
from adaptive.kernels.vector.row_sums import CHUNK_LOOKUPS

HOT, HOT_BITS = tl.constexpr(CHUNK_LOOKUPS), tl.constexpr(CHUNK_LOOKUPS.bit_length() - 1)
HOT_COLUMNS = 32  # of a row that a program sums
HOT_DEPTH = 32  # lookups in flight at once; of 64 the compiler adds some before it has asked for the others


@triton.jit
def sum_lookups(
    starts, counts, vectors, scales, gradients, columns,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """(R, C) sums over p in [starts, starts + counts) of scales[p] * gradients[vectors[p]].

    Terms are added in order. A GPU stalls at the first number that it needs and does not have. So the next three
    lookups are read one round before they are added, even if a row has fewer: a row without any must have a start that
    can be read.
    """
    last = tl.maximum(counts - 1, 0)
    first = load_lookup(0, starts, last, vectors, scales, gradients, columns, WIDTH, SCALED)
    second = load_lookup(1, starts, last, vectors, scales, gradients, columns, WIDTH, SCALED)
    third = load_lookup(2, starts, last, vectors, scales, gradients, columns, WIDTH, SCALED)
    totals = minus_zeros(ROWS, BLOCK)
    none, inside = minus_zeros(1, 1), columns < WIDTH
    for t in tl.range(0, tl.max(counts, axis=0), 3):
        totals += tl.where((t < counts)[:, None] & inside, first, none)
        first = load_lookup(t + 3, starts, last, vectors, scales, gradients, columns, WIDTH, SCALED)
        totals += tl.where((t + 1 < counts)[:, None] & inside, second, none)
        second = load_lookup(t + 4, starts, last, vectors, scales, gradients, columns, WIDTH, SCALED)
        totals += tl.where((t + 2 < counts)[:, None] & inside, third, none)
        third = load_lookup(t + 5, starts, last, vectors, scales, gradients, columns, WIDTH, SCALED)
    return totals


@triton.jit
def load_lookup(t, starts, last, vectors, scales, gradients, columns, WIDTH: tl.constexpr, SCALED: tl.constexpr):
    """(R, C) the scaled gradient of each row's lookup number t, or of its `last` one."""
    positions = starts + tl.minimum(t, last)
    rows = tl.load(vectors + positions).to(tl.int64)
    values = tl.load(gradients + rows[:, None] * WIDTH + columns, mask=columns < WIDTH)
    return tl.load(scales + positions)[:, None] * values if SCALED else values


@triton.jit
def sum_gradients(
    starts, counts, vectors, scales, gradients, hot_sums, columns,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """(R, C) the gradient of each row; `hot_sums` (of `sum_hot_rows`) has those of hot rows."""
    few = counts <= HOT
    few_counts = tl.where(few, counts, 0)
    totals = sum_lookups(starts, few_counts, vectors, scales, gradients, columns, WIDTH, BLOCK, ROWS, SCALED)
    blocks = (starts >> HOT_BITS)[:, None]
    hot = tl.load(hot_sums + blocks * WIDTH + columns, mask=(few == 0)[:, None] & (columns < WIDTH))
    return tl.where(few[:, None], totals, hot)


@triton.jit
def hot_kernel(
    hot, segments, vectors, scales, gradients, chunk_sums,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Sums of chunks in lookup order, DEPTH lookups in flight, or 8 where fewer are left."""
    chunk = tl.program_id(0).to(tl.int64)
    row = tl.load(hot + 2 * chunk).to(tl.int64)
    start = tl.load(segments + row) + tl.load(hot + 2 * chunk + 1) * HOT
    count = tl.minimum(tl.load(segments + row + 1) - start, HOT).to(tl.int32)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    totals = tl.full([COLUMNS], 0x80000000, tl.uint32).to(tl.float32, bitcast=True)  # -0.0
    whole = count // DEPTH * DEPTH
    for first in range(0, whole, DEPTH):
        at = start + first
        totals = add_lookups(
            totals, vectors + at, scales + at, gradients, columns, DEPTH, WIDTH, COLUMNS, DEPTH, SCALED
        )
    for first in range(whole, count, 8):
        at = start + first
        totals = add_lookups(
            totals, vectors + at, scales + at, gradients, columns, count - first, WIDTH, COLUMNS, 8, SCALED
        )
    tl.store(chunk_sums + chunk * WIDTH + columns, totals, mask=columns < WIDTH)


@triton.jit
def chunks_kernel(
    hot, segments, chunk_sums, sums, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Sums of hot rows from those of their chunks, in order, DEPTH in flight. Programs of later chunks do nothing."""
    chunk = tl.program_id(0).to(tl.int64)
    if tl.load(hot + 2 * chunk + 1) == 0:
        row = tl.load(hot + 2 * chunk).to(tl.int64)
        start = tl.load(segments + row)
        number = tl.cdiv(tl.load(segments + row + 1) - start, HOT).to(tl.int32)
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        none = tl.full([COLUMNS], 0x80000000, tl.uint32).to(tl.float32, bitcast=True)  # adding -0.0 changes nothing
        totals = none
        for first in range(0, number, DEPTH):
            values = ()
            for t in tl.static_range(DEPTH):
                inside = (first + t < number) & (columns < WIDTH)
                place = chunk_sums + (chunk + first + t) * WIDTH + columns
                values += (tl.load(place, mask=inside, other=none),)  # type: ignore[assignment, unused-ignore]
            for t in tl.static_range(DEPTH):
                totals += values[t]
        tl.store(sums + (start >> HOT_BITS) * WIDTH + columns, totals, mask=columns < WIDTH)


@triton.jit
def add_lookups(
    totals, vectors, scales, gradients, columns, count,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """(C,) totals + the next lookups in order: DEPTH, or `count` if that is less.

    All are in flight before any is added. The compiler keeps the order of loads, so three separate loops ask for the
    numbers of all vectors, then for all gradients, then add.
    """
    none = tl.full([COLUMNS], 0x80000000, tl.uint32).to(tl.float32, bitcast=True)
    rows = ()
    for t in tl.static_range(DEPTH):
        rows += (tl.load(vectors + t, mask=t < count, other=0) if DEPTH <= 8 else tl.load(vectors + t),)  # type: ignore[assignment, unused-ignore]
    values = ()
    for t in tl.static_range(DEPTH):
        place = gradients + rows[t].to(tl.int64) * WIDTH + columns
        value = tl.load(place) if WIDTH % COLUMNS == 0 else tl.load(place, mask=columns < WIDTH)
        if SCALED:
            value = (tl.load(scales + t, mask=t < count, other=0.0) if DEPTH <= 8 else tl.load(scales + t)) * value
        values += (value,)
    for t in tl.static_range(DEPTH):
        totals += tl.where(t < count, values[t], none) if DEPTH <= 8 else values[t]
    return totals


def sum_hot_rows(hot: Tensor, segments: Tensor, vectors: Tensor, scales: Tensor, gradients: Tensor) -> Tensor:
    """Return the sums of hot rows; arguments as in `update`.

    The sum of the row whose lookups start at p is row p // 64 of the result.
    """
    if not len(hot):
        return gradients  # no row reads it, and the kernel is the same
    width, num_chunks = gradients.shape[1], len(hot) // 2
    chunk_sums = torch.empty((num_chunks, width), dtype=torch.float32, device=gradients.device)
    sums = torch.empty((len(vectors) // CHUNK_LOOKUPS + 1, width), dtype=torch.float32, device=gradients.device)
    columns = min(HOT_COLUMNS, tile_of(width).block)
    grid, shape = (num_chunks, -(-width // columns)), {"WIDTH": width, "COLUMNS": columns, "DEPTH": HOT_DEPTH}
    hot_kernel[grid](
        hot, segments, vectors, scales, gradients, chunk_sums, SCALED=len(scales) > 0, **shape, num_warps=1,
        **EXACT_ARITHMETIC,
    )  # fmt: skip
    chunks_kernel[grid](hot, segments, chunk_sums, sums, **shape, num_warps=1, **EXACT_ARITHMETIC)
    return sums
