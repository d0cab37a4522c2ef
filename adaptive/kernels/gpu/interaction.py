"""Pairwise dot products of DLRM and their gradients in Triton; see `kernels.interaction`.

Letters as there: B samples, F features, D values in a vector, P columns of the output, and V vectors of a sample: its
bottom output, if there is one, then its F pooled vectors. One program for each sample reads its vectors once and writes
its output once: cat, bmm and indexing move these through memory five times. Nothing is added atomically, so results are
the same in every run. As all matrix products on a GPU, they round as its units do, and not as the CPU.
"""

import triton
import triton.language as tl
from torch import Tensor

MOST_VECTORS = 32  # of a sample: their products are in registers, which do not suffice for 64
COLUMNS = 32  # of the vectors that are multiplied at once


@triton.jit
def load_vectors(
    bottom, pooled, sample, vectors, columns,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, WITH_BOTTOM: tl.constexpr,
):  # fmt: skip
    """(vectors, columns) values of a sample; 0 outside."""
    inside = columns[None, :] < WIDTH
    first = 1 if WITH_BOTTOM else 0
    features = vectors - first
    rows = (sample * FEATURES + features).to(tl.int64)
    is_feature = (features >= 0) & (features < FEATURES)
    values = tl.load(pooled + rows[:, None] * WIDTH + columns[None, :], mask=is_feature[:, None] & inside, other=0.0)
    if WITH_BOTTOM:
        output = tl.load(bottom + sample * WIDTH + columns, mask=columns < WIDTH, other=0.0)
        values = tl.where(vectors[:, None] == 0, output[None, :], values)
    return values


@triton.jit
def forward_kernel(
    bottom, pooled, out,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
    WITH_BOTTOM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum products of all pairs over blocks of columns; store the lower triangle."""
    sample = tl.program_id(0).to(tl.int64)
    vectors = tl.arange(0, BLOCK)
    num_vectors: tl.constexpr = FEATURES + (1 if WITH_BOTTOM else 0)
    copied: tl.constexpr = WIDTH if WITH_BOTTOM else 0
    products = tl.zeros([BLOCK, BLOCK], tl.float32)
    for first in range(0, WIDTH, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        values = load_vectors(bottom, pooled, sample, vectors, columns, FEATURES, WIDTH, WITH_BOTTOM)
        products = tl.dot(values, tl.trans(values), products, input_precision=PRECISION)
        if WITH_BOTTOM:
            output = tl.load(bottom + sample * WIDTH + columns, mask=columns < WIDTH)
            tl.store(out + sample * OUT + columns, output, mask=columns < WIDTH)
    i, j = vectors[:, None], vectors[None, :]
    dots = copied + i * (i - 1) // 2 + j
    tl.store(out + sample * OUT + dots, products, mask=(i < num_vectors) & (j < i))
    filled: tl.constexpr = copied + num_vectors * (num_vectors - 1) // 2
    padding = filled + tl.arange(0, 16)
    tl.store(out + sample * OUT + padding, tl.zeros([16], tl.float32), mask=padding < OUT)


@triton.jit
def backward_kernel(
    bottom, pooled, grad, grad_bottom, grad_pooled,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
    WITH_BOTTOM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of vector i is the sum over j of W[i, j] * vector j.

    W is symmetric, and 0 on its diagonal.
    """
    sample = tl.program_id(0).to(tl.int64)
    vectors = tl.arange(0, BLOCK)
    num_vectors: tl.constexpr = FEATURES + (1 if WITH_BOTTOM else 0)
    copied: tl.constexpr = WIDTH if WITH_BOTTOM else 0
    i, j = vectors[:, None], vectors[None, :]
    high, low = tl.maximum(i, j), tl.minimum(i, j)
    dots = copied + high * (high - 1) // 2 + low
    weights = tl.load(grad + sample * OUT + dots, mask=(high < num_vectors) & (low < high), other=0.0)
    first_feature = 1 if WITH_BOTTOM else 0
    features = vectors - first_feature
    rows = sample * FEATURES + features
    for first in range(0, WIDTH, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = columns < WIDTH
        values = load_vectors(bottom, pooled, sample, vectors, columns, FEATURES, WIDTH, WITH_BOTTOM)
        products = tl.dot(weights, values, input_precision=PRECISION)
        is_feature = ((features >= 0) & (features < FEATURES))[:, None] & inside[None, :]
        tl.store(grad_pooled + rows[:, None] * WIDTH + columns[None, :], products, mask=is_feature)
        if WITH_BOTTOM:
            straight = tl.load(grad + sample * OUT + columns, mask=inside, other=0.0)
            to = grad_bottom + sample * WIDTH + columns[None, :] + 0 * i
            tl.store(to, products + straight[None, :], mask=(i == 0) & inside[None, :])


def can_run(pooled: Tensor, bottom: Tensor) -> bool:
    """True if a sample's products fit in the registers of a program."""
    return pooled.shape[1] + (bottom.shape[1] > 0) <= MOST_VECTORS and pooled.numel() > 0


def dot_forward(bottom: Tensor, pooled: Tensor, out: Tensor, *, tf32: bool = False) -> None:
    """Fill `out` (B, P) from `bottom` (B, D or 0) and `pooled` (B, F, D).

    All float32 and contiguous. Columns behind the dots, at most 15, are set to 0. tf32: multiply numbers rounded to 10
    bits, as torch's matrix products do if set so.
    """
    constants = _constants(bottom, pooled, out, tf32)
    forward_kernel[(len(pooled),)](bottom, pooled, out, **constants)


def dot_backward(
    bottom: Tensor,
    pooled: Tensor,
    grad: Tensor,
    grad_bottom: Tensor,
    grad_pooled: Tensor,
    *,
    tf32: bool = False,
) -> None:
    """Fill the gradients of both inputs, in their shapes, from `grad` (B, P).

    The padding of `grad` is not read.
    """
    constants = _constants(bottom, pooled, grad, tf32)
    backward_kernel[(len(pooled),)](bottom, pooled, grad, grad_bottom, grad_pooled, **constants)


def _constants(bottom: Tensor, pooled: Tensor, out: Tensor, tf32: bool) -> dict[str, object]:
    assert can_run(pooled, bottom) and all(tensor.is_contiguous() for tensor in (bottom, pooled, out))
    return constants_of(pooled.shape[1], pooled.shape[2], out.shape[1], bottom.shape[1] > 0, tf32)


def constants_of(features: int, width: int, out: int, with_bottom: bool, tf32: bool) -> dict[str, object]:
    """Return the keyword arguments of a launch."""
    block = max(16, int(triton.next_power_of_2(features + with_bottom)))
    return {
        "FEATURES": features,
        "WIDTH": width,
        "OUT": out,
        "BLOCK": block,
        "COLUMNS": min(COLUMNS, max(16, int(triton.next_power_of_2(width)))),
        "WITH_BOTTOM": with_bottom,
        "PRECISION": "tf32" if tf32 else "ieee",
        "num_warps": block // 8,
        "enable_fp_fusion": True,  # unlike rows, products of the dense part are not promised to round as on the CPU
    }
