"""The fused update in Triton: bits of `kernels.rows.cpu.update`."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import triton_setup
from support.row_kernels import OPTIMIZERS, Floats, every_optimizer, random_rows
from support.triton_setup import assert_same_bits, hot_of, needs_gpu, run, settings_of

import adaptive.kernels.rows.gpu.decay
import adaptive.kernels.rows.gpu.update
from adaptive.kernels.planning.lookups import hot_chunks
from adaptive.kernels.rows import cpu_tensors
from adaptive.kernels.rows.cpu import update
from adaptive.kernels.vector.bfloat16 import NO_KEYS
from adaptive.optim import SGD, RowOptimizer, RowwiseAdagrad


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

    def update(self, slots: Any, *row_updates: Any) -> Floats:
        """row_updates: segments, vectors, scales, gradients. Returns the norms."""
        norms, optimizer = np.full((2, len(slots)), np.nan, np.float32), self.optimizer
        rule = optimizer.kind, settings_of(optimizer), optimizer.corrections(), norms
        run(triton_setup.update, *self.arrays, slots, *row_updates, *rule, hot=hot_of(row_updates[0]))
        return norms

    def update_by_twin(self, slots: Any, *row_updates: Any) -> Floats:
        norms, optimizer = np.full((2, len(slots)), np.nan, np.float32), self.optimizer
        rule = optimizer.kind, optimizer.settings(), optimizer.corrections()
        host, scratch = (array[:0] for array in self.arrays), np.empty((1, self.dim), np.float32)
        update.update((slots, *row_updates), (*self.arrays, *host), rule, (NO_KEYS, norms), scratch)
        return norms


def random_row_updates(
    rng: np.random.Generator, dim: int, sizes: Any, scaled: bool = False, num_vectors: int = 6
) -> tuple[Any, ...]:
    """(segments, vectors, scales, gradients)"""
    segments = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    gradients = random_rows(rng, num_vectors, dim)
    vectors = rng.integers(0, num_vectors, segments[-1]).astype(np.int32)
    return segments, vectors, random_rows(rng, segments[-1] if scaled else 0), gradients


def assert_equals_twin(
    optimizer: RowOptimizer, dim: int, slots: Any, row_updates: Any, times: int = 2, num_slots: int = 7
) -> Rows:
    """Updates in a row, so that state counts."""
    rows, twin = Rows(optimizer, dim, num_slots), Rows(optimizer, dim, num_slots)
    for _ in range(times):
        assert_same_bits(rows.update(slots, *row_updates), twin.update_by_twin(slots, *row_updates))
        for result, expected in zip(rows.arrays, twin.arrays, strict=True):
            assert_same_bits(result, expected)
    return rows


@every_optimizer
@pytest.mark.parametrize("dim", [1, 3, 16, 17, pytest.param(64, marks=pytest.mark.smoke), 100])
def test_every_width_equals_the_twin(optimizer: RowOptimizer, dim: int) -> None:
    rng = np.random.default_rng(dim)
    row_updates = random_row_updates(rng, dim, [1, 1, 9, 2, 1, 1], scaled=dim % 2 == 1)
    assert_equals_twin(optimizer, dim, np.array([2, 6, 0, 4, 3, 1]), row_updates)


@every_optimizer
def test_the_widest_row_equals_the_twin(optimizer: RowOptimizer) -> None:
    dim = 1024 if isinstance(optimizer, RowwiseAdagrad) else 130  # interpreting a sum of squares takes its time
    row_updates = random_row_updates(np.random.default_rng(1), dim, [2])
    assert_equals_twin(optimizer, dim, np.array([1]), row_updates, times=1)


@settings(max_examples=12, deadline=None)
@given(
    optimizer=st.sampled_from(OPTIMIZERS),
    dim=st.sampled_from([1, 3, 16, 40]),
    slots=st.permutations(range(7)),
    sizes=st.lists(st.sampled_from([1, 2, 3, 50, 63, 64, 65, 66, 128, 129, 300]), min_size=1, max_size=7),
    scaled=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_update_equals_the_twin(
    optimizer: RowOptimizer, dim: int, slots: list[int], sizes: list[int], scaled: bool, seed: int
) -> None:
    """Hot rows and others, in any order; a hot row may start anywhere in its block of 64 positions."""
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


@pytest.mark.smoke
@every_optimizer
@pytest.mark.parametrize("module", [triton_setup, cpu_tensors])
def test_under_a_flag_nothing_changes(optimizer: RowOptimizer, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither rows nor state, in programs of several tiles; norms are NaN. A flag of 0 changes no bit."""
    monkeypatch.setattr(adaptive.kernels.rows.gpu.update, "MAX_PROGRAMS", 1)
    monkeypatch.setattr(adaptive.kernels.rows.gpu.decay, "MAX_PROGRAMS", 1)
    slots, row_updates = np.arange(7), random_row_updates(np.random.default_rng(2), 40, [1, 2, 1, 1, 3, 1, 1])
    results = []
    for flag in (None, 0.0, 1.0):
        rows, norms = Rows(optimizer, 40), np.zeros((2, 7), np.float32)
        rule = optimizer.kind, settings_of(optimizer), optimizer.corrections(), norms
        found_inf = None if flag is None else torch.tensor(flag, device=triton_setup.DEVICE)
        run(module.decay, rows.arrays[0], slots, 0.9, found_inf=found_inf)
        hot = hot_of(row_updates[0])
        run(module.update, *rows.arrays, slots, *row_updates, *rule, hot=hot, found_inf=found_inf)
        results.append([*rows.arrays, norms])
    for plain, unset in zip(*results[:2], strict=True):
        assert_same_bits(plain, unset)
    *kept, norms = results[2]
    for array, before in zip(kept, Rows(optimizer, 40).arrays, strict=True):
        assert_same_bits(array, before)
    assert np.isnan(norms[0]).all() and not np.array_equal(results[0][0], kept[0])


