"""Models against the formulas of their papers, written out sample by sample."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from adaptive.models.dense.base import Inputs

WIDTH, SAMPLES = 4, 5


def arguments(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Dense inputs (B, n) and pooled vectors (B, F, D) in float64."""
    generator = torch.Generator().manual_seed(3)
    dense = torch.randn(SAMPLES, inputs.num_dense, generator=generator)
    return dense.double(), torch.randn(SAMPLES, inputs.num_features, WIDTH, generator=generator).double()


def mlp(layers: nn.Sequential, values: Tensor) -> Tensor:
    """Of one vector (n,)."""
    for layer in layers:
        values = layer.weight @ values + layer.bias if isinstance(layer, nn.Linear) else values.clamp(min=0)
    return values


def shift_weights(model: nn.Module) -> None:
    """In float64, so that weights that begin at 0 count, too."""
    with torch.no_grad():
        for weight in model.double().parameters():
            weight += 0.1


def assert_is_formula(model: nn.Module, by_hand: Callable[[Tensor, Tensor], Tensor], inputs: Inputs) -> None:
    """Logits and all gradients are those of the formula `by_hand(dense (n,), vectors (F, D))` of one sample."""
    actual: list[list[Tensor]] = []
    for forward in (model, lambda d, p: torch.stack([by_hand(*one) for one in zip(d, p, strict=True)])):
        dense, pooled = (tensor.requires_grad_() for tensor in arguments(inputs))
        model.zero_grad()
        logits = forward(dense, pooled)
        logits.square().sum().backward()
        grads = [weight.grad for weight in model.parameters()]
        actual.append([logits.detach(), *(g.clone() for g in (dense.grad, pooled.grad, *grads) if g is not None)])
    assert len(actual[0]) == len(actual[1]) == 3 + len(list(model.parameters()))
    for ours, hands in zip(*actual, strict=True):
        torch.testing.assert_close(ours, hands, rtol=1e-9, atol=1e-11)
