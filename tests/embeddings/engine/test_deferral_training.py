"""Training with deferred updates: it is what a slow twin says, and neither placement nor look-ahead changes a bit."""

from collections.abc import Iterator

import numpy as np
import pytest
import reference
import torch
from reference import Floats
from support.helpers import table_states
from support.skip_rules import waits

from adaptive import (
    SGD,
    Adagrad,
    Adam,
    Batch,
    Counter,
    Policy,
    RowOptimizer,
    RowwiseAdagrad,
    SkipConfig,
    TableConfig,
    TierConfig,
    TieredEmbeddingBag,
    one_hot_batch,
)

SKIP = SkipConfig(min_accesses=4, hot_rows="50%")
NUM_ROWS, SAMPLES, BATCHES = 200, 16, 40
TABLE = TableConfig(name="t", num_embeddings=NUM_ROWS, embedding_dim=5)


EVERY, AT_MOST, WARMUP = 2, 5, 3


class Defer(Policy):
    def __init__(self):
        self.rule = waits(EVERY, AT_MOST, WARMUP)

    def score(self, rows):
        return rows.last_access


class DeferOnHost(Defer):
    misses = "host"


class DeferOnce(Defer):
    def __init__(self):
        self.rule = waits(every=2, at_most=1)


class Plain(Policy):
    def score(self, rows):
        return rows.last_access


def batches() -> Iterator[Batch]:
    random = np.random.default_rng(7)
    for _ in range(BATCHES):
        ids = random.zipf(1.4, (SAMPLES, 1)) % NUM_ROWS
        yield one_hot_batch(np.zeros((SAMPLES, 0), np.float32), ids, (ids[:, 0] % 3 == 0).astype(np.float32))


def train(
    policy: type[Policy], optimizer: RowOptimizer, *, rows: str = "100%", depth: int = 0, device: str = "cpu"
) -> tuple[TieredEmbeddingBag, np.ndarray]:
    tier = TierConfig(device_rows=rows, device=device, poison=True)
    embeddings = TieredEmbeddingBag([TABLE], tier, policy=policy, optimizer=optimizer, skip=SKIP)
    for planned in embeddings.look_ahead(batches(), depth=depth):
        error = embeddings(planned)["t"].sum(1) - planned.labels
        error.square().mean().backward()
        embeddings.step()
    return embeddings, embeddings.rows.table_weights("t")


def train_slowly(optimizer: RowOptimizer) -> tuple[Floats, Floats]:
    """(weights, state) of the same training, in one array, row by row; what waits at the end is applied.

    Half of the rows are watched, those first that were first looked up `min_accesses` times. A gradient joins the sum
    of its row until k = clamp(visits / every, 1, at_most) of them have come together.
    """
    weights, state = reference.initial_table(TABLE, seed=0), reference.initial_states(TABLE, optimizer)
    accesses = np.zeros(NUM_ROWS, np.int64)
    visits: dict[int, int] = {}
    waiting: dict[int, tuple[int, reference.Waiting]] = {}
    for number, batch in enumerate(batches()):
        vectors = torch.tensor(weights[batch.ids], requires_grad=True)
        (vectors.sum(1) - torch.from_numpy(batch.labels)).square().mean().backward()
        gradients = np.asarray(vectors.grad)
        for row in dict.fromkeys(batch.ids.tolist()):
            gradient, count = reference.weighted_sum(gradients[batch.ids == row]), int((batch.ids == row).sum())
            accesses[row] += count
            if row in visits:
                visits[row] += 1
            elif accesses[row] >= SKIP.min_accesses and len(visits) < NUM_ROWS // 2:
                visits[row] = accesses[row] // count  # at this batch's rate
            k = min(visits.get(row, 0) // EVERY, AT_MOST) if number >= WARMUP else 1
            size, mine = waiting.pop(row, (0, None))
            mine, size = reference.put_off(optimizer, gradient, mine), size + 1
            if size < k:
                waiting[row] = size, mine
            else:
                reference.update_row(optimizer, weights[row], state[row], mine.gradient, mine.squares)
    assert len(waiting) > 5
    for row, (_, mine) in waiting.items():
        reference.update_row(optimizer, weights[row], state[row], mine.gradient, mine.squares)
    return weights, state


OPTIMIZERS = [SGD(lr=0.1), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01)]


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize(
    ("policy", "rows", "device"),
    [(Defer, "60%", "cpu"), (DeferOnHost, "10%", "cpu"), (DeferOnHost, "10%", "cpu-torch")],
)
def test_training_equals_its_twin(policy: type[Policy], rows: str, device: str, optimizer: RowOptimizer) -> None:
    """Weights as they are read, with what waits applied, and state as it is saved."""
    embeddings, found = train(policy, optimizer, rows=rows, depth=2, device=device)
    weights, state = train_slowly(optimizer)
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
    _, expected = train(Defer, optimizer)
    _, found = train(policy, optimizer, rows=rows, depth=depth, device=device)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_deferring_at_most_one_visit_is_the_plain_run(optimizer: RowOptimizer) -> None:
    np.testing.assert_array_equal(train(DeferOnce, optimizer, rows="40%", depth=2)[1], train(Plain, optimizer)[1])


def test_without_skip_settings_nothing_is_deferred() -> None:
    embeddings = TieredEmbeddingBag([TABLE], TierConfig(device_rows="100%"), policy=Defer, optimizer=SGD(lr=0.1))
    for planned in embeddings.look_ahead(batches(), depth=1):
        (embeddings(planned)["t"].sum(1) - planned.labels).square().mean().backward()
        embeddings.step()
    np.testing.assert_array_equal(embeddings.rows.table_weights("t"), train(Plain, SGD(lr=0.1))[1])
    assert embeddings.statistics.take().counts[:, Counter.DEFERRED_UPDATES].sum() == 0


def test_deferring_loses_nothing_of_constant_gradients() -> None:
    """The sum of all gradients is what a row moves by, however they were put off: what still waits is applied to
    what is read. Gradients here are labels, small whole numbers, so sums are exact in any order."""

    def moved(policy: type[Policy]) -> np.ndarray:
        table = TableConfig(name="t", num_embeddings=NUM_ROWS, embedding_dim=5, init_bound=0.0)
        embeddings = TieredEmbeddingBag(
            [table], TierConfig(device_rows="100%"), policy=policy, optimizer=SGD(lr=0.5), skip=SKIP
        )
        for planned in embeddings.look_ahead(batches(), depth=2):
            (embeddings(planned)["t"].sum(1) * planned.labels).sum().backward()
            embeddings.step()
        return embeddings.rows.table_weights("t")

    np.testing.assert_array_equal(moved(Defer), moved(Plain))


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


@pytest.mark.parametrize(("device", "marks"), [("cpu", 0), ("cpu-torch", 1)])
@pytest.mark.parametrize(("optimizer", "squares"), list(zip(OPTIMIZERS, (0, 5, 1, 6), strict=True)), ids=str)
def test_bytes_of_sums_and_squares(optimizer: RowOptimizer, squares: int, device: str, marks: int) -> None:
    """Of 100 watched rows, and on a torch device of the marks of those that wait."""
    tier = TierConfig(device_rows="10%", device=device)
    embeddings = TieredEmbeddingBag([TABLE], tier, policy=Defer, optimizer=optimizer, skip=SKIP)
    assert embeddings.runtime.pipeline.lanes[0].device.num_bytes[2] == 100 * (4 * (5 + squares) + marks)