def test_programs_take_several_tiles_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch is reused, by rows in another tile."""
    monkeypatch.setattr(adaptive.kernels.rows.gpu.update, "MAX_PROGRAMS", 2)
    row_updates = random_row_updates(np.random.default_rng(2), 130, [1, 2, 1, 1, 3, 1, 1])
    assert_equals_twin(RowwiseAdagrad(), 130, np.arange(7), row_updates, times=1)


def test_rows_with_more_than_64_lookups_have_chunks_longest_first() -> None:
    segments = np.cumsum([0, 64, 65, 1, 192, 65])
    assert hot_chunks(segments).reshape(-1, 2).tolist() == [[3, 0], [3, 1], [3, 2], [1, 0], [1, 1], [4, 0], [4, 1]]
    assert hot_chunks(np.zeros(1, np.int64)).dtype == np.int32 and len(hot_chunks(np.zeros(1, np.int64))) == 0


def test_sums_of_hot_rows_keep_the_sign_of_zero() -> None:
    """-0.0 + -0.0 is -0.0; with any +0.0 it is 0.0. Weights of -0.0 show it: -0.0 - 1 * 0.0 is -0.0."""
    for gradient in (-0.0, 0.0):
        segments, vectors = np.array([0, 70, 170]), np.zeros(170, np.int32)
        gradients = np.full((1, 3), gradient, np.float32)
        row_updates = segments, vectors, np.zeros(0, np.float32), gradients
        rows = assert_equals_twin(SGD(1.0), 3, np.array([2, 6]), row_updates, times=1)
        assert not np.isnan(rows.arrays[0]).any()


@pytest.mark.gpu
@needs_gpu
@every_optimizer
@pytest.mark.parametrize("dim", [16, 100, 300])
def test_many_programs_at_once_give_the_bits_of_the_cpu(optimizer: RowOptimizer, dim: int) -> None:
    """20,000 of 40,000 rows, some with thousands of lookups, three times."""
    rng = np.random.default_rng(dim)
    sizes = np.minimum(rng.zipf(1.5, 20_000), 3000)
    row_updates = random_row_updates(rng, dim, sizes, scaled=True, num_vectors=5000)
    assert_equals_twin(optimizer, dim, rng.permutation(40_000)[:20_000], row_updates, times=3, num_slots=40_000)
