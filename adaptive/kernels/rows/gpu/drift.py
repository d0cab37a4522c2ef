"""How far rows have moved since their snapshots."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive.kernels.rows.gpu.arithmetic import add_quarters, load_rows
from adaptive.kernels.rows.gpu.launch import EXACT_ARITHMETIC, MAX_ROWS, dense


@triton.jit(do_not_specialize=["num_rows"])
def drift_kernel(
    locations,
    entries,
    known,
    weights,
    host_weights,
    snapshots,
    drifts,
    num_rows,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    HOST: tl.constexpr,
):
    """Four threads a row walk along it, as the sum of squares demands; see `arithmetic.kept_square_sum`."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, 4)[None, :]
    live = rows < num_rows
    places = tl.load(locations + rows, mask=live, other=0)
    to = snapshots + tl.load(entries + rows, mask=live, other=0).to(tl.int64)[:, None] * WIDTH
    seen = tl.load(known + rows, mask=live, other=0)[:, None] != 0
    sizes = tl.zeros([ROWS, 4], tl.float32)
    moves = tl.zeros([ROWS, 4], tl.float32)
    for column in range(0, WIDTH, 4):
        columns = lane + column
        inside = live[:, None] & (columns < WIDTH)
        values = load_rows(weights, host_weights, places, live, columns, WIDTH, HOST)
        before = tl.load(to + columns, mask=inside & seen, other=0.0)
        tl.debug_barrier()  # what one thread reads another one may overwrite
        tl.store(to + columns, values, mask=inside)
        delta = tl.where(inside, values - before, 0.0)
        sizes += values * values
        moves += delta * delta
    moved = add_quarters(moves, ROWS)
    drift = tl.sqrt_rn(tl.div_rn(moved, add_quarters(sizes, ROWS)))
    drift = tl.where(seen, tl.where(moved == 0.0, 0.0, drift), float("nan"))
    tl.store(drifts + rows[:, None] + tl.arange(0, 1)[None, :], drift, mask=live[:, None])


def drift(
    locations: Tensor,
    entries: Tensor,
    known: Tensor,
    weights: Tensor,
    host_weights: Tensor | None,
    snapshots: Tensor,
    drifts: Tensor,
) -> None:
    """drifts[i] = ||row - snapshot|| / ||row|| for rows that have a snapshot (NaN otherwise); then renew it.

    locations (n,) int64; entries (n,) int32 or int64, each once, rows of snapshots (H, D) float32; known (n,) bool;
    weights and host_weights as in `pool`; drifts (n,) float32. Bits as `cpu.drift.drift`.
    """
    assert host_weights is not None or locations.is_cuda or not bool((locations < 0).any())
    dense(locations, entries, known, weights, host_weights, snapshots, drifts)
    num_rows = len(locations)
    if num_rows == 0:
        return
    drift_kernel[(-(-num_rows // MAX_ROWS),)](
        locations,
        entries,
        known.view(torch.uint8),
        weights,
        weights if host_weights is None else host_weights,
        snapshots,
        drifts,
        num_rows,
        WIDTH=snapshots.shape[1],
        ROWS=MAX_ROWS,
        HOST=host_weights is not None,
        num_warps=1,
        **EXACT_ARITHMETIC,
    )
