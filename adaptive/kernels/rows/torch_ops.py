"""What happens to rows on a device, in plain torch operations: where there is no Triton, and to check Triton by.

Names, contracts and bits are those of `kernels.rows.gpu`; results are written to arguments. Every operation rounds as
its twin in `kernels.rows.cpu` does: sums run in the same order (`segment_reduce` adds each segment in order, one thread
a column), and no multiplication is fused with an addition. So a row ends with the same bits wherever it lies.

Arguments are tensors on one device. Host rows are tensors that the device can read: pinned memory seen from the device,
or rows that have crossed. Numbers of rows are int64. Letters: see `kernels.rows.cpu`.
"""

import numpy as np
import torch
from torch import Tensor

from adaptive.kernels.rows.cpu.steps import ADAGRAD, BETA1, BETA2, EPS, LR, ROWWISE_ADAGRAD, SGD_


def segment_sums(values: Tensor, starts: Tensor) -> Tensor:
    """(n, D) sums of values (N, D) over [starts[i], starts[i + 1]), in order; an empty segment gives zeros."""
    lengths = starts[1:] - starts[:-1]
    if values.shape[0] == 0:
        return values.new_zeros(len(lengths), values.shape[1])
    # Starts that are wrong would be read past the end; to look at them, a GPU would have to be waited for.
    unsafe = values.is_cuda
    return torch.segment_reduce(values, "sum", lengths=lengths, axis=0, initial=0.0, unsafe=unsafe)


def sum_gradients(gradients: Tensor, vectors: Tensor, segments: Tensor, scales: Tensor) -> Tensor:
    """(U, D) gradient of each row: the sum over its look-ups of scales * gradients[vectors], in order."""
    values = gradients[vectors]
    return segment_sums(values * scales[:, None] if len(scales) else values, segments)


def square_sum(rows: Tensor) -> Tensor:
    """(n,) sums of squares, in the four parts of `vector.row_sums.square_sum`."""
    squares = rows * rows
    parts = rows.new_zeros(len(rows), 4)
    for first in range(0, rows.shape[1], 4):
        block = squares[:, first : first + 4]
        parts[:, : block.shape[1]] += block
    return (parts[:, 0] + parts[:, 1]) + (parts[:, 2] + parts[:, 3])


def square_root(x: Tensor) -> Tensor:
    """Correctly rounded square root. torch's own in float32 is not, on the CPU, where it is MKL's."""
    return x.double().sqrt().float()


def squares_of(gradients: Tensor, width: int) -> Tensor:
    """(U, width) by how much a gradient makes the state grow: its squares under Adagrad, their mean if row-wise.

    width: D, 1, or 0 for an optimizer that has no such state; D + 1 for Adam: a 1 follows, which counts the gradient.
    """
    dim = gradients.shape[1]
    if width == 1:
        # Numbers in divisions are tensors: torch would multiply by a reciprocal, which rounds differently.
        return (square_sum(gradients) / _number(float(dim), gradients))[:, None]
    assert width in (0, dim, dim + 1)
    squares = gradients[:, :width] * gradients[:, :width]
    return squares if width <= dim else torch.cat([squares, torch.ones_like(squares[:, :1])], dim=1)


