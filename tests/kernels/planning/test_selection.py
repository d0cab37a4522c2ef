"""The lowest of many: of scores and of slots, ties included, as a stable sort has them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from adaptive.kernels.planning import selection
from adaptive.kernels.planning.selection import MANY, ORDERS, lowest_slots
from adaptive.kernels.scratch import LentMemory

Int64s = NDArray[np.int64]
MEMORY = LentMemory()


def lowest(scores: NDArray[np.float64], count: int) -> Int64s:
    return selection.lowest(scores, count, MEMORY)


@pytest.mark.parametrize(
    ("scores", "count", "positions"),
    [
        ([3, 1, 2], 1, [1]),
        ([3, 1, 2], 2, [1, 2]),
        ([1, 1, 1, 1], 2, [0, 1]),
        ([2, 1, 2, 1, 2], 3, [0, 1, 3]),
        ([0.0, -0.0, 0.0], 2, [0, 1]),
        ([np.inf, -np.inf, 0, -np.inf], 2, [1, 3]),
        ([-np.inf, -np.inf], 1, [0]),
        ([5, 4], 0, []),
        ([5, 4], 2, [0, 1]),
        ([5, 4], 9, [0, 1]),
        ([], 0, []),
    ],
)
def test_lowest(scores: list[float], count: int, positions: list[int]) -> None:
    assert lowest(np.array(scores, np.float64), count).tolist() == positions


@given(st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, np.inf]), max_size=30), st.integers(0, 30))
def test_lowest_are_the_first_of_a_stable_sort(scores: list[float], count: int) -> None:
    array = np.array(scores, np.float64)
    assert lowest(array, count).tolist() == sorted(np.argsort(array, kind="stable")[:count].tolist())


def draw(kind: str, size: int, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    if kind == "normal":
        return rng.standard_normal(size) * 10.0 ** rng.integers(-300, 300, size)
    if kind == "equal":
        return np.full(size, -1.5)
    if kind == "few":
        return rng.integers(-2, 3, size).astype(np.float64)
    if kind == "outlier":  # all others share their leading digits
        return np.append(1 + rng.random(size - 1) * 1e-9, 1e300)
    return np.minimum(rng.zipf(1.2, size), 2**40).astype(np.float64)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["normal", "equal", "few", "outlier", "zipf"]),
    st.sampled_from([1, 2, 100, MANY - 1, MANY, MANY + 77, 3 * MANY]),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_lowest_of_many_kinds_of_scores(kind: str, size: int, share: float, seed: int) -> None:
    """The sample of which a bound is guessed is taken from MANY scores on."""
    scores, count = draw(kind, size, seed), round(share * size)
    assert np.array_equal(lowest(scores, count), np.sort(np.argsort(scores, kind="stable")[:count]))


def test_a_guess_that_was_too_low_is_not_used() -> None:
    """Every 64th score, of which the sample is made, is lower than all others."""
    scores = np.where(np.arange(2 * MANY) % selection.SAMPLED == 0, -1.0, 1.0) * (1 + np.arange(2 * MANY))
    count = MANY
    assert np.array_equal(lowest(scores, count), np.sort(np.argsort(scores, kind="stable")[:count]))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(ORDERS)), st.sampled_from([1, 9, 300, MANY + 5]), st.floats(0, 1), st.integers(0, 2**32 - 1)
)
def test_lowest_slots_are_the_first_of_a_stable_sort_by_their_columns(
    columns: tuple[str, ...], size: int, share: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    slots = rng.permutation(2 * size)[:size]
    used = rng.choice([-1, 0, 3, 2**31 - 2], 2 * size).astype(np.int32)
    accesses = rng.choice([0, 1, 2**31, 2**32 - 1], 2 * size).astype(np.uint32)
    of = {"accesses": accesses[slots].astype(np.int64), "last_access": used[slots].astype(np.int64)}
    expected = np.lexsort([of[name] for name in reversed(columns)])[: round(share * size)]
    found = lowest_slots(slots, used, accesses, ORDERS[columns], len(expected), MEMORY)
    assert np.array_equal(found, np.sort(expected))
