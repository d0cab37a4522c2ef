"""Parts that several kernels share: reading and writing rows, sums of squares.

Letters in shapes: R rows and C columns of a tile. Row numbers and locations are int64 before they are multiplied by a
width, because offsets exceed 2**31.
"""

import triton
import triton.language as tl

from adaptive.kernels.rows.gpu.bfloat16 import as_float32

UNROLL = tl.constexpr(4)  # terms in flight from memory at once, where a sum is taken in order


@triton.jit
def minus_zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """(R, C) -0.0: adding it changes no number, not even 0.0 or -0.0."""
    # A literal -0.0 loses its sign in Triton.
    return tl.full([ROWS, COLUMNS], 0x80000000, tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def load_rows(device, host, locations, live, columns, WIDTH: tl.constexpr, HOST: tl.constexpr):
    """(R, C) float32 values of rows from either tier; -0.0 outside.

    locations (R,) int64, `>= 0` a row of `device`, `< 0` row ~location of `host`; live (R,); columns (1, C). Without
    HOST a location < 0 reads nothing and gives NaN.
    """
    near = locations[:, None] >= 0
    inside = live[:, None] & (columns < WIDTH)
    values = as_float32(tl.load(device + locations[:, None] * WIDTH + columns, mask=inside & near))
    if HOST:
        far = as_float32(tl.load(host + (-1 - locations[:, None]) * WIDTH + columns, mask=inside & (near == 0)))
        values = tl.where(near, values, far)
    else:
        values = tl.where(near, values, float("nan"))
    return tl.where(inside, values, minus_zeros(1, 1))


@triton.jit
def load_slots(table, slots, live, columns, STRIDE: tl.constexpr, WIDTH: tl.constexpr):
    """(R, C) float32 values of rows of `table`, 0.0 outside.

    slots (R,) int64; live (R,); columns (1, C). Rows are STRIDE values apart, WIDTH of them are read.
    """
    return tl.load(table + slots[:, None] * STRIDE + columns, mask=live[:, None] & (columns < WIDTH), other=0.0)


@triton.jit
def store_slots(table, slots, live, columns, values, STRIDE: tl.constexpr, WIDTH: tl.constexpr):
    """Write values (R, C) where `load_slots` reads them."""
    tl.store(table + slots[:, None] * STRIDE + columns, values, mask=live[:, None] & (columns < WIDTH))


@triton.jit
def tiles_to_change(num_tiles, found_inf, FLAGGED: tl.constexpr):
    """`num_tiles`, or 0 if the step is to change nothing: FLAGGED, and the number at `found_inf` is not 0."""
    tiles = num_tiles
    if FLAGGED:
        tiles = tl.where(tl.load(found_inf) == 0.0, num_tiles, 0)
    return tiles


@triton.jit
def add_quarters(parts, ROWS: tl.constexpr):
    """(R, 1) sums (0 + 1) + (2 + 3) of parts (R, 4)."""
    even, odd = tl.split(tl.reshape(parts, [ROWS, 2, 2]))
    low, high = tl.split(even + odd)
    return (low + high)[:, None]


@triton.jit
def store_tile(scratch, values, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Write a tile's values (R, C) to scratch, for all threads to read; end with a barrier."""
    tl.store(scratch + tl.arange(0, ROWS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], values)
    tl.debug_barrier()


@triton.jit
def stored_square_sum(scratch, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """(R, 1) sums of squares of `scale` times a stored tile (R, C).

    They are taken in the four parts of `row_sums.square_sum`. A sum in a given order needs its terms one after the
    other, but the columns of a row are spread over threads. So `store_tile` writes the rows out, and four threads a row
    walk along them. scale: number or (R, 1).
    """
    lane = tl.arange(0, 4)[None, :]
    rows = scratch + tl.arange(0, ROWS)[:, None] * BLOCK + lane
    parts = tl.zeros([ROWS, 4], tl.float32)
    for column in tl.range(0, WIDTH, 4, loop_unroll_factor=2 * UNROLL):
        values = scale * tl.load(rows + column, mask=lane + column < WIDTH, other=0.0)
        parts += values * values
    return add_quarters(parts, ROWS)


@triton.jit
def last_start(starts, positions, num_starts, num_steps, ROWS: tl.constexpr):
    """(R,) number of the last start that is <= the position; `starts` ascend from 0.

    A binary search of `num_steps` rounds, the bits of num_starts, so that all rows of a tile take the same path.
    """
    low = tl.zeros([ROWS], tl.int64)
    high = low + num_starts
    for _ in range(num_steps):
        middle = (low + high) >> 1
        is_later = tl.load(starts + middle) > positions
        high = tl.where(is_later, middle, high)
        low = tl.where(is_later, low, middle)
    return low
