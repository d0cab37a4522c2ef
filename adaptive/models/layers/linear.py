"""`Linear`: `nn.Linear` whose products go to oneDNN on processors where that multiplies faster than what torch calls.

torch has float32 products computed by MKL, which uses registers of 512 bits on Intel's processors only: 97 GFLOPS on a
core of an AMD EPYC (Zen 5), where oneDNN, which comes with torch as well, has 190 to 235. Which of them computes
follows from the processor and the layer's size, never from a measurement or a number of samples: equal runs on one
machine stay equal, whatever parts a batch is run in.
"""

from functools import cache
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
    one = torch.ones(1, 1)
    try:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(one, one, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(found, one)


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
        found: Tensor = _Product.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found


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
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return found

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
    found: Tensor = _Product.apply(gradient.t(), x.t(), None)  # type: ignore[no-untyped-call]
    return found
