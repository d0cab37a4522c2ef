"""What happens to rows on a GPU, in plain torch operations: the same names, contracts and bits as `kernels.cpu`.

Every operation rounds as its twin does: sums run in the same order (`segment_reduce` adds each segment in order, one
thread a column), and no multiplication is fused with an addition. So a row ends with the same bits wherever it lies.
The functions work on any torch device; the tests run them on the CPU.

Letters as in `kernels.cpu`; arguments are tensors on one device.
"""

import torch
from torch import Tensor

from adaptive.kernels.cpu import ADAGRAD, BETA1, BETA2, EPS, LR, ROWWISE_ADAGRAD, SGD_


def segment_sums(values: Tensor, starts: Tensor) -> Tensor:
    """(n, D) sums of values (N, D) over [starts[i], starts[i + 1]), in order; an empty segment gives zeros."""
    lengths = starts[1:] - starts[:-1]
    if values.shape[0] == 0:
        return values.new_zeros(len(lengths), values.shape[1])
    return torch.segment_reduce(values, "sum", lengths=lengths, axis=0, initial=0.0, unsafe=True)


def sum_gradients(gradients: Tensor, vectors: Tensor, segments: Tensor, scales: Tensor) -> Tensor:
    """(U, D) gradient of each row: the sum over its look-ups of scales * gradients[vectors], in order."""
    values = gradients[vectors]
    return segment_sums(values * scales[:, None] if len(scales) else values, segments)


def square_sum(rows: Tensor) -> Tensor:
    """(n,) sums of squares, in the four parts of `kernels.cpu.square_sum`."""
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

    width: D, 1, or 0 for an optimizer that has no such state.
    """
    dim = gradients.shape[1]
    if width == 1:
        # Numbers in divisions are tensors: torch would multiply by a reciprocal, which rounds differently.
        return (square_sum(gradients) / _number(float(dim), gradients))[:, None]
    assert width in (0, dim)
    return gradients[:, :width] * gradients[:, :width]


def steps(
    kind: int,
    state: Tensor,
    gradients: Tensor,
    settings: list[float],
    corrections: Tensor,
    squares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(changes to subtract (U, D), new state (U, S)) of one optimizer step; see `kernels.cpu.apply_update`.

    squares: (U, S) by how much Adagrad's state grows, where the gradients are sums of several; default the gradients'.
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
    return _adam(state, gradients, settings, corrections)


def _adam(state: Tensor, gradients: Tensor, settings: list[float], corrections: Tensor) -> tuple[Tensor, Tensor]:
    dim = gradients.shape[1]
    one, beta1, beta2 = (_number(number, state) for number in (1.0, settings[BETA1], settings[BETA2]))
    count = state[:, 2 * dim :] + 1
    size = corrections[count.long().clamp(max=len(corrections)) - 1]
    first = beta1 * state[:, :dim] + (one - beta1) * gradients
    second = beta2 * state[:, dim : 2 * dim] + (one - beta2) * (gradients * gradients)
    return size * first / (square_root(second) + settings[EPS]), torch.cat([first, second, count], dim=1)


def _number(value: float, like: Tensor) -> Tensor:
    """() float32, made on the device: a copy from the host would wait for it."""
    return torch.full((), value, dtype=torch.float32, device=like.device)


def drift(rows: Tensor, snapshots: Tensor, known: Tensor) -> Tensor:
    """(n,) movement of rows since their snapshots, both (n, D), NaN where not known; see `kernels.drift.drift`."""
    moved = square_sum(rows - snapshots)
    drifts = torch.where(moved == 0, torch.zeros_like(moved), square_root(moved / square_sum(rows)))
    return torch.where(known, drifts, torch.full_like(drifts, torch.nan))
