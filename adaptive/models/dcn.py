"""DCN-v2 (Wang et al., WWW 2021, arXiv 2008.13535): a cross network beside an MLP ("parallel" in the paper).

    x_{l+1} = x_0 * (W_l x_l + b_l) + x_l          W_l (n, n), or U_l V_l' with U_l, V_l (n, rank)
    logit   = w . [x_L, deep MLP(x_0)] + c

x_0 (n,) are the dense inputs and all pooled vectors side by side. Matrices have the initial values of the MLPs' layers,
the two of a low rank each by its own inputs and outputs.

Letters: B samples, F features, D = `embedding_dim`.
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from adaptive.models.common import CheckedModel, Inputs, ModelConfig, side_by_side
from adaptive.models.dlrm import LayerSizes, activation, layers, linear


class DCNConfig(ModelConfig):
    """Shape of a DCN-v2: cross network and MLP side by side on dense inputs and vectors."""

    cross_layers: int = Field(default=3, ge=1, le=64, description="layers of the cross network")
    cross_rank: int | None = Field(
        default=None, ge=1, description="rank of their matrices, as two factors; null: whole matrices"
    )
    deep_mlp: LayerSizes = Field(
        default=(128, 64), description="layer sizes of the MLP beside the cross network, without its input"
    )


class CrossLayer(nn.Module):
    """One layer of the cross network, from (B, n) to (B, n)."""

    def __init__(self, width: int, rank: int | None, generator: torch.Generator) -> None:
        super().__init__()
        self.down: nn.Linear | None = None
        if rank is not None:
            self.down = linear(width, rank, generator, bias=False)  # V'
        self.up = linear(width if rank is None else rank, width, generator)  # W or U, and b

    def forward(self, first: Tensor, values: Tensor) -> Tensor:
        """(B, n) of x_0 and x_l."""
        found: Tensor = self.up(values if self.down is None else self.down(values))
        return first * found + values


class DCN(CheckedModel):
    """DCN-v2, see the module. Takes what `CheckedModel` says."""

    def __init__(self, config: DCNConfig, inputs: Inputs, *, seed: int = 0) -> None:
        super().__init__(config, inputs)
        self.config = config
        generator, width = torch.Generator().manual_seed(seed), inputs.width(config.embedding_dim)
        self.cross = nn.ModuleList(CrossLayer(width, config.cross_rank, generator) for _ in range(config.cross_layers))
        self.deep = nn.Sequential(
            *layers((width, *config.deep_mlp), generator, dropout=config.dropout), activation(config.dropout)
        )
        self.last = linear(width + config.deep_mlp[-1], 1, generator)

    @torch.no_grad()
    def set_output_bias(self, logits: Tensor) -> None:
        """Start at log odds (1,); see `adaptive.models.tasks.start_at_base_rate`."""
        self.last.bias.copy_(logits)

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        first = crossed = side_by_side(dense, pooled)
        for layer in self.cross:
            crossed = layer(first, crossed)
        logits: Tensor = self.last(torch.cat([crossed, self.deep(first)], dim=1))
        return logits.squeeze(1)
