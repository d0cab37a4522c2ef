"""DeepFM (Guo et al., IJCAI 2017, arXiv 1703.04247): a factorisation machine and an MLP on the same rows.

    logit = c + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j + deep MLP([dense, v of all features])

A row holds its first-order weight w, its first value, and behind it its factors v, `embedding_dim` - 1 of them. So one
look-up serves all three parts, and the weight travels with its row. Dense inputs have weights and factors of their own.
The ids of one bag are summed first and do not meet each other. The pairs cost O(F k), by Rendle's identity (ICDM 2010)

    sum_{i<j} <v_i, v_j> = ( |sum_i v_i|^2 - sum_i |v_i|^2 ) / 2

Letters: B samples, F features, k = `embedding_dim` - 1.
"""

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from adaptive.models.common import CheckedModel, Inputs, ModelConfig, set_last_bias, side_by_side
from adaptive.models.dlrm import LayerSizes, layers


class DeepFMConfig(ModelConfig):
    """Shape of a DeepFM. The first of a row's `embedding_dim` values is its first-order weight, the others are its
    factors."""

    deep_mlp: LayerSizes = Field(
        default=(128, 64), description="layer sizes of the MLP beside the pairs, without its input and its output of 1"
    )

    @model_validator(mode="after")
    def _has_factors(self) -> "DeepFMConfig":
        if self.embedding_dim < 2:
            raise ValueError("deepfm needs embedding_dim of 2 or more, a weight and a factor; found 1")
        return self


class DeepFM(CheckedModel):
    """DeepFM, see the module. Takes what `CheckedModel` says."""

    def __init__(self, config: DeepFMConfig, inputs: Inputs, *, seed: int = 0) -> None:
        super().__init__(config, inputs)
        self.config = config
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
        """Start at log odds (1,); see `adaptive.models.tasks.start_at_base_rate`."""
        set_last_bias(self.deep, logits)  # `self.bias` starts at 0

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        weights, factors = pooled[:, :, 0], pooled[:, :, 1:]
        first = self.bias + weights.sum(dim=1) + dense @ self.dense_weights
        deep: Tensor = self.deep(side_by_side(dense, factors)).squeeze(1)
        return first + self._pairs(dense, factors) + deep

    def _pairs(self, dense: Tensor, factors: Tensor) -> Tensor:
        """(B,) the sum over all pairs of features and dense inputs."""
        total = factors.sum(dim=1) + dense @ self.dense_factors
        squares = factors.square().sum(dim=(1, 2)) + dense.square() @ self.dense_factors.square().sum(dim=1)
        return (total.square().sum(dim=1) - squares) / 2
