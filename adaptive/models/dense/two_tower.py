"""Two towers: an MLP for the user, one for the item, and the dot product of both.

    logit = <user MLP([user's dense, user's vectors]), item MLP([item's dense, item's vectors])> / temperature + c

So items can be ranked by a nearest-neighbor search. A setting lists the user's tables.

Letters: B samples, E last size of `tower_mlp`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from .base import CheckedModel, Inputs, side_by_side
from .layers import layers

if TYPE_CHECKING:
    from adaptive.models.model_settings import TwoTowerConfig


class TwoTower(CheckedModel):
    """Two towers. See `CheckedModel` for its arguments.

    Attributes:
        user_features, item_features: positions of the features of each.
        user_dense, item_dense: positions of the dense inputs of each.
    """

    def __init__(self, config: "TwoTowerConfig", inputs: Inputs, *, seed: int = 0) -> None:
        super().__init__(config, inputs)
        self.config = config
        is_user = [table in config.user_tables for table in inputs.tables]
        self.user_features = [number for number, holds in enumerate(is_user) if holds]
        self.item_features = [number for number, holds in enumerate(is_user) if not holds]
        self.item_dense = [n for n, name in enumerate(dense_names(inputs)) if name in config.item_dense]
        self.user_dense = [number for number in range(inputs.num_dense) if number not in self.item_dense]
        generator = torch.Generator().manual_seed(seed)

        def tower(features: Sequence[int], dense: Sequence[int]) -> nn.Sequential:
            width = len(features) * config.embedding_dim + len(dense)
            return nn.Sequential(*layers((width, *config.tower_mlp), generator, dropout=config.dropout))

        self.user = tower(self.user_features, self.user_dense)
        self.item = tower(self.item_features, self.item_dense)
        self.bias = nn.Parameter(torch.zeros(()))

    @torch.no_grad()
    def set_output_bias(self, logits: Tensor) -> None:
        """Set the bias to log odds (1,); see `adaptive.models.tasks.start_at_base_rate`."""
        self.bias.copy_(logits[0])

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        user, item = self.vectors(dense, pooled)
        return (user * item).sum(dim=1) / self.config.temperature + self.bias

    def vectors(self, dense: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, E) of the user and (B, E) of the item, for normalized vectors."""
        user = self.user(side_by_side(_picked(dense, self.user_dense), _picked(pooled, self.user_features)))
        item = self.item(side_by_side(_picked(dense, self.item_dense), _picked(pooled, self.item_features)))
        return (normalize(user, dim=1), normalize(item, dim=1)) if self.config.unit_vectors else (user, item)


def _picked(values: Tensor, positions: Sequence[int]) -> Tensor:
    """Return values (B, n, ...) at these positions of the second dimension.

    Slices, since a list of indices would be copied to a GPU in every step, which waits.
    """
    if not positions:
        return values[:, :0]
    return torch.cat([values[:, place : place + 1] for place in positions], dim=1)


def dense_names(inputs: Inputs) -> tuple[str, ...]:
    """Return (num_dense,) names of the dense inputs; numbered if the data have none."""
    return inputs.dense_names or tuple(f"dense_{number}" for number in range(inputs.num_dense))
