"""Ranks of items among all items: Recall@k and NDCG@k of a model that ranks items, exactly.

Letters: n samples, R rows of the item's table, E values of a vector.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.transport import Kind
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import InputError
from adaptive.models.dense.attention import SampleVectors
from adaptive.models.dense.two_tower import Items, TwoTower

CUTOFFS: Final = (10, 20, 100)
MOST_SCORES: Final = 1 << 20  # computed at once: 4 MiB stay in the cache, 64 MiB take 3.5 to 4 times as long
LEAST_USERS: Final = 4  # scored at once, also if there are many items


def ranking_model(model: nn.Module) -> TwoTower | None:
    """Return the model if it ranks items, else None."""
    return model if isinstance(model, TwoTower) and model.ranks_items else None


def items_of(model: TwoTower, batch: Batch) -> Items:
    """Return the item of each sample; raise InputError unless each sample has one id of each of its features."""

    def ids(feature: int) -> Tensor:
        if not batch.has_one_each(feature):
            what = "item" if feature == model.item_id else f"{model.inputs.tables[feature]} of an item"
            raise InputError(
                f"expected one {what} per sample, got none or several (feature {feature}). Correct the data."
            )
        return torch.from_numpy(batch.ids[batch.feature_span(feature)].copy())

    rows = [ids(feature) for feature in model.side_features]
    return Items(
        ids(model.item_id),
        torch.stack(rows, dim=1) if rows else torch.zeros((batch.num_samples, 0), dtype=torch.int64),
        torch.from_numpy(batch.dense[:, model.item_dense].copy()),
    )


def in_batch_loss(model: TwoTower, part: Planned, vectors: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return logits (B,) and the loss () of a batch; see `TwoTower.in_batch_loss`."""
    items = items_of(model, part.batch).ids.to(vectors.device)
    return model.in_batch_loss(part.dense, vectors, items, part.labels, weights)


