"""Ranks of items among all items: Recall@k and NDCG@k of a model that ranks items, exactly.

Letters: n samples, R rows of the item's table, E values of a vector.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import InputError
from adaptive.models.dense.two_tower import TwoTower

CUTOFFS: Final = (10, 20, 100)
MOST_SCORES: Final = 1 << 20  # computed at once: 4 MiB stay in the cache, 64 MiB take 3.5 to 4 times as long
LEAST_USERS: Final = 4  # scored at once, also if there are many items


def ranking_model(model: nn.Module) -> TwoTower | None:
    """Return the model if it ranks items, else None."""
    return model if isinstance(model, TwoTower) and model.ranks_items else None


def items_of(model: TwoTower, batch: Batch) -> Tensor:
    """Return the item (B,) int64 of each sample; raise InputError unless each sample has one."""
    feature = model.item_features[0]
    if not batch.has_one_each(feature):
        raise InputError(f"expected one item per sample, got none or several (feature {feature}). Correct the data.")
    return torch.from_numpy(batch.ids[batch.feature_span(feature)].copy())


def in_batch_loss(model: TwoTower, part: Planned, vectors: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return logits (B,) and the loss () of a batch; see `TwoTower.in_batch_loss`."""
    items = items_of(model, part.batch).to(vectors.device)
    return model.in_batch_loss(part.dense, vectors, items, part.labels, weights)


@torch.no_grad()
def item_vectors(embeddings: TieredEmbeddingBag, model: TwoTower) -> Iterator[Tensor]:
    """Yield the vectors of all items, (n, E) float32 for consecutive rows."""
    for rows in embeddings.rows.table_blocks(model.inputs.tables[model.item_features[0]]):
        yield model.item_vectors(torch.from_numpy(rows).to(embeddings.device)).float()


def target_ranks(users: Tensor, items: Tensor, targets: Tensor) -> Tensor:
    """Return the rank (n,) int64 of each target among all items, 0 if its score is the highest.

    Scores are dot products. Of equal scores, the lower row ranks higher.

    Args:
        users: (n, E).
        items: (R, E).
        targets: (n,) rows of the items.
    """
    ranks, places = [], torch.arange(len(items), device=items.device)
    step = max(LEAST_USERS, MOST_SCORES // len(items))
    for first in range(0, len(users), step):
        scores, wanted = users[first : first + step] @ items.T, targets[first : first + step, None]
        targeted = scores.gather(1, wanted)
        ranks.append((scores > targeted).sum(1) + ((scores == targeted) & (places < wanted)).sum(1))
    return torch.cat(ranks) if ranks else torch.zeros(0, dtype=torch.int64)


class Ranking:
    """Quality of the order in which a model ranks all items for the samples with label 1."""

    def __init__(self, embeddings: TieredEmbeddingBag, model: TwoTower) -> None:
        self._embeddings, self._model = embeddings, model
        self._items: Tensor | None = None
        self._ranks: list[Tensor] = []

    @torch.no_grad()
    def add(self, batch: Batch, vectors: Tensor) -> None:
        """Rank the items of a batch with vectors (B, F, D)."""
        if self._items is None:
            self._items = torch.cat(list(item_vectors(self._embeddings, self._model)))
        dense = torch.from_numpy(batch.dense).to(vectors.device)
        users = self._model.user_vectors(dense, vectors)
        positive = torch.from_numpy(batch.labels == 1)
        targets = items_of(self._model, batch)[positive].to(vectors.device)
        self._ranks.append(target_ranks(users[positive.to(vectors.device)].float(), self._items, targets).cpu())

    def quality(self) -> Mapping[str, float]:
        """Return Recall@k, the share of samples with a rank below k, and NDCG@k, for each cutoff k.

        With one relevant item per sample, the NDCG of a sample is 1 / log2(rank + 2) if its rank is below k, else 0.
        """
        ranks = torch.cat(self._ranks).double()
        if not len(ranks):
            return {}
        gains = 1 / torch.log2(ranks + 2)
        numbers = {f"recall@{k}": float((ranks < k).double().mean()) for k in CUTOFFS}
        return numbers | {f"ndcg@{k}": float((gains * (ranks < k)).mean()) for k in CUTOFFS}
