"""Watched rows that no longer come are let go when the hot set is full: others are watched, and nothing is lost."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from reference import Floats
from support.helpers import planner_of, table_states
from support.skip_rules import waits

from adaptive import (
    SGD,
    Adagrad,
    Adam,
    Batch,
    Policy,
    RowOptimizer,
    RowwiseAdagrad,
    SkipConfig,
    TableConfig,
    TierConfig,
    TieredEmbeddingBag,
    one_hot_batch,
)
from adaptive.embeddings.planning.hot_set import HotSet
from adaptive.embeddings.planning.skipping import FEW, LET_GO_EVERY, PATIENCE
from adaptive.policies.lru import LRU
from adaptive.policies.rules.defer import Defer as DeferRule

NUM_ROWS, SAMPLES, BATCHES, CAPACITY, INTERVAL = 120, 12, 260, 12, 2
TABLE = TableConfig(name="t", num_embeddings=NUM_ROWS, embedding_dim=5)
SKIP = SkipConfig(min_accesses=3, hot_rows=str(CAPACITY), interval=INTERVAL)
EVERY, AT_MOST, WARMUP = 2, 5, 3


class Defer(Policy):
    def __init__(self):
        self.rule = waits(EVERY, AT_MOST, WARMUP)

    def score(self, rows):
        return rows.last_access


class DeferOnHost(Defer):
    misses = "host"


def batches(seed: int = 7) -> Iterator[Batch]:
    """Half of the rows come at first, the other half later."""
    random = np.random.default_rng(seed)
    for number in range(BATCHES):
        ids = random.zipf(1.4, (SAMPLES, 1)) % (NUM_ROWS // 2) + (NUM_ROWS // 2) * (number >= 50)
        yield one_hot_batch(np.zeros((SAMPLES, 0), np.float32), ids, (ids[:, 0] % 3 == 0).astype(np.float32))


def train(
    policy: Any, optimizer: RowOptimizer, *, rows: str = "100%", depth: int = 0, device: str = "cpu", seed: int = 7,
    skip: Any = SKIP,
) -> TieredEmbeddingBag:  # fmt: skip
    tier = TierConfig(device_rows=rows, device=device, poison=True)
    embeddings = TieredEmbeddingBag([TABLE], tier, policy=policy, optimizer=optimizer, skip=skip)
    for planned in embeddings.look_ahead(batches(seed), depth=depth):
        error = embeddings(planned)["t"].sum(1) - planned.labels
        error.square().mean().backward()
        embeddings.step()
    return embeddings


def train_slowly(optimizer: RowOptimizer) -> tuple[Floats, Floats, list[int]]:
    """(weights, state, rows watched at the end), row by row; see `test_deferral_training`. Before every so many batches
    rows that have been away for `PATIENCE` times as long as usual go, if the set is full; what waits is applied."""
    weights, state = reference.initial_table(TABLE, seed=0), reference.initial_states(TABLE, optimizer)
    accesses, last = np.zeros(NUM_ROWS, np.int64), np.full(NUM_ROWS, -1)
    visits: dict[int, int] = {}
    waiting: dict[int, tuple[int, reference.Waiting]] = {}

    def settle(row: int) -> None:
        _, mine = waiting.pop(row, (0, None))
        if mine is not None:
            reference.update_row(optimizer, weights[row], state[row], mine.gradient, mine.squares)

    for number, batch in enumerate(batches()):
        if number % (LET_GO_EVERY * INTERVAL) == 0 and len(visits) == CAPACITY:
            away = {row: number - last[row] for row in visits}
            usual = {row: max((last[row] + 1) / accesses[row], 1) for row in visits}
            gone = [row for row in visits if away[row] >= INTERVAL and away[row] > PATIENCE * usual[row]]
            if len(gone) >= max(1, CAPACITY // FEW):
                for row in gone:
                    settle(row)
                    del visits[row]
        vectors = torch.tensor(weights[batch.ids], requires_grad=True)
        (vectors.sum(1) - torch.from_numpy(batch.labels)).square().mean().backward()
        gradients = np.asarray(vectors.grad)
        for row in dict.fromkeys(batch.ids.tolist()):
            gradient, count = reference.weighted_sum(gradients[batch.ids == row]), int((batch.ids == row).sum())
            accesses[row], last[row] = accesses[row] + count, number
            if row in visits:
                visits[row] += 1
            elif accesses[row] >= SKIP.min_accesses and len(visits) < CAPACITY:
                visits[row] = max(accesses[row] // count, 1)  # at this batch's rate
            k = max(min(visits.get(row, 0) // EVERY, AT_MOST), 1)
            size, mine = waiting.get(row, (0, None))
            waiting[row] = size + 1, reference.put_off(optimizer, gradient, mine)
            if size + 1 >= (k if number >= WARMUP else 1):
                settle(row)
    assert len(waiting) > 2
    for row in list(waiting):
        settle(row)
    return weights, state, list(visits)


OPTIMIZERS = [SGD(lr=0.1), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01)]
PLACES = [
    (Defer, "60%", 0, "cpu"),
    (DeferOnHost, "10%", 3, "cpu"),
    (Defer, "60%", 4, "cpu-torch"),
    (Defer, "100%", 2, "cpu"),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_training_equals_its_twin_wherever_rows_lie(optimizer: RowOptimizer) -> None:
    weights, state, watched = train_slowly(optimizer)
    assert min(watched) >= NUM_ROWS // 2, "the rows of the beginning are watched still: the example shows nothing"
    for policy, rows, depth, device in PLACES:
        embeddings = train(policy, optimizer, rows=rows, depth=depth, device=device)
        np.testing.assert_array_equal(embeddings.rows.table_weights("t"), weights)
        np.testing.assert_array_equal(table_states(embeddings)["t"], state)
        assert sorted(watched_rows(embeddings)) == sorted(watched)


def watched_rows(embeddings: TieredEmbeddingBag) -> list[int]:
    skipper = planner_of(embeddings).skipper
    assert skipper is not None
    return [int(row) for row in skipper.hot.rows[: skipper.hot.num_entries]]


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", "cpu-torch"])
def test_snapshots_and_verdicts_move_with_their_rows(device: str) -> None:
    """By movement, too: what is known of the rows that stay is what it was, at any depth."""
    skip = SKIP.model_copy(
        update={"rule": "defer+by=movement+bound=2.0+warmup=3+at_most=5", "feedback_delay": 4, "min_visits": 1}
    )
    expected = train(LRU, Adagrad(lr=0.1), skip=skip)
    hot = planner_of(expected).skipper.hot  # type: ignore[union-attr]
    assert (hot.drift_visits[: hot.num_entries] > 0).any() and isinstance(expected.policy.rule, DeferRule)
    assert min(watched_rows(expected)) >= NUM_ROWS // 2
    for rows, depth in (("60%", 0), ("70%", 4)):
        found = train(LRU, Adagrad(lr=0.1), skip=skip, rows=rows, depth=depth, device=device)
        np.testing.assert_array_equal(found.rows.table_weights("t"), expected.rows.table_weights("t"))
        mine = planner_of(found).skipper.hot  # type: ignore[union-attr]
        for name, column in hot.columns().items():
            np.testing.assert_array_equal(mine.columns()[name], column, err_msg=name)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_a_set_that_keeps_some_entries_finds_exactly_their_rows(seed: int, capacity: int) -> None:
    random = np.random.default_rng(seed)
    hot, accesses = HotSet(capacity, SkipConfig(min_accesses=1)), np.ones(100, np.uint32)
    rows = random.permutation(100)[:capacity]
    hot.admit(rows, accesses)
    hot.saturated[:capacity] = rows % 2 == 0
    stay = np.sort(random.choice(capacity, random.integers(0, capacity + 1), replace=False))
    hot.keep(stay, accesses)
    expected: NDArray[np.int64] = np.full(100, -1)
    expected[rows[stay]] = np.arange(len(stay))
    np.testing.assert_array_equal(hot.entries_of(np.arange(100)), expected)
    assert hot.saturated[: len(stay)].tolist() == (rows[stay] % 2 == 0).tolist()
    hot.admit(np.arange(100), accesses)
    assert hot.num_entries == min(capacity, 100) and np.isnan(hot.drift[len(stay) : hot.num_entries]).all()


def test_rows_that_still_come_are_not_let_go() -> None:
    """A full set of rows that all come stays as it is, however many others knock."""
    embeddings = TieredEmbeddingBag([TABLE], TierConfig(device_rows="100%"), policy=Defer, skip=SKIP)
    ids = np.arange(CAPACITY + 8)[:, None]
    batch = one_hot_batch(np.zeros((len(ids), 0), np.float32), ids, np.zeros(len(ids), np.float32))
    for planned in embeddings.look_ahead([batch] * 100, depth=2):
        embeddings(planned)["t"].sum().backward()
        embeddings.step()
    assert watched_rows(embeddings) == list(range(CAPACITY))