class WholeBatch(NamedTuple):
    """The items of a batch of all ranks, in its order."""

    items: Items
    vectors: Tensor  # (B, E)
    is_positive: Tensor  # (B,)
    sizes: list[int]  # samples of each rank

    @classmethod
    def gather(cls, ranks: Ranks, model: TwoTower, parts: Sequence[tuple[Items, Tensor, Tensor]]) -> "WholeBatch":
        """Gather the blocks of all ranks; each has items (n,), their vectors (n, E) float32 and labels (n,) float32."""
        columns: list[tuple[int, np.dtype[Any]]] = [
            (1, np.dtype(np.int64)),
            (len(model.side_features), np.dtype(np.int64)),
            (len(model.item_dense), np.dtype(np.float32)),
            (model.config.tower_mlp[-1], np.dtype(np.float32)),
            (1, np.dtype(np.float32)),
        ]
        flat = zip(*((*items, vectors, labels) for items, vectors, labels in parts), strict=True)
        arrays = [torch.cat(column).detach().cpu().contiguous().numpy() for column in flat]
        raw = np.concatenate([np.zeros(0, np.uint8), *(array.reshape(-1).view(np.uint8) for array in arrays)])
        widths = [count * dtype.itemsize for count, dtype in columns]
        gathered, sizes, each = ranks.gather_arrays(raw), [], list[list[NDArray[np.uint8]]]()
        for of_rank in gathered:
            sizes.append(len(of_rank) // sum(widths))
            each.append(np.split(of_rank, np.cumsum(widths)[:-1] * sizes[-1]))
        ids, rows, numbers, vectors, labels = (
            torch.from_numpy(np.concatenate(column).view(dtype).reshape(sum(sizes), count))
            for column, (count, dtype) in zip(zip(*each, strict=True), columns, strict=True)
        )
        return cls(Items(ids[:, 0], rows, numbers), vectors, labels[:, 0] == 1, sizes)

    def sum_gradients(self, ranks: Ranks, gradients: Sequence[NDArray[np.float32]]) -> Tensor:
        """Return the gradients (n, E) of this rank's item vectors, summed over all blocks, from the first to the last.

        `gradients`: (B, E) from each of this rank's blocks.
        """
        ends, width = np.cumsum([0, *self.sizes]), self.vectors.shape[1]
        parts = [
            np.concatenate([np.zeros(0, np.float32), *(block[first:last].reshape(-1) for block in gradients)])
            for first, last in pairwise(ends)
        ]
        received = ranks.rows.exchange(Kind.FACTS, parts=[part.view(np.uint8) for part in parts]).parts
        total = np.zeros((self.sizes[ranks.rank], width), np.float32)
        for message in received:
            for block in np.frombuffer(message.tobytes(), np.float32).reshape(-1, *total.shape) if total.size else ():
                total += block  # one after the other: the same order on any number of ranks
        return torch.from_numpy(total)


def whole_batch_passes(
    model: TwoTower,
    ranks: Ranks,
    parts: Sequence[Planned],
    towers: Sequence[tuple[Tensor, Tensor]],
    take: Callable[[], None],
) -> tuple[list[tuple[Tensor, Tensor]], Items]:
    """Run loss and backward of this rank's blocks, whose negatives are the items of all ranks.

    All ranks call it together, also without a block.

    Args:
        parts: the blocks, with `towers` of each: the vectors (n, E) of users and items.
        take: called after the backward pass of each block.

    Returns:
        Logits (n,) and loss () of each block, and the items of the whole batch.
    """
    of_parts = [(items_of(model, part.batch), item, part.labels) for part, (_, item) in zip(parts, towers, strict=True)]
    whole = WholeBatch.gather(ranks, model, of_parts)
    results, of_users, of_items = [], [], []
    for part, (user, _) in zip(parts, towers, strict=True):
        leaf, items = user.detach().requires_grad_(), whole.vectors.clone().requires_grad_()
        weights = part.extras.get("weight")
        logits, loss = model.ranking_loss(leaf, items, whole.items.ids, whole.is_positive, weights, part.first)
        of_user, of_item = torch.autograd.grad(loss, [leaf, items])
        results.append((logits, loss.detach()))
        of_users.append(of_user)
        of_items.append(of_item.numpy())
    total = whole.sum_gradients(ranks, of_items)
    first = 0
    for part, (user, item), of_user in zip(parts, towers, of_users, strict=True):
        torch.autograd.backward([user, item], [of_user, total[first : first + part.num_samples]])
        first += part.num_samples
        take()
    return results, whole.items


@torch.no_grad()
def item_vectors(embeddings: TieredEmbeddingBag, model: TwoTower) -> Iterator[Tensor]:
    """Yield the vectors of all items, (n, E) float32 for consecutive rows."""

    def on_device(rows: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(rows).to(embeddings.device)

    names, first = model.inputs.tables, 0
    tables = {feature: on_device(embeddings.rows.table_weights(names[feature])) for feature in model.side_features}
    for rows in embeddings.rows.table_blocks(names[model.item_id]):
        yield model.catalog_vectors(first, on_device(rows), tables).float()
        first += len(rows)


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
    def add(self, parts: Sequence[tuple[Planned, Tensor | SampleVectors]]) -> None:
        """Rank the items of this rank's blocks of a batch, each with vectors (n, F, D); all ranks call it together."""
        if self._items is None:
            self._items = torch.cat(list(item_vectors(self._embeddings, self._model)))
        of_blocks = [torch.zeros(0, dtype=torch.int64)]
        for part, vectors in parts:
            assert isinstance(vectors, Tensor)
            users, positive = self._model.user_vectors(part.dense, vectors), part.labels == 1
            targets = items_of(self._model, part.batch).ids.to(vectors.device)[positive]
            of_blocks.append(target_ranks(users[positive].float(), self._items, targets).cpu())
        gathered = self._embeddings.ranks.gather_arrays(torch.cat(of_blocks).numpy())
        self._ranks += [torch.from_numpy(of_rank.copy()) for of_rank in gathered]

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
