"""Pooling and copying of rows: written-out cases, then the slow twins, bit for bit."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.row_kernels import Choose, floats, random_rows
from support.variants import both

from adaptive.kernels.rows.cpu import deferred, initial, move, pool, steps, update
from adaptive.kernels.vector import row_sums
from adaptive.kernels.vector.row_ops import prefetch_item, prefetch_row
from adaptive.kernels.vector.row_sums import square_sum

DIMS = st.sampled_from([1, 3, 16, 17, 40, 149])
SEEDS = st.integers(0, 2**32 - 1)


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def i32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


# --- one row ---------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("dim", [1, 3, 16, 17, 40, 149])
def test_operations_on_one_row(choose: Choose, dim: int) -> None:
    rng = np.random.default_rng(dim)
    rows, start, scale = random_rows(rng, 3, dim), random_rows(rng, 2, dim), np.float32(1.7)
    operations: dict[Any, tuple[Any, ...]] = {
        move.copy_row: (rows[2],),
        pool.scale_row: (scale * rows[2], scale),
        pool.add_scaled_row: (start[1] + scale * rows[2], scale),
    }
    for operation, (expected, *more) in operations.items():
        out = start.copy()
        choose(operation)(out, 1, rows, 2, *more)
        np.testing.assert_array_equal(out, [start[0], expected])


@both
@pytest.mark.parametrize("dim", [1, 3, 16, 17, 40, 149])
def test_sums_that_are_pending_grow_and_others_start(choose: Choose, dim: int) -> None:
    """Whatever an unused sum holds is lost."""
    rows, start = random_rows(np.random.default_rng(dim), 3, dim), random_rows(np.random.default_rng(0), 2, dim)
    for operation, added in ((deferred.add_or_start, rows[2]), (deferred.add_or_start_square, rows[2] * rows[2])):
        out = start.copy()
        choose(operation)(out, 1, rows, 2, np.float32(1), np.float32(0))
        np.testing.assert_array_equal(out, [start[0], start[1] + added])
        out[1] = np.nan
        choose(operation)(out, 1, rows, 2, np.float32(0), np.float32(0))
        np.testing.assert_array_equal(out, [start[0], added])


@both
@pytest.mark.parametrize("dim", [1, 3, 16, 17, 40, 64, 149])
@pytest.mark.parametrize("flip", [0, -1])
def test_sums_of_rows_run_in_order(choose: Choose, dim: int, flip: int) -> None:
    """Also if `indices` are ~row, and for a single row. Row 1 of the output does not change."""
    rng = np.random.default_rng(dim)
    rows, indices = random_rows(rng, 5, dim), np.array([4, 2, 2, 0, 3, 1], np.int32)
    scales = random_rows(rng, 6)
    for start, stop in ((0, 6), (1, 4), (5, 6)):
        span = indices[start:stop]
        out = np.full((2, dim), 7, np.float32)
        choose(row_sums.sum_rows)(out, 0, rows, indices ^ flip, flip, start, stop)
        np.testing.assert_array_equal(out, [reference.weighted_sum(rows[span], None), out[1]])
        out[0] = 7
        places = (np.arange(5) ^ flip)[::-1].copy()
        choose(row_sums.sum_found_rows)(out, 0, rows, places, 4 - indices, flip, start, stop)
        np.testing.assert_array_equal(out, [reference.weighted_sum(rows[span], None), out[1]])
        choose(row_sums.sum_scaled_rows)(out, 0, rows, indices ^ flip, flip, start, stop, scales)
        np.testing.assert_array_equal(out, [reference.weighted_sum(rows[span], scales[start:stop]), out[1]])
        assert (out[1] == 7).all()


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
def test_square_sum_adds_four_parts(choose: Choose) -> None:
    """(2**24 + 1) + (1 + 1), where the first 1 vanishes, then + (2 + 2). One after the other all would vanish."""
    row = np.ones((1, 8), np.float32)
    row[0, 0] = 2.0**12
    assert choose(square_sum)(row, 0) == reference.square_sum(row[0]) == 2.0**24 + 6


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


@both
def test_pool_sums_bags_over_both_tiers(choose: Choose) -> None:
    """Bag 0 = slot 0 + host row 1; bag 1 is empty; bag 2 = slot 1 twice."""
    device, host = floats([1, 2], [3, 4]), floats([10, 20], [30, 40])
    out = np.full((3, 2), np.nan, np.float32)
    vectors, starts = np.array([2, 0, 1], np.int32), ints(0, 2, 2, 4)
    choose(pool.pool)(out, (vectors, starts, i32(0, 1, 2, 2), ints(0, ~1, 1), floats()), device, host, 1)
    np.testing.assert_array_equal(out, [[0, 0], [6, 8], [31, 42]])


@both
def test_pool_runs_in_lookup_order_over_both_tiers(choose: Choose) -> None:
    """1e8 + 1 - 1e8 is 0 in float32 and 1e8 - 1e8 + 1 is 1: a sum per tier would give 1."""
    device, host = floats([1e8], [-1e8]), floats([1.0])
    out = np.empty((1, 1), np.float32)
    for order, expected in (((0, ~0, 1), 0.0), ((0, 1, ~0), 1.0)):
        choose(pool.pool)(out, (i32(0), ints(0, 3), i32(0, 1, 2), ints(*order), floats()), device, host, 1)
        assert out[0, 0] == expected


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


@both
@settings(max_examples=30, deadline=None)
@given(case=poolings(), first=st.integers(0, 4))
def test_pool_range_touches_only_its_bags(choose: Choose, case: Any, first: int) -> None:
    first = min(first, case[0])
    expected = pooled_slowly(case)
    expected[case[1][:first]] = 7
    out = np.full_like(expected, 7)
    choose(pool.pool_range)(first, case[0], out, case[1:6], *case[6:])
    np.testing.assert_array_equal(out, expected)


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


@both
@pytest.mark.parametrize("dim", [3, 16])
@pytest.mark.parametrize("width", [0, 1, 33])
def test_swapped_rows_equal_copies_to_the_host_and_back(choose: Choose, dim: int, width: int) -> None:
    """Of 50 rows that leave, the last 40 are replaced; every third of these slots keeps its row."""
    rng = np.random.default_rng(dim)
    slots, host = ((random_rows(rng, size, dim), random_rows(rng, size, width)) for size in (60, 200))
    rows, to_slots, is_initial = rng.permutation(200), rng.permutation(60)[:40], np.arange(40) % 3 == 0
    back_rows, new_rows = rows[:50], rows[50:90]
    expected = [array.copy() for array in (*slots, *host)]
    for in_slots, on_host in ((0, 2), (1, 3)):
        expected[on_host][back_rows[:9:-1]] = expected[in_slots][to_slots]
        expected[in_slots][to_slots[~is_initial]] = expected[on_host][new_rows[~is_initial]]
    for first, last in ((25, 40), (0, 25)):
        choose(move.swap_rows)(first, last, (back_rows, to_slots, new_rows, is_initial), slots, host)
    for array, same in zip((*slots, *host), expected, strict=True):
        np.testing.assert_array_equal(array, same)
