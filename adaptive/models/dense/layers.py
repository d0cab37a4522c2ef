"""Layers of MLPs, with DLRM's initial values."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from .onednn import Linear


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
