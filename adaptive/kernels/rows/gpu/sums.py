"""Sums of each row's gradients: in look-up order, or, for rows with many look-ups, by chunks in a fixed order.

One program that adds 100,000 look-ups one after the other takes longer than all other rows together. With
`exact=False` a row of more than 32 look-ups is cut into chunks of 32, counted from its own first look-up. 32 chunk
sums are again added to one, and what is left is added in order, so that in a row of 65,536 look-ups no addition waits
for more than 32 + 32 + 64 others. A row's sum depends on its own look-ups alone: not on timing, other rows, or
placement. Rows of up to 32 look-ups have the bits of the exact order. With n look-ups both orders are within
n * 2**-24 * sum|term| of the true sum (to first order in 2**-24), so they differ by at most twice that.

Where chunk sums lie follows from positions alone; no count is needed that only the device knows. Call 32 positions of
the grouped look-ups a cell. At most two chunks start in a cell: one of the row that the cell begins with, and the
first chunk of a row that starts inside of the cell and goes beyond it. The former's sum lies at place 2 * cell, the
latter's at 2 * cell + 1. The same holds for chunks of 32 * 32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.arithmetic import UNROLL, last_start, minus_zeros
from adaptive.kernels.rows.gpu.launch import tile_of

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
    CHUNKED: tl.constexpr,
):
    """(R, C) the gradient of each row. CHUNKED: of rows with many look-ups from `chunk_sums`."""
    few = counts <= NEAR
    alone = tl.where(few, counts, 0) if CHUNKED else counts
    totals = sum_look_ups(starts, alone, vectors, scales, gradients, columns, WIDTH, BLOCK, ROWS, SCALED)
    if CHUNKED:
        twice = counts > FAR
        bits = tl.where(twice, FAR_BITS, NEAR_BITS).to(tl.int64)
        size = tl.where(twice, FAR, NEAR)
        level = sums + tl.where(twice, num_places, 0).to(tl.int64)[:, None] * WIDTH
        chunks = tl.where(few, 0, (counts + size - 1) >> bits)
        many = sum_chunks(level, starts, starts, chunks, bits, columns, WIDTH, BLOCK, ROWS)
        totals = tl.where(few[:, None], totals, many)
    return totals


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
