"""Logistic regression over embedding rows: one weight per row, learned by Adagrad (Duchi et al., JMLR 12, 2011).

Letters: B samples, F features, N lookups, D dense inputs, n rows. Lookups are ordered by feature, then by sample, as
in `Batch`. `rows` (n, 2), `dense_weights` (D, 2) and `bias` (1, 2) are float32 pairs: a weight, and the sum of its
squared gradients. A pair shares a cache line, so that a lookup costs one random access.

One thread runs each call, and results do not depend on the machine's vector width. Called from the look-ahead thread.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.jit import at, kernel
from adaptive.kernels.vector.row_ops import prefetch_row

Pairs = NDArray[np.float32]
BLOCK: Final = 64  # samples; 26 lookups of each stay in the cache, and a first step cannot overshoot 2,048 times
_START: Final = np.float32(0.1)  # squares that each weight begins with: its first step is then at most `rate`


@kernel(inline=True)
def _step(pairs: Pairs, index: np.uint64 | int, gradient: np.float32, rate: np.float32) -> None:
    squares = pairs[index, 1] + gradient * gradient
    pairs[index, 1] = squares
    pairs[index, 0] -= rate * gradient / np.sqrt(squares + _START)


@kernel()
def learn(
    lookups: NDArray[np.int64],
    offsets: NDArray[np.int64],
    dense: NDArray[np.float32],
    labels: NDArray[np.float32],
    rate: float,
    rows: Pairs,
    dense_weights: Pairs,
    bias: Pairs,
    out: NDArray[np.float32],
    one_each: bool,
) -> None:
    """Write probability minus label of each sample to `out` (B,), and change the three arrays of pairs in place.

    Samples are taken in blocks of `BLOCK`, in order: a block is predicted, then each of its lookups, dense inputs and
    samples is a step of Adagrad. So a row is in the cache when it learns, and blocks profit from those before.

    Args:
        lookups: (N,) the row of each lookup.
        offsets: (F * B + 1,) where each bag starts.
        dense: (B, D).
        labels: (B,) from 0 to 1.
        rate: learning rate.
        one_each: every bag has one lookup. Without offsets and a loop for each bag a call takes half the time.
    """
    num_samples, num_dense, step, one = np.uint64(len(labels)), dense.shape[1], np.float32(rate), np.uint64(1)
    num_features = (len(offsets) - 1) // max(len(labels), 1)
    for begin in range(0, len(labels), BLOCK):
        first, end = np.uint64(begin), min(num_samples, np.uint64(begin + BLOCK))
        following = min(num_samples, end + np.uint64(BLOCK))
        for sample in range(first, end):
            out[sample] = bias[0, 0]
            for column in range(num_dense):
                out[sample] += dense[sample, column] * dense_weights[column, 0]
        for feature in range(num_features):
            bag = np.uint64(feature) * num_samples
            for position in range(at(offsets[bag + end]), at(offsets[bag + following])):
                prefetch_row(rows, lookups[position])
            if one_each:
                for sample in range(first, end):
                    out[sample] += rows[at(lookups[bag + sample]), 0]
                continue
            start = at(offsets[bag + first])  # of each bag: the end of the one before, so one offset is read, not two
            for sample in range(first, end):
                stop = at(offsets[bag + sample + one])
                for position in range(start, stop):
                    out[sample] += rows[at(lookups[position]), 0]
                start = stop
        for sample in range(first, end):
            out[sample] = np.float32(1 / (1 + math.exp(-np.float64(out[sample])))) - labels[sample]
        for feature in range(num_features):
            bag = np.uint64(feature) * num_samples
            if one_each:
                for sample in range(first, end):
                    _step(rows, at(lookups[bag + sample]), out[sample], step)
                continue
            start = at(offsets[bag + first])
            for sample in range(first, end):
                stop = at(offsets[bag + sample + one])
                for position in range(start, stop):
                    _step(rows, at(lookups[position]), out[sample], step)
                start = stop
        for sample in range(first, end):
            for column in range(num_dense):
                _step(dense_weights, column, out[sample] * dense[sample, column], step)
            _step(bias, 0, out[sample], step)
