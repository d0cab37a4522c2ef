"""Sums of each row's gradients: in look-up order, or, for rows with many look-ups, by chunks in a fixed order.

One program that adds 100,000 look-ups one after the other takes longer than all other rows together. An addition
takes 4 cycles, waiting for a term from memory 500; what counts is how many terms are on their way at once. So the sums
of *hot* rows (more than 64 look-ups, `kernels.rows.hot`) are taken by a launch of their own: one warp for 32 columns of
a row, 32 look-ups on their way, added in the same order, so to the same bits. Call 64 positions of the grouped look-ups
a block: at most one hot row starts in a block, and its sum lies at the block's number.

With `exact=False` a row of more than 32 look-ups is cut into chunks of 32, counted from its own first look-up. 32 chunk
sums are again added to one, and what is left is added in order, so that in a row of 65,536 look-ups no addition waits
for more than 32 + 32 + 64 others. A row's sum depends on its own look-ups alone: not on timing, other rows, or
placement. Rows of up to 32 look-ups have the bits of the exact order. With n look-ups both orders are within
n * 2**-24 * sum|term| of the true sum (to first order in 2**-24), so they differ by at most twice that.

Where chunk sums lie follows from positions alone; no count is needed that only the device knows. Call 32 positions of
the grouped look-ups a cell. At most two chunks start in a cell: one of the row that the cell begins with, and the
first chunk of a row that starts inside of the cell and goes beyond it. The former's sum lies at place 2 * cell, the
latter's at 2 * cell + 1. The same holds for chunks of 32 * 32.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.arithmetic import UNROLL, last_start, minus_zeros
from adaptive.kernels.rows.gpu.launch import EXACT_ARITHMETIC, tile_of
from adaptive.kernels.rows.hot import HOT_LOOKUPS

# How sums are taken: all by the program that needs them, or those of hot rows, or of chunks, beforehand.
ALONE, APART, IN_CHUNKS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
HOT, HOT_BITS = tl.constexpr(HOT_LOOKUPS), tl.constexpr(HOT_LOOKUPS.bit_length() - 1)
HOT_COLUMNS = 32  # of a row that a program sums
HOT_DEPTH = 32  # look-ups on their way at once; of 64 the compiler adds some before it has asked for the others
CHUNK = 32
NEAR, NEAR_BITS = tl.constexpr(CHUNK), tl.constexpr(5)
FAR, FAR_BITS = tl.constexpr(CHUNK * CHUNK), tl.constexpr(10)


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
def sum_chunks(
    sums,
    firsts,
    starts,
    counts,
    bits,
    columns,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """(R, C) sums of the sums of `counts` chunks of 2**bits look-ups each, the first one at position `firsts`.

    sums (R, 1): where place 0 lies; starts (R,): the row's first look-up; bits (R,).
    """
    totals = minus_zeros(ROWS, BLOCK)
    for t in tl.range(tl.max(counts, axis=0), loop_unroll_factor=UNROLL):
        positions = firsts + (t << bits)
        cells = positions >> bits
        inner = (positions == starts) & (positions != (cells << bits))
        places = 2 * cells + inner.to(tl.int64)
        inside = (t < counts)[:, None] & (columns < WIDTH)
        values = tl.load(sums + places[:, None] * WIDTH + columns, mask=inside)
        totals += tl.where(inside, values, minus_zeros(1, 1))
    return totals


@triton.jit
def sum_gradients(
    starts,
    counts,
    vectors,
    scales,
    gradients,
    sums,
    num_places,
    columns,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SCALED: tl.constexpr,
    SUMS: tl.constexpr,
):
    """(R, C) the gradient of each row. SUMS: which of them stand in `sums`, see `taken_before`."""
    few = counts <= (HOT if SUMS == APART else NEAR)
    alone = counts if SUMS == ALONE else tl.where(few, counts, 0)
    totals = sum_look_ups(starts, alone, vectors, scales, gradients, columns, WIDTH, BLOCK, ROWS, SCALED)
    if SUMS == APART:
        blocks = (starts >> HOT_BITS)[:, None]
        hot = tl.load(sums + blocks * WIDTH + columns, mask=(few == 0)[:, None] & (columns < WIDTH))
        totals = tl.where(few[:, None], totals, hot)
    elif SUMS == IN_CHUNKS:
        twice = counts > FAR
        bits = tl.where(twice, FAR_BITS, NEAR_BITS).to(tl.int64)
        size = tl.where(twice, FAR, NEAR)
        level = sums + tl.where(twice, num_places, 0).to(tl.int64)[:, None] * WIDTH
        chunks = tl.where(few, 0, (counts + size - 1) >> bits)
        many = sum_chunks(level, starts, starts, chunks, bits, columns, WIDTH, BLOCK, ROWS)
        totals = tl.where(few[:, None], totals, many)
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


@dataclass(frozen=True)
class Taken:
    """Sums that were taken before the launch which needs them: arguments of it."""

    sums: Tensor
    num_places: int
    how: int  # ALONE, APART or IN_CHUNKS


def taken_before(
    segments: Tensor, vectors: Tensor, scales: Tensor, gradients: Tensor, hot: Tensor | None, *, exact: bool
) -> Taken:
    """Take what sums are better taken beforehand; arguments as in `update`."""
    if not exact and len(vectors) > CHUNK:
        return Taken(*chunk_sums(segments, vectors, scales, gradients), IN_CHUNKS.value)
    if not exact or hot is None:
        return Taken(gradients, 0, ALONE.value)
    if not len(hot):
        return Taken(gradients, 0, APART.value)  # which compiles nothing anew, and reads nothing there
    return Taken(hot_sums(hot, segments, vectors, scales, gradients), 0, APART.value)


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


@triton.jit(do_not_specialize=["num_rows", "num_steps", "num_places"])
def chunk_kernel(
    segments,
    vectors,
    scales,
    gradients,
    near_sums,
    sums,
    num_rows,
    num_steps,
    num_places,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SCALED: tl.constexpr,
    SIZE: tl.constexpr,
    BITS: tl.constexpr,
):
    """Sums of chunks of SIZE = 2**BITS look-ups, from chunks of 32 if they are larger."""
    places = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.arange(0, BLOCK)[None, :]
    cells = places >> 1
    inner = (places & 1) > 0
    positions = (cells + (places & 1)) << BITS  # one that the chunk's row is known to cover
    live = (places < num_places) & (positions < tl.load(segments + num_rows))
    rows = last_start(segments, tl.where(live, positions, 0), num_rows, num_steps, ROWS)
    starts = tl.load(segments + rows)
    stops = tl.load(segments + rows + 1)
    firsts = tl.where(inner, starts, starts + (((positions - starts + SIZE - 1) >> BITS) << BITS))
    live = live & (stops - starts > SIZE) & (firsts < stops)
    live = live & ((inner == 0) | ((starts > (cells << BITS)) & (starts < positions)))  # else another place's work
    firsts = tl.where(live, firsts, 0)
    counts = tl.where(live, tl.minimum(stops - firsts, SIZE), 0)
    if SIZE == NEAR:
        totals = sum_look_ups(firsts, counts, vectors, scales, gradients, columns, WIDTH, BLOCK, ROWS, SCALED)
    else:
        origin = tl.zeros([ROWS], tl.int64)
        totals = sum_chunks(
            near_sums + origin[:, None],
            firsts,
            starts,
            (counts + NEAR - 1) >> NEAR_BITS,
            origin + NEAR_BITS,
            columns,
            WIDTH,
            BLOCK,
            ROWS,
        )
    tl.store(sums + places[:, None] * WIDTH + columns, totals, mask=live[:, None] & (columns < WIDTH))


def chunk_sums(segments: Tensor, vectors: Tensor, scales: Tensor, gradients: Tensor) -> tuple[Tensor, int]:
    """Sums of the chunks of all rows with more than 32 look-ups, and the number of places before those of 32 * 32.

    Arguments as in `update`. The sums take D values for every 16 look-ups. The places before those of 32 * 32 are a
    multiple of 4, so that these start at 16 bytes whatever D is: Triton compiles anew for other addresses.
    """
    num_look_ups, width = len(vectors), gradients.shape[1]
    num_near, num_far = 4 * -(-num_look_ups // (2 * CHUNK)), 2 * -(-num_look_ups // CHUNK**2)
    sums = torch.empty((num_near + num_far, width), dtype=torch.float32, device=gradients.device)
    levels = [(sums[:num_near], CHUNK, 5), (sums[num_near:], CHUNK**2, 10)]
    num_rows, tile = len(segments) - 1, tile_of(width)
    for level, size, bits in levels if num_look_ups > CHUNK**2 else levels[:1]:
        chunk_kernel[(tile.programs(len(level)),)](
            segments,
            vectors,
            scales,
            gradients,
            sums,
            level,
            num_rows,
            num_rows.bit_length(),
            len(level),
            WIDTH=width,
            BLOCK=tile.block,
            ROWS=tile.rows,
            SCALED=len(scales) > 0,
            SIZE=size,
            BITS=bits,
            **tile.options,
        )
    return sums, num_near
