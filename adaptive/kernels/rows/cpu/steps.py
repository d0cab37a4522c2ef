"""One optimizer step of one row. Letters: see `kernels.rows.cpu`; the rules themselves are in `adaptive.optim`."""

import math

import numpy as np

from adaptive.kernels.jit import kernel
from adaptive.kernels.vector.row_ops import Scalar, row_op, square_root
from adaptive.kernels.vector.row_sums import square_sum

SGD_, ADAGRAD, ROWWISE_ADAGRAD, ADAM = 0, 1, 2, 3
LR, EPS, BETA1, BETA2, FIRST = 0, 1, 2, 3, 4  # places in `settings`


@row_op
def sgd_step(weights, delta, g, lr: Scalar):
    change = lr * g
    return weights - change, change


def adagrad(weights, total, g, lr, eps):
    """New weights, change and state; `total` is the new state. Called by the row operations of Adagrad."""
    change = lr * g / (square_root(total) + eps)
    return weights - change, change, total


@row_op
def adagrad_step(weights, delta, state, g, lr: Scalar, eps: Scalar):
    return adagrad(weights, state + g * g, g, lr, eps)


def adam(weights, first, second, g, square, size, beta1, rest1, beta2, rest2, eps):
    """New weights, change and moments; `square` is that of g. Called by the row operations of Adam."""
    first = beta1 * first + rest1 * g
    second = beta2 * second + rest2 * square
    change = size * first / (square_root(second) + eps)
    return weights - change, change, first, second


@row_op
def adam_step(
    weights, delta, first, second, g, size: Scalar, beta1: Scalar, rest1: Scalar, beta2: Scalar, rest2: Scalar,
    eps: Scalar,
):  # fmt: skip
    return adam(weights, first, second, g, g * g, size, beta1, rest1, beta2, rest2, eps)


@kernel(inline=True)
def mean_square(rows, i):
    return square_sum(rows, i) / np.float32(rows.shape[1])


@kernel(inline=True)
def norm(delta):
    """L2 norm of delta[0]."""
    return np.float32(math.sqrt(square_sum(delta, 0)))


@kernel(inline=True)
def rowwise_adagrad_step(weights, state, i, g, j, mean, delta, settings):
    """The state (1,) grows by `mean`."""
    total = state[i, 0] + mean
    state[i, 0] = total
    sgd_step(weights, i, delta, 0, g, j, settings[LR] / (np.sqrt(total) + settings[EPS]))


@kernel(inline=True)
def adam_size(state, i, dim, number, corrections):
    """Adam's step size after `number` more updates of row i, which are counted."""
    # A float32 counts to 2**24 exactly; by then every correction is 1.
    state[i, 2 * dim] += number
    return corrections[min(int(state[i, 2 * dim]), corrections.size) - 1]


@kernel(inline=True)
def apply_update(weights, state, i, g, j, delta, kind, settings, corrections):
    """Take one optimizer step of row i with gradient g[j] (D,); returns the L2 norm of the change.

    delta (1, D) is scratch. A gradient of zero is an update too: Adam's moments decay.
    """
    if kind == SGD_:
        sgd_step(weights, i, delta, 0, g, j, settings[LR])
    elif kind == ADAGRAD:
        adagrad_step(weights, i, delta, 0, state, i, g, j, settings[LR], settings[EPS])
    elif kind == ROWWISE_ADAGRAD:
        rowwise_adagrad_step(weights, state, i, g, j, mean_square(g, j), delta, settings)
    else:
        dim = delta.shape[1]
        one = np.float32(1.0)
        beta1, beta2 = settings[BETA1], settings[BETA2]
        size = adam_size(state, i, dim, one, corrections)
        adam_step(
            weights, i, delta, 0, state, i, state[:, dim:], i, g, j, size, beta1, one - beta1, beta2, one - beta2,
            settings[EPS],
        )  # fmt: skip
    return norm(delta)
