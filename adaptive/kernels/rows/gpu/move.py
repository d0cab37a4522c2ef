"""Rows with their state between pinned host memory and slots. The kernel itself reads and writes the host's memory.

A copy runs beside the model's matrix products, for as long as the link takes. So it is a few programs that each take
tile after tile: the rest of the processors stays free, and what is under way at once fills the link all the same.
"""

import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.launch import WARP_VALUES, dense

# 64 programs of 8 KB on their way: 512 KB, where the link holds what it brings in some two microseconds, 100 KB.
COPY_PROGRAMS = 64
COPY_VALUES = 8 * WARP_VALUES  # of a tile
COPY_COLUMNS = 256  # of a tile at most; wider rows take several turns


@triton.jit(do_not_specialize=["num_rows", "num_tiles"])
def copy_kernel(
    to,
    to_state,
    to_rows,
    source,
    source_state,
    source_rows,
    num_rows,
    num_tiles,
    WIDTH: tl.constexpr,
    STATE: tl.constexpr,
    BLOCK: tl.constexpr,
    STATE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        live = rows < num_rows
        here = tl.load(source_rows + rows, mask=live, other=0)
        there = tl.load(to_rows + rows, mask=live, other=0)
        copy_columns(to, there, source, here, live, WIDTH, BLOCK)
        if STATE > 0:
            copy_columns(to_state, there, source_state, here, live, STATE, STATE_BLOCK)


@triton.jit
def copy_columns(to, there, source, here, live, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Row there[i] of `to` becomes row here[i] of `source`, BLOCK columns at a time, where live[i]."""
    for first in range(0, WIDTH, BLOCK):
        columns = first + tl.arange(0, BLOCK)[None, :]
        inside = live[:, None] & (columns < WIDTH)
        values = tl.load(source + here[:, None] * WIDTH + columns, mask=inside)
        tl.store(to + there[:, None] * WIDTH + columns, values, mask=inside)


def copy_rows(
    to: Tensor, to_state: Tensor, to_rows: Tensor, source: Tensor, source_state: Tensor, source_rows: Tensor
) -> None:
    """to[to_rows] = source[source_rows], bit for bit, with their state; in one launch.

    Rows of one width and format, (..., D) and (..., S); to_rows, source_rows (n,) int64, targets distinct.
    """
    assert to.dtype == source.dtype and to.shape[1] == source.shape[1]
    assert to_state.dtype == source_state.dtype and to_state.shape[1] == source_state.shape[1]
    dense(to, to_state, to_rows, source, source_state, source_rows)
    num_rows, width, state_width = len(to_rows), to.shape[1], to_state.shape[1]
    if num_rows == 0:
        return
    tile = copy_tile(width, state_width)
    num_tiles = -(-num_rows // tile["ROWS"])
    copy_kernel[(min(num_tiles, COPY_PROGRAMS),)](
        to,
        to_state,
        to_rows,
        source,
        source_state,
        source_rows,
        num_rows,
        num_tiles,
        WIDTH=width,
        STATE=state_width,
        **tile,
        num_warps=copy_warps(width),
        enable_fp_fusion=False,  # nothing is computed; Triton warns where it is not said
    )


def copy_tile(width: int, state_width: int) -> dict[str, int]:
    """Rows and columns of a tile, as the kernel takes them."""
    block = _columns(width)
    return {
        "BLOCK": block,
        "STATE_BLOCK": min(_columns(max(state_width, 1)), block),
        "ROWS": COPY_VALUES // max(block, 8),
    }


def copy_warps(width: int) -> int:
    """Warps of a program: a thread holds eight values of the rows."""
    return max(1, copy_tile(width, 1)["ROWS"] * _columns(width) // WARP_VALUES)


def _columns(width: int) -> int:
    return min(int(triton.next_power_of_2(width)), COPY_COLUMNS)


def fetch(
    weights: Tensor, state: Tensor, slots: Tensor, host_weights: Tensor, host_state: Tensor, rows: Tensor
) -> None:
    """Copy rows `rows` of the host with their state into `slots`.

    weights (slots, D), state (slots, S); host_* (rows, ...) the same, pinned; slots, rows (n,) int64, slots distinct.
    """
    copy_rows(weights, state, slots, host_weights, host_state, rows)


def write_back(
    weights: Tensor, state: Tensor, slots: Tensor, host_weights: Tensor, host_state: Tensor, rows: Tensor
) -> None:
    """Copy the rows in `slots` with their state to rows `rows` of the host, which are distinct; see `fetch`."""
    copy_rows(host_weights, host_state, rows, weights, state, slots)
