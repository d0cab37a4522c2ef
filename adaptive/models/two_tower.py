"""Two towers: an MLP for what is known of the user, one for what is known of the item, and the dot product of both.

    logit = <user MLP([user's dense, user's vectors]), item MLP([item's dense, item's vectors])> / temperature + c

So items can be scored by a search for near vectors. Which tables are the user's is a setting.

Letters: B samples, E last size of `tower_mlp`.
"""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from adaptive.errors import ConfigError
from adaptive.models.common import CheckedModel, Inputs, ModelConfig, side_by_side
from adaptive.models.dlrm import LayerSizes, layers


class TwoTowerConfig(ModelConfig):
    """Shape of two towers, of a user and an item."""

    user_tables: tuple[str, ...] = Field(default=(), description="tables of the user's tower; needed")
    item_tables: tuple[str, ...] = Field(
        default=(), description="tables of the item's tower; empty: all that are not the user's"
    )
    item_dense: tuple[str, ...] = Field(
        default=(), description="dense inputs of the item's tower, by name; all others are the user's"
    )
    tower_mlp: LayerSizes = Field(
        default=(64, 32), description="layer sizes of each tower without its input; the last is the vectors' that meet"
    )
    unit_vectors: bool = Field(default=False, description="bring both vectors to length 1 before they meet")
    temperature: float = Field(default=1.0, gt=0, description="what the dot product is divided by")


class TwoTower(CheckedModel):
    """Two towers, see the module. Takes what `CheckedModel` says.

    Attributes:
        user_features, item_features: positions of the features of each.
        user_dense, item_dense: positions of the dense inputs of each.

    Raises:
        ConfigError: if a table or dense input is not there, is in both towers or in none, or a tower is empty.
    """

    def __init__(self, config: TwoTowerConfig, inputs: Inputs, *, seed: int = 0) -> None:
        super().__init__(config, inputs)
        self.config = config
        user, item = _towers(config, inputs)
        self.user_features = [number for number, table in enumerate(inputs.tables) if table in user]
        self.item_features = [number for number, table in enumerate(inputs.tables) if table in item]
        self.item_dense = _dense_positions(config, inputs)
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
        """Start at log odds (1,); see `adaptive.models.tasks.start_at_base_rate`."""
        self.bias.copy_(logits[0])

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        user, item = self.vectors(dense, pooled)
        return (user * item).sum(dim=1) / self.config.temperature + self.bias

    def vectors(self, dense: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """(B, E) of the user and (B, E) of the item, of normalised vectors."""
        user = self.user(side_by_side(_picked(dense, self.user_dense), _picked(pooled, self.user_features)))
        item = self.item(side_by_side(_picked(dense, self.item_dense), _picked(pooled, self.item_features)))
        return (normalize(user, dim=1), normalize(item, dim=1)) if self.config.unit_vectors else (user, item)


def _picked(values: Tensor, positions: Sequence[int]) -> Tensor:
    """values (B, n, ...) at these positions of the second dimension. By slices: a list would be sent to a GPU in every
    step, which waits."""
    if not positions:
        return values[:, :0]
    return torch.cat([values[:, one : one + 1] for one in positions], dim=1)


def _towers(config: TwoTowerConfig, inputs: Inputs) -> tuple[set[str], set[str]]:
    """The tables of the user and of the item."""
    tables = list(dict.fromkeys(inputs.tables))
    there = f"there are: {', '.join(tables)}"
    user, item = set(config.user_tables), set(config.item_tables)
    if not user:
        example = f"--set 'model.user_tables=[\"{tables[0]}\"]'"
        raise ConfigError(f"model two-tower needs the user's tables, such as {example}; {there}")
    unknown = sorted((user | item) - set(tables))
    if unknown:
        raise ConfigError(f"model two-tower: no table {', '.join(unknown)}; {there}")
    if user & item:
        raise ConfigError(f"model two-tower: {', '.join(sorted(user & item))} in user_tables and in item_tables")
    item = item or set(tables) - user
    if not item:
        raise ConfigError("model two-tower: all tables are the user's, and none is left for the item")
    if left := [table for table in tables if table not in user | item]:
        raise ConfigError(f"model two-tower: {', '.join(left)} in neither user_tables nor item_tables")
    return user, item


def _dense_positions(config: TwoTowerConfig, inputs: Inputs) -> list[int]:
    names = inputs.dense_names or tuple(f"dense_{number}" for number in range(inputs.num_dense))
    unknown = [name for name in config.item_dense if name not in names]
    if unknown:
        raise ConfigError(
            f"model two-tower: item_dense: no dense input {', '.join(unknown)}; there are: {', '.join(names) or 'none'}"
        )
    return [number for number, name in enumerate(names) if name in config.item_dense]
