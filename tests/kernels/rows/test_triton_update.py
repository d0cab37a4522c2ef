"""The fused update in Triton: bit for bit as `kernels.rows.cpu.update`, interpreted or on a GPU."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import triton_setup
from support.triton_setup import DEVICE, OPTIMIZERS, Floats, assert_same_bits, random_rows, run, settings_of

import adaptive.kernels.rows.gpu.update
from adaptive.kernels.planning.lookups import hot_rows
from adaptive.kernels.rows.cpu import update
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad

every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)


@dataclass
class Rows:
    """Rows in slots, and how to update them."""

    optimizer: RowOptimizer
    dim: int
    num_slots: int = 7
    arrays: list[Floats] = field(init=False)  # weights and state

    def __post_init__(self) -> None:
        state = np.tile(reference.initial_state(self.optimizer, self.dim), (self.num_slots, 1))
        self.arrays = [random_rows(np.random.default_rng(0), self.num_slots, self.dim), state]

    def update(self, slots: Any, *row_updates: Any, **options: Any) -> Floats:
        """row_updates: segments, vectors, scales, gradients. Returns the norms."""
        norms, optimizer = np.full(len(slots), np.nan, np.float32), self.optimizer
        run(
            triton_setup.update, *self.arrays, slots, *row_updates,
            optimizer.kind, settings_of(optimizer), optimizer.corrections(), norms, **options,
        )  # fmt: skip
        return norms

    def update_by_twin(self, slots: Any, *row_updates: Any) -> Floats:
        norms, optimizer = np.full(len(slots), np.nan, np.float32), self.optimizer
        update.update(
            slots, *row_updates, *self.arrays, *(array[:0] for array in self.arrays),
            optimizer.kind, optimizer.settings(), optimizer.corrections(), norms,
            np.empty((1, 2, self.dim), np.float32),
        )  # fmt: skip
        return norms


def random_row_updates(rng: np.random.Generator, dim: int, sizes: Any, scaled: bool = False) -> tuple[Any, ...]:
    """(segments, vectors, scales, gradients)"""
    segments = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    gradients = random_rows(rng, 6, dim)
    vectors = rng.integers(0, 6, segments[-1]).astype(np.int32)
    return segments, vectors, random_rows(rng, segments[-1] if scaled else 0), gradients


def assert_equals_twin(optimizer: RowOptimizer, dim: int, locations: Any, row_updates: Any, times: int = 2) -> Rows:
    """Updates in a row, so that state counts."""
    rows, twin = Rows(optimizer, dim), Rows(optimizer, dim)
    for _ in range(times):
        assert_same_bits(rows.update(locations, *row_updates), twin.update_by_twin(locations, *row_updates))
        for found, expected in zip(rows.arrays, twin.arrays, strict=True):
            assert_same_bits(found, expected)
    return rows


# --- written out --------------------------------------------------------------------------------------------------


def test_each_rows_gradients_are_summed() -> None:
    """Slot 1 gets vectors 0 and 2; slot 2 gets vector 1. w -= 0.5 * sum; the others stay."""
    rows = Rows(SGD(0.5), 2, 4)
    for array in rows.arrays:
        array.fill(0)
    gradients = np.array([[2, 4], [6, 8], [4, 4]], np.float32)
    row_updates = np.array([0, 2, 3]), np.array([0, 2, 1], np.int32), np.zeros(0, np.float32), gradients
    norms = rows.update(np.array([1, 2]), *row_updates)
    assert_same_bits(rows.arrays[0], [[0, 0], [-3, -4], [-3, -4], [0, 0]])
    assert_same_bits(norms, [5, 5])


def test_the_four_formulas_on_one_number() -> None:
    """Weight 1, gradient 2, first update, learning rate 0.5; numbers that float32 holds exactly."""
    expected: dict[RowOptimizer, tuple[float, list[float]]] = {
        SGD(0.5): (0.0, []),
        Adagrad(0.5, eps=0.0, initial_accumulator=12.0): (0.75, [16]),  # sqrt(12 + 4) = 4
        RowwiseAdagrad(0.5, eps=0.0, initial_accumulator=12.0): (0.75, [16]),
        Adam(0.5, eps=0.0, beta1=0.5, beta2=0.75): (0.5, [1, 1, 1]),  # 0.5 * sqrt(.25) / .5 * 1 / sqrt(1)
    }
    row_updates = np.array([0, 1]), np.zeros(1, np.int32), np.zeros(0, np.float32), np.array([[2]], np.float32)
    for optimizer, (weight, state) in expected.items():
        rows = Rows(optimizer, 1, 3)
        rows.arrays[0].fill(1)
        norms = rows.update(np.array([2]), *row_updates)
        assert_same_bits(rows.arrays[0], [[1], [1], [weight]])
        assert_same_bits(rows.arrays[1][2], state)
        assert_same_bits(norms, [1 - weight])


def test_an_empty_update_changes_nothing() -> None:
    assert_equals_twin(SGD(), 5, np.zeros(0, np.int64), random_row_updates(np.random.default_rng(0), 5, []))


# --- against the twin ---------------------------------------------------------------------------------------------


@every_optimizer
@pytest.mark.parametrize("dim", [1, 3, 16, 17, 64, 100])
def test_every_width_equals_the_twin(optimizer: RowOptimizer, dim: int) -> None:
    rng = np.random.default_rng(dim)
    row_updates = random_row_updates(rng, dim, [1, 1, 9, 2, 1, 1], scaled=dim % 2 == 1)
    assert_equals_twin(optimizer, dim, np.array([2, 6, 0, 4, 3, 1]), row_updates)


@every_optimizer
def test_the_widest_row_equals_the_twin(optimizer: RowOptimizer) -> None:
    dim = 1024 if isinstance(optimizer, RowwiseAdagrad) else 130  # interpreting a sum of squares takes its time
    row_updates = random_row_updates(np.random.default_rng(1), dim, [2])
    assert_equals_twin(optimizer, dim, np.array([1]), row_updates, times=1)


@settings(max_examples=6, deadline=None)
@given(
    optimizer=st.sampled_from(OPTIMIZERS),
    dim=st.sampled_from([1, 3, 16, 40]),
    slots=st.permutations(range(7)),
    sizes=st.lists(st.sampled_from([1, 2, 3, 50]), min_size=1, max_size=7),
    scaled=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_update_equals_the_twin(
    optimizer: RowOptimizer, dim: int, slots: list[int], sizes: list[int], scaled: bool, seed: int
) -> None:
    row_updates = random_row_updates(np.random.default_rng(seed), dim, sizes, scaled)
    assert_equals_twin(optimizer, dim, np.array(slots[: len(sizes)]), row_updates)


@every_optimizer
def test_gradients_that_are_not_finite_equal_the_twin(optimizer: RowOptimizer) -> None:
    """NaN and infinities, squares that overflow (1e30) or vanish (1e-30), numbers below 2**-126."""
    segments, vectors, scales, gradients = random_row_updates(np.random.default_rng(0), 3, [1, 1, 1, 1, 2, 2])
    gradients[:5, 1] = (np.nan, np.inf, 1e30, 1e-30, -np.inf)
    gradients[5] = 1e-41
    vectors[:] = (0, 1, 2, 3, 1, 4, 5, 5)
    assert_equals_twin(optimizer, 3, np.arange(6), (segments, vectors, scales, gradients))


def test_programs_take_several_tiles_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch is used again, by rows in another tile."""
    monkeypatch.setattr(adaptive.kernels.rows.gpu.update, "MAX_PROGRAMS", 2)
    row_updates = random_row_updates(np.random.default_rng(2), 130, [1, 2, 1, 1, 3, 1, 1])
    assert_equals_twin(RowwiseAdagrad(), 130, np.arange(7), row_updates, times=1)


