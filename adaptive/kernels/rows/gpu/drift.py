"""Movement of rows since their snapshots."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.arithmetic import add_quarters, load_rows
from adaptive.kernels.rows.gpu.bfloat16 import bits_of
from adaptive.kernels.rows.gpu.launch import EXACT_ARITHMETIC, MAX_ROWS, assert_contiguous


@triton.jit(do_not_specialize=["num_rows"])
def drift_kernel(
    locations, entries, has_snapshot, weights, host_weights, snapshots, drifts, num_rows,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, HOST: tl.constexpr,
):  # fmt: skip
    """Four threads walk along a row, as the sum of squares demands: `stored_square_sum`."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, 4)[None, :]
    live = rows < num_rows
    places = tl.load(locations + rows, mask=live, other=0)
    to = snapshots + tl.load(entries + rows, mask=live, other=0).to(tl.int64)[:, None] * WIDTH
    seen = tl.load(has_snapshot + rows, mask=live, other=0)[:, None] != 0
    sizes = tl.zeros([ROWS, 4], tl.float32)
    moves = tl.zeros([ROWS, 4], tl.float32)
    for column in range(0, WIDTH, 4):
        columns = lane + column
        inside = live[:, None] & (columns < WIDTH)
        values = load_rows(weights, host_weights, places, live, columns, WIDTH, HOST)
        old = tl.load(to + columns, mask=inside & seen, other=0.0)
        tl.debug_barrier()  # one thread may overwrite what another one reads
        tl.store(to + columns, values, mask=inside)
        delta = tl.where(inside, values - old, 0.0)
        sizes += values * values
        moves += delta * delta
    moved = add_quarters(moves, ROWS)
    drift = tl.sqrt_rn(tl.div_rn(moved, add_quarters(sizes, ROWS)))
    drift = tl.where(seen, tl.where(moved == 0.0, 0.0, drift), float("nan"))
    tl.store(drifts + rows[:, None] + tl.arange(0, 1)[None, :], drift, mask=live[:, None])


def drift(
    locations: Tensor,
    entries: Tensor,
    has_snapshot: Tensor,
    weights: Tensor,
    host_weights: Tensor | None,
    snapshots: Tensor,
    drifts: Tensor,
) -> None:
    """drifts[i] = ||row - snapshot|| / ||row||, NaN without a snapshot; renew the snapshot.

    locations (n,) int64; entries (n,) int32 or int64, each once, rows of snapshots (H, D) float32; has_snapshot (n,)
    bool; weights and host_weights as in `pool`; drifts (n,) float32. Bits as `cpu.drift.drift`.
    """
    assert host_weights is not None or locations.is_cuda or not bool((locations < 0).any())
    weights, host_weights = bits_of(weights), None if host_weights is None else bits_of(host_weights)
    assert_contiguous(locations, entries, has_snapshot, weights, host_weights, snapshots, drifts)
    if not len(locations):
        return
    drift_kernel[(-(-len(locations) // MAX_ROWS),)](
        locations, entries, has_snapshot.view(torch.uint8), weights,
        weights if host_weights is None else host_weights, snapshots, drifts, len(locations),
        WIDTH=snapshots.shape[1], ROWS=MAX_ROWS, HOST=host_weights is not None, num_warps=1, **EXACT_ARITHMETIC,
    )  # fmt: skip
