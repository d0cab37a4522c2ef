"""Hot rows that no longer come are let go when the hot set is full: others take their place, and nothing is lost."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.deferral_twin import OPTIMIZERS, Defer, DeferOnHost, train, train_slowly
from support.helpers import planner_of, table_states

from adaptive import (
    Adagrad,
    Batch,
    RowOptimizer,
    SkipConfig,
    TableConfig,
    TierConfig,
    TieredEmbeddingBag,
    one_hot_batch,
)
from adaptive.embeddings.planning.skipping import HotSet
from adaptive.policies.lru import LRU
from adaptive.policies.rules.defer import Defer as DeferRule

NUM_ROWS, SAMPLES, BATCHES, CAPACITY, INTERVAL = 120, 12, 260, 12, 2
TABLE = TableConfig(name="t", num_embeddings=NUM_ROWS, embedding_dim=5)
SKIP = SkipConfig(min_accesses=3, hot_rows=str(CAPACITY), interval=INTERVAL)


def drawn_batches() -> Iterator[Batch]:
    """Half of the rows come at first, the other half later."""
    random = np.random.default_rng(7)
    for number in range(BATCHES):
        ids = random.zipf(1.4, (SAMPLES, 1)) % (NUM_ROWS // 2) + (NUM_ROWS // 2) * (number >= 50)
        yield one_hot_batch(np.zeros((SAMPLES, 0), np.float32), ids, (ids[:, 0] % 3 == 0).astype(np.float32))


STREAM = list(drawn_batches())
PLACES = [
    (Defer, "60%", 0, "cpu"),
    (DeferOnHost, "10%", 3, "cpu"),
    (Defer, "60%", 4, "cpu-torch"),
    (Defer, "100%", 2, "cpu"),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_training_equals_its_twin_wherever_rows_lie(optimizer: RowOptimizer) -> None:
    weights, state, expected_rows = train_slowly(TABLE, STREAM, optimizer, SKIP, CAPACITY)
    assert min(expected_rows) >= NUM_ROWS // 2, "the rows of the beginning are hot still: the example shows nothing"
    for policy, rows, depth, device in PLACES:
        embeddings = train(TABLE, STREAM, policy, optimizer, SKIP, rows=rows, depth=depth, device=device)
        np.testing.assert_array_equal(embeddings.rows.table_weights("t"), weights)
        np.testing.assert_array_equal(table_states(embeddings)["t"], state)
        assert sorted(hot_rows(embeddings)) == sorted(expected_rows)


def hot_rows(embeddings: TieredEmbeddingBag) -> list[int]:
    skipper = planner_of(embeddings).skipper
    assert skipper is not None
    return [int(row) for row in skipper.hot.rows[: skipper.hot.num_entries]]


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", "cpu-torch"])
def test_sizes_and_answers_move_with_their_rows(device: str) -> None:
    """What is known of the rows that stay is what it was, at any depth."""
    skip = SKIP.model_copy(update={"rule": "defer+warmup=3+at_most=5", "feedback_delay": 4})
    expected = train(TABLE, STREAM, LRU, Adagrad(lr=0.01), skip)
    hot = planner_of(expected).skipper.hot  # type: ignore[union-attr]
    assert hot.is_saturated(slice(0, hot.num_entries)).any() and isinstance(expected.policy.rule, DeferRule)
    assert min(hot_rows(expected)) >= NUM_ROWS // 2
    for rows, depth in (("60%", 0), ("70%", 4)):
        found = train(TABLE, STREAM, LRU, Adagrad(lr=0.01), skip, rows=rows, depth=depth, device=device)
        np.testing.assert_array_equal(found.rows.table_weights("t"), expected.rows.table_weights("t"))
        mine = planner_of(found).skipper.hot  # type: ignore[union-attr]
        for name, column in hot.columns().items():
            np.testing.assert_array_equal(mine.columns()[name], column, err_msg=name)


def admit(hot: HotSet, rows: NDArray[np.int64]) -> None:
    hot.admit(rows, np.ones(len(rows), np.uint32), hot.row_entries[rows], np.empty(len(rows), np.int32))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_a_set_that_keeps_some_entries_finds_exactly_their_rows(seed: int, capacity: int) -> None:
    random = np.random.default_rng(seed)
    hot = HotSet(capacity, SkipConfig(min_accesses=1), 100)
    rows = random.permutation(100)[:capacity]
    admit(hot, rows)
    hot.saturated[:capacity] = rows % 2 == 0
    stay = np.sort(random.choice(capacity, random.integers(0, capacity + 1), replace=False))
    hot.retain(stay)
    expected: NDArray[np.int64] = np.full(100, -1)
    expected[rows[stay]] = np.arange(len(stay))
    np.testing.assert_array_equal(hot.entries_of(np.arange(100)), expected)
    assert hot.saturated[: len(stay)].tolist() == (rows[stay] % 2 == 0).tolist()
    admit(hot, np.arange(100))
    assert hot.num_entries == min(capacity, 100) and np.isnan(hot.sizes[len(stay) : hot.num_entries]).all()


def test_rows_that_still_come_are_not_let_go() -> None:
    """A full set of rows that all come stays as it is, however many others knock."""
    embeddings = TieredEmbeddingBag([TABLE], TierConfig(device_rows="100%"), policy=Defer, skip=SKIP)
    ids = np.arange(CAPACITY + 8)[:, None]
    batch = one_hot_batch(np.zeros((len(ids), 0), np.float32), ids, np.zeros(len(ids), np.float32))
    for planned in embeddings.look_ahead([batch] * 100, depth=2):
        embeddings(planned)["t"].sum().backward()
        embeddings.step()
    assert hot_rows(embeddings) == list(range(CAPACITY))
