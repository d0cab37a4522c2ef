"""Retrieval: two towers and in-batch softmax, in your own loop over tables in two tiers.

Run: python examples/two_tower.py           (a minute on a laptop)

The items of a batch are each other's negatives (Yi et al., RecSys 2019): the loss of a pair (user i, item i) is

    -log softmax over j of (<user i, item j> / temperature - log q_j)  at j = i

Frequent items are negatives more often, and log q_j corrects for it: q_j is the share of item j in all pairs so far.
Recall@20 is the share of held-out pairs whose item is among the 20 best of all items. It is printed with and without
the correction, next to that of ranking by popularity.

Data: check-ins of 5,000 users of Gowalla in the folder that ADAPTIVE_DATA names (default: ../shared/data next to the
repository). Without them, pairs of a built-in set of users and items with tastes.
"""

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from adaptive import Adagrad, Batch, TableConfig, TierConfig, TieredEmbeddingBag

ROOT = Path(__file__).resolve().parents[1]
GOWALLA = Path(os.environ.get("ADAPTIVE_DATA", ROOT / "../shared/data")) / "gowalla"
FILES = "derived/train_from_s_adj_mat.txt.gz", "test.txt.gz"
USERS, HELD_OUT, BATCH, EPOCHS, WIDTH, TEMPERATURE = 5_000, 5_000, 512, 2, 16, 0.1
Pairs = NDArray[np.int64]  # (n, 2): user, item


def read_gowalla() -> tuple[Pairs, Pairs]:
    """Return the pairs to train on and the held-out ones; a line has a user and their items."""
    parts = []
    for name in FILES:
        with gzip.open(GOWALLA / name, "rt", encoding="utf-8") as lines:
            users = [list(map(int, line.split())) for line, _ in zip(lines, range(USERS), strict=False)]
        parts.append(np.array([(user, item) for user, *items in users for item in items], np.int64))
    return parts[0], parts[1]


def make_pairs(users: int = 4_000, items: int = 8_000, groups: int = 20) -> tuple[Pairs, Pairs]:
    """Return pairs in which a user prefers the items of one group, some of which are popular."""
    random = np.random.default_rng(0)
    user = random.integers(users, size=85_000)
    rank = (items // groups * random.random(len(user)) ** 2).astype(np.int64)  # in the group: low ranks are popular
    group = np.where(random.random(len(user)) < 0.8, user % groups, random.integers(groups, size=len(user)))
    pairs = np.stack([user, rank * groups + group], axis=1)
    return pairs[:-5_000], pairs[-5_000:]


def batches(pairs: Pairs, epochs: int) -> Iterator[Batch]:
    random = np.random.default_rng(1)
    for _ in range(epochs):
        mixed = random.permutation(pairs)
        for first in range(0, len(mixed), BATCH):
            user, item = mixed[first : first + BATCH].T
            yield Batch.of(user=user, item=item, labels=np.ones(len(user)))


class TwoTower(nn.Module):
    """An MLP on the user's row, another on the item's; both return unit vectors (n, 32)."""

    def __init__(self, num_items: int) -> None:
        super().__init__()
        self.user, self.item = (nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(2))
        self.register_buffer("counts", torch.zeros(num_items, dtype=torch.int64))

    def loss(self, user_rows: Tensor, item_rows: Tensor, items: Tensor, *, with_logq: bool) -> Tensor:
        """Return the loss of pairs with rows (n, WIDTH) each and items (n,), and count the items."""
        users, vectors = normalize(self.user(user_rows), dim=1), normalize(self.item(item_rows), dim=1)
        scores = users @ vectors.T / TEMPERATURE
        self.counts += torch.bincount(items, minlength=len(self.counts))
        if with_logq:
            scores = scores - (self.counts[items].double() / self.counts.sum()).log().float()
        is_same = items[:, None] == items  # another pair with the same item is no negative
        is_same.fill_diagonal_(False)
        return cross_entropy(scores.masked_fill(is_same, -torch.inf), torch.arange(len(items), device=items.device))


def train(pairs: Pairs, sizes: tuple[int, int], *, with_logq: bool) -> tuple[TieredEmbeddingBag, TwoTower]:
    torch.manual_seed(0)
    tables = [
        TableConfig(name="user", num_embeddings=sizes[0], embedding_dim=WIDTH),
        TableConfig(name="item", num_embeddings=sizes[1], embedding_dim=WIDTH),
    ]
    embeddings = TieredEmbeddingBag(tables, TierConfig(device_rows="50%"), policy="lfu", optimizer=Adagrad(lr=0.05))
    towers = TwoTower(sizes[1]).to(embeddings.device)
    optimizer = torch.optim.Adagrad(towers.parameters(), lr=0.01)
    for planned in embeddings.look_ahead(batches(pairs, EPOCHS)):
        rows = embeddings(planned)
        items = torch.from_numpy(planned.batch.ids[planned.batch.feature_span(1)].copy()).to(embeddings.device)
        loss = towers.loss(rows["user"], rows["item"], items, with_logq=with_logq)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        embeddings.step()
    return embeddings, towers


@torch.no_grad()
def best_items(embeddings: TieredEmbeddingBag, towers: TwoTower, users: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Return the k items (n, k) with the highest scores among all, for users (n,)."""
    device = embeddings.device
    rows = {name: torch.from_numpy(embeddings.rows.table_weights(name)).to(device) for name in ("user", "item")}
    vectors = normalize(towers.item(rows["item"]), dim=1)
    chunks = torch.from_numpy(users).to(device).split(256)
    best = [(normalize(towers.user(rows["user"][some]), dim=1) @ vectors.T).topk(k).indices for some in chunks]
    return torch.cat(best).cpu().numpy()


def recall(best: NDArray[np.int64], items: NDArray[np.int64]) -> float:
    """Return the share of items (n,) that are among the best (n, k)."""
    return float((best == items[:, None]).any(axis=1).mean())


def main() -> None:
    has_files = all((GOWALLA / name).exists() for name in FILES)
    trained, held_out = read_gowalla() if has_files else make_pairs()
    held_out = np.random.default_rng(0).permutation(held_out)[:HELD_OUT]
    users, items = (int(max(trained[:, column].max(), held_out[:, column].max())) + 1 for column in (0, 1))
    print(f"{'gowalla' if has_files else 'built-in'}: {len(trained):,} pairs of {users:,} users and {items:,} items")
    popular = np.bincount(trained[:, 1]).argsort()[-20:]
    print(f"Recall@20 by popularity:           {recall(np.tile(popular, (len(held_out), 1)), held_out[:, 1]):.4f}")
    for with_logq in (True, False):
        embeddings, towers = train(trained, (users, items), with_logq=with_logq)
        with embeddings:
            best = best_items(embeddings, towers, held_out[:, 0], 20)
        name = "with the correction:" if with_logq else "without the correction:"
        print(f"Recall@20 {name:<24} {recall(best, held_out[:, 1]):.4f}")


if __name__ == "__main__":
    main()
