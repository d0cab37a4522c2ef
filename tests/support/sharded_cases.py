"""Trainings of `ShardedEmbeddingBag` and of one module, alike: tables, batches, losses."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.distributed.sharded_embedding_bag import ShardedEmbeddingBag
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import FTRL, SGD, Adagrad, Adam, RowwiseAdagrad
from adaptive.policy import InputRule

OPTIMIZERS = {
    "sgd": SGD(lr=0.5),
    "adagrad": Adagrad(lr=0.1),
    "rowwise": RowwiseAdagrad(lr=0.1),
    "adam": Adam(lr=0.01),
    "ftrl": FTRL(lr=0.1),
}
TABLES = (
    TableConfig(name="a", num_embeddings=300, embedding_dim=4, init_bound=1.0),
    TableConfig(name="b", num_embeddings=70_001, embedding_dim=4, pooling="mean", features=("b1", "b2")),
    TableConfig(name="c", num_embeddings=51, embedding_dim=8, pooling="none"),
)
KEYED = (
    TableConfig(name="k", num_embeddings=400, embedding_dim=4, keys="int64", admit=2, expire=30, init_bound=1.0),
    TableConfig(name="a", num_embeddings=300, embedding_dim=4, init_bound=1.0),
)
TIER = TierConfig(device_rows="60%", poison=True)
SIZES = {"a": 300, "b1": 70_001, "b2": 70_001, "c": 51, "k": 2**62}


class DropByRow(InputRule):
    """Drops samples whose first row is a multiple of 5."""

    def keep(self, batch: Batch, rows: np.ndarray) -> np.ndarray:
        first = np.zeros(batch.num_samples, np.int64)
        has_one = np.flatnonzero(np.diff(batch.offsets[: batch.num_samples + 1]))
        first[has_one] = rows[batch.offsets[has_one]]
        return ((first % 5 > 0) | (first == 0)).astype(float)


def make_batches(number: int, tables: Sequence[TableConfig] = TABLES, samples: int = 48, seed: int = 0) -> list[Batch]:
    """Batches with bags of up to three ids, of which some rows are frequent."""
    rng = np.random.default_rng(seed)

    def feature(name: str) -> tuple[Any, Any]:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, samples))])
        rows = min(SIZES[name], 1000) * rng.random(offsets[-1]) ** 3
        return rows.astype(np.int64) * (SIZES[name] // min(SIZES[name], 1000)), offsets

    return [
        Batch.of(
            {name: feature(name) for table in tables for name in table.feature_names},
            labels=rng.random(samples) > 0.5,
            dense=rng.random((samples, 2)),
        )
        for _ in range(number)
    ]


def loss_of(vectors: dict[str, torch.Tensor], samples: int) -> torch.Tensor:
    """A sum over samples divided by a number, whatever the samples of a rank are."""
    total = torch.zeros(())
    for name in sorted(vectors):
        score = vectors[name] @ torch.linspace(-1, 1, vectors[name].shape[1])
        total = total + (score.tanh() ** 2).sum() + score.sum()
    return total / samples


def train(
    embeddings: Any, batches: Sequence[Batch], *, depth: int = 3, own: bool = False, steps: int | None = None
) -> None:
    """Train; `own`: batches are those of this rank."""
    divide = {} if own or not isinstance(embeddings, ShardedEmbeddingBag) else {"divide": True}
    for number, planned in enumerate(embeddings.look_ahead(batches, depth=depth, **divide), 1):
        if planned.num_samples:
            samples = planned.num_samples if own else planned.num_samples_of_all
            loss_of(embeddings(planned), samples).backward()
        embeddings.step()
        if number == steps:
            break


def sharded(tables: Sequence[TableConfig] = TABLES, tier: TierConfig = TIER, **options: Any) -> ShardedEmbeddingBag:
    return ShardedEmbeddingBag(tables, tier, **{"policy": "lfu", "optimizer": OPTIMIZERS["adagrad"], **options})


def alone(tables: Sequence[TableConfig] = TABLES, tier: TierConfig = TIER, **options: Any) -> TieredEmbeddingBag:
    return TieredEmbeddingBag(tables, tier, **{"policy": "lfu", "optimizer": OPTIMIZERS["adagrad"], **options})


def weights_of(embeddings: Any, tables: Sequence[TableConfig] = TABLES) -> dict[str, np.ndarray]:
    """Table -> all its rows, with keys or without; of each, two rows are read alone, too."""
    weights = {table.name: embeddings.rows.table_weights(table.name) for table in tables}
    for name, whole in weights.items():
        some = np.array([len(whole) - 1, 0])
        np.testing.assert_array_equal(embeddings.rows.table_weights(name, some), whole[some])
    return weights


def largest_difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """As a share of the largest weight of a table."""
    return max(float(np.abs(one[name] - other[name]).max() / np.abs(one[name]).max()) for name in one)


def digest(weights: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest()
