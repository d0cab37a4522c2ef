"""Pairwise dot products of DLRM (arXiv 1906.00091), forward and backward.

Letters: B samples, F features, D values in a vector, P columns of the output. A sample's vectors are its bottom
output, if there is one, then its F pooled vectors. The output is `[bottom | dots | zeros]`: the dots of vector i with
the vectors j < i, i rising, and within i j rising.

`bottom` is (B, D), or (B, 0) where a model has no dense inputs. All arrays are C-contiguous. Work is divided by
sample, and every sum is taken in a fixed order with one rounding per product, so results depend neither on the number
of threads nor on the processor. For the training thread only.

Kernels get flat arrays, and `dims` (B, F, D, width of `bottom`, P). Both passes keep the sums of four vectors with 16
lanes each in registers. In the forward pass each lane is another vector (hence the transposed copy), in the backward
pass another value of the vector. Measured on one core at B = 2048, F = 26, D = 16, forward / backward: 0.8 / 1.4 ms,
against 3.8 / 5.5 ms for cat, bmm and indexing.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.jit import in_parallel, kernel
from adaptive.kernels.vector.simd import SIMD_WIDTH, add_product, load, store, transpose, zeros

_CHUNK = 64  # samples that share scratch arrays
_ROWS = 4  # vectors whose sums are taken together: each load serves four of them

Items = NDArray[np.float32]


@kernel(inline_code=True)
def _copy(source: Items, at: int, target: Items, to: int, count: int) -> None:
    whole = count - count % SIMD_WIDTH
    for k in range(0, whole, SIMD_WIDTH):
        store(target, to + k, load(source, at + k))
    for k in range(whole, count):
        target[to + k] = source[at + k]


@kernel()
def _row_start(i: int) -> int:
    """Number of dots before those of vector i."""
    return i * (i - 1) // 2


@kernel(inline_code=True)
def _copy_rows(
    source: Items, at: int, stride: int, target: Items, to: int, to_stride: int, shape: tuple[int, int]
) -> None:
    """Copy `shape` = (rows, items), `stride` apart in the source, `to_stride` in the target."""
    rows, items = shape
    if stride == items and to_stride == items:
        _copy(source, at, target, to, rows * items)
    else:
        for row in range(rows):
            _copy(source, at + row * stride, target, to + row * to_stride, items)


@kernel(inline_code=True)
def _to_line(items: Items) -> int:
    """Number of items before the first one that begins a cache line: vectors from there on cross none."""
    return -(items.ctypes.data // 4) % SIMD_WIDTH


@kernel(makes_arrays=True)
def _forward_chunk(chunk, dims, flat_bottom, flat_pooled, flat_out):
    """The `_CHUNK` samples of one chunk."""
    num_samples, num_features, dim, num_copied, width = dims
    begin, end = chunk * _CHUNK, min(num_samples, (chunk + 1) * _CHUNK)
    first = 1 if num_copied > 0 else 0  # position of the first feature among the vectors
    num_vectors = num_features + first
    rows, stride = -(-num_vectors // SIMD_WIDTH) * SIMD_WIDTH, -(-dim // SIMD_WIDTH) * SIMD_WIDTH
    size = rows * stride + SIMD_WIDTH
    vectors, columns = np.zeros(size, np.float32), np.zeros(size, np.float32)
    vectors, columns = vectors[_to_line(vectors) :], columns[_to_line(columns) :]
    # A store of 16 lanes may write past its row, into the next one; there is room past the last row.
    line = np.zeros(num_copied + _row_start(rows) + 2 * rows, np.float32)
    for b in range(begin, end):
        _copy(flat_bottom, b * num_copied, vectors, 0, num_copied)
        _copy_rows(flat_pooled, b * num_features * dim, dim, vectors, first * stride, stride, (num_features, dim))
        for i in range(0, rows, SIMD_WIDTH):
            for d in range(0, stride, SIMD_WIDTH):
                transpose(vectors, i * stride + d, stride, columns, d * rows + i, rows)
        _copy(vectors, 0, line, 0, num_copied)
        for i in range(0, num_vectors, _ROWS):
            at = i * stride
            for back in range(i // SIMD_WIDTH + 1):  # right to left, to overwrite what was written past a row
                j = (i // SIMD_WIDTH - back) * SIMD_WIDTH
                t0, t1, t2, t3 = zeros(), zeros(), zeros(), zeros()
                for d in range(dim):
                    column = load(columns, d * rows + j)
                    t0 = add_product(t0, vectors, at + d, column)
                    t1 = add_product(t1, vectors, at + stride + d, column)
                    t2 = add_product(t2, vectors, at + 2 * stride + d, column)
                    t3 = add_product(t3, vectors, at + 3 * stride + d, column)
                to = num_copied + j
                store(line, to + _row_start(i), t0)
                store(line, to + _row_start(i + 1), t1)
                store(line, to + _row_start(i + 2), t2)
                store(line, to + _row_start(i + 3), t3)
        line[num_copied + _row_start(num_vectors) : width] = np.float32(0.0)
        _copy(line, 0, flat_out, b * width, width)


@kernel()
def _forward(dims, bottom, pooled, out):
    in_parallel(_forward_chunk, -(-dims[0] // _CHUNK), dims, bottom, pooled, out)


def dot_forward(bottom: NDArray[np.float32], pooled: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Fill `out` (B, P) from `bottom` (B, D or 0) and `pooled` (B, F, D)."""
    dims = *pooled.shape, bottom.shape[1], out.shape[1]
    _forward(dims, _flat(bottom), _flat(pooled), _flat(out))


