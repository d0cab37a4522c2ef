"""Logistic regression over embedding rows: one weight per row, learned by Adagrad (Duchi et al., JMLR 12, 2011).

Letters: B samples, F features, N lookups, D dense inputs, n rows. Lookups are ordered by feature, then by sample, as
in `Batch`. `rows` (n, 2), `dense_weights` (D, 2) and `bias` (1, 2) are float32 pairs: a weight, and the sum of its
squared gradients. A pair shares a cache line, so that a lookup costs one random access in either kernel.

Sums are taken in the order of the lookups. One thread runs each call, and results do not depend on the machine's vector
width. Called from the look-ahead thread.
"""

import math

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.jit import at, kernel
from adaptive.kernels.vector.row_ops import AHEAD, prefetch_row

Pairs = NDArray[np.float32]
_START = 0.1  # squares that each weight begins with: its first step is then at most `rate`


@kernel()
def predict(
    lookups: NDArray[np.int64],
    offsets: NDArray[np.int64],
    dense: NDArray[np.float32],
    rows: Pairs,
    dense_weights: Pairs,
    bias: Pairs,
    out: NDArray[np.float32],
) -> None:
    """Write the probability of label 1 of each sample to `out` (B,).

    Args:
        lookups: (N,) the row of each lookup.
        offsets: (F * B + 1,) where each bag starts.
        dense: (B, D).
    """
    num_samples = len(out)
    for sample in range(num_samples):
        logit = bias[0, 0]
        for column in range(dense.shape[1]):
            logit += dense[sample, column] * dense_weights[column, 0]
        out[sample] = logit
    bag = 0
    for _ in range((len(offsets) - 1) // max(num_samples, 1)):  # features
        for sample in range(num_samples):
            for position in range(offsets[bag], offsets[bag + 1]):
                if position + AHEAD < len(lookups):
                    prefetch_row(rows, lookups[position + AHEAD])
                out[sample] += rows[at(lookups[position]), 0]
            bag += 1
    for sample in range(num_samples):
        out[sample] = 1 / (1 + math.exp(-np.float64(out[sample])))


@kernel(inline=True)
def _step(pairs: Pairs, index: np.uint64 | int, gradient: np.float32, rate: float) -> None:
    squares = np.float64(pairs[index, 1]) + np.float64(gradient) * np.float64(gradient)
    pairs[index, 1] = squares
    pairs[index, 0] = np.float64(pairs[index, 0]) - rate * np.float64(gradient) / math.sqrt(squares + _START)


@kernel()
def learn(
    lookups: NDArray[np.int64],
    offsets: NDArray[np.int64],
    dense: NDArray[np.float32],
    residuals: NDArray[np.float32],
    rate: float,
    rows: Pairs,
    dense_weights: Pairs,
    bias: Pairs,
) -> None:
    """Take one Adagrad step for each lookup, in order, and change the three arrays of pairs in place.

    Args:
        residuals: (B,) probability minus label, from `predict` on the same samples.
        rate: learning rate.
    """
    num_samples = len(residuals)
    bag = 0
    for _ in range((len(offsets) - 1) // max(num_samples, 1)):  # features
        for sample in range(num_samples):
            for position in range(offsets[bag], offsets[bag + 1]):
                if position + AHEAD < len(lookups):
                    prefetch_row(rows, lookups[position + AHEAD])
                _step(rows, at(lookups[position]), residuals[sample], rate)
            bag += 1
    for sample in range(num_samples):
        for column in range(dense.shape[1]):
            _step(dense_weights, column, residuals[sample] * dense[sample, column], rate)
        _step(bias, 0, residuals[sample], rate)