# --- hot rows -----------------------------------------------------------------------------------------------------


def with_hot(optimizer: RowOptimizer, dim: int, row_updates: Any) -> Rows:
    """As `assert_equals_twin`, once, with the rows named that are hot."""
    rows, twin, hot = Rows(optimizer, dim), Rows(optimizer, dim), hot_rows(row_updates[0])
    locations = np.array([2, 6, 0, 4, 3, 1])[: len(row_updates[0]) - 1]
    norms = rows.update(locations, *row_updates, hot=torch.from_numpy(hot).to(DEVICE))
    assert_same_bits(norms, twin.update_by_twin(locations, *row_updates))
    for found, expected in zip(rows.arrays, twin.arrays, strict=True):
        assert_same_bits(found, expected)
    return rows


def test_rows_with_more_than_64_look_ups_are_hot_the_longest_first() -> None:
    segments = np.cumsum([0, 64, 65, 1, 200, 65])
    assert hot_rows(segments).tolist() == [3, 1, 4]
    assert hot_rows(np.zeros(1, np.int64)).dtype == np.int32 and len(hot_rows(np.zeros(1, np.int64))) == 0


@every_optimizer
@pytest.mark.parametrize(("dim", "scaled"), [(1, True), (16, False), (33, True), (64, False)])
def test_hot_rows_equal_the_twin(optimizer: RowOptimizer, dim: int, scaled: bool) -> None:
    """Whole rounds, and what is left of one; rows that are not hot stand between them."""
    row_updates = random_row_updates(np.random.default_rng(dim), dim, [65, 3, 96, 64, 1, 137], scaled)
    with_hot(optimizer, dim, row_updates)


@settings(max_examples=10, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 63, 64, 65, 66, 127, 128, 129, 300]), min_size=1, max_size=6),
    dim=st.sampled_from([1, 3, 40]),
    scaled=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_hot_rows_wherever_they_start_have_a_sum_of_their_own(
    sizes: list[int], dim: int, scaled: bool, seed: int
) -> None:
    with_hot(SGD(0.3), dim, random_row_updates(np.random.default_rng(seed), dim, sizes, scaled))


def test_sums_of_hot_rows_keep_the_sign_of_zero() -> None:
    """-0.0 + -0.0 is -0.0; with any +0.0 it is 0.0. Weights of -0.0 show it: -0.0 - 1 * 0.0 is -0.0."""
    for gradient in (-0.0, 0.0):
        segments, vectors = np.array([0, 70, 170]), np.zeros(170, np.int32)
        gradients = np.full((1, 3), gradient, np.float32)
        rows = with_hot(SGD(1.0), 3, (segments, vectors, np.zeros(0, np.float32), gradients))
        assert not np.isnan(rows.arrays[0]).any()


def test_without_a_name_a_hot_row_is_summed_like_any_other() -> None:
    row_updates = random_row_updates(np.random.default_rng(4), 5, [80, 1])
    assert_equals_twin(SGD(0.3), 5, np.array([0, 1]), row_updates, times=1)
