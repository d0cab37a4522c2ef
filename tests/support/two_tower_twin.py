"""Two towers in plain torch, with in-batch softmax and logQ: a twin of `--model two-tower` in one file of 60 lines."""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Pairs = NDArray[np.int64]  # (n, 2): user, item


def tower(sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Twin(nn.Module):
    def __init__(self, num_users: int, num_items: int, width: int = 16, mlp: tuple[int, ...] = (64, 32)) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(num_users, width), nn.Embedding(num_items, width)
        self.user, self.item = tower((width, *mlp)), tower((width, *mlp))
        for table in (self.users, self.items):
            nn.init.uniform_(table.weight, -(table.num_embeddings**-0.5), table.num_embeddings**-0.5)
        self.counts = torch.zeros(num_items, dtype=torch.int64)

    def loss(self, pairs: Tensor, *, temperature: float = 1.0, unit: bool = False, logq: bool = True) -> Tensor:
        users, items = self.user(self.users(pairs[:, 0])), self.item(self.items(pairs[:, 1]))
        if unit:
            users, items = nn.functional.normalize(users, dim=1), nn.functional.normalize(items, dim=1)
        scores = users @ items.T / temperature
        self.counts += torch.bincount(pairs[:, 1], minlength=len(self.counts))
        if logq:
            scores = scores - (self.counts[pairs[:, 1]].double() / self.counts.sum()).log().float()
        same = pairs[:, 1, None] == pairs[:, 1]
        scores[same & ~torch.eye(len(pairs), dtype=torch.bool)] = -torch.inf
        return nn.functional.cross_entropy(scores, torch.arange(len(pairs)))

    @torch.no_grad()
    def recall(self, pairs: Tensor, k: int, *, unit: bool = False) -> float:
        """The share of pairs whose item is among the k best of all items; the oracle sorts all scores."""
        users, items = self.user(self.users(pairs[:, 0])), self.item(self.items.weight)
        if unit:
            users, items = nn.functional.normalize(users, dim=1), nn.functional.normalize(items, dim=1)
        best = [(part @ items.T).argsort(dim=1, descending=True, stable=True)[:, :k] for part in users.split(256)]
        return float((torch.cat(best) == pairs[:, 1, None]).any(1).double().mean())


def train(twin: Twin, batches: list[Pairs], lr: float = 0.05, dense_lr: float = 0.01, **options: object) -> None:
    """Adagrad for rows and towers, as the command line has."""
    tables = [twin.users.weight, twin.items.weight]
    dense = [*twin.user.parameters(), *twin.item.parameters()]
    optimizer = torch.optim.Adagrad([{"params": tables, "lr": lr}, {"params": dense, "lr": dense_lr}])
    for pairs in batches:
        optimizer.zero_grad()
        twin.loss(torch.from_numpy(pairs), **options).backward()  # type: ignore[arg-type, no-untyped-call]
        optimizer.step()
