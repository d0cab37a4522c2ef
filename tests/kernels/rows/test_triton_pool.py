"""Pooling in Triton: bit for bit as `kernels.rows.cpu.pool`, interpreted or on a GPU."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import triton_setup
from support.row_kernels import Floats, random_rows
from support.triton_setup import INTERPRETED, Pinned, assert_same_bits, needs_gpu, run

from adaptive.kernels.rows.cpu import pool


def floats(*values: Any) -> Floats:
    return np.array(values, np.float32)


def pooled(
    weights: Floats,
    host: Floats | None,
    locations: Any,
    vectors: Any,
    starts: Any,
    scales: Floats,
    num_vectors: int,
    num_samples: int = 0,
) -> Floats:
    rows, inverse = np.unique(np.asarray(locations, np.int64), return_inverse=True)
    out = np.full((num_vectors, weights.shape[1]), np.nan, np.float32)
    run(
        triton_setup.pool, weights, None if host is None else Pinned(host), rows, inverse.astype(np.int32),
        np.asarray(vectors, np.int32), np.asarray(starts, np.int64), scales, out, num_samples,
    )  # fmt: skip
    return out


def test_a_sum_starts_from_its_first_term_an_empty_one_is_zero() -> None:
    result = pooled(floats([-0.0], [0.0]), None, [0, 0, 0, 1], [0, 1, 2], [0, 2, 2, 4], floats(), 3)
    assert_same_bits(result, floats([-0.0], [0.0], [0.0]))


def test_a_row_of_a_missing_tier_is_never_read() -> None:
    if INTERPRETED:
        with pytest.raises(AssertionError):
            pooled(floats([1.0]), None, [0, ~0], [0], [0, 2], floats(), 1)
    else:  # the host does not look at what is on the device
        assert np.isnan(pooled(floats([1.0]), None, [0, ~0], [0], [0, 2], floats(), 1)).all()


@pytest.mark.parametrize("dim", [3, 16, 64])
@pytest.mark.parametrize("samples", [1, 5])
def test_arrays_that_are_left_out_change_no_bit(dim: int, samples: int) -> None:
    """Vectors of bags in a batch's order; starts of bags with one lookup each."""
    sizes = [1] * 4 * samples
    device, host, locations, _, starts, scales, num = random_case(np.random.default_rng(dim), dim, sizes, scaled=True)
    vectors = np.add.outer(np.arange(4), np.arange(samples) * 4).ravel()
    expected = pooled(device, host, locations, vectors, starts, scales, num)
    assert_same_bits(pooled(device, host, locations, vectors, [], scales, num), expected)
    assert_same_bits(pooled(device, host, locations, [], starts, scales, num, samples), expected)
    assert_same_bits(pooled(device, host, locations, [], [], scales, num, samples), expected)


def random_case(rng: np.random.Generator, dim: int, sizes: Any, scaled: bool, num_rows: int = 5) -> tuple[Any, ...]:
    """(device, host, locations, bag vectors, bag starts, scales, number of vectors)"""
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return (
        random_rows(rng, num_rows, dim),
        random_rows(rng, num_rows, dim),
        rng.integers(-num_rows, num_rows, starts[-1]),
        rng.permutation(len(sizes)),
        starts,
        random_rows(rng, starts[-1] if scaled else 0),
        len(sizes),
    )


def assert_equals_twin(case: tuple[Any, ...]) -> None:
    device, host, locations, vectors, starts, scales, num_vectors = case
    expected = np.full((num_vectors, device.shape[1]), np.nan, np.float32)
    inverse = np.arange(len(locations), dtype=np.int32)
    pool.pool(expected, (vectors.astype(np.int32), starts, inverse, locations, scales), device, host, 1)
    assert_same_bits(pooled(*case), expected)


@pytest.mark.parametrize("dim", [1, 2, 3, 16, 17, pytest.param(64, marks=pytest.mark.smoke), 100, 130, 1024])
@pytest.mark.parametrize("scaled", [False, True])
def test_every_width_equals_the_twin(dim: int, scaled: bool) -> None:
    sizes = [3, 0, 1] if dim == 1024 else [0, 1, 9, 1, 2, 0, 1, 1, 5, 1, 1, 1]
    assert_equals_twin(random_case(np.random.default_rng(dim), dim, sizes, scaled))


@settings(max_examples=20, deadline=None)
@given(
    dim=st.sampled_from([1, 3, 16, 40]),
    sizes=st.lists(st.sampled_from([0, 1, 2, 5, 30]), max_size=40),
    scaled=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_bags_equal_the_twin(dim: int, sizes: list[int], scaled: bool, seed: int) -> None:
    assert_equals_twin(random_case(np.random.default_rng(seed), dim, sizes, scaled))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dim", [16, 100, 300])
def test_many_programs_at_once_give_the_bits_of_the_cpu(dim: int) -> None:
    rng = np.random.default_rng(dim)
    assert_equals_twin(random_case(rng, dim, rng.integers(0, 30, 5000), scaled=True, num_rows=20_000))


def test_values_that_are_not_finite_stay_in_their_column() -> None:
    case = random_case(np.random.default_rng(0), 3, [2, 3, 1, 4], scaled=True)
    case[0][:, 0], case[0][1, 1], case[1][:, 2] = np.inf, np.nan, -np.inf
    assert_equals_twin(case)