def steps(
    kind: int,
    state: Tensor,
    gradients: Tensor,
    settings: list[float],
    corrections: Tensor,
    squares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(changes to subtract (U, D), new state (U, S)) of one optimizer step; see `rows.cpu.steps.apply_update`.

    squares: (U, S) those of the gradients, where these are sums of several, see `squares_of`; default: their own.
    """
    lr, eps = settings[LR], settings[EPS]
    if kind == SGD_:
        return lr * gradients, state
    if kind in (ADAGRAD, ROWWISE_ADAGRAD):
        state = state + (squares_of(gradients, state.shape[1]) if squares is None else squares)
    if kind == ADAGRAD:
        return lr * gradients / (square_root(state) + eps), state
    if kind == ROWWISE_ADAGRAD:
        return gradients * (torch.full_like(state, lr) / (square_root(state) + eps)), state
    return _adam(state, gradients, squares, settings, corrections)


def _adam(
    state: Tensor, gradients: Tensor, squares: Tensor | None, settings: list[float], corrections: Tensor
) -> tuple[Tensor, Tensor]:
    dim = gradients.shape[1]
    number, beta1, beta2 = (_number(number, state) for number in (1.0, settings[BETA1], settings[BETA2]))
    square = gradients * gradients
    if squares is not None:
        number = squares[:, dim:]
        beta1, beta2 = (power(settings[place], number) for place in (BETA1, BETA2))
        gradients, square = gradients / number, squares[:, :dim] / number
    count = state[:, 2 * dim :] + number
    size = number * corrections[count.long().clamp(max=len(corrections)) - 1]
    first = beta1 * state[:, :dim] + (1 - beta1) * gradients
    second = beta2 * state[:, dim : 2 * dim] + (1 - beta2) * square
    return size * first / (square_root(second) + settings[EPS]), torch.cat([first, second, count], dim=1)


def power(base: float, exponents: Tensor) -> Tensor:
    """base**exponents for whole numbers from 0 to 255, by squaring; see `rows.cpu.deferred.power`."""
    found, squared, bits = torch.ones_like(exponents), np.float32(base), exponents.int()
    for bit in range(8):
        found = torch.where(((bits >> bit) & 1) > 0, found * float(squared), found)
        squared = squared * squared
    return found


def _number(value: float, like: Tensor) -> Tensor:
    """() float32, made on the device: a copy from the host would wait for it."""
    return torch.full((), value, dtype=torch.float32, device=like.device)


def drift_of(rows: Tensor, snapshots: Tensor, known: Tensor) -> Tensor:
    """(n,) movement of rows since their snapshots, both (n, D), NaN where not known; see `rows.cpu.drift.drift`."""
    moved = square_sum(rows - snapshots)
    drifts = torch.where(moved == 0, torch.zeros_like(moved), square_root(moved / square_sum(rows)))
    return torch.where(known, drifts, torch.full_like(drifts, torch.nan))


def pool(
    weights: Tensor,
    host_weights: Tensor | None,
    row_locations: Tensor,
    inverse: Tensor,
    bag_vectors: Tensor,
    bag_starts: Tensor,
    scales: Tensor,
    out: Tensor,
    num_samples: int = 0,
) -> None:
    """out[bag_vectors[b]] = sum over look-ups p of bag b of scales[p] * row at row_locations[inverse[p]]."""
    values = _rows(weights, host_weights, row_locations[inverse])
    if len(scales):
        values = values * scales[:, None]
    pooled = segment_sums(values, bag_starts) if len(bag_starts) else values
    if num_samples:
        out.view(num_samples, -1, out.shape[1]).copy_(pooled.view(-1, num_samples, out.shape[1]).transpose(0, 1))
    else:
        out.index_copy_(0, bag_vectors.long(), pooled)


def update(
    weights: Tensor,
    state: Tensor,
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
    hot: Tensor | None = None,
) -> None:
    """Take one optimizer step of the rows in `slots`; norms (U,) receives the L2 norms of the changes.

    squares: if given, `gradients` are sums, one for each row, and states grow by these squares: see `accumulate`.
    hot: not needed here.
    """
    places = vectors.long()
    if squares is None:
        summed, grown = sum_gradients(gradients, places, segments, scales), None
    else:
        summed, grown = gradients.index_select(0, places), squares.index_select(0, places)
    delta, after = steps(kind, state[slots], summed, settings, corrections, grown)
    weights.index_copy_(0, slots, weights[slots] - delta)
    state.index_copy_(0, slots, after)
    norms.copy_(square_root(square_sum(delta)))


def decay(weights: Tensor, slots: Tensor, kept: float) -> None:
    """weights[slots] *= kept, before the update of these rows."""
    weights.index_copy_(0, slots, weights[slots] * kept)


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
    hot: Tensor | None = None,
) -> None:
    """Add each row's gradient to sums[entries[u]], or start that sum; mark it pending.

    What the gradient would add to the optimizer's state goes to squares[entries[u]] likewise; see `squares_of`.
    """
    summed = sum_gradients(gradients, vectors.long(), segments, scales)
    going_on = pending[entries][:, None]
    for table, added in ((sums, summed), (squares, squares_of(summed, squares.shape[1]))):
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
    drifts.copy_(drift_of(rows, snapshots[places], known))
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
    """`rows.cpu.initial.mix`. torch multiplies 64-bit words as if they had no sign, but shifts theirs along."""
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
