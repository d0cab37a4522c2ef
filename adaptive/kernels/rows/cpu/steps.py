"""One optimizer step of one row, by the optimizers of `adaptive.optim`.

Letters: see `kernels.rows.cpu`. Element-wise formulas are row operations, so that they become vector instructions.
`key` rounds new weights in bfloat16 (`vector.bfloat16`); float32 ones ignore it. A change is measured before rounding.
"""

import math

import numpy as np

from adaptive.kernels.jit import kernel
from adaptive.kernels.vector.row_ops import Scalar, square_root, step_op, where_less
from adaptive.kernels.vector.row_sums import square_sum

SGD_, ADAGRAD, ROWWISE_ADAGRAD, ADAM, FTRL = 0, 1, 2, 3, 4
LR, EPS, BETA1, BETA2, FIRST = 0, 1, 2, 3, 4  # places in `settings`
BETA, L1, L2 = EPS, BETA1, BETA2  # those of FTRL
ZERO = np.float32(0.0)
TINY, LARGEST = np.float32(1e-45), np.float32(3.4028235e38)  # of the positive finite numbers


@step_op
def sgd_step(weights, g, lr: Scalar):
    change = lr * g
    return weights - change, change


def adagrad(weights, total, g, lr, eps):
    """Return new weights, change and state; `total` is the new state."""
    change = lr * g / (square_root(total) + eps)
    return weights - change, change, total


@step_op
def adagrad_step(weights, state, g, lr: Scalar, eps: Scalar):
    return adagrad(weights, state + g * g, g, lr, eps)


def adam(weights, first, second, g, square, size, beta1, rest1, beta2, rest2, eps):
    """Return new weights, change and moments; `square` is that of g."""
    first = beta1 * first + rest1 * g
    second = beta2 * second + rest2 * square
    change = size * first / (square_root(second) + eps)
    return weights - change, change, first, second


@step_op
def adam_step(
    weights, first, second, g, size: Scalar, beta1: Scalar, rest1: Scalar, beta2: Scalar, rest2: Scalar,
    eps: Scalar,
):  # fmt: skip
    return adam(weights, first, second, g, g * g, size, beta1, rest1, beta2, rest2, eps)


def ftrl(weights, linear, squares, grown, g, lr, beta, l1, l2, zero, tiny, largest):
    """Return new weights, change and state; the sum of squares grows by `grown`.

    McMahan et al. (2013), algorithm 1, with one difference: the proximal term is centered at a row's initial values and
    not at 0. A value without any gradient so far (squares 0) has the `linear` that gives its weight. One whose squares
    overflow stays as it is, as with Adagrad.
    """
    total = squares + grown
    root = square_root(total)
    sign = where_less(zero, weights, l1, where_less(weights, zero, zero - l1, zero))
    center = zero - (weights * (beta / lr + l2) + sign)
    sigma = (root - square_root(squares)) / lr
    linear = where_less(squares, tiny, center, linear) + (g - sigma * weights)
    shrunk = linear - where_less(l1, linear, l1, where_less(linear, zero - l1, zero - l1, linear))
    moved = zero - shrunk / ((beta + root) / lr + l2)
    new = where_less(total, tiny, weights, where_less(largest, total, weights, moved))
    return new, weights - new, linear, total


@step_op
def ftrl_step(
    weights, linear, squares, g, lr: Scalar, beta: Scalar, l1: Scalar, l2: Scalar, zero: Scalar, tiny: Scalar,
    largest: Scalar,
):  # fmt: skip
    return ftrl(weights, linear, squares, g * g, g, lr, beta, l1, l2, zero, tiny, largest)


@kernel(inline=True)
def rowwise_adagrad_step(weights, state, i, g, j, mean, settings, key):
    """Grow the state (1,) by `mean`, and step; return the sum of the change's squares."""
    total = state[i, 0] + mean
    state[i, 0] = total
    return sgd_step(weights, i, g, j, settings[LR] / (np.sqrt(total) + settings[EPS]), key)


@kernel(inline=True)
def adam_size(state, i, dim, number, corrections):
    """Count `number` more updates of row i; return Adam's step size after them."""
    count = state[i, 2 * dim] + number  # a float32 counts to 2**24 exactly; by then every correction is 1
    state[i, 2 * dim] = count
    return corrections[min(int(count), corrections.size) - 1]


@kernel(inline=True)
def measure_row(weights, i, norms, u):
    """norms[1, u] = the L2 norm of row i, if `norms` has a place for it. Before the row's update."""
    if norms.shape[0] > 1:
        norms[1, u] = np.float32(math.sqrt(square_sum(weights, i)))


@kernel(inline=True)
def apply_update(weights, state, i, g, j, squares, rule, key):
    """Take one optimizer step of row i with gradient g[j] (D,); return the change's L2 norm.

    squares: sum of the gradient's squares. A gradient of zero is an update too: Adam's moments decay.
    """
    kind, settings, corrections = rule
    dim = g.shape[1]
    if kind == SGD_:
        change = sgd_step(weights, i, g, j, settings[LR], key)
    elif kind == ADAGRAD:
        change = adagrad_step(weights, i, state, i, g, j, settings[LR], settings[EPS], key)
    elif kind == ROWWISE_ADAGRAD:
        change = rowwise_adagrad_step(weights, state, i, g, j, squares / np.float32(dim), settings, key)
    elif kind == FTRL:
        if settings[LR] == ZERO:  # a rate of 0 freezes rows; the formula divides by it
            return ZERO
        change = ftrl_step(
            weights, i, state, i, state[:, dim:], i, g, j,
            settings[LR], settings[BETA], settings[L1], settings[L2], ZERO, TINY, LARGEST, key,
        )  # fmt: skip
    else:
        unit = np.float32(1.0)
        beta1, beta2 = settings[BETA1], settings[BETA2]
        size = adam_size(state, i, dim, unit, corrections)
        change = adam_step(
            weights, i, state, i, state[:, dim:], i, g, j, size, beta1, unit - beta1, beta2, unit - beta2,
            settings[EPS], key,
        )  # fmt: skip
    return np.float32(math.sqrt(change))
