"""Deferred sums in Triton, and by numba on tensors: bits of `cpu.deferred`."""

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
from support.row_kernels import OPTIMIZERS, Floats, every_optimizer, random_rows
from support.triton_setup import INTERPRETED, assert_same_bits, hot_of, needs_gpu, run, settings_of

import adaptive.kernels.rows.gpu.deferred
from adaptive.kernels.rows import cpu_tensors
from adaptive.kernels.rows.cpu import deferred, update
from adaptive.kernels.vector.bfloat16 import NO_KEYS
from adaptive.optim import Adam, RowOptimizer

DIMS = [1, 3, 16, 17, pytest.param(64, marks=pytest.mark.smoke), 130]
NO_SCALES = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Kernels:
    """The kernels for deferral, of one kind."""

    accumulate: Callable[..., None]
    update: Callable[..., None]


KINDS = {"triton": Kernels(triton_setup.accumulate, triton_setup.update)}
if INTERPRETED:  # elsewhere the tensors of these tests are on a GPU
    KINDS["cpu"] = Kernels(cpu_tensors.accumulate, cpu_tensors.update)


@pytest.fixture(params=KINDS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return KINDS[request.param]


class Sums:
    """Sums and squares of rows, on the device and for the twin; NaN before their first gradient."""

    def __init__(self, num: int, dim: int, width: int) -> None:
        rows = [np.full((num, columns), np.nan, np.float32) for columns in (dim, width)]
        self.device: list[Any] = [*rows, np.zeros(num, np.bool_)]
        self.twin: list[Any] = [array.copy() for array in self.device]

    def visit(self, kernels: Kernels, entries: Any, *gradients: Any, flag: float | None = None) -> None:
        """gradients: segments, vectors, scales, gradients."""
        found_inf = None if flag is None else torch.tensor(flag, device=triton_setup.DEVICE)
        run(kernels.accumulate, entries, *gradients, *self.device, hot=hot_of(gradients[0]), found_inf=found_inf)
        if flag:
            return
        g = np.empty((1, self.twin[0].shape[1]), np.float32)
        deferred.accumulate(0, len(entries), (entries, *gradients), tuple(self.twin), g)

    def assert_same(self) -> None:
        for result, expected in zip(self.device, self.twin, strict=True):
            assert_same_bits(result, expected)


def one_each(*gradients: Any) -> tuple[Any, ...]:
    """(segments, vectors, scales, gradients) of as many rows, each with its own gradient."""
    num = len(gradients)
    return np.arange(num + 1), np.arange(num, dtype=np.int32), NO_SCALES, np.array(gradients, np.float32)


# --- sums grow ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(
    ("squares", "scaled"), [("none", True), ("row", False), ("every", True), ("counted", False), ("counted", True)]
)
def test_gradients_are_added_to_sums_or_start_them(kernels: Kernels, dim: int, scaled: bool, squares: str) -> None:
    rng = np.random.default_rng(dim)
    sums = Sums(12, dim, {"none": 0, "row": 1, "every": dim, "counted": dim + 1}[squares])
    segments, vectors = np.array([0, 1, 6, 38]), rng.integers(0, 9, 38).astype(np.int32)
    for entries in ([3, 1, 7], [7, 4, 3], [11, 0, 7]):
        scales, gradients = random_rows(rng, 38 if scaled else 0), random_rows(rng, 9, dim)
        sums.visit(kernels, np.array(entries), segments, vectors, scales, gradients)
        sums.assert_same()
    np.testing.assert_array_equal(np.flatnonzero(sums.device[2]), [0, 1, 3, 4, 7, 11])


@pytest.mark.smoke
@pytest.mark.parametrize("width", [0, 1, 17, 18])
def test_under_a_flag_nothing_changes(kernels: Kernels, width: int) -> None:
    rng, sums = np.random.default_rng(0), Sums(9, 17, width)
    for flag, entries in ((0.0, [3, 1, 7]), (1.0, [7, 4, 3]), (0.0, [4, 1, 8])):
        sums.visit(kernels, np.array(entries), *one_each(*random_rows(rng, 3, 17)), flag=flag)
        sums.assert_same()


