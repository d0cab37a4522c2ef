"""Deferred sums by Triton, interpreted or on a GPU, and by numba on tensors: the bits of `rows.cpu.deferred`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import triton_setup
from support.triton_setup import DEVICE, OPTIMIZERS, Floats, assert_same_bits, random_rows, run, settings_of

import adaptive.kernels.rows.gpu.deferred
from adaptive.kernels.planning.lookups import hot_rows
from adaptive.kernels.rows import cpu_tensors
from adaptive.kernels.rows.cpu import deferred, update
from adaptive.optim import Adagrad, Adam, RowOptimizer, RowwiseAdagrad

DIMS = [1, 3, 16, 17, 64, 130]
NO_SCALES = np.zeros(0, np.float32)

every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)


@dataclass(frozen=True)
class Kernels:
    """Of one kind."""

    accumulate: Callable[..., None]
    update: Callable[..., None]


KINDS = {
    "triton": Kernels(triton_setup.accumulate, triton_setup.update),
    "cpu": Kernels(cpu_tensors.accumulate, cpu_tensors.update),
}


@pytest.fixture(params=KINDS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return KINDS[request.param]


class Sums:
    """Sums and squares of a few rows, on the device and for the twin. What no longer waits is NaN."""

    def __init__(self, num: int, dim: int, width: int) -> None:
        rows = [np.full((num, columns), np.nan, np.float32) for columns in (dim, width)]
        self.device: list[Any] = [*rows, np.zeros(num, np.bool_)]
        self.twin: list[Any] = [array.copy() for array in self.device]

    def visit(self, kernels: Kernels, entries: Any, *gradients: Any) -> None:
        """gradients: segments, vectors, scales, gradients."""
        hot = torch.from_numpy(hot_rows(gradients[0])).to(DEVICE)
        run(kernels.accumulate, entries, *gradients, *self.device, hot=hot)
        g = np.empty((1, self.twin[0].shape[1]), np.float32)
        deferred.accumulate(0, len(entries), entries, *gradients, *self.twin, g)

    def assert_same(self) -> None:
        for found, expected in zip(self.device, self.twin, strict=True):
            assert_same_bits(found, expected)


def one_each(*gradients: Any) -> tuple[Any, ...]:
    """(segments, vectors, scales, gradients) of so many rows, each with a gradient of its own."""
    num = len(gradients)
    return np.arange(num + 1), np.arange(num, dtype=np.int32), NO_SCALES, np.array(gradients, np.float32)


def test_sums_of_hot_rows(kernels: Kernels) -> None:
    """Rows of 3, 90 and 65 look-ups, twice."""
    rng = np.random.default_rng(0)
    vectors, gradients = rng.integers(0, 6, 158).astype(np.int32), random_rows(rng, 6, 5)
    sums = Sums(3, 5, 5)
    for _ in range(2):
        sums.visit(kernels, np.array([2, 0, 1]), np.array([0, 3, 93, 158]), vectors, NO_SCALES, gradients)
        sums.assert_same()


# --- sums grow ----------------------------------------------------------------------------------------------------


def test_two_visits_are_summed_and_so_are_their_squares(kernels: Kernels) -> None:
    """The last number of the widest counts; 5 and 17 are means of (1, 9) and of (9, 25)."""
    for width, expected in ((3, [[1 + 9, 9 + 25, 2]]), (2, [[1 + 9, 9 + 25]]), (1, [[5 + 17]]), (0, [[]])):
        sums = Sums(1, 2, width)
        for gradient in ([1, 3], [-3, 5]):
            sums.visit(kernels, np.array([0]), *one_each(gradient))
        assert_same_bits(sums.device[0], [[-2, 8]])
        assert_same_bits(sums.device[1], expected)
        assert sums.device[2].all()


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("squares", ["none", "row", "every", "counted"])
def test_gradients_are_added_to_sums_or_start_them(kernels: Kernels, dim: int, scaled: bool, squares: str) -> None:
    rng = np.random.default_rng(dim)
    sums = Sums(12, dim, {"none": 0, "row": 1, "every": dim, "counted": dim + 1}[squares])
    segments, vectors = np.array([0, 1, 6, 38]), rng.integers(0, 9, 38).astype(np.int32)
    for entries in ([3, 1, 7], [7, 4, 3], [11, 0, 7]):
        scales, gradients = random_rows(rng, 38 if scaled else 0), random_rows(rng, 9, dim)
        sums.visit(kernels, np.array(entries), segments, vectors, scales, gradients)
        sums.assert_same()
    np.testing.assert_array_equal(np.flatnonzero(sums.device[2]), [0, 1, 3, 4, 7, 11])


@pytest.mark.parametrize("width", [1, 131])
def test_programs_take_several_tiles_each(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch is used again, by rows in another tile."""
    monkeypatch.setattr(adaptive.kernels.rows.gpu.deferred, "MAX_PROGRAMS", 2)
    sums, rng = Sums(7, 130, width), np.random.default_rng(0)
    for _ in range(2):
        sums.visit(KINDS["triton"], rng.permutation(7), *one_each(*random_rows(rng, 7, 130)))
    sums.assert_same()


