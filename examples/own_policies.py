"""Your own training loop: record it, compare policies, simulate sizes.

    python examples/own_policies.py [DIR]

Writes DIR/metrics.jsonl and DIR/tensorboard (default: a temporary folder). View them with `tensorboard --logdir DIR`.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from adaptive import (
    Adagrad,
    Batch,
    Recording,
    TableConfig,
    TierConfig,
    TieredEmbeddingBag,
    compare_policies,
    simulate_policies,
)

TABLES = [
    TableConfig(name="user", num_embeddings=20_000, embedding_dim=8),
    TableConfig(name="item", num_embeddings=2_000, embedding_dim=8),
]


def make_batches(count, seed, size=256):
    random = np.random.default_rng(seed)
    for _ in range(count):
        user, item = random.zipf(1.2, size) % 20_000, random.zipf(1.3, size) % 2_000
        clicks = random.random(size) < np.where((user + item) % 3 == 0, 0.8, 0.2)
        yield Batch.of(user=user, item=item, labels=clicks)


class Net(nn.Module):
    """Embeddings and a linear layer."""

    def __init__(self, **options):
        super().__init__()
        tier = TierConfig(device_rows="10%")
        self.tables = TieredEmbeddingBag(TABLES, tier, optimizer=Adagrad(lr=0.2), **options)
        self.head = nn.Linear(16, 1).to(self.tables.device)

    def forward(self, planned):
        return self.head(self.tables.stack(planned).flatten(1)).squeeze(1)


def train(record_in=None, **options):
    """Train a model; `compare_policies` passes `seed`, `policy` and `skip`."""
    torch.manual_seed(options["seed"])
    net = Net(**options)
    dense = torch.optim.SGD(net.head.parameters(), lr=0.1)
    planned_batches = net.tables.look_ahead(make_batches(60, seed=options["seed"]), depth=2)
    if record_in is None:
        for planned in planned_batches:
            step(net, dense, planned)
        return net
    with Recording(net.tables, record_in, log_every=20) as record:
        for planned in record.batches(planned_batches):
            loss, logits = step(net, dense, planned)
            record.step(planned, loss, logits)
        print(record.summary()["table"])
    return net


def step(net, dense, planned):
    logits = net(planned)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, planned.labels)
    dense.zero_grad()
    loss.backward()
    dense.step()
    net.tables.step()
    return loss, logits


def trained_and_scored(**options):
    """Return embeddings, logits and labels of held-out samples, for `compare_policies`."""
    net = train(**options)
    samples = list(make_batches(8, seed=99))
    with torch.no_grad():
        logits = torch.cat([net(net.tables.read(batch)) for batch in samples])
    return net.tables, logits, np.concatenate([batch.labels for batch in samples])


def main(directory):
    train(record_in=directory, policy="lfu", seed=0).tables.close()
    compared = compare_policies(trained_and_scored, ["lru", "lfu", "lfu+skip=defer"], seeds=2)
    print(compared["table"])
    sizes = ["1%", "5%", "10%", "20%"]
    print(simulate_policies(lambda: make_batches(60, seed=0), TABLES, ["lru", "lfu"], sizes, depth=2)["table"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "run")