@pytest.mark.parametrize("width", [1, 131])
def test_programs_take_several_tiles_each(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch is reused, by rows in another tile."""
    monkeypatch.setattr(adaptive.kernels.rows.gpu.deferred, "MAX_PROGRAMS", 2)
    sums, rng = Sums(7, 130, width), np.random.default_rng(0)
    for _ in range(2):
        sums.visit(KINDS["triton"], rng.permutation(7), *one_each(*random_rows(rng, 7, 130)))
    sums.assert_same()


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
        tail = optimizer.kind, settings_of(optimizer), optimizer.corrections(), norms[None]

        def update(squares: Any, *arguments: Any) -> None:
            kernels.update(*arguments, squares=squares, hot=hot_of(row_updates[0]))

        run(update, squares, *self.arrays, slots, *row_updates, *tail)
        return norms

    def apply_by_twin(self, slots: Any, entries: Any, sums: Any, squares: Any) -> Floats:
        optimizer, norms = self.optimizer, np.full(len(slots), np.nan, np.float32)
        rule, results = (optimizer.kind, optimizer.settings(), optimizer.corrections()), (NO_KEYS, norms[None])
        deferred.apply_sums(0, len(slots), 0, (slots, entries), (sums, squares), *self.arrays, rule, results)
        return norms

    def assert_same(self, other: "Rows") -> None:
        for result, expected in zip(self.arrays, other.arrays, strict=True):
            assert_same_bits(result, expected)


def random_squares(rng: np.random.Generator, num: int, dim: int, optimizer: RowOptimizer) -> Floats:
    """Squares as they may accumulate, of 1 to 255 gradients where these are counted."""
    squares = random_rows(rng, num, optimizer.squares_width(dim)) ** 2
    if isinstance(optimizer, Adam):
        squares[:, dim] = rng.integers(1, 256, num)
    return squares


def assert_applied_as_by_the_twin(
    kernels: Kernels, optimizer: RowOptimizer, slots: Sequence[int], sums: Floats, squares: Floats
) -> None:
    """Twice, so that state counts. Entries are taken from the end."""
    dim, where = sums.shape[1], np.array(slots)
    entries = np.arange(len(sums))[::-1][: len(where)].copy()
    num = max(40, len(where))
    rows, twin = Rows(optimizer, dim, num), Rows(optimizer, dim, num)
    for _ in range(2):
        case = where, entries, sums, squares
        assert_same_bits(rows.apply(kernels, *case), twin.apply_by_twin(*case))
        rows.assert_same(twin)


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
        norms, expected = rows.apply(kernels, locations, entries, *sums.device[:2]), np.empty(3, np.float32)
        update.update(
            (locations, *row_updates), (*plain.arrays, *(array[:0] for array in plain.arrays)),
            (optimizer.kind, optimizer.settings(), optimizer.corrections()), (NO_KEYS, expected[None]),
            np.empty((1, dim), np.float32),
        )  # fmt: skip
        assert_same_bits(norms, expected)
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
    pending = np.flatnonzero(sums.device[2])
    assert_applied_as_by_the_twin(
        kernels, optimizer, np.arange(4)[: len(pending)].tolist(), *(array[pending] for array in sums.device[:2])
    )


@pytest.mark.gpu
@needs_gpu
@every_optimizer
@pytest.mark.parametrize("dim", [16, 100, 300])
def test_many_programs_at_once_give_the_bits_of_the_cpu(optimizer: RowOptimizer, dim: int) -> None:
    """Two visits of 10,000 among 20,000 entries; then every sum that is pending is applied."""
    rng, kernels = np.random.default_rng(dim), KINDS["triton"]
    sums = Sums(20_000, dim, optimizer.squares_width(dim))
    for _ in range(2):
        sums.visit(kernels, rng.permutation(20_000)[:10_000], *one_each(*random_rows(rng, 10_000, dim)))
    sums.assert_same()
    pending = np.flatnonzero(sums.device[2])
    slots = rng.permutation(len(pending)).tolist()
    assert_applied_as_by_the_twin(kernels, optimizer, slots, *(array[pending] for array in sums.device[:2]))
