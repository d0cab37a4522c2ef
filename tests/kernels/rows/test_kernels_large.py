"""Index arithmetic beyond 2**31 elements. Only pages that are touched take memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import reference
from numpy.typing import NDArray
from support.variants import both

from adaptive.config import TableConfig
from adaptive.embeddings.planning.books import SlotTable, Tracker
from adaptive.embeddings.planning.layout import make_groups
from adaptive.kernels.planning import lookups
from adaptive.kernels.planning.lookups import Distinct
from adaptive.kernels.rows.cpu import initial, move, pool, update
from adaptive.kernels.rows.cpu.deferred import accumulate, apply_sums
from adaptive.kernels.vector.bfloat16 import NO_KEYS
from adaptive.optim import SGD, Adagrad

Choose = Callable[[Any], Callable[..., Any]]

NUM, DIM = 2**27 + 3, 17
LAST = NUM - 1
assert LAST * DIM > 2**31


@pytest.fixture(scope="module")
def huge() -> NDArray[np.float32]:
    """(NUM, 17) float32, 9 GB of address space."""
    return much_memory()


def much_memory() -> NDArray[np.float32]:
    try:
        return np.empty((NUM, DIM), np.float32)
    except MemoryError:
        pytest.skip("this system does not provide 9 GB of address space")


def test_pool_and_update_reach_the_last_row(huge: NDArray[np.float32]) -> None:
    values = np.random.default_rng(0).normal(size=(2, DIM)).astype(np.float32)
    small = values[:1].copy()
    for location, device, host in ((LAST, huge, small), (~LAST, small, huge)):
        huge[LAST] = values[1]
        out = np.empty((1, DIM), np.float32)
        places = np.array([location])
        bag = np.zeros(1, np.int32), np.array([0, 1]), np.zeros(1, np.int32)
        pool.pool(out, (*bag, places, np.zeros(0, np.float32)), device, host, 1)
        np.testing.assert_array_equal(out[0], values[1])
        optimizer, none = SGD(0.5), np.zeros((0, 0), np.float32)
        update.update(
            (places, np.array([0, 1]), np.zeros(1, np.int32), np.zeros(0, np.float32), values[:1]),
            (device, none, host, none), (optimizer.kind, optimizer.settings(), optimizer.corrections()),
            (NO_KEYS, np.empty((1, 1), np.float32)), np.empty((1, DIM), np.float32),
        )  # fmt: skip
        np.testing.assert_array_equal(huge[LAST], values[1] - np.float32(0.5) * values[0])


def test_rows_are_copied_and_initialized_at_the_end(huge: NDArray[np.float32]) -> None:
    none = np.zeros((NUM, 0), np.float32)
    far, near = np.array([LAST, LAST - 1]), np.array([0, 1])
    small, small_state = np.zeros((2, DIM), np.float32), np.zeros((2, 0), np.float32)
    config = TableConfig(name="huge", num_embeddings=NUM, embedding_dim=DIM, init_bound=1)
    (group,) = make_groups([config], 3)
    initial.initial_rows(huge, none, far, far, group.table_starts, group.table_keys, group.table_bounds, np.float32(0))
    key = reference.table_key("huge", 3)
    expected = np.stack([reference.initial_row(key, int(row), DIM, 1.0) for row in far])
    np.testing.assert_array_equal(huge[far], expected)
    move.copy_rows(small, small_state, near, huge, none, far)
    np.testing.assert_array_equal(small, expected)
    move.copy_rows(huge, none, far, 2 * small, small_state, near)
    np.testing.assert_array_equal(huge[far], 2 * expected)


def test_gradients_beyond_2_31_values(huge: NDArray[np.float32]) -> None:
    """Gradients are indexed by int32 vectors; products with the width must be 64 bits wide."""
    huge[LAST] = 2
    out = np.empty((1, DIM), np.float32)
    scales = np.full(1, 3, np.float32)
    update.sum_gradients(out, 0, 0, 1, np.array([LAST], np.int32), scales, huge)
    np.testing.assert_array_equal(out, 6)
    entries, huge[LAST] = np.array([LAST], np.int32), 6
    bags = entries, np.array([0, 1]), np.zeros(1, np.int32), np.array([0]), np.zeros(0, np.float32)
    pool.pool(huge, bags, out, out, 1)
    np.testing.assert_array_equal(huge[LAST], 6)


def test_sums_and_squares_beyond_2_31_values(huge: NDArray[np.float32]) -> None:
    """A gradient of 3s is in the last entry and is applied: 1 - 4 * 3 / sqrt(7 + 9)."""
    weights, state, squares = np.ones((1, DIM), np.float32), np.full((1, DIM), 7, np.float32), much_memory()
    entry, pending, optimizer = np.array([LAST]), np.zeros(NUM, np.bool_), Adagrad(4.0, eps=0.0)
    gradients, scratch = np.full((1, DIM), 3, np.float32), np.empty((1, DIM), np.float32)
    lookup = np.array([0, 1]), np.zeros(1, np.int32), np.zeros(0, np.float32), gradients
    accumulate(0, 1, (entry, *lookup), (huge, squares, pending), scratch)
    np.testing.assert_array_equal(squares[LAST], 9)
    apply_sums(
        0, 1, 0, (np.zeros(1, np.int64), entry), (huge, squares), weights, state,
        (optimizer.kind, optimizer.settings(), optimizer.corrections()), (NO_KEYS, np.empty((1, 1), np.float32)),
    )  # fmt: skip
    np.testing.assert_array_equal(weights, -2)


@both
def test_distinct_rows_of_tables_larger_than_2_31(choose: Choose) -> None:
    """2 tables of 2**33 rows, no storage: ids differ in their upper halves only."""
    size = 2**33
    ids = np.array([1, 1 + 2**32, size - 1, 1, 0, 2**32, size - 1])
    spans, span_tables = np.array([[0, 4], [4, 7]]), np.array([0, 1], np.int32)
    sizes, starts = np.array([size, size]), np.array([0, size, 2 * size])
    places, used = np.zeros(16, np.int32), np.ones(1, np.int64)
    rows, counts, inverse = np.empty(7, np.int64), np.empty(7, np.int32), np.empty(7, np.int32)
    ends = np.empty(2, np.int64)
    features, distinct = (ids, spans, span_tables), (rows, counts, inverse, ends)
    count = choose(lookups.distinct_rows)(0, features, (sizes, starts), (places, used), distinct)
    assert rows[:count].tolist() == [1, 1 + 2**32, size - 1, size, size + 2**32, 2 * size - 1]
    assert inverse.tolist() == [0, 1, 2, 0, 3, 4, 5]
    assert ends.tolist() == [3, 6]


def test_initial_values_of_rows_beyond_2_32() -> None:
    config = TableConfig(name="wide", num_embeddings=2**33, embedding_dim=3, init_bound=1)
    (group,) = make_groups([config], 0)
    rows = np.array([0, 2**32, 2**33 - 1])
    out = np.empty((3, 3), np.float32)
    initial.initial_rows(
        out, np.empty((3, 0), np.float32), np.arange(3), rows,
        group.table_starts, group.table_keys, group.table_bounds, np.float32(0),
    )  # fmt: skip
    key = reference.table_key("wide", 0)
    np.testing.assert_array_equal(out, [reference.initial_row(key, int(row), 3, 1.0) for row in rows])


def test_records_of_rows_beyond_2_31_bytes() -> None:
    tracker = Tracker(NUM, keeps_norms=True)
    slots, rows = SlotTable(1, np.array([0, NUM]), tracker), np.array([LAST, 0])
    distinct = Distinct(rows, np.array([5, 1], np.int32), np.array([0, 1], np.int32), np.array([2]))
    slots.leave_on_host(np.arange(2), distinct, np.full(2, -1), 8)
    tracker.add_norms(rows, np.array([2.5, 1], np.float32))
    some = np.array([LAST - 1, LAST])
    assert [column.tolist() for column in slots.gather(some)] == [[0, 5], [-1, 8], [-1, -1]]
    assert tracker.update_norm is not None and tracker.update_norm[some].tolist() == [0, 2.5]
