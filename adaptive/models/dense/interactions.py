"""DLRM's interaction in training, with fused kernels if possible.

In exports, `plain_interactions.py` replaces this file. Letters: B samples, F features, D values in a vector, P columns
of the output. `bottom` is the bottom MLP's output (B, D), or (B, 0) for a model without dense inputs; `pooled` is
(B, F, D). All are float32 unless noted.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adaptive.kernels.interaction import dot_backward, dot_forward
from adaptive.kernels.rows import gpu

from .plain_interactions import aligned, concatenation, num_dots, padded, stacked
from .plain_interactions import dot_interaction as plain_dot_interaction

__all__ = ["aligned", "concatenation", "dot_interaction", "num_dots", "plain_dot_interaction"]


def dot_interaction(bottom: Tensor, pooled: Tensor, *, include_self: bool = False) -> Tensor:
    """Return `[bottom | dots | zeros]`, (B, P), dots in the order of a lower triangle.

    Uses one fused pass each way for float32 on the CPU, and on a GPU with Triton for up to 32 vectors per sample.
    Elsewhere on a GPU it uses products and gathers (`gathered_dot_interaction`). These can be differentiated once. For
    other dtypes on the CPU, and while `torch.compile` traces, it uses plain torch operations.
    """
    if torch.compiler.is_compiling():
        return plain_dot_interaction(bottom, pooled, include_self=include_self)
    if _can_fuse(bottom) and _can_fuse(pooled):
        fused: Tensor = _FusedDots.apply(bottom, pooled, include_self)  # type: ignore[no-untyped-call]
        return fused
    if pooled.is_cuda:
        if pooled.dtype == bottom.dtype == torch.float32 and _has_triton(pooled.device, pooled, bottom):
            by_triton: Tensor = _TritonDots.apply(bottom, pooled, include_self)  # type: ignore[no-untyped-call]
            return by_triton
        return gathered_dot_interaction(bottom, pooled, include_self=include_self)
    return plain_dot_interaction(bottom, pooled, include_self=include_self)


def gathered_dot_interaction(bottom: Tensor, pooled: Tensor, *, include_self: bool = False) -> Tensor:
    """Compute `dot_interaction` with a gather and one product as its gradient.

    Works for any device and dtype; differentiable once. The gradient of `products[:, i, j]` would be a sum over
    indices, which torch sorts first although each occurs once; on a GPU that takes longer than the rest of the
    interaction. Nothing here is added atomically.
    """
    gathered: Tensor = _GatheredDots.apply(bottom, pooled, include_self)  # type: ignore[no-untyped-call]
    return gathered


@cache
def _pairs(num_vectors: int, include_self: bool, device: torch.device) -> Tensor:
    """Return (dots,) the position of each dot in the flattened matrix of products."""
    i, j = torch.tril_indices(num_vectors, num_vectors, offset=0 if include_self else -1)
    places: Tensor = i * num_vectors + j
    return places.to(device)


@cache
def _dots_of_pairs(num_vectors: int, include_self: bool, device: torch.device) -> Tensor:
    """Return (vectors * vectors,) the number of each pair's dot; 0 on an unused diagonal."""
    numbers = torch.zeros((num_vectors, num_vectors), dtype=torch.int64)
    i, j = torch.tril_indices(num_vectors, num_vectors, offset=0 if include_self else -1)
    numbers[i, j] = numbers[j, i] = torch.arange(len(i))
    return numbers.flatten().to(device)


def _empty_output(bottom: Tensor, pooled: Tensor, include_self: bool) -> Tensor:
    """Return an uninitialized output (B, P)."""
    dots = num_dots(pooled.shape[1] + (bottom.shape[1] > 0), include_self=include_self)
    return pooled.new_empty((len(pooled), aligned(bottom.shape[1] + dots)))


def _can_fuse(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


class _FusedDots(torch.autograd.Function):
    """The numba kernels as one node of the graph; saves only its inputs for the backward pass."""

    @staticmethod
    def forward(ctx: Any, bottom: Tensor, pooled: Tensor, include_self: bool) -> Tensor:
        bottom, pooled = bottom.detach().contiguous(), pooled.detach().contiguous()
        out = _empty_output(bottom, pooled, include_self)
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


class _GatheredDots(torch.autograd.Function):
    """`gathered_dot_interaction` as a node of the graph; saves the vectors for its gradient."""

    @staticmethod
    def forward(ctx: Any, bottom: Tensor, pooled: Tensor, include_self: bool) -> Tensor:
        bottom, pooled = bottom.detach(), pooled.detach()
        vectors = stacked(bottom, pooled)
        ctx.save_for_backward(vectors)
        ctx.num_copied, ctx.include_self = bottom.shape[1], include_self
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return padded(bottom, products.index_select(1, _pairs(vectors.shape[1], include_self, vectors.device)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (vectors,) = ctx.saved_tensors
        copied, num_vectors = ctx.num_copied, vectors.shape[1]
        places = _dots_of_pairs(num_vectors, ctx.include_self, vectors.device) + copied
        weights = grad.index_select(1, places).view(-1, num_vectors, num_vectors)
        if ctx.include_self:
            weights.diagonal(dim1=1, dim2=2).mul_(2)
        else:
            weights.diagonal(dim1=1, dim2=2).zero_()
        if not copied:
            return grad.new_empty((len(grad), 0)), torch.bmm(weights, vectors), None
        grad_bottom = grad[:, :copied] + torch.bmm(weights[:, :1], vectors).squeeze(1)
        return grad_bottom, torch.bmm(weights[:, 1:], vectors), None


class _TritonDots(torch.autograd.Function):
    """The Triton kernels as one node of the graph; saves only its inputs."""

    @staticmethod
    def forward(ctx: Any, bottom: Tensor, pooled: Tensor, include_self: bool) -> Tensor:
        from adaptive.kernels.gpu import interaction

        bottom, pooled = bottom.detach().contiguous(), pooled.detach().contiguous()
        out = _empty_output(bottom, pooled, include_self)
        ctx.tf32 = torch.backends.cuda.matmul.allow_tf32
        interaction.dot_forward(bottom, pooled, include_self, out, tf32=ctx.tf32)
        ctx.save_for_backward(bottom, pooled)
        ctx.include_self = include_self
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        from adaptive.kernels.gpu import interaction

        bottom, pooled = ctx.saved_tensors
        grads = torch.empty_like(bottom), torch.empty_like(pooled)
        interaction.dot_backward(bottom, pooled, ctx.include_self, grad.contiguous(), *grads, tf32=ctx.tf32)
        return *grads, None


def _has_triton(device: torch.device, pooled: Tensor, bottom: Tensor) -> bool:
    if not gpu.available(device):
        return False
    from adaptive.kernels.gpu import interaction

    return interaction.can_run(pooled, bottom)
