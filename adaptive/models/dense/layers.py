"""Layers of MLPs: linear ones that oneDNN multiplies where it is faster, dropout that follows from seed and step.

`Linear`: torch has float32 products computed by MKL, which uses registers of 512 bits on Intel's processors only: 97
GFLOPS on a core of an AMD EPYC (Zen 5), where oneDNN, which comes with torch as well, has 190 to 235. Which of them
computes follows from the processor and the layer's size, never from a measurement or a number of samples: equal runs on
one machine stay equal, whatever parts a batch is run in.

`Dropout`: masks follow from seed, layer and step alone: neither torch's generator nor the order of work counts. So a
resumed run drops what it would have dropped, a batch that is run again drops the same, and a batch in parts drops of
each sample what it drops without parts. (Values are drawn by torch on the model's device: another kind of device has
other masks.)
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

MANY = 1 << 12  # weights of a layer: oneDNN's call takes 13 us more
MANY_SUMS = 1 << 14  # weights whose gradients are sums over samples: threads must add up what each of them has


@cache
def multiplies_faster() -> bool:
    """Whether oneDNN is faster on this processor: one of AMD's with AVX-512."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and _vendor() == "AuthenticAMD"
        and _has_product()
    )


def _has_product() -> bool:
    """Whether torch has its call of oneDNN as it is used here. It is torch's own: another version may change it."""
    ones = torch.ones(1, 1)
    try:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(ones, ones, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(product, ones)


def _vendor() -> str:
    """Whose processor this is, as Linux tells; empty elsewhere."""
    try:
        with open(Path("/proc/cpuinfo"), encoding="ascii", errors="replace") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
    except OSError:
        return ""


class Linear(nn.Linear):
    """`nn.Linear`, with the same weights, names and gradients up to rounding."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not _is_for_onednn(input, self.weight):
            return super().forward(input)
        product: Tensor = _Product.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return product


def _is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether x (n, in) times weight (out, in) is a product for oneDNN."""
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
    """x (n, in) times weight (out, in), transposed, plus bias (out,). It can be differentiated any number of times."""

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
    """(out, in) the weight's gradient, of the output's (n, out) and x (n, in)."""
    if gradient.shape[1] * x.shape[1] < MANY_SUMS:
        return gradient.t() @ x
    product: Tensor = _Product.apply(gradient.t(), x.t(), None)  # type: ignore[no-untyped-call]
    return product


class Dropout(nn.Module):
    """In training each value is set to 0 with probability `share`, and the others are divided by 1 - share.

    Until a trainer says otherwise, every pass is one of step 0: in a loop of your own call
    `at_step(model, planned.number)` before the forward pass.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise ValueError(f"dropout needs a share from 0 to below 1, found {share}")
        self.share = share
        self.seed = self.layer = self.step = self.first = 0
        self.samples = self.whole = 1

    def forward(self, values: Tensor) -> Tensor:
        """(n, ...) of (n, ...), where n is the number of samples, or so many times that."""
        if not self.training or not self.share:
            return values
        times, rest = divmod(len(values), self.samples)
        rows, first = (self.whole * times, self.first * times) if not rest and self.whole >= self.samples else (0, 0)
        generator = torch.Generator(values.device).manual_seed(self._number())
        shape = (rows or len(values), *values.shape[1:])
        kept = torch.rand(shape, generator=generator, device=values.device) >= self.share
        return values * kept[first : first + len(values)].to(values.dtype) / (1 - self.share)

    def _number(self) -> int:
        packed = struct.pack("<3Q", self.seed, self.layer, self.step)
        return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1

    def extra_repr(self) -> str:
        return f"share={self.share}"


class DroppedReLU(Dropout):
    """ReLU, and dropout behind it."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(torch.relu(values))


def dropouts(model: nn.Module) -> list[Dropout]:
    return [module for module in model.modules() if isinstance(module, Dropout)]


def seed_dropouts(model: nn.Module, seed: int) -> None:
    """Give each layer its number, and all the seed of the run."""
    for layer, module in enumerate(dropouts(model)):
        module.seed, module.layer = seed, layer


def at_step(model: nn.Module, step: int, *, first: int = 0, samples: int = 1, whole: int | None = None) -> None:
    """Say which step the next forward pass is of.

    Args:
        first, samples, whole: of a part of a batch its first sample, how many it has, and how many the batch has.
    """
    for module in dropouts(model):
        module.step, module.first, module.samples, module.whole = step, first, samples, whole or samples


def layers(
    sizes: Sequence[int], generator: torch.Generator, *, columns: int | None = None, dropout: float = 0.0
) -> list[nn.Module]:
    """Linear layers with ReLU between them.

    Args:
        columns: input columns of the first layer, with padding.
        dropout: share of the values between two layers that a step sets to 0.
    """
    modules: list[nn.Module] = []
    for num_inputs, num_outputs in pairwise(sizes):
        if modules:
            modules.append(activation(dropout))
        modules.append(linear(num_inputs, num_outputs, generator, columns=None if modules else columns))
    return modules


def activation(dropout: float) -> nn.Module:
    """What stands behind a hidden layer. One module with or without dropout, so that weights keep their names."""
    return DroppedReLU(dropout) if dropout else nn.ReLU(inplace=True)


def linear(
    num_inputs: int, num_outputs: int, generator: torch.Generator, *, columns: int | None = None, bias: bool = True
) -> nn.Linear:
    """A layer with DLRM's initial values: weights of deviation sqrt(2 / (in + out)), biases of sqrt(1 / out)."""
    layer = Linear(columns or num_inputs, num_outputs, bias=bias, device="meta").to_empty(device="cpu")
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
