"""Two towers: an MLP for the user, one for the item, and the dot product of both.

    logit = <user MLP([user's dense, user's vectors]), item MLP([item's dense, item's vectors])> / temperature + c

So items can be ranked by a nearest-neighbor search. A setting lists the user's tables.

With `loss = "in_batch_softmax"` the items of a batch are each other's negatives (Yi et al., RecSys 2019): the loss of a
sample i with label 1 is

    -log softmax over j of (<user i, item j> / temperature - log q_j)  at j = i

where q_j is the share of item j among the items of all samples so far, this batch included. Frequent items occur as
negatives more often, and `logq` corrects for it. Other samples with item i are left out of the sum. The paper estimates
q from the distance between occurrences; here it is counted, by the training thread, so it depends on neither look-ahead
nor placement.

An item may have more features than its id, and dense inputs. In a batch they are those of its samples. All items are
ranked with the features of their latest training sample; where no sample had an item, its vectors are zeros.

Letters: B samples, E last size of `tower_mlp`, R rows of the item's table, S features of the item other than its id.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from .base import CheckedModel, Inputs, check_shapes, precision, side_by_side
from .layers import layers

if TYPE_CHECKING:
    from adaptive.models.model_settings import TwoTowerConfig


class Items(NamedTuple):
    """The items of samples, with their features."""

    ids: Tensor  # (B,) int64, rows of the item's table
    rows: Tensor  # (B, S) int64, rows of the tables of the other features
    numbers: Tensor  # (B, dense inputs of the item) float32


class TwoTower(CheckedModel):
    """Two towers. See `CheckedModel` for its arguments.

    Attributes:
        user_features, item_features: positions of the features of each.
        user_dense, item_dense: positions of the dense inputs of each.
        ranks_items: True if the loss is `in_batch_softmax`. Features of the item have one id per sample then, and
            `item_counts` (R,) int64 counts the samples of each item, `total_count` () all of them.
        item_id: position of the feature that is the item's id, if the model ranks items.
        side_features: (S,) positions of the other features of the item. `side_rows` (R, S) int64 holds those of each
            item's latest sample, -1 before; and `side_numbers` (R, dense inputs of the item).
    """

    item_counts: Tensor
    total_count: Tensor
    side_rows: Tensor
    side_numbers: Tensor

    changes_buffers = False
    """False: passes change no buffer, so a trainer need not restore any; `count` does, after a step."""

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
        self.ranks_items = self.mixes_samples = config.loss == "in_batch_softmax"
        if self.ranks_items:
            self.bias.requires_grad_(False)  # equal for all items
            tables = [inputs.tables[feature] for feature in self.item_features]
            self.item_id = self.item_features[tables.index(config.item_id) if config.item_id else 0]
            self.side_features = [feature for feature in self.item_features if feature != self.item_id]
            rows = inputs.rows[self.item_id]
            self.register_buffer("item_counts", torch.zeros(rows, dtype=torch.int64))
            side, dense = len(self.side_features), len(self.item_dense)  # a buffer without columns is not stored
            self.register_buffer("side_rows", torch.full((rows, side), -1), persistent=side > 0)
            self.register_buffer("side_numbers", torch.zeros(rows, dense), persistent=dense > 0)
            self.register_buffer("total_count", torch.zeros((), dtype=torch.int64), persistent=False)
            self.register_load_state_dict_post_hook(TwoTower._count_all)  # type: ignore[no-untyped-call]

    def _count_all(self, _: object) -> None:
        self.total_count.copy_(self.item_counts.sum())

    @torch.no_grad()
    def set_output_bias(self, logits: Tensor) -> None:
        """Set the bias to log odds (1,), if there is a bias; see `adaptive.models.tasks.start_at_base_rate`."""
        if not self.ranks_items:
            self.bias.copy_(logits[0])

    def in_batch_loss(
        self, dense: Tensor, pooled: Tensor, items: Tensor, labels: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return logits (B,) and the mean loss () of the samples with label 1; call `count` after the step.

        Args:
            dense, pooled: as for `forward`.
            items: (B,) int64 row of each sample's item in its table.
            labels: (B,). Samples with other labels than 1 are negatives only.
            weights: (B,) factor of each sample's loss; None: 1.
        """
        user, item = self.tower_vectors(dense, pooled)
        return self.ranking_loss(user, item, items, labels == 1, weights)

    def tower_vectors(self, dense: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, E) of the user and (B, E) of the item; arguments as for `forward`."""
        check_shapes(self, dense, pooled, self.inputs.num_dense, self.inputs.num_features, self.embedding_dim)
        with precision(dense, self.settings):
            user, item = (part.to(pooled.dtype) for part in self.vectors(dense, self.feature_norm(pooled)))
        return user, item

    def ranking_loss(
        self,
        user: Tensor,
        item: Tensor,
        items: Tensor,
        is_positive: Tensor,
        weights: Tensor | None,
        first: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Return logits (n,) and the share () of the batch's loss of its samples `first` to `first` + n - 1.

        Args:
            user: (n, E) vectors of these samples.
            item, items, is_positive: (B, E) vectors, (B,) rows and (B,) flags of the whole batch.
            weights: (n,), or None.
        """
        samples = torch.arange(len(user), device=items.device)
        places = samples + first
        scores = user @ item.T / self.config.temperature
        logits = scores[samples, places].detach()
        repeats = items[places, None] == items
        if self.config.logq:
            counts = self.item_counts[items] + (items[:, None] == items).sum(dim=1)  # with this batch
            scores = scores - (counts.double() / (self.total_count + len(items))).log().to(scores.dtype)
        repeats[samples, places] = False
        losses = cross_entropy(scores.masked_fill(repeats, -torch.inf), places, reduction="none")
        positives = is_positive.to(losses.dtype)
        chosen = positives[places] if weights is None else positives[places] * weights
        return logits, (losses * chosen).sum() / positives.sum().clamp(min=1)

    @torch.no_grad()
    def count(self, items: Items) -> None:
        """Add the items of a trained batch to the counts, and keep their features; the last sample of an item wins.

        Items on the CPU are searched there, so that a GPU need not wait.
        """
        device = self.item_counts.device
        ids = items.ids.to(device)
        self.item_counts.index_add_(0, ids, torch.ones_like(ids))
        self.total_count += len(ids)
        if not self.side_features and not self.item_dense:
            return
        ordered, order = items.ids.sort(stable=True)
        is_last = torch.ones_like(ordered, dtype=torch.bool)
        is_last[:-1] = ordered[1:] != ordered[:-1]
        places = order[is_last]
        latest = Items(*(part[places].to(device) for part in items))
        self.side_rows[latest.ids] = latest.rows
        self.side_numbers[latest.ids] = latest.numbers

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        user, item = self.vectors(dense, pooled)
        return (user * item).sum(dim=1) / self.config.temperature + self.bias

    def vectors(self, dense: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, E) of the user and (B, E) of the item, for normalized vectors."""
        items = side_by_side(_picked(dense, self.item_dense), _picked(pooled, self.item_features))
        return self.user_vectors(dense, pooled), self.item_vectors(items)

    def user_vectors(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return (B, E) of the user, for normalized vectors."""
        users = side_by_side(_picked(dense, self.user_dense), _picked(pooled, self.user_features))
        return self._scaled(self.user(users))

    def item_vectors(self, items: Tensor) -> Tensor:
        """Return (n, E) for inputs of the item's tower."""
        return self._scaled(self.item(items))

    def catalog_vectors(self, first: int, rows: Tensor, tables: Mapping[int, Tensor]) -> Tensor:
        """Return (n, E) of the items `first` to `first` + n - 1, with the features of their latest samples.

        Args:
            rows: (n, D) of these items.
            tables: feature of the item other than its id -> all rows of its table.
        """
        stop = first + len(rows)
        vectors = {self.item_id: rows}
        for column, feature in enumerate(self.side_features):
            places = self.side_rows[first:stop, column]
            vectors[feature] = tables[feature][places.clamp(min=0)] * (places >= 0)[:, None]
        stacked = torch.stack([vectors[feature] for feature in self.item_features], dim=1)
        return self.item_vectors(side_by_side(self.side_numbers[first:stop], stacked))

    def _scaled(self, vectors: Tensor) -> Tensor:
        return normalize(vectors, dim=1) if self.config.unit_vectors else vectors


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
