"""Your own model and training loop, with bags, several widths, and histories.

Run: python examples/own_loop.py            (seconds on a laptop)

The toy model predicts the next shop from a user, a bag of tags (mean), and the last visits in order (one vector per
position). It prints the loss and the device rows of each table, saves the model and loads it again.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from adaptive import Adam, Batch, Planned, TableConfig, TierConfig, TieredEmbeddingBag

TABLES = [
    TableConfig(name="user", num_embeddings=20_000, embedding_dim=16),
    TableConfig(name="tags", num_embeddings=5_000, embedding_dim=8, pooling="mean"),
    TableConfig(name="shop", num_embeddings=5_000, embedding_dim=16, features=("visits",), pooling="none"),
]
HISTORY = 6


def make_batches(count: int, size: int, seed: int = 0) -> list[Batch]:
    """Return batches whose labels follow from the user's and the last shop's id."""
    random = np.random.default_rng(seed)
    batches = []
    for _ in range(count):
        users = random.zipf(1.3, size) % 20_000
        num_tags = random.integers(0, 4, size)  # some samples have no tag
        tags = random.integers(0, 5_000, num_tags.sum())
        visits = random.zipf(1.2, (size, HISTORY)) % 5_000
        batches.append(
            Batch.of(
                user=users,
                tags=(tags, np.concatenate([[0], np.cumsum(num_tags)])),
                visits=visits,
                labels=(users + visits[:, -1]) % 3 == 0,
            )
        )
    return batches


class NextShop(nn.Module):
    def __init__(self, embeddings: TieredEmbeddingBag) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.head = nn.Sequential(nn.Linear(16 + 8 + 16, 32), nn.ReLU(), nn.Linear(32, 1)).to(embeddings.device)

    def forward(self, planned: Planned) -> torch.Tensor:
        vectors = self.embeddings(planned)  # feature -> (samples, width), or (positions, width) for "visits"
        last = vectors["visits"].view(-1, HISTORY, 16)[:, -1]
        return self.head(torch.cat([vectors["user"], vectors["tags"], last], dim=1)).squeeze(1)


def new_model() -> NextShop:
    return NextShop(TieredEmbeddingBag(TABLES, TierConfig(device_rows="50%"), policy="lfu", optimizer=Adam(lr=0.01)))


def save(model: NextShop, file: Path) -> None:
    """Save the model with its rows and their optimizer state."""
    torch.save(model.state_dict(), file)


def load(file: Path) -> NextShop:
    model = new_model()
    model.load_state_dict(torch.load(file, weights_only=True))
    return model


def share_right(model: NextShop) -> float:
    with torch.no_grad():
        held_out = model.embeddings.read(make_batches(1, 2_000, seed=1)[0])
        return float(((model(held_out) > 0) == (held_out.labels > 0.5)).float().mean())


def main() -> None:
    torch.manual_seed(0)
    model = new_model()
    embeddings = model.embeddings
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.01)
    for planned in embeddings.look_ahead(make_batches(60, 256), depth=3):
        loss = nn.functional.binary_cross_entropy_with_logits(model(planned), planned.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        embeddings.step()
        if planned.number % 20 == 0:
            print(f"batch {planned.number:2}  loss {loss.item():.4f}")
    print(f"{embeddings.statistics.device_rows_text()}\nright on new samples: {share_right(model):.1%}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.pt"
        save(model, file)
        print(f"the same, loaded:     {share_right(load(file)):.1%}")


if __name__ == "__main__":
    main()
