"""Layers of MLPs: linear layers that use oneDNN if it is faster, and reproducible dropout.

`Linear`: torch computes float32 products with MKL, which uses 512-bit registers on Intel processors only: 97 GFLOPS on
a core of an AMD EPYC (Zen 5), where oneDNN, which is part of torch, reaches 190 to 235. The choice depends on the
processor and the layer's size, never on a measurement or a number of samples. So equal runs on a machine stay equal,
also if batches are split.

`Dropout`: masks depend on seed, layer and step only, not on torch's generator or the order of work. So a resumed run, a
batch that is run again and a batch in parts drop the same values. (torch draws them on the model's device; another kind
of device has other masks.)
"""

import hashlib
import struct
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


class Dropout(nn.Module):
    """Dropout: in training, set values to 0 with probability `share`, and scale the others.

    The trainer sets the step. In a custom loop, call `at_step(model, planned.number)` before the forward pass;
    otherwise every pass belongs to step 0.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise ValueError(f"dropout: expected a share from 0 to below 1, got {share}. Lower it.")
        self.share = share
        self.seed = self.layer = self.step = self.first = 0
        self.samples = self.whole = 1

    def forward(self, values: Tensor) -> Tensor:
        """Drop values of (n, ...), where n is a multiple of the number of samples."""
        if not self.training or not self.share:
            return values
        times, rest = divmod(len(values), self.samples)
        rows, first = (self.whole * times, self.first * times) if not rest and self.whole >= self.samples else (0, 0)
        generator = torch.Generator(values.device).manual_seed(self._number())
        shape = (rows or len(values), *values.shape[1:])
        mask = torch.rand(shape, generator=generator, device=values.device) >= self.share
        return values * mask[first : first + len(values)].to(values.dtype) / (1 - self.share)

    def _number(self) -> int:
        packed = struct.pack("<3Q", self.seed, self.layer, self.step)
        return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1

    def extra_repr(self) -> str:
        return f"share={self.share}"


class DroppedReLU(Dropout):
    """ReLU followed by dropout."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(torch.relu(values))


def dropouts(model: nn.Module) -> list[Dropout]:
    """Return the dropout layers of a model, in order."""
    return [module for module in model.modules() if isinstance(module, Dropout)]


def seed_dropouts(model: nn.Module, seed: int) -> None:
    """Set the number of each dropout layer, and the seed of the run."""
    for layer, module in enumerate(dropouts(model)):
        module.seed, module.layer = seed, layer


def at_step(model: nn.Module, step: int, *, first: int = 0, samples: int = 1, whole: int | None = None) -> None:
    """Set the step of the next forward pass.

    Args:
        first, samples, whole: for a part of a batch: its first sample, its number of samples, and that of the batch.
    """
    for module in dropouts(model):
        module.step, module.first, module.samples, module.whole = step, first, samples, whole or samples


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
