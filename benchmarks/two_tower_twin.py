"""Two towers in plain torch, with in-batch softmax and logQ: a twin of `--model two-tower` in one small file."""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Pairs = NDArray[np.int64]  # (n, 2): user, item; or (n, 3) with the kind of the item


def tower(sizes: tuple[int, ...]) -> nn.Sequential:
    """Layers with DLRM's initial deviations."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layer = nn.Linear(inputs, outputs)
        nn.init.normal_(layer.weight, 0, (2 / (inputs + outputs)) ** 0.5)
        nn.init.normal_(layer.bias, 0, (1 / outputs) ** 0.5)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Twin(nn.Module):
    def __init__(
        self, num_users: int, num_items: int, width: int = 16, mlp: tuple[int, ...] = (64, 32), num_kinds: int = 0
    ) -> None:
        super().__init__()
        self.users, self.items, self.kinds = (nn.Embedding(rows, width) for rows in (num_users, num_items, num_kinds))
        self.user, self.item = tower((width, *mlp)), tower((2 * width if num_kinds else width, *mlp))
        for table in (self.users, self.items, *([self.kinds] if num_kinds else [])):
            nn.init.uniform_(table.weight, -(table.num_embeddings**-0.5), table.num_embeddings**-0.5)
        self.counts = torch.zeros(num_items, dtype=torch.int64)
        self.kind_of: dict[int, int] = {}  # item -> kind in its latest pair

    def item_rows(self, pairs: Tensor) -> Tensor:
        rows = [self.items(pairs[:, 1]), *(self.kinds(kind) for kind in pairs[:, 2:].T)]
        return torch.cat(rows, dim=1)

    def catalog_rows(self) -> Tensor:
        """Inputs of the item's tower for all items; zeros for the kind of an item without a pair."""
        if not self.kinds.num_embeddings:
            return self.items.weight
        rows = [self.kinds.weight[self.kind_of[item]] if item in self.kind_of else torch.zeros(self.kinds.embedding_dim)
                for item in range(len(self.counts))]  # fmt: skip
        return torch.cat([self.items.weight, torch.stack(rows)], dim=1)

    def loss(self, pairs: Tensor, *, temperature: float = 1.0, unit: bool = False, logq: bool = True) -> Tensor:
        users, items = self.user(self.users(pairs[:, 0])), self.item(self.item_rows(pairs))
        if unit:
            users, items = nn.functional.normalize(users, dim=1), nn.functional.normalize(items, dim=1)
        scores = users @ items.T / temperature
        self.kind_of |= {item: kind[0] for _, item, *kind in pairs.tolist() if kind}
        self.counts += torch.bincount(pairs[:, 1], minlength=len(self.counts))
        if logq:
            scores = scores - (self.counts[pairs[:, 1]].double() / self.counts.sum()).log().float()
        same = pairs[:, 1, None] == pairs[:, 1]
        scores[same & ~torch.eye(len(pairs), dtype=torch.bool)] = -torch.inf
        return nn.functional.cross_entropy(scores, torch.arange(len(pairs)))

    @torch.no_grad()
    def recall(self, pairs: Tensor, k: int, *, unit: bool = False) -> float:
        """The share of pairs whose item is among the k best of all items; the oracle sorts all scores."""
        users, items = self.user(self.users(pairs[:, 0])), self.item(self.catalog_rows())
        if unit:
            users, items = nn.functional.normalize(users, dim=1), nn.functional.normalize(items, dim=1)
        best = [(part @ items.T).argsort(dim=1, descending=True, stable=True)[:, :k] for part in users.split(256)]
        return float((torch.cat(best) == pairs[:, 1, None]).any(1).double().mean())


def train(twin: Twin, batches: list[Pairs], **options: object) -> None:
    """Adagrad for rows and towers, as the command line has."""
    tables = [twin.users.weight, twin.items.weight, twin.kinds.weight]
    dense = [*twin.user.parameters(), *twin.item.parameters()]
    optimizer = torch.optim.Adagrad([{"params": tables, "lr": 0.05}, {"params": dense, "lr": 0.01}])
    for pairs in batches:
        optimizer.zero_grad()
        twin.loss(torch.from_numpy(pairs), **options).backward()  # type: ignore[arg-type, no-untyped-call]
        optimizer.step()