@kernel(inline_code=True)
def _fill_weights(weights: Items, rows: int, num_vectors: int, grad: Items, at: int) -> None:
    """Fill the symmetric W (vectors, rows): grad of vector i = sum over j of W[j, i] * j."""
    step, dot, row = np.uint64(1), np.uint64(at), np.uint64(rows)  # unsigned: numba then checks no negative indices
    for i in range(np.uint64(num_vectors)):
        for j in range(i):
            weights[i * row + j] = grad[dot]
            weights[j * row + i] = grad[dot]
            dot += step


@kernel(makes_arrays=True)
def _backward_chunk(chunk, dims, flat_bottom, flat_pooled, flat_grad, flat_grad_bottom, flat_grad_pooled):
    """The `_CHUNK` samples of one chunk."""
    num_samples, num_features, dim, num_copied, width = dims
    begin, end = chunk * _CHUNK, min(num_samples, (chunk + 1) * _CHUNK)
    first = 1 if num_copied > 0 else 0  # position of the first feature among the vectors
    num_vectors = num_features + first
    rows, stride = -(-num_vectors // _ROWS) * _ROWS, -(-dim // SIMD_WIDTH) * SIMD_WIDTH
    size = rows * stride
    scratch = np.zeros(2 * size + rows * rows + SIMD_WIDTH, np.float32)
    scratch = scratch[_to_line(scratch) :]
    vectors, sums, weights = scratch[:size], scratch[size : 2 * size], scratch[2 * size :]
    for b in range(begin, end):
        _copy(flat_bottom, b * num_copied, vectors, 0, num_copied)
        _copy_rows(flat_pooled, b * num_features * dim, dim, vectors, first * stride, stride, (num_features, dim))
        _fill_weights(weights, rows, num_vectors, flat_grad, b * width + num_copied)
        for i in range(0, num_vectors, _ROWS):
            for d in range(0, stride, SIMD_WIDTH):
                t0, t1, t2, t3 = zeros(), zeros(), zeros(), zeros()
                for j in range(num_vectors):
                    vector = load(vectors, j * stride + d)
                    at = j * rows + i
                    t0 = add_product(t0, weights, at, vector)
                    t1 = add_product(t1, weights, at + 1, vector)
                    t2 = add_product(t2, weights, at + 2, vector)
                    t3 = add_product(t3, weights, at + 3, vector)
                to = i * stride + d
                store(sums, to, t0)
                store(sums, to + stride, t1)
                store(sums, to + 2 * stride, t2)
                store(sums, to + 3 * stride, t3)
        for d in range(num_copied):
            flat_grad_bottom[b * dim + d] = sums[d] + flat_grad[b * width + d]
        _copy_rows(sums, first * stride, stride, flat_grad_pooled, b * num_features * dim, dim, (num_features, dim))


@kernel()
def _backward(dims, bottom, pooled, grad, grad_bottom, grad_pooled):
    in_parallel(_backward_chunk, -(-dims[0] // _CHUNK), dims, bottom, pooled, grad, grad_bottom, grad_pooled)


def dot_backward(
    bottom: NDArray[np.float32],
    pooled: NDArray[np.float32],
    grad: NDArray[np.float32],
    grad_bottom: NDArray[np.float32],
    grad_pooled: NDArray[np.float32],
) -> None:
    """Fill the gradients of both inputs from `grad` (B, P), whose padding is not read."""
    dims = *pooled.shape, bottom.shape[1], grad.shape[1]
    grads = _flat(grad_bottom), _flat(grad_pooled)
    _backward(dims, _flat(bottom), _flat(pooled), _flat(grad), *grads)


def _flat(items: Items) -> Items:
    """Return a one-dimensional view: numba takes 0.2 s to compile a reshape in a kernel."""
    assert items.flags.c_contiguous, items.strides
    return items.reshape(-1)
