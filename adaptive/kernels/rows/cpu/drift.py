"""Movement of rows since their snapshots. Letters and locations: see `cpu`."""

import math

import numpy as np

from adaptive.kernels.jit import in_parallel, kernel
from adaptive.kernels.rows.cpu.move import copy_row
from adaptive.kernels.vector.row_ops import AHEAD, prefetch_row, row_op
from adaptive.kernels.vector.row_sums import square_sum


@row_op
def subtract_row(out, row):
    """out[i] -= rows[j]"""
    return out - row


@kernel(inline=True)
def prefetch_located(location, device_weights, host_weights):
    if location >= 0:
        prefetch_row(device_weights, location)
    else:
        prefetch_row(host_weights, ~location)


@kernel(noalias=True)
def drift_range(first, last, locations, entries, has_snapshot, device_weights, host_weights, snapshots, drifts, delta):
    """The rows [first, last): see `drift`. delta (1, D) is this chunk's scratch."""
    for i in range(first, last):
        if i + AHEAD < last:
            prefetch_located(locations[i + AHEAD], device_weights, host_weights)
            prefetch_row(snapshots, entries[i + AHEAD])
        if locations[i] >= 0:
            copy_row(delta, 0, device_weights, locations[i])
        else:
            copy_row(delta, 0, host_weights, ~locations[i])
        size = square_sum(delta, 0)
        drifts[i] = np.float32(np.nan)
        if has_snapshot[i]:
            subtract_row(delta, 0, snapshots, entries[i])
            moved = square_sum(delta, 0)
            drifts[i] = np.float32(0.0) if moved == 0 else np.float32(math.sqrt(moved / size))
        if locations[i] >= 0:
            copy_row(snapshots, entries[i], device_weights, locations[i])
        else:
            copy_row(snapshots, entries[i], host_weights, ~locations[i])


@kernel()
def drift_chunk(chunk, scratch, num_rows, dim, arrays):
    """Drift of the rows of one chunk. arrays: all of `drift` but scratch."""
    first, last = chunk * num_rows // scratch.shape[0], (chunk + 1) * num_rows // scratch.shape[0]
    scratch_row = (scratch[chunk : chunk + 1, :dim],)
    drift_range(first, last, *(arrays + scratch_row))


@kernel()
def drift(locations, entries, has_snapshot, device_weights, host_weights, snapshots, drifts, scratch):
    """drifts[i] = ||row - snapshot|| / ||row||, NaN without a snapshot; renew the snapshot.

    locations (n,) int64; entries (n,) int32 rows of `snapshots` (H, D), each once; has_snapshot (n,) bool; scratch
    (chunks, >= D) float32. A row of zeros has drift inf, or 0 if its snapshot is zero too.
    """
    arrays = locations, entries, has_snapshot, device_weights, host_weights, snapshots, drifts
    in_parallel(drift_chunk, scratch.shape[0], scratch, locations.size, snapshots.shape[1], arrays)
