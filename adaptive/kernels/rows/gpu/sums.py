"""Sums of each row's gradients, in look-up order.

One program that adds 100,000 lookups one after the other takes longer than all other rows together. An addition
takes 4 cycles, waiting for a term from memory 500; what counts is how many terms are in flight at once. So the sums of
*hot* rows (more than 64 lookups, `hot_rows`) are taken by a launch of their own: one warp for 32 columns of a row, 32
lookups in flight, added in the same order, so to the same bits. Call 64 positions of the grouped lookups a block: at
most one hot row starts in a block, and its sum is stored at the block's number.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.planning.lookups import HOT_LOOKUPS
from adaptive.kernels.rows.gpu.arithmetic import minus_zeros
from adaptive.kernels.rows.gpu.launch import EXACT_ARITHMETIC, tile_of

HOT, HOT_BITS = tl.constexpr(HOT_LOOKUPS), tl.constexpr(HOT_LOOKUPS.bit_length() - 1)
HOT_COLUMNS = 32  # of a row that a program sums
HOT_DEPTH = 32  # look-ups on their way at once; of 64 the compiler adds some before it has asked for the others


@triton.jit
def sum_look_ups(
    starts,
    counts,
    vectors,
    scales,
    gradients,
    columns,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SCALED: tl.constexpr,
):
    """(R, C) sums over p in [starts, starts + counts) of scales[p] * gradients[vectors[p]], in order.

    A GPU stops at the first number that it needs and has not got. So look-ups are read a round, three of them, before
    they are added, and whether or not a row has so many: a row without any must have a start that can be read.
    """
    last = tl.maximum(counts - 1, 0)
    first = look_up(0, starts, last, vectors, scales, gradients, columns, WIDTH, SCALED)
    second = look_up(1, starts, last, vectors, scales, gradients, columns, WIDTH, SCALED)
    third = look_up(2, starts, last, vectors, scales, gradients, columns, WIDTH, SCALED)
    totals = minus_zeros(ROWS, BLOCK)
    none, inside = minus_zeros(1, 1), columns < WIDTH
    for t in tl.range(0, tl.max(counts, axis=0), 3):
        totals += tl.where((t < counts)[:, None] & inside, first, none)
        first = look_up(t + 3, starts, last, vectors, scales, gradients, columns, WIDTH, SCALED)
        totals += tl.where((t + 1 < counts)[:, None] & inside, second, none)
        second = look_up(t + 4, starts, last, vectors, scales, gradients, columns, WIDTH, SCALED)
        totals += tl.where((t + 2 < counts)[:, None] & inside, third, none)
        third = look_up(t + 5, starts, last, vectors, scales, gradients, columns, WIDTH, SCALED)
    return totals


@triton.jit
def look_up(t, starts, last, vectors, scales, gradients, columns, WIDTH: tl.constexpr, SCALED: tl.constexpr):
    """(R, C) the scaled gradient of each row's look-up number t, or of its `last` one."""
    positions = starts + tl.minimum(t, last)
    rows = tl.load(vectors + positions).to(tl.int64)
    values = tl.load(gradients + rows[:, None] * WIDTH + columns, mask=columns < WIDTH)
    return tl.load(scales + positions)[:, None] * values if SCALED else values


@triton.jit
def sum_gradients(
    starts,
    counts,
    vectors,
    scales,
    gradients,
    sums,
    columns,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SCALED: tl.constexpr,
    APART: tl.constexpr,
):
    """(R, C) the gradient of each row. APART: those of hot rows are in `sums`, see `taken_before`."""
    few = counts <= HOT
    alone = tl.where(few, counts, 0) if APART else counts
    totals = sum_look_ups(starts, alone, vectors, scales, gradients, columns, WIDTH, BLOCK, ROWS, SCALED)
    if APART:
        blocks = (starts >> HOT_BITS)[:, None]
        hot = tl.load(sums + blocks * WIDTH + columns, mask=(few == 0)[:, None] & (columns < WIDTH))
        totals = tl.where(few[:, None], totals, hot)
    return totals


@triton.jit
def hot_kernel(
    hot,
    segments,
    vectors,
    scales,
    gradients,
    sums,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Sums of hot rows in look-up order, DEPTH look-ups on their way at once, and 8 where fewer are left."""
    row = tl.load(hot + tl.program_id(0)).to(tl.int64)
    start = tl.load(segments + row)
    count = (tl.load(segments + row + 1) - start).to(tl.int32)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    totals = tl.full([COLUMNS], 0x80000000, tl.uint32).to(tl.float32, bitcast=True)  # -0.0
    whole = count // DEPTH * DEPTH
    for first in range(0, whole, DEPTH):
        here = start + first
        totals = add_look_ups(
            totals, vectors + here, scales + here, gradients, columns, DEPTH, WIDTH, COLUMNS, DEPTH, SCALED
        )
    for first in range(whole, count, 8):
        here = start + first
        totals = add_look_ups(
            totals, vectors + here, scales + here, gradients, columns, count - first, WIDTH, COLUMNS, 8, SCALED
        )
    tl.store(sums + (start >> HOT_BITS) * WIDTH + columns, totals, mask=columns < WIDTH)


@triton.jit
def add_look_ups(
    totals,
    vectors,
    scales,
    gradients,
    columns,
    count,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SCALED: tl.constexpr,
):
    """(C,) totals + the next look-ups in order: DEPTH, or `count` if that is less. All are on their way before any is
    added: the compiler keeps the order of loads, so those of gradients stand behind those of all vectors' numbers."""
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


def taken_before(
    segments: Tensor, vectors: Tensor, scales: Tensor, gradients: Tensor, hot: Tensor | None
) -> tuple[Tensor, bool]:
    """Sums of hot rows, taken by a launch of their own, and whether there are such; arguments as in `update`."""
    if hot is None:
        return gradients, False
    if not len(hot):
        return gradients, True  # which compiles nothing anew, and reads nothing there
    return hot_sums(hot, segments, vectors, scales, gradients), True


def hot_sums(hot: Tensor, segments: Tensor, vectors: Tensor, scales: Tensor, gradients: Tensor) -> Tensor:
    """Sums of hot rows: that of the row whose look-ups start at p in row p // 64."""
    width = gradients.shape[1]
    sums = torch.empty((len(vectors) // HOT_LOOKUPS + 1, width), dtype=torch.float32, device=gradients.device)
    columns = min(HOT_COLUMNS, tile_of(width).block)
    hot_kernel[(len(hot), -(-width // columns))](
        hot,
        segments,
        vectors,
        scales,
        gradients,
        sums,
        WIDTH=width,
        COLUMNS=columns,
        DEPTH=HOT_DEPTH,
        SCALED=len(scales) > 0,
        num_warps=1,
        **EXACT_ARITHMETIC,
    )
    return sums
