"""Train a click model with tables in two tiers, a tenth of the rows on the device.

Comments that begin with `plain:` show the line of the same program in plain torch. Run: python examples/tiered_loop.py
"""

import io

import torch
from torch import nn
from torch.utils.data import DataLoader

from adaptive import Adagrad, Batch, TierConfig, TieredEmbeddingBag

TABLES = {"user": (100_000, 32), "item": (20_000, 32), "category": (500, 8), "history": (20_000, 32)}


def clicks(size, seed):
    """Return samples of user, item, category, history, weight and click."""
    draw = torch.Generator().manual_seed(seed)
    user = (100_000 * torch.rand(size, generator=draw) ** 6).long().tolist()
    item = (20_000 * torch.rand(size, generator=draw) ** 4).long().tolist()
    seen = [(20_000 * torch.rand(k, generator=draw) ** 4).long().tolist() for k in range(5)]
    clicked = [float((u % 3 == 0) ^ (i % 4 == 0)) for u, i in zip(user, item, strict=True)]
    return [(u, i, i % 500, seen[u % 5], 0.5 + i % 2, c) for u, i, c in zip(user, item, clicked, strict=True)]


def bags(lists):
    return torch.tensor([row for ids in lists for row in ids]), torch.tensor([0, *map(len, lists[:-1])]).cumsum(0)


def collate(samples):
    user, item, category, history, weight, label = map(list, zip(*samples, strict=True))
    ids = {"item": item, "user": user, "category": category}
    ids = {name: bags([[row] for row in column]) for name, column in ids.items()} | {"history": bags(history)}
    # plain: return ids, torch.tensor(weight), torch.tensor(label)
    return Batch.of(ids, labels=torch.tensor(label), extras={"weight": torch.tensor(weight)})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        tables = {name: nn.EmbeddingBag(rows, width, sparse=True) for name, (rows, width) in TABLES.items()}
        # plain: self.tables = nn.ModuleDict(tables)
        self.tables = TieredEmbeddingBag.from_bags(tables, TierConfig(device_rows="10%"), optimizer=Adagrad(lr=0.05))
        # plain: self.head = nn.Sequential(nn.Linear(104, 64), nn.ReLU(), nn.Linear(64, 1))
        self.head = nn.Sequential(nn.Linear(104, 64), nn.ReLU(), nn.Linear(64, 1)).to(self.tables.device)

    def forward(self, batch):
        # plain: vectors = [table(*batch[name]) for name, table in self.tables.items()]
        vectors = list(self.tables(batch).values())
        return self.head(torch.cat(vectors, dim=1)).squeeze(1)


def train(net, loader):
    dense = torch.optim.Adam(net.head.parameters(), lr=0.002)
    # plain: sparse = torch.optim.Adagrad(net.tables.parameters(), lr=0.05)
    sparse = net.tables.optimizer
    # plain: for batch, weight, label in loader:
    for batch in net.tables.look_ahead(loader):
        # plain: loss = nn.functional.binary_cross_entropy_with_logits(net(batch), label, weight)
        loss = nn.functional.binary_cross_entropy_with_logits(net(batch), batch.labels, batch.extras["weight"])
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()


@torch.no_grad()
def auc(net, loader):
    # plain: logits, labels = map(torch.cat, zip(*[(net(batch), label) for batch, _, label in loader], strict=True))
    logits, labels = map(torch.cat, zip(*[(net(b), b.labels) for b in map(net.tables.read, loader)], strict=True))
    ranks = logits.argsort().argsort()[labels > 0].double() + 1
    positives = len(ranks)
    return float((ranks.sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives)))


def main():
    torch.manual_seed(0)
    net, file = Net(), io.BytesIO()
    train(net, DataLoader(clicks(60_000, seed=0), batch_size=512, shuffle=True, collate_fn=collate))
    held_out = DataLoader(clicks(20_000, seed=1), batch_size=2048, collate_fn=collate)
    torch.save(net.state_dict(), file)
    file.seek(0)
    restored = Net()
    restored.load_state_dict(torch.load(file, weights_only=True))
    print(f"AUC {auc(net, held_out):.4f}, from its checkpoint {auc(restored, held_out):.4f}")


if __name__ == "__main__":
    main()
