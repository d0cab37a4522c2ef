"""Weight decay of rows about to be updated: one multiplication a number, in place."""

import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.arithmetic import tiles_to_change
from adaptive.kernels.rows.gpu.bfloat16 import as_float32, as_stored, bits_of, load_keys
from adaptive.kernels.rows.gpu.initial import mix
from adaptive.kernels.rows.gpu.launch import MAX_PROGRAMS, assert_contiguous, tile_of


@triton.jit(do_not_specialize=["num_rows", "num_tiles"])
def decay_kernel(
    weights, slots, keys, found_inf, decay_factor, num_rows, num_tiles,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STOCHASTIC: tl.constexpr, FLAGGED: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)[None, :]
    factor = tl.full([1, 1], decay_factor, tl.float32)
    tiles = tiles_to_change(num_tiles, found_inf, FLAGGED)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        live = rows < num_rows
        places = tl.load(slots + rows, mask=live, other=0)
        at, inside = weights + places[:, None] * WIDTH + columns, live[:, None] & (columns < WIDTH)
        values = as_float32(tl.load(at, mask=inside, other=0)) * factor
        of_rows = mix(load_keys(keys, rows, live, STOCHASTIC))
        tl.store(at, as_stored(weights, values, of_rows, columns, STOCHASTIC), mask=inside)


def decay(
    weights: Tensor, slots: Tensor, factor: float, keys: Tensor | None = None, *, found_inf: Tensor | None = None
) -> None:
    """weights[slots] *= factor, with the bits of `cpu.decay.decay`.

    weights (slots, D) float32 or bfloat16; slots (n,) int64, each once; keys (n,) int64 and found_inf as in `update`.
    """
    weights = bits_of(weights)
    assert_contiguous(weights, slots, keys)
    if not len(slots):
        return
    tile = tile_of(weights.shape[1])
    num_tiles = tile.programs(len(slots))
    decay_kernel[(min(num_tiles, MAX_PROGRAMS),)](
        weights, slots, slots if keys is None else keys, slots if found_inf is None else found_inf,
        factor, len(slots), num_tiles, WIDTH=weights.shape[1], BLOCK=tile.block, ROWS=tile.rows,
        STOCHASTIC=keys is not None, FLAGGED=found_inf is not None, **tile.options,
    )  # fmt: skip
