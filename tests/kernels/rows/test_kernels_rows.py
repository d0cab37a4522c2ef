"""Pooling and copying of rows: written-out cases, then the slow twins, bit for bit."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from support.row_kernels import Choose, floats, random_rows
from support.variants import both

from adaptive.kernels.rows.cpu import initial, move, pool, steps, update
from adaptive.kernels.vector.row_ops import prefetch_item, prefetch_row
from adaptive.kernels.vector.row_sums import square_sum

DIMS = st.sampled_from([1, 3, 16, 17, 40, 149])
SEEDS = st.integers(0, 2**32 - 1)


# --- one row ---------------------------------------------------------------------------------------------------


def test_kernels_count_no_references() -> None:
    """Counting them costs a locked instruction for each array handed over in a loop."""
    kernels = [
        value
        for module in (initial, move, pool, steps, update)
        for value in vars(module).values()
        if hasattr(value, "targetoptions")
    ]
    assert len(kernels) > 10
    for kernel in kernels:
        assert not kernel.targetoptions["_nrt"], kernel


@both
@settings(max_examples=50, deadline=None)
@given(dim=DIMS, seed=SEEDS)
def test_square_sum_equals_its_twin(choose: Choose, dim: int, seed: int) -> None:
    rows = random_rows(np.random.default_rng(seed), 2, dim)
    assert choose(square_sum)(rows, 1) == reference.square_sum(rows[1])


@numba.njit
def prefetch_all(rows: Any, items: Any, row: Any) -> None:
    prefetch_row(rows, row)
    prefetch_item(items, row)


@pytest.mark.parametrize("call", [prefetch_all, prefetch_all.py_func], ids=["compiled", "plain"])
def test_prefetch_changes_nothing_and_takes_any_integer(call: Callable[..., None]) -> None:
    """Items may be a column of a record array, strided."""
    rows, items = floats([1, 2], [3, 4]), np.array([(1, 2), (3, 4)], [("a", np.int32), ("b", np.float64)])["a"]
    for row in (0, np.int32(1), np.int64(1), np.int64(10**9)):  # even beyond the end: it is only a hint
        call(rows, items, row)
    assert (rows.tolist(), items.tolist()) == ([[1, 2], [3, 4]], [1, 3])


# --- pooling -----------------------------------------------------------------------------------------------------


@st.composite
def poolings(draw: st.DrawFn) -> tuple[Any, ...]:
    """(number of vectors, bag vectors, bag starts, inverse, locations, scales, device weights, host weights)"""
    rng = np.random.default_rng(draw(SEEDS))
    dim = draw(DIMS)
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 5, 40]), max_size=9))
    num_slots, num_host = draw(st.integers(0, 4)), draw(st.integers(1, 4))
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    num_rows = draw(st.integers(1, 30))
    lowest = 0 if num_slots and draw(st.booleans()) else -num_host  # rows in both tiers, or all in slots
    return (
        len(sizes),
        rng.permutation(len(sizes)).astype(np.int32),
        starts,
        rng.integers(0, num_rows, starts[-1]).astype(np.int32),
        rng.integers(lowest, num_slots, num_rows),
        random_rows(rng, starts[-1] if draw(st.booleans()) else 0),
        random_rows(rng, num_slots, dim),
        random_rows(rng, num_host, dim),
    )


def pooled_slowly(case: tuple[Any, ...]) -> Any:
    num_vectors, vectors, starts, inverse, locations, *rest = case
    return reference.pool(num_vectors, vectors, starts, locations[inverse], *rest)


@both
@settings(max_examples=60, deadline=None)
@given(case=poolings(), num_chunks=st.integers(1, 3))
def test_pool_equals_its_twin_for_any_number_of_chunks(choose: Choose, case: Any, num_chunks: int) -> None:
    out = np.full((case[0], case[-1].shape[1]), np.nan, np.float32)
    choose(pool.pool)(out, case[1:6], *case[6:], num_chunks)
    np.testing.assert_array_equal(out, pooled_slowly(case))


# --- copies and movement -------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("dim", [1, 3, 16, 17, 40, 149])
@pytest.mark.parametrize("width", [0, 1, 33])
def test_copy_rows_equals_indexing(choose: Choose, dim: int, width: int) -> None:
    rng = np.random.default_rng(dim)
    weights, state = random_rows(rng, 50, dim), random_rows(rng, 50, width)
    to_weights, to_state = random_rows(rng, 60, dim), random_rows(rng, 60, width)
    to_rows, from_rows = rng.permutation(60)[:50], rng.integers(0, 50, 50)
    expected, expected_state = to_weights.copy(), to_state.copy()
    expected[to_rows], expected_state[to_rows] = weights[from_rows], state[from_rows]
    choose(move.copy_rows)(to_weights, to_state, to_rows, weights, state, from_rows)
    np.testing.assert_array_equal(to_weights, expected)
    np.testing.assert_array_equal(to_state, expected_state)
