"""Layers of MLPs with DLRM's initial values, which multiply in oneDNN where that is faster.

torch computes float32 products with MKL, which uses 512-bit registers on Intel processors only: 97 GFLOPS on a core of
an AMD EPYC (Zen 5), where oneDNN, which is part of torch, reaches 190 to 235. The dense part of a step takes 0.74 to
0.79 of the time. The choice depends on the processor and the layer's size, never on a measurement or a number of
samples. So equal runs on a machine stay equal, also if batches are split.

The call is private in torch (`torch.ops.mkldnn._linear_pointwise`), so it is tried before it is relied on.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

MANY = 1 << 12  # minimum weights of a layer for oneDNN, whose call takes 13 us more
MANY_SUMS = 1 << 14  # minimum weights for their gradients, for which threads must add their partial sums


@cache
def multiplies_faster() -> bool:
    """Return True if oneDNN is faster on this processor: an AMD processor with AVX-512."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and _vendor() == "AuthenticAMD"
        and _has_product()
    )


def _has_product() -> bool:
    """Return True if this version of torch has the private call of oneDNN used here."""
    ones = torch.ones(1, 1)
    try:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(ones, ones, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(product, ones)


def _vendor() -> str:
    """Return the vendor of the processor on Linux, else an empty text."""
    try:
        with open(Path("/proc/cpuinfo"), encoding="ascii", errors="replace") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
    except OSError:
        return ""


class Linear(nn.Linear):
    """`nn.Linear`, with the same weights, names and gradients up to rounding."""

    def reset_parameters(self) -> None:
        """Leave new weights unwritten: `linear` draws them from the model's generator."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not _is_for_onednn(input, self.weight):
            return super().forward(input)
        product: Tensor = _Product.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return product


def _is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return True if oneDNN should multiply x (n, in) by weight (out, in)."""
    return (
        multiplies_faster()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and x.ndim == 2
        and len(x) > 0
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and weight.numel() >= MANY
        and not torch.is_autocast_enabled("cpu")
    )


class _Product(torch.autograd.Function):
    """x (n, in) times weight (out, in), transposed, plus bias (out,), with any derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            _Product.apply(gradient, weight.t(), None) if for_x else None,  # type: ignore[no-untyped-call]
            _of_weight(gradient, x) if for_weight else None,
            gradient.sum(0) if for_bias else None,
        )


def _of_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the weight's gradient (out, in) for the output's (n, out) and x (n, in)."""
    if gradient.shape[1] * x.shape[1] < MANY_SUMS:
        return gradient.t() @ x
    product: Tensor = _Product.apply(gradient.t(), x.t(), None)  # type: ignore[no-untyped-call]
    return product


class DroppedReLU(nn.Dropout):
    """ReLU followed by dropout."""

    def forward(self, values: Tensor) -> Tensor:
        dropped: Tensor = super().forward(torch.relu(values))
        return dropped


def layers(
    sizes: Sequence[int], generator: torch.Generator, *, columns: int | None = None, dropout: float = 0.0
) -> list[nn.Module]:
    """Return linear layers with ReLU between them.

    Args:
        columns: input columns of the first layer, including padding.
        dropout: share of the values between two layers that a step sets to 0.
    """
    modules: list[nn.Module] = []
    for num_inputs, num_outputs in pairwise(sizes):
        if modules:
            modules.append(activation(dropout))
        modules.append(linear(num_inputs, num_outputs, generator, columns=None if modules else columns))
    return modules


def activation(dropout: float) -> nn.Module:
    """Return an activation: one module with and without dropout, for equal names of weights."""
    return DroppedReLU(dropout) if dropout else nn.ReLU(inplace=True)


def linear(
    num_inputs: int, num_outputs: int, generator: torch.Generator, *, columns: int | None = None, bias: bool = True
) -> nn.Linear:
    """Return a layer with DLRM's initial deviations, sqrt(2 / (in + out)) and sqrt(1 / out)."""
    layer = Linear(columns or num_inputs, num_outputs, bias=bias, device="cpu")
    with torch.no_grad():
        layer.weight.zero_()
        weight = layer.weight.new_empty((num_outputs, num_inputs))
        layer.weight[:, :num_inputs] = weight.normal_(0, (2 / (num_inputs + num_outputs)) ** 0.5, generator=generator)
        if bias:
            layer.bias.normal_(0, (1 / num_outputs) ** 0.5, generator=generator)
    return layer


@torch.no_grad()
def set_last_bias(mlp: nn.Sequential, values: Tensor) -> None:
    """Overwrite the bias of an MLP's last layer."""
    last = mlp[-1]
    assert isinstance(last, nn.Linear)
    last.bias.copy_(values)