def test_no_gradients_are_deferred(kernels: Kernels) -> None:
    none, pending = np.zeros(0, np.int64), np.zeros(1, np.bool_)
    tables = np.zeros((0, 4), np.float32), np.zeros((1, 4), np.float32), np.zeros((1, 1), np.float32)
    run(kernels.accumulate, none, np.zeros(1, np.int64), none, NO_SCALES, *tables, pending)
    assert not pending.any()


# --- sums are applied ---------------------------------------------------------------------------------------------


class Rows:
    """Rows in slots with their state."""

    def __init__(self, optimizer: RowOptimizer, dim: int, num: int = 40) -> None:
        state = np.tile(reference.initial_state(optimizer, dim), (num, 1))
        self.optimizer, self.dim = optimizer, dim
        self.arrays: list[Floats] = [random_rows(np.random.default_rng(0), num, dim), state]

    def apply(self, kernels: Kernels, slots: Any, entries: Any, sums: Any, squares: Any) -> Floats:
        """Each row gets the sum of one entry; returns the norms."""
        optimizer, norms = self.optimizer, np.full(len(slots), np.nan, np.float32)
        row_updates = np.arange(len(slots) + 1), entries.astype(np.int32), NO_SCALES, sums
        tail = optimizer.kind, settings_of(optimizer), optimizer.corrections(), norms

        def update(squares: Any, *arguments: Any) -> None:
            kernels.update(*arguments, squares=squares)

        run(update, squares, *self.arrays, slots, *row_updates, *tail)
        return norms

    def apply_by_twin(self, slots: Any, entries: Any, sums: Any, squares: Any) -> Floats:
        optimizer, norms = self.optimizer, np.full(len(slots), np.nan, np.float32)
        numbers = optimizer.kind, optimizer.settings(), optimizer.corrections(), norms
        delta = np.empty((1, self.dim), np.float32)
        deferred.apply_sums(0, len(slots), 0, slots, entries, sums, squares, *self.arrays, *numbers, delta)
        return norms

    def assert_same(self, other: "Rows") -> None:
        for found, expected in zip(self.arrays, other.arrays, strict=True):
            assert_same_bits(found, expected)


def random_squares(rng: np.random.Generator, num: int, dim: int, optimizer: RowOptimizer) -> Floats:
    """As they might wait, of 1 to 255 gradients where these are counted."""
    squares = random_rows(rng, num, optimizer.squares_width(dim)) ** 2
    if isinstance(optimizer, Adam):
        squares[:, dim] = rng.integers(1, 256, num)
    return squares


def assert_applied_as_by_the_twin(
    kernels: Kernels, optimizer: RowOptimizer, slots: Sequence[int], sums: Floats, squares: Floats
) -> None:
    """Twice, so that state counts. Entries are taken from behind."""
    dim, where = sums.shape[1], np.array(slots)
    entries = np.arange(len(sums))[::-1][: len(where)].copy()
    rows, twin = Rows(optimizer, dim), Rows(optimizer, dim)
    for _ in range(2):
        case = where, entries, sums, squares
        assert_same_bits(rows.apply(kernels, *case), twin.apply_by_twin(*case))
        rows.assert_same(twin)


def test_the_formulas_on_one_number(kernels: Kernels) -> None:
    """Weight 1, gradients 3 and -1 that wait, learning rate 0.5: the state grows by 9 + 1, not by 2 * 2."""
    for optimizer in (
        Adagrad(0.5, eps=0.0, initial_accumulator=6.0),
        RowwiseAdagrad(0.5, eps=0.0, initial_accumulator=6.0),
    ):
        rows, sums = Rows(optimizer, 1, 4), Sums(1, 1, 1)
        rows.arrays[0].fill(1)
        for gradient in (3, -1):
            sums.visit(kernels, np.array([0]), *one_each([gradient]))
        norms = rows.apply(kernels, np.array([2]), np.array([0]), *sums.device[:2])
        assert_same_bits(rows.arrays[0], [[1], [1], [0.75], [1]])  # 1 - 0.5 * 2 / sqrt(16)
        assert_same_bits(rows.arrays[1], [[6], [6], [16], [6]])
        assert_same_bits(norms, [0.25])


