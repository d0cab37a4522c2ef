"""How DLRM's vectors meet in training: by fused kernels where there are some. Exports have `plain_interactions` here.

Letters: B samples, F features, D values in a vector, P columns of the output. `bottom` is the bottom MLP's output
(B, D), or (B, 0) where a model has no dense inputs; `pooled` is (B, F, D). All float32 unless said otherwise.
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
    """`[bottom | dots | zeros]`, (B, P), the dots in the order of a matrix's lower triangle, row by row.

    One fused pass each way for float32 on the CPU, and on a GPU with Triton for up to 32 vectors a sample; elsewhere on
    a GPU products and gathers (`gathered_dot_interaction`). These can be differentiated once. Plain torch operations on
    the CPU for other dtypes, and while `torch.compile` traces.
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
    """`dot_interaction` whose gradient is a gather and one product, for any device and dtype; differentiable once.

    The gradient of `products[:, i, j]` is a sum over places that torch sorts first, as if they could come twice, though
    each comes once: on a GPU it takes longer than the rest of the interaction. Nothing here is added atomically.
    """
    gathered: Tensor = _GatheredDots.apply(bottom, pooled, include_self)  # type: ignore[no-untyped-call]
    return gathered


@cache
def _pairs(num_vectors: int, include_self: bool, device: torch.device) -> Tensor:
    """(dots,) where each dot stands in the matrix of products, flattened."""
    i, j = torch.tril_indices(num_vectors, num_vectors, offset=0 if include_self else -1)
    places: Tensor = i * num_vectors + j
    return places.to(device)


@cache
def _dots_of_pairs(num_vectors: int, include_self: bool, device: torch.device) -> Tensor:
    """(vectors * vectors,) number of the dot of each pair, either way round; 0 on a diagonal that has none."""
    numbers = torch.zeros((num_vectors, num_vectors), dtype=torch.int64)
    i, j = torch.tril_indices(num_vectors, num_vectors, offset=0 if include_self else -1)
    numbers[i, j] = numbers[j, i] = torch.arange(len(i))
    return numbers.flatten().to(device)


def _empty_output(bottom: Tensor, pooled: Tensor, include_self: bool) -> Tensor:
    """(B, P), not written."""
    dots = num_dots(pooled.shape[1] + (bottom.shape[1] > 0), include_self=include_self)
    return pooled.new_empty((len(pooled), aligned(bottom.shape[1] + dots)))


def _can_fuse(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


class _FusedDots(torch.autograd.Function):
    """The numba kernels as one node of the graph; keeps its two inputs and nothing else for the backward pass."""

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
    """`gathered_dot_interaction` as one node of the graph; keeps the vectors for the backward pass."""

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
    """Triton's kernels as one node of the graph; keeps its two inputs and nothing else for the backward pass."""

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
