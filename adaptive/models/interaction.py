"""How DLRM's vectors meet: pairwise dot products or concatenation, padded to a width that matrix products like.

Letters: B samples, F features, D values in a vector, P columns of the output. `bottom` is the bottom MLP's output
(B, D), or (B, 0) where a model has no dense inputs; `pooled` is (B, F, D). All float32 unless said otherwise.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adaptive.kernels.interaction import dot_backward, dot_forward

ALIGNMENT = 16  # MKL's products of 2048 samples are 3 % faster at 368 columns than at 367


def aligned(width: int) -> int:
    """The next multiple of 16 that is at least `width`, and at least 16."""
    return max(1, -(-width // ALIGNMENT)) * ALIGNMENT


def num_dots(num_vectors: int, *, include_self: bool) -> int:
    """Pairs of `num_vectors` vectors, with or without each vector's product with itself."""
    return num_vectors * (num_vectors + (1 if include_self else -1)) // 2


def concatenation(bottom: Tensor, pooled: Tensor) -> Tensor:
    """`[bottom | pooled vectors | zeros]`, (B, P)."""
    return _side_by_side(bottom, pooled.flatten(1))


def dot_interaction(bottom: Tensor, pooled: Tensor, *, include_self: bool = False) -> Tensor:
    """`[bottom | dots | zeros]`, (B, P), the dots in the order of a matrix's lower triangle, row by row.

    One fused pass each way for float32 on the CPU; plain torch operations elsewhere, for other dtypes, and while
    `torch.compile` traces. Fused results can be differentiated once.
    """
    if _can_fuse(bottom) and _can_fuse(pooled) and not torch.compiler.is_compiling():
        fused: Tensor = _FusedDots.apply(bottom, pooled, include_self)  # type: ignore[no-untyped-call]
        return fused
    return plain_dot_interaction(bottom, pooled, include_self=include_self)


def plain_dot_interaction(bottom: Tensor, pooled: Tensor, *, include_self: bool = False) -> Tensor:
    """`dot_interaction` in torch operations: any device, any floating dtype, any number of derivatives."""
    vectors = pooled if bottom.shape[1] == 0 else torch.cat([bottom[:, None], pooled], dim=1)
    products = torch.bmm(vectors, vectors.transpose(1, 2))
    num_vectors = vectors.shape[1]
    i, j = torch.tril_indices(num_vectors, num_vectors, offset=0 if include_self else -1, device=pooled.device)
    return _side_by_side(bottom, products[:, i, j])


def _side_by_side(left: Tensor, right: Tensor) -> Tensor:
    width = left.shape[1] + right.shape[1]
    return torch.cat([left, right, right.new_zeros((len(right), aligned(width) - width))], dim=1)


def _can_fuse(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


class _FusedDots(torch.autograd.Function):
    """The numba kernels as one node of the graph; keeps its two inputs and nothing else for the backward pass."""

    @staticmethod
    def forward(ctx: Any, bottom: Tensor, pooled: Tensor, include_self: bool) -> Tensor:
        bottom, pooled = bottom.detach().contiguous(), pooled.detach().contiguous()
        num_vectors = pooled.shape[1] + (bottom.shape[1] > 0)
        width = aligned(bottom.shape[1] + num_dots(num_vectors, include_self=include_self))
        out = pooled.new_empty((len(pooled), width))
        dot_forward(bottom.numpy(), pooled.numpy(), include_self, out.numpy())
        ctx.save_for_backward(bottom, pooled)
        ctx.include_self = include_self
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        bottom, pooled = ctx.saved_tensors
        grad_bottom, grad_pooled = torch.empty_like(bottom), torch.empty_like(pooled)
        dot_backward(
            bottom.numpy(),
            pooled.numpy(),
            ctx.include_self,
            grad.contiguous().numpy(),
            grad_bottom.numpy(),
            grad_pooled.numpy(),
        )
        return grad_bottom, grad_pooled, None
