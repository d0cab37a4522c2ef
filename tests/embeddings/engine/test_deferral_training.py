"""Training with deferred updates: it is what a slow twin says, and neither placement nor look-ahead changes a bit."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch
from support.deferral_twin import OPTIMIZERS, Defer, DeferOnHost, train_slowly
from support.deferral_twin import train as train_batches
from support.helpers import table_states
from support.skip_rules import Waits

from adaptive import (
    Adagrad,
    Batch,
    Counter,
    Policy,
    RowOptimizer,
    SkipConfig,
    TableConfig,
    TieredEmbeddingBag,
    one_hot_batch,
)

SKIP = SkipConfig(interval=4, min_accesses=4, hot_rows="50%")
NUM_ROWS, SAMPLES, BATCHES = 200, 16, 40
TABLE = TableConfig(name="t", num_embeddings=NUM_ROWS, embedding_dim=5)


class Plain(Policy):
    def score(self, rows):
        return rows.last_access


class DeferOnce(Plain):
    def __init__(self):
        self.rule = Waits(most=1)


def batches() -> Iterator[Batch]:
    random = np.random.default_rng(7)
    for _ in range(BATCHES):
        ids = random.zipf(1.4, (SAMPLES, 1)) % NUM_ROWS
        yield one_hot_batch(np.zeros((SAMPLES, 0), np.float32), ids, (ids[:, 0] % 3 == 0).astype(np.float32))


def train(
    policy: type[Policy], optimizer: RowOptimizer, *, skip: SkipConfig | None = SKIP, **options: object
) -> tuple[TieredEmbeddingBag, np.ndarray]:
    embeddings = train_batches(TABLE, batches(), policy, optimizer, skip, **options)  # type: ignore[arg-type]
    return embeddings, embeddings.rows.table_weights("t")


@cache
def on_one_tier(optimizer: RowOptimizer) -> np.ndarray:
    return train(Defer, optimizer)[1]


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize(
    ("policy", "rows", "device"),
    [(Defer, "60%", "cpu"), (DeferOnHost, "10%", "cpu"), (DeferOnHost, "10%", "cpu-torch")],
)
def test_training_equals_its_twin(policy: type[Policy], rows: str, device: str, optimizer: RowOptimizer) -> None:
    """Weights as they are read, with what waits applied, and state as it is saved."""
    embeddings, found = train(policy, optimizer, rows=rows, depth=2, device=device)
    weights, state, _ = train_slowly(TABLE, list(batches()), optimizer, SKIP, NUM_ROWS // 2)
    np.testing.assert_array_equal(found, weights)
    np.testing.assert_array_equal(table_states(embeddings)["t"], state)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize(
    ("policy", "rows", "depth", "device"),
    [
        (Defer, "40%", 0, "cpu"),
        (Defer, "60%", 3, "cpu"),
        (DeferOnHost, "10%", 2, "cpu"),
        (Defer, "60%", 2, "cpu-torch"),
        (DeferOnHost, "10%", 4, "cpu-torch"),
    ],
)
def test_placement_does_not_change_the_numbers(
    policy: type[Policy], rows: str, depth: int, device: str, optimizer: RowOptimizer
) -> None:
    _, found = train(policy, optimizer, rows=rows, depth=depth, device=device)
    np.testing.assert_array_equal(found, on_one_tier(optimizer))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_waiting_for_one_visit_is_the_plain_run(optimizer: RowOptimizer) -> None:
    np.testing.assert_array_equal(train(DeferOnce, optimizer, rows="40%", depth=2)[1], train(Plain, optimizer)[1])


def test_evaluation_sees_waiting_gradients_and_changes_nothing() -> None:
    embeddings, weights = train(Defer, Adagrad(lr=0.1))
    ids = np.arange(NUM_ROWS)[:, None]
    batch = one_hot_batch(np.zeros((NUM_ROWS, 0), np.float32), ids, np.zeros(NUM_ROWS, np.float32))
    with torch.no_grad():
        for _ in range(2):
            np.testing.assert_array_equal(embeddings(embeddings.read(batch))["t"].numpy(), weights)


def test_deferred_rows_stay_clean_and_are_counted() -> None:
    embeddings, _ = train(Defer, Adagrad(lr=0.1), rows="40%", depth=2)
    counts = embeddings.statistics.take().counts.sum(axis=0)
    updates, deferred = counts[Counter.UNIQUE_ROWS], counts[Counter.DEFERRED_UPDATES]
    assert 0.2 < deferred / updates < 0.8
    assert counts[Counter.SKIPPED_UPDATES] == deferred
    plain = train(Plain, Adagrad(lr=0.1), rows="40%", depth=2)[0].statistics.take().counts.sum(axis=0)
    assert counts[Counter.WRITTEN_BACK] <= plain[Counter.WRITTEN_BACK]
