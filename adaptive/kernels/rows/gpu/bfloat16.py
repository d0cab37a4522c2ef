"""bfloat16 rows in Triton: what `kernels.vector.bfloat16` does. Kernels see them as int16.

`keys` (R, 1) uint64; values (R, C); columns (1, C).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.vector import bfloat16

STEP, MIX, MIX_AGAIN = tl.constexpr(bfloat16.STEP), tl.constexpr(bfloat16.MIX), tl.constexpr(bfloat16.MIX_AGAIN)


def bits_of(rows: Tensor) -> Tensor:
    """Return rows as kernels take them: float32, or the bits of bfloat16 as int16."""
    return rows if rows.dtype == torch.float32 else rows.view(torch.int16)


@triton.jit
def as_float32(values):
    """Float32 values of loaded ones."""
    if values.dtype == tl.int16:
        values = (values.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return values


@triton.jit
def as_stored(rows, values, keys, columns, STOCHASTIC: tl.constexpr):
    """Values as `rows` stores them; without STOCHASTIC rounded to nearest, and `keys` is not used."""
    if rows.dtype.element_ty == tl.int16:
        bits = values.to(tl.uint32, bitcast=True)
        if STOCHASTIC:
            x = keys.to(tl.uint32) + ((columns >> 1) + 1).to(tl.uint32) * STEP
            x = (x ^ (x >> 16)) * MIX
            x = (x ^ (x >> 13) ^ (keys >> 32).to(tl.uint32)) * MIX_AGAIN
            x = x ^ (x >> 16)
            added = tl.where((columns & 1) == 0, x & 0xFFFF, x >> 16)
        else:
            added = ((bits >> 16) & 1) + 0x7FFF
        rounded = (bits + added) >> 16
        rounded = tl.where(values != values, (bits >> 16) | 0x40, rounded)
        values = rounded.to(tl.uint16).to(tl.int16, bitcast=True)
    return values


@triton.jit
def load_keys(keys, rows, live, STOCHASTIC: tl.constexpr):
    """(R, 1) the keys of rows (R,); 0 if they are not used."""
    loaded = tl.zeros([1, 1], tl.uint64)
    if STOCHASTIC:
        loaded = tl.load(keys + rows, mask=live, other=0)[:, None].to(tl.uint64, bitcast=True)
    return loaded
