"""The slow twin of a whole training is itself compared, with torch's autograd and optimizers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from reference import initial_table, train_reference

from adaptive.batch import Batch
from adaptive.config import TableConfig
from adaptive.optim import SGD, Adagrad, RowOptimizer

Floats = NDArray[np.float32]

TABLES = [
    TableConfig(name="shared", num_embeddings=9, embedding_dim=3, features=("left", "right"), init_bound=1),
    TableConfig(name="mean", num_embeddings=5, embedding_dim=4, pooling="mean"),
    TableConfig(name="loose", num_embeddings=6, embedding_dim=3, pooling="none"),
]
SIZES = [9, 9, 5, 6]


def random_batch(rng: np.random.Generator, *, weighted: bool) -> Batch:
    samples, features = 4, len(SIZES)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, features * samples))]).astype(np.int64)
    per_feature = np.diff(offsets[::samples])
    ids = np.concatenate([rng.integers(0, size, num) for size, num in zip(SIZES, per_feature, strict=True)])
    weights = rng.normal(size=len(ids)).astype(np.float32) if weighted else None
    return Batch(np.zeros((samples, 0), np.float32), ids, offsets, np.zeros(samples, np.float32), weights)


def square_gradients(vectors: dict[str, Floats], batch: Batch) -> dict[str, Floats]:
    """Of the sum of squares of (v - 1)."""
    return {name: 2 * (vector - np.float32(1)) for name, vector in vectors.items()}


def train_in_torch(tables: Sequence[TableConfig], batches: Sequence[Batch], optimizer: Any, seed: int) -> Any:
    """The same with one dense parameter a table."""
    weights = {t.name: torch.nn.Parameter(torch.from_numpy(initial_table(t, seed))) for t in tables}
    steps = optimizer(weights.values())
    homes = [table for table in tables for _ in table.feature_names]
    for batch in batches:
        loss = torch.zeros(())
        for feature, table in enumerate(homes):
            for bag in range(feature * batch.num_samples, (feature + 1) * batch.num_samples):
                span = slice(int(batch.offsets[bag]), int(batch.offsets[bag + 1]))
                rows = weights[table.name][torch.from_numpy(batch.ids[span])]
                if batch.weights is not None:
                    rows = rows * torch.from_numpy(batch.weights[span])[:, None]
                if table.pooling == "sum":
                    rows = rows.sum(0)
                elif table.pooling == "mean":
                    rows = rows.sum(0) / max(1, span.stop - span.start)
                loss = loss + (rows - 1).square().sum()
        steps.zero_grad()
        loss.backward()
        steps.step()
    return {name: weight.detach().numpy() for name, weight in weights.items()}


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [(SGD(0.05), lambda p: torch.optim.SGD(p, 0.05)), (Adagrad(0.1), lambda p: torch.optim.Adagrad(p, 0.1))],
    ids=["sgd", "adagrad"],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_training_equals_torch(mine: RowOptimizer, theirs: Any, weighted: bool) -> None:
    """Rows that a batch does not look up have a gradient of zero, which moves neither optimizer."""
    tables = [TABLES[0], TABLES[2]] if weighted else TABLES
    rng = np.random.default_rng(0)
    batches = [without_mean(random_batch(rng, weighted=True)) if weighted else random_batch(rng, weighted=False)
               for _ in range(8)]  # fmt: skip
    found = train_reference(tables, batches, mine, seed=4, loss_gradients=square_gradients)
    expected = train_in_torch(tables, batches, theirs, 4)
    for table in tables:
        np.testing.assert_allclose(found[table.name][0], expected[table.name], rtol=1e-4, atol=1e-5)
        assert (found[table.name][0] != initial_table(table, 4)).any()


def without_mean(batch: Batch) -> Batch:
    """The features of TABLES but for the one with mean pooling, which takes no weights."""
    first, last = 2 * batch.num_samples, 3 * batch.num_samples
    a, b = int(batch.offsets[first]), int(batch.offsets[last])
    assert batch.weights is not None
    return Batch(
        batch.dense,
        np.delete(batch.ids, slice(a, b)),
        np.concatenate([batch.offsets[:first], batch.offsets[last:] - (b - a)]),
        batch.labels,
        np.delete(batch.weights, slice(a, b)),
    )


def test_training_written_out() -> None:
    """Row 0 is looked up twice by sample 0 and once by sample 1; d(sum)/d(vector) = 1: it loses 3 * lr."""
    table = TableConfig(name="t", num_embeddings=3, embedding_dim=2, init_bound=0)
    batch = Batch(np.zeros((2, 0), np.float32), np.array([0, 0, 2, 0]), np.array([0, 3, 4]), np.zeros(2, np.float32))

    def ones(vectors: dict[str, Floats], batch: Batch) -> dict[str, Floats]:
        return {name: np.ones_like(vector) for name, vector in vectors.items()}

    weights, state = train_reference([table], [batch], SGD(0.5), seed=0, loss_gradients=ones)["t"]
    np.testing.assert_array_equal(weights, [[-1.5, -1.5], [0, 0], [-0.5, -0.5]])
    assert state.shape == (3, 0)
