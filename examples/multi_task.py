"""Two labels, in your own loop: clicks and what they earn, with one head each over the same rows.

Run: python examples/multi_task.py          (seconds on a laptop)

`click` is 0 or 1, with log loss. `spent` is any number, with squared error, and known for clicks only. It travels in
`Batch.extras`. The loss of a batch is the mean log loss plus `SPENT_WEIGHT` times the mean squared error of its clicks.
The heads share an MLP; gates let each head mix experts (MMoE, Ma et al., KDD 2018).
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive import Adagrad, Batch, Planned, TableConfig, TierConfig, TieredEmbeddingBag

USERS, ITEMS, WIDTH, EXPERTS, SPENT_WEIGHT = 5_000, 2_000, 8, 4, 0.5
TABLES = [
    TableConfig(name="user", num_embeddings=USERS, embedding_dim=WIDTH),
    TableConfig(name="item", num_embeddings=ITEMS, embedding_dim=WIDTH),
]


def batches(count: int, size: int, seed: int) -> Iterator[Batch]:
    """Yield batches in which users and items have a taste, and items a price."""
    ids = np.random.default_rng(0)
    user_taste, item_taste = ids.normal(size=USERS), ids.normal(size=ITEMS)
    price = ids.lognormal(0, 0.5, ITEMS)
    random = np.random.default_rng(seed)
    for _ in range(count):
        user = (USERS * random.random(size) ** 3).astype(np.int64)
        item = (ITEMS * random.random(size) ** 3).astype(np.int64)
        click = random.random(size) < 1 / (1 + np.exp(2 - user_taste[user] - 2 * item_taste[item]))
        spent = price[item] * (1 + 0.1 * random.normal(size=size)) * click
        yield Batch.of(user=user, item=item, labels=click, extras={"spent": spent.astype(np.float32)})


class TwoHeads(nn.Module):
    """Experts on the vectors of a sample, and for each label a gate that mixes them and a head."""

    def __init__(self, embeddings: TieredEmbeddingBag) -> None:
        super().__init__()
        self.embeddings = embeddings
        inputs = WIDTH * len(TABLES)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(inputs, 32), nn.ReLU()) for _ in range(EXPERTS))
        self.gates = nn.ModuleList(nn.Linear(inputs, EXPERTS) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(32, 1) for _ in range(2))

    def forward(self, planned: Planned) -> tuple[Tensor, Tensor]:
        """Return the logit of a click and the expected sum of money, (B,) each."""
        x = self.embeddings.stack(planned).flatten(1)
        experts = torch.stack([expert(x) for expert in self.experts], dim=1)  # (B, EXPERTS, 32)
        mixed = [(gate(x).softmax(1)[:, :, None] * experts).sum(1) for gate in self.gates]
        click, spent = (head(mixture).squeeze(1) for head, mixture in zip(self.heads, mixed, strict=True))
        return click, spent


def loss_of(logit: Tensor, amount: Tensor, click: Tensor, spent: Tensor) -> Tensor:
    """Return the loss of a batch; samples without a click say nothing about the amount."""
    squares = click * (amount - spent).square()
    return binary_cross_entropy_with_logits(logit, click) + SPENT_WEIGHT * squares.sum() / click.sum().clamp(min=1)


@torch.no_grad()
def evaluate(model: TwoHeads) -> tuple[float, float, float]:
    """Return the AUC of clicks, the error of amounts, and that of the mean amount, on new samples."""
    (batch,) = batches(1, 20_000, seed=2)
    planned = model.embeddings.read(batch)
    logit, amount = (values.cpu().numpy() for values in model(planned))
    is_click = batch.labels == 1
    ranks = logit.argsort().argsort()[is_click] + 1.0
    positives, negatives = is_click.sum(), (~is_click).sum()
    auc = (ranks.sum() - positives * (positives + 1) / 2) / (positives * negatives)
    spent = batch.extras["spent"][is_click]
    return float(auc), float(np.square(amount[is_click] - spent).mean()), float(spent.var())


def main() -> None:
    torch.manual_seed(0)
    embeddings = TieredEmbeddingBag(TABLES, TierConfig(device_rows="50%"), policy="lfu", optimizer=Adagrad(lr=0.1))
    model = TwoHeads(embeddings).to(embeddings.device)
    optimizer = torch.optim.Adam([p for name, p in model.named_parameters() if "embeddings" not in name], lr=0.005)
    for planned in embeddings.look_ahead(batches(250, 512, seed=1), depth=2):
        loss = loss_of(*model(planned), planned.labels, planned.extras["spent"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        embeddings.step()
        if planned.number % 50 == 0:
            print(f"batch {planned.number:3}  loss {loss.item():.4f}")
    auc, error, of_mean = evaluate(model)
    embeddings.close()
    print(f"click: AUC {auc:.4f}\nspent: squared error {error:.4f}, of the mean {of_mean:.4f}")


if __name__ == "__main__":
    main()
