"""DLRM's interaction in training, with fused kernels if possible.

In exports, `plain_interactions.py` replaces this file. Letters: B samples, F features, D values in a vector, P columns
of the output. `bottom` is the bottom MLP's output (B, D), or (B, 0) for a model without dense inputs; `pooled` is
(B, F, D). All are float32 unless noted.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adaptive.kernels.interaction import dot_backward, dot_forward
from adaptive.kernels.rows import gpu

from .plain_interactions import aligned, concatenation, num_dots
from .plain_interactions import dot_interaction as plain_dot_interaction

__all__ = ["aligned", "concatenation", "dot_interaction", "num_dots", "plain_dot_interaction"]


def dot_interaction(bottom: Tensor, pooled: Tensor) -> Tensor:
    """Return `[bottom | dots | zeros]`, (B, P), dots in the order of a lower triangle.

    Uses one fused pass each way for float32 on the CPU, and on a GPU with Triton for up to 32 vectors per sample. These
    can be differentiated once. Elsewhere, and while `torch.compile` traces, it uses plain torch operations.
    """
    if torch.compiler.is_compiling():
        return plain_dot_interaction(bottom, pooled)
    if _can_fuse(bottom) and _can_fuse(pooled):
        fused: Tensor = _FusedDots.apply(bottom, pooled)  # type: ignore[no-untyped-call]
        return fused
    if pooled.is_cuda and pooled.dtype == bottom.dtype == torch.float32 and _has_triton(pooled.device, pooled, bottom):
        by_triton: Tensor = _TritonDots.apply(bottom, pooled)  # type: ignore[no-untyped-call]
        return by_triton
    return plain_dot_interaction(bottom, pooled)


def _empty_output(bottom: Tensor, pooled: Tensor) -> Tensor:
    """Return an uninitialized output (B, P)."""
    dots = num_dots(pooled.shape[1] + (bottom.shape[1] > 0))
    return pooled.new_empty((len(pooled), aligned(bottom.shape[1] + dots)))


def _can_fuse(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


class _FusedDots(torch.autograd.Function):
    """The numba kernels as one node of the graph; saves only its inputs for the backward pass."""

    @staticmethod
    def forward(ctx: Any, bottom: Tensor, pooled: Tensor) -> Tensor:
        bottom, pooled = bottom.detach().contiguous(), pooled.detach().contiguous()
        out = _empty_output(bottom, pooled)
        dot_forward(bottom.numpy(), pooled.numpy(), out.numpy())
        ctx.save_for_backward(bottom, pooled)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        bottom, pooled = ctx.saved_tensors
        grad_bottom, grad_pooled = torch.empty_like(bottom), torch.empty_like(pooled)
        dot_backward(
            bottom.numpy(),
            pooled.numpy(),
            grad.contiguous().numpy(),
            grad_bottom.numpy(),
            grad_pooled.numpy(),
        )
        return grad_bottom, grad_pooled


class _TritonDots(torch.autograd.Function):
    """The Triton kernels as one node of the graph; saves only its inputs."""

    @staticmethod
    def forward(ctx: Any, bottom: Tensor, pooled: Tensor) -> Tensor:
        from adaptive.kernels.gpu import interaction

        bottom, pooled = bottom.detach().contiguous(), pooled.detach().contiguous()
        out = _empty_output(bottom, pooled)
        ctx.tf32 = torch.backends.cuda.matmul.allow_tf32
        interaction.dot_forward(bottom, pooled, out, tf32=ctx.tf32)
        ctx.save_for_backward(bottom, pooled)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        from adaptive.kernels.gpu import interaction

        bottom, pooled = ctx.saved_tensors
        grads = torch.empty_like(bottom), torch.empty_like(pooled)
        interaction.dot_backward(bottom, pooled, grad.contiguous(), *grads, tf32=ctx.tf32)
        return grads


def _has_triton(device: torch.device, pooled: Tensor, bottom: Tensor) -> bool:
    if not gpu.available(device):
        return False
    from adaptive.kernels.gpu import interaction

    return interaction.can_run(pooled, bottom)
