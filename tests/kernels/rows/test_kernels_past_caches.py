"""Large outputs are stored past the caches: the same bits, only for rows of whole cache lines."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from support.row_kernels import Floats

from adaptive.kernels.rows.cpu import pool
from adaptive.kernels.scratch import empty_rows
from adaptive.kernels.vector import row_sums


def shifted(num_rows: int, width: int) -> Floats:
    """Rows that do not start cache lines."""
    return empty_rows(1, num_rows * width + 4)[0, 4:].reshape(num_rows, width)


@numba.njit
def whole_lines(out: Any) -> Any:
    return row_sums.may_pass_caches(out)


@pytest.mark.parametrize("call", [whole_lines, whole_lines.py_func], ids=["compiled", "plain"])
def test_only_rows_of_whole_lines_are_stored_past_the_caches(call: Callable[[Floats], bool]) -> None:
    assert call(empty_rows(3, 16)) and call(empty_rows(3, 64))
    assert not call(empty_rows(3, 17)) and not call(empty_rows(3, 8)) and not call(shifted(3, 16))


@pytest.mark.parametrize(
    ("sums", "past"), [(row_sums.sum_found_rows, False), (row_sums.sum_found_rows_past_caches, True)]
)
def test_stores_past_the_caches_are_compiled_so(sums: Any, past: bool) -> None:
    def call(out: Floats, rows: Floats, indices: NDArray[np.int64]) -> None:
        sums(out, 0, rows, indices, indices, 0, 0, 1)
        row_sums.finish_stores()

    compiled = numba.njit(call)
    rows = empty_rows(1, 16)
    rows.fill(3)
    out = empty_rows(1, 16)
    compiled(out, rows, np.zeros(1, np.int64))
    assert out.tolist() == rows.tolist()
    (code,) = compiled.inspect_llvm().values()
    assert ("nontemporal" in code) == past and "fence seq_cst" in code


@pytest.mark.parametrize("made", [empty_rows, shifted], ids=["lines", "no lines"])
def test_large_outputs_are_pooled_as_small_ones(made: Callable[[int, int], Floats]) -> None:
    """In three chunks, with empty bags and rows of both tiers, or of one (then stores pass the caches)."""
    dim, num_bags = 16, pool.PAST_CACHES // 16
    rng = np.random.default_rng(0)
    device, host = (rng.normal(size=(50, dim)).astype(np.float32) for _ in range(2))
    starts = np.concatenate([[0], np.cumsum(rng.integers(0, 4, num_bags))])
    vectors = rng.permutation(num_bags).astype(np.int32)
    mixed = rng.integers(-50, 50, starts[-1])
    for locations in (mixed, np.where(mixed < 0, ~mixed, mixed), np.where(mixed < 0, mixed, ~mixed)):
        out, expected = made(num_bags, dim), np.zeros((num_bags, dim), np.float32)
        out.fill(np.nan)
        each = np.arange(len(locations), dtype=np.int32)
        pool.pool(out, (vectors, starts, each, locations, np.zeros(0, np.float32)), device, host, 3)
        values = np.where(locations[:, None] >= 0, device[locations], host[~locations])
        for term in range(3):
            long_enough = np.flatnonzero(np.diff(starts) > term)
            expected[vectors[long_enough]] += values[starts[long_enough] + term]
        np.testing.assert_array_equal(out, expected)