def test_a_sum_under_adam_counts_as_updates_with_its_mean(kernels: Kernels) -> None:
    """As written out in `test_kernels_deferred`: moments 2 and 1 become 2 and 4, the row moves as in two updates."""
    optimizer = Adam(0.5, eps=0.0, beta1=0.5, beta2=0.5)
    rows, sums = Rows(optimizer, 1, 2), Sums(1, 1, 2)
    rows.arrays[0].fill(1)
    rows.arrays[1][:] = 2, 1, 2
    for gradient in (1, 3):
        sums.visit(kernels, np.array([0]), *one_each([gradient]))
    assert_same_bits(sums.device[1], [[10, 2]])
    norms, moved = rows.apply(kernels, np.array([1]), np.array([0]), *sums.device[:2]), 2 * optimizer.corrections()[3]
    assert_same_bits(rows.arrays[0], [[1], [1 - moved]])
    assert_same_bits(rows.arrays[1], [[2, 1, 2], [2, 4, 4]])
    assert_same_bits(norms, [moved])


@every_optimizer
@pytest.mark.parametrize("dim", DIMS)
def test_sums_of_every_width_are_applied_as_by_the_twin(kernels: Kernels, optimizer: RowOptimizer, dim: int) -> None:
    """With squares that are not those of the sums."""
    rng = np.random.default_rng(dim)
    sums, squares = random_rows(rng, 6, dim), random_squares(rng, 6, dim, optimizer)
    assert_applied_as_by_the_twin(kernels, optimizer, [2, 7, 0, 5, 1], sums, squares)


@every_optimizer
def test_sums_that_are_not_finite_are_applied_as_by_the_twin(kernels: Kernels, optimizer: RowOptimizer) -> None:
    sums = np.array([[np.nan, 1], [np.inf, 1], [1e30, 1e-30], [1e-41, 0]], np.float32)
    width = optimizer.squares_width(2)
    squares = np.array([[1, 1, 1], [np.inf, np.nan, 2], [np.inf, 0, 5], [0, 0, 3]], np.float32)[:, :width].copy()
    assert_applied_as_by_the_twin(kernels, optimizer, [2, 3, 0, 1], sums, squares)


@every_optimizer
@pytest.mark.parametrize("dim", [1, 5, 64])
def test_a_sum_of_one_visit_has_the_bits_of_the_update(kernels: Kernels, optimizer: RowOptimizer, dim: int) -> None:
    rng = np.random.default_rng(dim)
    rows, plain = Rows(optimizer, dim), Rows(optimizer, dim)
    segments, locations, entries = np.array([0, 3, 4, 9]), np.array([1, 3, 0]), np.array([4, 0, 2])
    for _ in range(2):
        vectors, gradients = rng.integers(0, 6, 9).astype(np.int32), random_rows(rng, 6, dim)
        row_updates, sums = (segments, vectors, NO_SCALES, gradients), Sums(5, dim, optimizer.squares_width(dim))
        sums.visit(kernels, entries, *row_updates)
        found, expected = rows.apply(kernels, locations, entries, *sums.device[:2]), np.empty(3, np.float32)
        update.update(
            locations, *row_updates, *plain.arrays, *(array[:0] for array in plain.arrays),
            optimizer.kind, optimizer.settings(), optimizer.corrections(), expected, np.empty((1, 2, dim), np.float32),
        )  # fmt: skip
        assert_same_bits(found, expected)
        rows.assert_same(plain)


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    optimizer=st.sampled_from(OPTIMIZERS),
    dim=st.sampled_from([1, 3, 16, 40]),
    visits=st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_visits_are_summed_and_applied_as_by_the_twin(
    kind: str, optimizer: RowOptimizer, dim: int, visits: list[set[int]], seed: int
) -> None:
    rng, kernels = np.random.default_rng(seed), KINDS[kind]
    sums = Sums(6, dim, optimizer.squares_width(dim))
    for entries in visits:
        sums.visit(kernels, np.array(sorted(entries)), *one_each(*random_rows(rng, len(entries), dim)))
    sums.assert_same()
    waiting = np.flatnonzero(sums.device[2])
    assert_applied_as_by_the_twin(
        kernels, optimizer, np.arange(4)[: len(waiting)].tolist(), *(array[waiting] for array in sums.device[:2])
    )
