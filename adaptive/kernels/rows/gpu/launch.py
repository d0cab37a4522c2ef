"""Launch parameters of kernels, which follow from the width of a row.

Nothing is tuned at run time: results must not depend on what measured faster. A program works on a tile: a few rows,
their columns padded to a power of two. One warp holds 256 values, eight for each thread, so that a row of 64 bytes does
not leave half a warp idle; wider rows take more warps.
"""

from dataclasses import dataclass
from typing import Any

import triton
from torch import Tensor

MAX_WIDTH = 4096  # 16 warps, whose threads have 128 registers each: more than any kernel takes
WARP_VALUES = 256
MAX_ROWS = 32
# Of kernels that loop over tiles because each program needs scratch. An H100's 132 processors hold 17 each of what
# takes 116 registers, 2,244 in all; there are more than that, so that one with long sums does not end last.
MAX_PROGRAMS = 4096


@dataclass(frozen=True)
class Tile:
    """Rows and (padded) columns of one program's work."""

    rows: int
    block: int

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of a launch."""
        return {"num_warps": max(1, self.rows * self.block // WARP_VALUES), **EXACT_ARITHMETIC}

    def programs(self, num_rows: int) -> int:
        """Number of tiles that hold `num_rows` rows."""
        return -(-num_rows // self.rows)


EXACT_ARITHMETIC: dict[str, Any] = {"enable_fp_fusion": False}  # no multiplication is fused with an addition


def tile_of(width: int, *, warps: int = 1) -> Tile:
    """Return the tile for rows of 1 to 4096 values, with `warps` warps if its rows suffice."""
    assert 1 <= width <= MAX_WIDTH, width
    block = int(triton.next_power_of_2(width))
    return Tile(min(MAX_ROWS, max(1, warps * WARP_VALUES // block)), block)


def assert_contiguous(*tensors: Tensor | None) -> None:
    """Check that rows follow each other in memory: kernels compute offsets from shapes."""
    assert all(tensor is None or tensor.is_contiguous() for tensor in tensors)
