"""Initial values of rows, computed on the device instead of crossing the link."""

import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.arithmetic import last_start
from adaptive.kernels.rows.gpu.bfloat16 import as_stored, bits_of
from adaptive.kernels.rows.gpu.launch import assert_contiguous, tile_of

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
MIX1 = tl.constexpr(0xBF58476D1CE4E5B9)
MIX2 = tl.constexpr(0x94D049BB133111EB)
SIGN = tl.constexpr(1 << 63)


@triton.jit
def mix(x):
    """`cpu.initial.mix` of uint64."""
    x = (x ^ (x >> 30)) * MIX1
    x = (x ^ (x >> 27)) * MIX2
    return x ^ (x >> 31)


@triton.jit(do_not_specialize=["num_tables", "num_steps", "num_rows"])
def initial_kernel(
    weights, slots, rows, row_keys, table_starts, table_keys, table_bounds, num_tables, num_steps, num_rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_KEYS: tl.constexpr,
):  # fmt: skip
    """Every number is a hash of (table, index, column), so that each thread computes its own."""
    places = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    live = places < num_rows
    row = tl.load(rows + places, mask=live, other=0)
    table = last_start(table_starts, row, num_tables, num_steps, ROWS)
    place = row - tl.load(table_starts + table)
    index = place.to(tl.uint64)
    if HAS_KEYS:  # the number of the key's row in a table of all int64 numbers, in order
        index = tl.load(row_keys + places, mask=live, other=0).to(tl.uint64) ^ SIGN
    key = mix(tl.load(table_keys + table).to(tl.uint64) + index * GOLDEN)
    word = mix(key[:, None] + (columns + 1).to(tl.uint64) * GOLDEN)
    unit = (word >> 40).to(tl.int32).to(tl.float32) * (2.0**-23) - 1.0  # exact: 24 bits
    values = tl.load(table_bounds + table)[:, None] * unit
    if HAS_KEYS:  # the first row of a table is for keys without a row
        values = tl.where((place == 0)[:, None], 0.0, values)
    to = weights + tl.load(slots + places, mask=live, other=0)[:, None] * WIDTH + columns
    values = as_stored(weights, values, places, columns, False)
    tl.store(to, values, mask=live[:, None] & (columns < WIDTH))


def initial_rows(
    weights: Tensor,
    state: Tensor,
    slots: Tensor,
    rows: Tensor,
    table_starts: Tensor,
    table_keys: Tensor,
    table_bounds: Tensor,
    first_state: float,
    *,
    row_keys: Tensor | None = None,
) -> None:
    """Write the initial values of `rows` to `slots`, with the bits of `cpu.initial`.

    slots, rows (n,) int64; row_keys (n,) int64 of rows that have keys; weights (slots, D) and state (slots, S) float32
    or bfloat16; table_starts (T + 1,) int64; table_keys (T,) int64 with the bits of uint64; table_bounds (T,) float32.
    """
    weights = bits_of(weights)
    assert_contiguous(weights, state, slots, rows, table_starts, table_keys, table_bounds, row_keys)
    if not len(rows):
        return
    tile, num_tables, has_keys = tile_of(weights.shape[1]), len(table_keys), row_keys is not None
    keys = rows if row_keys is None else row_keys
    initial_kernel[(tile.programs(len(rows)),)](
        weights, slots, rows, keys, table_starts, table_keys, table_bounds, num_tables, num_tables.bit_length(),
        len(rows), WIDTH=weights.shape[1], BLOCK=tile.block, ROWS=tile.rows, HAS_KEYS=has_keys, **tile.options,
    )  # fmt: skip
    state.index_fill_(0, slots, first_state)
