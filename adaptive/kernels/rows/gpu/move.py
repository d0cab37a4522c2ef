"""Rows with their state between pinned host memory and slots. The kernel itself reads and writes the host's memory."""

import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.launch import WARP_VALUES, dense, tile_of


@triton.jit(do_not_specialize=["num_rows"])
def copy_kernel(
    to,
    to_rows,
    source,
    source_rows,
    num_rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    live = rows < num_rows
    inside = live[:, None] & (columns < WIDTH)
    here = tl.load(source_rows + rows, mask=live, other=0)[:, None] * WIDTH + columns
    there = tl.load(to_rows + rows, mask=live, other=0)[:, None] * WIDTH + columns
    tl.store(to + there, tl.load(source + here, mask=inside), mask=inside)


def copy_rows(to: Tensor, to_rows: Tensor, source: Tensor, source_rows: Tensor) -> None:
    """to[to_rows] = source[source_rows], bit for bit. Rows of one width and format; (n,) int64, targets distinct."""
    assert to.dtype == source.dtype and to.shape[1] == source.shape[1]
    dense(to, to_rows, source, source_rows)
    num_rows, width = len(to_rows), to.shape[1]
    if num_rows == 0 or width == 0:
        return
    tile = tile_of(min(width, WARP_VALUES))  # a row of Adam's state is wider than any row of weights
    copy_kernel[(tile.programs(num_rows), -(-width // tile.block))](
        to, to_rows, source, source_rows, num_rows, WIDTH=width, BLOCK=tile.block, ROWS=tile.rows, **tile.options
    )


def fetch(
    weights: Tensor, state: Tensor, slots: Tensor, host_weights: Tensor, host_state: Tensor, rows: Tensor
) -> None:
    """Copy rows `rows` of the host with their state into `slots`.

    weights (slots, D), state (slots, S); host_* (rows, ...) the same, pinned; slots, rows (n,) int64, slots distinct.
    """
    copy_rows(weights, slots, host_weights, rows)
    copy_rows(state, slots, host_state, rows)


def write_back(
    weights: Tensor, state: Tensor, slots: Tensor, host_weights: Tensor, host_state: Tensor, rows: Tensor
) -> None:
    """Copy the rows in `slots` with their state to rows `rows` of the host, which are distinct; see `fetch`."""
    copy_rows(host_weights, rows, weights, slots)
    copy_rows(host_state, rows, state, slots)
