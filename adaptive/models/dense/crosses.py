"""Models that cross features next to an MLP.

DCN-v2 (Wang et al., WWW 2021, arXiv 2008.13535): a cross network ("parallel" in the paper).

    x_{l+1} = x_0 * (W_l x_l + b_l) + x_l          W_l (n, n), or U_l V_l' with U_l, V_l (n, rank)
    logit   = w . [x_L, deep MLP(x_0)] + c

x_0 (n,) are the concatenated dense inputs and pooled vectors. Matrices have the initial values of the MLPs' layers,
each factor of low rank by its own inputs and outputs.

DeepFM (Guo et al., IJCAI 2017, arXiv 1703.04247): a factorization machine.

    logit = c + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j + deep MLP([dense, v of all features])

A row holds its first-order weight w, followed by its `embedding_dim` - 1 factors v. So one lookup serves all three
parts, and the weight moves with its row. Dense inputs have separate weights and factors. The ids of a bag are summed
first and form no pairs. The pairs cost O(F k), by Rendle's identity (ICDM 2010)

    sum_{i<j} <v_i, v_j> = ( |sum_i v_i|^2 - sum_i |v_i|^2 ) / 2

Letters: B samples, F features, D = `embedding_dim`, k = D - 1.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .base import Inputs, check_shapes, precision, side_by_side
from .layers import activation, layers, linear, set_last_bias

if TYPE_CHECKING:
    from adaptive.models.model_settings import DCNConfig, DeepFMConfig


class CrossLayer(nn.Module):
    """One layer of the cross network, from (B, n) to (B, n)."""

    def __init__(self, width: int, rank: int | None, generator: torch.Generator) -> None:
        super().__init__()
        self.down: nn.Linear | None = None
        if rank is not None:
            self.down = linear(width, rank, generator, bias=False)  # V'
        self.up = linear(width if rank is None else rank, width, generator)  # W or U, and b

    def forward(self, first: Tensor, values: Tensor) -> Tensor:
        """Return x_{l+1} (B, n) for x_0 and x_l."""
        crossed: Tensor = self.up(values if self.down is None else self.down(values))
        return first * crossed + values


class DCN(nn.Module):
    """DCN-v2: a cross network next to an MLP.

    Args:
        seed: of the initial weights; torch's global generator is neither read nor advanced.
    """

    def __init__(self, config: "DCNConfig", inputs: Inputs, *, seed: int = 0) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        generator, width = torch.Generator().manual_seed(seed), inputs.width(config.embedding_dim)
        self.cross = nn.ModuleList(CrossLayer(width, config.cross_rank, generator) for _ in range(config.cross_layers))
        self.deep = nn.Sequential(
            *layers((width, *config.deep_mlp), generator, dropout=config.dropout), activation(config.dropout)
        )
        self.last = linear(width + config.deep_mlp[-1], 1, generator)

    @torch.no_grad()
    def set_output_bias(self, logits: Tensor) -> None:
        """Set the bias to log odds (1,); see `adaptive.models.loss.start_at_base_rate`."""
        self.last.bias.copy_(logits)

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return logits (B,) for `dense` (B, num_dense) and `pooled` (B, F, D).

        A model converted with `.double()` takes and returns float64.

        Raises:
            ValueError: if a shape does not fit the model.
        """
        check_shapes(self, dense, pooled, self.inputs.num_dense, self.inputs.num_features, self.config.embedding_dim)
        with precision(dense, self.config):
            first = crossed = side_by_side(dense, pooled)
            for layer in self.cross:
                crossed = layer(first, crossed)
            logits: Tensor = self.last(torch.cat([crossed, self.deep(first)], dim=1))
        return logits.to(pooled.dtype).squeeze(1)


class DeepFM(nn.Module):
    """A factorization machine and an MLP on the same rows. Arguments as in `DCN`."""

    def __init__(self, config: "DeepFMConfig", inputs: Inputs, *, seed: int = 0) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        generator, factors = torch.Generator().manual_seed(seed), config.embedding_dim - 1
        self.bias = nn.Parameter(torch.zeros(()))
        self.dense_weights = nn.Parameter(torch.zeros(inputs.num_dense))
        spread = (inputs.num_features * factors) ** -0.5
        self.dense_factors = nn.Parameter(
            torch.empty(inputs.num_dense, factors).normal_(0, spread, generator=generator)
        )
        width = inputs.num_dense + inputs.num_features * factors
        self.deep = nn.Sequential(*layers((width, *config.deep_mlp, 1), generator, dropout=config.dropout))

    def set_output_bias(self, logits: Tensor) -> None:
        """Set the bias to log odds (1,); see `adaptive.models.loss.start_at_base_rate`."""
        set_last_bias(self.deep, logits)  # `self.bias` starts at 0

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return logits (B,), as `DCN.forward`."""
        check_shapes(self, dense, pooled, self.inputs.num_dense, self.inputs.num_features, self.config.embedding_dim)
        weights, factors = pooled[:, :, 0], pooled[:, :, 1:]
        with precision(dense, self.config):
            first = self.bias + weights.sum(dim=1) + dense @ self.dense_weights
            deep: Tensor = self.deep(side_by_side(dense, factors)).squeeze(1)
            logits = first + self._pairs(dense, factors) + deep
        return logits.to(pooled.dtype)

    def _pairs(self, dense: Tensor, factors: Tensor) -> Tensor:
        """Return (B,) the sum over all pairs of features and dense inputs."""
        total = factors.sum(dim=1) + dense @ self.dense_factors
        squares = factors.square().sum(dim=(1, 2)) + dense.square() @ self.dense_factors.square().sum(dim=1)
        return (total.square().sum(dim=1) - squares) / 2
