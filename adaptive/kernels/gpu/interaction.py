"""Pairwise dot products of DLRM in Triton, a program for each sample, both ways; see `kernels.interaction`.

Letters as there: B samples, F features, D values in a vector, P columns of the output, and V vectors of a sample: its
bottom output, if there is one, then its F pooled vectors. A program reads a sample's vectors once and writes its output
once: what cat, bmm and indexing move through memory five times. Nothing is added atomically, so results are the same in
every run; like all products of matrices on a GPU, they round as its units do, and not as the CPU's.
"""

import triton
import triton.language as tl
from torch import Tensor

MOST_VECTORS = 32  # of a sample: their products are held in registers, which do not suffice for 64
COLUMNS = 32  # of the vectors that are multiplied at once


@triton.jit
def load_vectors(
    bottom,
    pooled,
    sample,
    vectors,
    columns,
    FEATURES: tl.constexpr,
    WIDTH: tl.constexpr,
    WITH_BOTTOM: tl.constexpr,
):
    """(vectors, columns) values of a sample; 0 outside."""
    inside = columns[None, :] < WIDTH
    first = 1 if WITH_BOTTOM else 0
    features = vectors - first
    rows = (sample * FEATURES + features).to(tl.int64)
    here = (features >= 0) & (features < FEATURES)
    values = tl.load(pooled + rows[:, None] * WIDTH + columns[None, :], mask=here[:, None] & inside, other=0.0)
    if WITH_BOTTOM:
        own = tl.load(bottom + sample * WIDTH + columns, mask=columns < WIDTH, other=0.0)
        values = tl.where(vectors[:, None] == 0, own[None, :], values)
    return values


@triton.jit
def forward_kernel(
    bottom,
    pooled,
    out,
    FEATURES: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    WITH_BOTTOM: tl.constexpr,
    OWN: tl.constexpr,
    PRECISION: tl.constexpr,
):
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
            own = tl.load(bottom + sample * WIDTH + columns, mask=columns < WIDTH)
            tl.store(out + sample * OUT + columns, own, mask=columns < WIDTH)
    i, j = vectors[:, None], vectors[None, :]
    dots = copied + i * (i - 1) // 2 + OWN * i + j
    tl.store(out + sample * OUT + dots, products, mask=(i < num_vectors) & (j < i + OWN))
    filled: tl.constexpr = copied + num_vectors * (num_vectors - 1) // 2 + OWN * num_vectors
    padding = filled + tl.arange(0, 16)
    tl.store(out + sample * OUT + padding, tl.zeros([16], tl.float32), mask=padding < OUT)


@triton.jit
def backward_kernel(
    bottom,
    pooled,
    grad,
    grad_bottom,
    grad_pooled,
    FEATURES: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    WITH_BOTTOM: tl.constexpr,
    OWN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """grad of vector i = sum over j of W[i, j] * vector j; W is symmetric, and twice the gradient on its diagonal."""
    sample = tl.program_id(0).to(tl.int64)
    vectors = tl.arange(0, BLOCK)
    num_vectors: tl.constexpr = FEATURES + (1 if WITH_BOTTOM else 0)
    copied: tl.constexpr = WIDTH if WITH_BOTTOM else 0
    i, j = vectors[:, None], vectors[None, :]
    high, low = tl.maximum(i, j), tl.minimum(i, j)
    dots = copied + high * (high - 1) // 2 + OWN * high + low
    weights = tl.load(grad + sample * OUT + dots, mask=(high < num_vectors) & (low < high + OWN), other=0.0)
    weights = tl.where(i == j, 2.0 * weights, weights)
    first_feature = 1 if WITH_BOTTOM else 0
    features = vectors - first_feature
    rows = sample * FEATURES + features
    for first in range(0, WIDTH, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = columns < WIDTH
        values = load_vectors(bottom, pooled, sample, vectors, columns, FEATURES, WIDTH, WITH_BOTTOM)
        found = tl.dot(weights, values, input_precision=PRECISION)
        here = ((features >= 0) & (features < FEATURES))[:, None] & inside[None, :]
        tl.store(grad_pooled + rows[:, None] * WIDTH + columns[None, :], found, mask=here)
        if WITH_BOTTOM:
            straight = tl.load(grad + sample * OUT + columns, mask=inside, other=0.0)
            to = grad_bottom + sample * WIDTH + columns[None, :] + 0 * i
            tl.store(to, found + straight[None, :], mask=(i == 0) & inside[None, :])


def can_run(pooled: Tensor, bottom: Tensor) -> bool:
    """Whether a sample's products fit in the registers of a program."""
    return pooled.shape[1] + (bottom.shape[1] > 0) <= MOST_VECTORS and pooled.numel() > 0


def dot_forward(bottom: Tensor, pooled: Tensor, include_self: bool, out: Tensor, *, tf32: bool = False) -> None:
    """Fill `out` (B, P) from `bottom` (B, D or 0) and `pooled` (B, F, D); float32, contiguous. Columns behind the dots,
    at most 15, are set to 0. tf32: products of numbers rounded to 10 bits, as torch's matrix products if so set."""
    constants = _constants(bottom, pooled, include_self, out, tf32)
    forward_kernel[(len(pooled),)](bottom, pooled, out, **constants)


def dot_backward(
    bottom: Tensor,
    pooled: Tensor,
    include_self: bool,
    grad: Tensor,
    grad_bottom: Tensor,
    grad_pooled: Tensor,
    *,
    tf32: bool = False,
) -> None:
    """Fill the gradients of both inputs, in their shapes, from `grad` (B, P); its padding is not read."""
    constants = _constants(bottom, pooled, include_self, grad, tf32)
    backward_kernel[(len(pooled),)](bottom, pooled, grad, grad_bottom, grad_pooled, **constants)


def _constants(bottom: Tensor, pooled: Tensor, include_self: bool, out: Tensor, tf32: bool) -> dict[str, object]:
    assert can_run(pooled, bottom) and all(tensor.is_contiguous() for tensor in (bottom, pooled, out))
    return constants_of(pooled.shape[1], pooled.shape[2], out.shape[1], bottom.shape[1] > 0, include_self, tf32)


def constants_of(
    features: int, width: int, out: int, with_bottom: bool, include_self: bool, tf32: bool
) -> dict[str, object]:
    """What a launch takes beside its arrays."""
    block = max(16, int(triton.next_power_of_2(features + with_bottom)))
    return {
        "FEATURES": features,
        "WIDTH": width,
        "OUT": out,
        "BLOCK": block,
        "COLUMNS": min(COLUMNS, max(16, int(triton.next_power_of_2(width)))),
        "WITH_BOTTOM": with_bottom,
        "OWN": int(include_self),
        "PRECISION": "tf32" if tf32 else "ieee",
        "num_warps": block // 8,
        "enable_fp_fusion": True,  # unlike rows, products of the dense part are not promised to round as on the CPU
    }
