"""Copies of rows with their state between pinned host memory and slots.

The kernel itself reads and writes the host's memory. A copy runs alongside the model's matrix products, for as long as
the link takes. So it is a few programs that each take tile after tile: the other processors stay free, and what is in
flight at once still fills the link.
"""

import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.bfloat16 import bits_of
from adaptive.kernels.rows.gpu.launch import WARP_VALUES, assert_contiguous

# 64 programs with 8 KB in flight each: 512 KB, where the link holds what it brings in some two microseconds, 100 KB.
COPY_PROGRAMS = 64
COPY_VALUES = 8 * WARP_VALUES  # of a tile
COPY_COLUMNS = 256  # of a tile at most; wider rows take several turns


@triton.jit(do_not_specialize=["num_rows", "num_tiles"])
def copy_kernel(
    to, to_state, to_rows, source, source_state, source_rows, num_rows, num_tiles,
    WIDTH: tl.constexpr, STATE: tl.constexpr, BLOCK: tl.constexpr, STATE_BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        live = rows < num_rows
        sources = tl.load(source_rows + rows, mask=live, other=0)
        targets = tl.load(to_rows + rows, mask=live, other=0)
        copy_columns(to, targets, source, sources, live, WIDTH, BLOCK)
        if STATE > 0:
            copy_columns(to_state, targets, source_state, sources, live, STATE, STATE_BLOCK)


@triton.jit
def copy_columns(to, targets, source, sources, live, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Copy row sources[i] to row targets[i] where live[i], BLOCK columns at a time."""
    for first in range(0, WIDTH, BLOCK):
        columns = first + tl.arange(0, BLOCK)[None, :]
        inside = live[:, None] & (columns < WIDTH)
        values = tl.load(source + sources[:, None] * WIDTH + columns, mask=inside)
        tl.store(to + targets[:, None] * WIDTH + columns, values, mask=inside)


def copy_rows(
    to: Tensor, to_state: Tensor, to_rows: Tensor, source: Tensor, source_state: Tensor, source_rows: Tensor
) -> None:
    """to[to_rows] = source[source_rows], bit for bit, with their state; in one launch.

    Rows (..., D) and state (..., S), each float32 or bfloat16, on the device or pinned; to_rows, source_rows (n,)
    int64, targets distinct.
    """
    to, source, to_state, source_state = map(bits_of, (to, source, to_state, source_state))
    assert to.dtype == source.dtype and to.shape[1] == source.shape[1]
    assert to_state.dtype == source_state.dtype and to_state.shape[1] == source_state.shape[1]
    assert_contiguous(to, to_state, to_rows, source, source_state, source_rows)
    num_rows, width, state_width = len(to_rows), to.shape[1], to_state.shape[1]
    if num_rows == 0:
        return
    tile = copy_tile(width, state_width)
    num_tiles = -(-num_rows // tile["ROWS"])
    copy_kernel[(min(num_tiles, COPY_PROGRAMS),)](
        to, to_state, to_rows, source, source_state, source_rows, num_rows, num_tiles,
        WIDTH=width, STATE=state_width, **tile, num_warps=copy_warps(width),
        enable_fp_fusion=False,  # nothing is computed; Triton warns if it is not set
    )  # fmt: skip


def copy_tile(width: int, state_width: int) -> dict[str, int]:
    """Rows and columns of a tile, as the kernel takes them."""
    block = _columns(width)
    state_block = min(_columns(max(state_width, 1)), block)
    return {"BLOCK": block, "STATE_BLOCK": state_block, "ROWS": COPY_VALUES // max(block, 8)}


def copy_warps(width: int) -> int:
    """Warps of a program: a thread holds eight values of the rows."""
    return max(1, copy_tile(width, 1)["ROWS"] * _columns(width) // WARP_VALUES)


def _columns(width: int) -> int:
    return min(int(triton.next_power_of_2(width)), COPY_COLUMNS)
