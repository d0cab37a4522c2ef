"""The row kernels' names and arguments on top of `kernels.cuda`: plain torch operations, where there is no Triton.

Contracts and bits are those of `adaptive.kernels.gpu`; results are written to arguments. Host rows are tensors that the
device can read: pinned memory seen from the device, or rows that have crossed. Numbers of rows are int64.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive.kernels import cuda, gpu


@dataclass(frozen=True)
class RowKernels:
    """What can be done to rows on a device; arguments as in this module."""

    pool: Callable[..., None]
    update: Callable[..., None]
    accumulate: Callable[..., None]
    drift: Callable[..., None]
    fetch: Callable[..., None]
    write_back: Callable[..., None]
    initial_rows: Callable[..., None]


def row_kernels(device: torch.device, width: int) -> RowKernels:
    """Triton's on a GPU, for the widths that they know; else torch operations.

    Raises:
        ConfigError: if Triton is there and cannot launch kernels.
    """
    if device.type == "cuda" and width <= 1024 and gpu.available(device):
        gpu.prepare()
        return triton_rows()
    return torch_rows()


def torch_rows() -> RowKernels:
    """Torch operations, on any device."""
    return RowKernels(pool, update, accumulate, drift, fetch, write_back, initial_rows)


def triton_rows() -> RowKernels:
    """Triton kernels, which `kernels.gpu.available` must have found."""
    from adaptive.kernels.gpu import accumulate, drift, initial, move, pool, update

    return RowKernels(
        pool.pool,
        update.update,
        accumulate.accumulate,
        drift.drift,
        move.fetch,
        move.write_back,
        initial.initial_rows,
    )


def pool(
    weights: Tensor,
    host_weights: Tensor | None,
    locations: Tensor,
    bag_vectors: Tensor,
    bag_starts: Tensor,
    scales: Tensor,
    out: Tensor,
) -> None:
    """out[bag_vectors[b]] = sum over look-ups p of bag b of scales[p] * row at locations[p]."""
    values = _rows(weights, host_weights, locations)
    if len(scales):
        values = values * scales[:, None]
    out.index_copy_(0, bag_vectors.long(), cuda.segment_sums(values, bag_starts))


def update(
    weights: Tensor,
    state: Tensor,
    host_weights: None,
    host_state: None,
    slots: Tensor,
    segments: Tensor,
    vectors: Tensor,
    scales: Tensor,
    gradients: Tensor,
    kind: int,
    settings: list[float],
    corrections: Tensor,
    norms: Tensor,
    *,
    squares: Tensor | None = None,
    exact: bool = True,
) -> None:
    """Take one optimizer step of the rows in `slots`; norms (U,) receives the L2 norms of the changes. Always exact.

    squares: if given, `gradients` are sums, one for each row, and Adagrad's states grow by these squares.
    """
    places = vectors.long()
    if squares is None:
        summed, grown = cuda.sum_gradients(gradients, places, segments, scales), None
    else:
        summed, grown = gradients.index_select(0, places), squares.index_select(0, places)
    delta, after = cuda.steps(kind, state[slots], summed, settings, corrections, grown)
    weights.index_copy_(0, slots, weights[slots] - delta)
    state.index_copy_(0, slots, after)
    norms.copy_(cuda.square_root(cuda.square_sum(delta)))


def accumulate(
    entries: Tensor,
    segments: Tensor,
    vectors: Tensor,
    scales: Tensor,
    gradients: Tensor,
    sums: Tensor,
    squares: Tensor,
    pending: Tensor,
    *,
    exact: bool = True,
) -> None:
    """Add each row's gradient to sums[entries[u]], or start that sum; mark it pending. Always exact.

    What the gradient would add to Adagrad's state goes to squares[entries[u]] likewise.
    """
    summed = cuda.sum_gradients(gradients, vectors.long(), segments, scales)
    going_on = pending[entries][:, None]
    for table, added in ((sums, summed), (squares, cuda.squares_of(summed, squares.shape[1]))):
        table.index_copy_(0, entries, torch.where(going_on, table[entries] + added, added))
    pending.index_fill_(0, entries, True)


def drift(
    locations: Tensor,
    entries: Tensor,
    known: Tensor,
    weights: Tensor,
    host_weights: Tensor | None,
    snapshots: Tensor,
    drifts: Tensor,
) -> None:
    """drifts[i] = ||row - snapshot|| / ||row||, NaN where no snapshot is known; then renew the snapshot."""
    rows, places = _rows(weights, host_weights, locations), entries.long()
    drifts.copy_(cuda.drift(rows, snapshots[places], known))
    snapshots.index_copy_(0, places, rows)


def fetch(
    weights: Tensor, state: Tensor, slots: Tensor, host_weights: Tensor, host_state: Tensor, rows: Tensor
) -> None:
    """Row rows[i] of the host with its state goes to slots[i]."""
    weights.index_copy_(0, slots, host_weights.index_select(0, rows))
    state.index_copy_(0, slots, host_state.index_select(0, rows))


def write_back(
    weights: Tensor, state: Tensor, slots: Tensor, host_weights: Tensor, host_state: Tensor, rows: Tensor
) -> None:
    """The row in slots[i] with its state goes to row rows[i] of the host."""
    host_weights.index_copy_(0, rows, weights.index_select(0, slots))
    host_state.index_copy_(0, rows, state.index_select(0, slots))


def initial_rows(
    weights: Tensor,
    state: Tensor,
    slots: Tensor,
    rows: Tensor,
    table_starts: Tensor,
    table_keys: Tensor,
    table_bounds: Tensor,
    first_state: float,
) -> None:
    """Write the initial values of `rows` to `slots`; table_keys (T,) int64 with the bits of uint64."""
    table = torch.searchsorted(table_starts, rows, right=True) - 1
    key = _mix(table_keys[table] + (rows - table_starts[table]) * _GOLDEN)
    columns = torch.arange(1, weights.shape[1] + 1, device=rows.device) * _GOLDEN
    unit = _shifted(_mix(key[:, None] + columns), 40).float() * 2.0**-23 - 1.0
    weights.index_copy_(0, slots, table_bounds[table][:, None] * unit)
    state.index_fill_(0, slots, first_state)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_GOLDEN, _MIX1, _MIX2 = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _mix(x: Tensor) -> Tensor:
    """`kernels.cpu.mix`. torch multiplies 64-bit words as if they had no sign, but shifts theirs along."""
    x = (x ^ _shifted(x, 30)) * _MIX1
    x = (x ^ _shifted(x, 27)) * _MIX2
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _rows(weights: Tensor, host_weights: Tensor | None, locations: Tensor) -> Tensor:
    """(n, D) the rows at `locations`."""
    if host_weights is None:
        return weights.index_select(0, locations)
    if not len(weights):
        return host_weights.index_select(0, ~locations)
    near = weights.index_select(0, locations.clamp(min=0))
    far = host_weights.index_select(0, (~locations).clamp(min=0))
    return torch.where((locations >= 0)[:, None], near, far)
