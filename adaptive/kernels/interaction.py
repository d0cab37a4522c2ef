"""Pairwise dot products of DLRM (Naumov et al. 2019, arXiv 1906.00091), one sample at a time, both ways.

Letters: B samples, F features, D values in a vector, P columns of the output. A sample's vectors are its bottom
output, if there is one, then its F pooled vectors. The output is `[bottom | dots | zeros]`: the dots of vector i with
the vectors j < i (j <= i with `include_self`), i rising, and within i j rising.

`bottom` is (B, D), or (B, 0) where a model has no dense inputs. Work is divided by sample, so results do not depend on
the number of threads. For the training thread only.

Measured on two cores at B = 2048, F = 26, D = 16 / 64 / 128, forward and backward: 2.5 / 3.6 / 6.4 ms, against
7.4 / 20 / 28 ms for cat, bmm and indexing (`benchmarks/bench_dense.py`).
"""

import numpy as np
from numba import prange
from numba.extending import register_jitable
from numpy.typing import NDArray

from adaptive.kernels.jit import kernel

_CHUNK = 64  # samples that share one matrix of gradients in the backward kernel


@register_jitable(fastmath={"reassoc"})
def _dot(first: NDArray[np.float32], second: NDArray[np.float32]) -> np.float32:
    """Sum of products, added in the order the machine's vector width suggests, as in the matrix product it replaces.

    This is the one sum of the project that the compiler may reorder: in strict order it takes 2.5 to 9 times as long
    (D = 16 to 128). On one machine the order is fixed.
    """
    total = np.float32(0.0)
    for d in range(first.shape[0]):
        total += first[d] * second[d]
    return total


@register_jitable
def _add_weighted(total: NDArray[np.float32], weights: NDArray[np.float32], vectors: NDArray[np.float32]) -> None:
    """`total += weights @ vectors`, four vectors per pass: the total is read and written a quarter as often."""
    in_fours = vectors.shape[0] - vectors.shape[0] % 4
    for j in range(0, in_fours, 4):
        w0, w1, w2, w3 = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for d in range(total.shape[0]):
            left = w0 * vectors[j, d] + w1 * vectors[j + 1, d]
            right = w2 * vectors[j + 2, d] + w3 * vectors[j + 3, d]
            total[d] += left + right
    for j in range(in_fours, vectors.shape[0]):
        for d in range(total.shape[0]):
            total[d] += weights[j] * vectors[j, d]


@register_jitable
def _fill_weights(weights: NDArray[np.float32], grad: NDArray[np.float32], include_self: bool) -> None:
    """The symmetric matrix W (vectors, vectors) with `grad of vector i = sum over j of W[i, j] * vector j`."""
    at = 0
    for i in range(weights.shape[0]):
        for j in range(i):
            weights[i, j] = grad[at]
            weights[j, i] = grad[at]
            at += 1
        if include_self:
            weights[i, i] = np.float32(2.0) * grad[at]
            at += 1


@kernel(parallel=True)
def dot_forward(
    bottom: NDArray[np.float32], pooled: NDArray[np.float32], include_self: bool, out: NDArray[np.float32]
) -> None:
    """Fill `out` (B, P) from `bottom` (B, D or 0) and `pooled` (B, F, D)."""
    num_copied = bottom.shape[1]
    num_own = 1 if include_self else 0
    for b in prange(pooled.shape[0]):
        out[b, :num_copied] = bottom[b]
        at = num_copied
        if num_copied > 0 and include_self:
            out[b, at] = _dot(bottom[b], bottom[b])
            at += 1
        for i in range(pooled.shape[1]):
            if num_copied > 0:
                out[b, at] = _dot(pooled[b, i], bottom[b])
                at += 1
            for j in range(i + num_own):
                out[b, at] = _dot(pooled[b, i], pooled[b, j])
                at += 1
        out[b, at:] = np.float32(0.0)


@kernel(parallel=True)
def dot_backward(
    bottom: NDArray[np.float32],
    pooled: NDArray[np.float32],
    include_self: bool,
    grad: NDArray[np.float32],
    grad_bottom: NDArray[np.float32],
    grad_pooled: NDArray[np.float32],
) -> None:
    """Fill the gradients of both inputs, in their shapes, from `grad` (B, P); its padding is not read."""
    num_samples, num_features, _ = pooled.shape
    num_copied = bottom.shape[1]
    first = 1 if num_copied > 0 else 0  # position of the first feature among the vectors
    for chunk in prange((num_samples + _CHUNK - 1) // _CHUNK):
        weights = np.zeros((first + num_features, first + num_features), np.float32)
        for b in range(chunk * _CHUNK, min(num_samples, (chunk + 1) * _CHUNK)):
            _fill_weights(weights, grad[b, num_copied:], include_self)
            for i in range(first + num_features):
                total = grad_bottom[b] if i < first else grad_pooled[b, i - first]
                for d in range(total.shape[0]):
                    total[d] = weights[i, 0] * bottom[b, d] if first > 0 else np.float32(0.0)
                _add_weighted(total, weights[i, first:], pooled[b])
            for d in range(num_copied):
                grad_bottom[b, d] += grad[b, d]
