"""Gradient sums and optimizer steps: written-out cases, then the slow twins, bit for bit."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from support.row_kernels import Choose, Floats, TwoTiers, every_optimizer, random_rows
from support.variants import both

from adaptive.kernels.rows.cpu import update
from adaptive.kernels.vector.bfloat16 import NO_KEYS
from adaptive.optim import SGD, RowOptimizer


class Rows(TwoTiers):
    def update(self, choose: Choose, locations: Any, segments: Any, vectors: Any, scales: Any, gradients: Any,
               num_chunks: int = 1) -> Floats:  # fmt: skip
        norms = np.full((2, len(locations)), np.nan, np.float32)
        choose(update.update)(
            (np.asarray(locations, np.int64), np.asarray(segments, np.int64), np.asarray(vectors, np.int32),
             np.asarray(scales, np.float32), gradients),
            self.tables, self.rule, (NO_KEYS, norms), np.full((num_chunks, self.dim), np.nan, np.float32),
        )  # fmt: skip
        return norms

    def update_slowly(self, locations: Any, segments: Any, vectors: Any, scales: Any, gradients: Any) -> Floats:
        """(2, n) norms of the changes, and of the rows before them."""
        norms, lengths = [], []
        for u, location in enumerate(locations):
            span = slice(segments[u], segments[u + 1])
            gradient = reference.summed_gradient(gradients[vectors[span]], scales[span] if len(scales) else None)
            lengths.append(math.sqrt(reference.square_sum(reference.row_at(location, self.device, self.host))))
            norms.append(self.step_slowly(location, gradient))
        return np.array([norms, lengths], np.float32)


# --- written out ---------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("lookups", [1, 63, 64, 65, 128, 1000])
def test_long_sums_equal_the_twin(choose: Choose, lookups: int) -> None:
    rng = np.random.default_rng(lookups)
    rows, twin = Rows(SGD(0.5), 19), Rows(SGD(0.5), 19)
    vectors, gradients = rng.integers(0, 9, lookups + 3), random_rows(rng, 9, 19)
    for scales in (random_rows(rng, lookups + 3), np.zeros(0, np.float32)):
        batch = [1, 0], [0, 3, lookups + 3], vectors, scales, gradients
        np.testing.assert_array_equal(rows.update(choose, *batch), twin.update_slowly(*batch))
        np.testing.assert_array_equal(rows.device, twin.device)


@both
@every_optimizer
def test_a_gradient_that_overflows_its_square_gives_no_nan(choose: Choose, optimizer: RowOptimizer) -> None:
    """g * g is inf for g = 1e30: the Adagrad family and Adam then take steps of zero."""
    rows = Rows(optimizer, 3)
    rows.update(choose, [0], [0, 1], [0], [], np.full((1, 3), 1e30, np.float32))
    assert not np.isnan(rows.device).any()


# --- against the twins -----------------------------------------------------------------------------------------------


@st.composite
def updates(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `Rows.update`: some of 3 slots and 4 host rows, short and long segments."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dim = draw(st.sampled_from([1, 3, 16, 17, 40]))
    locations = draw(st.permutations(range(-4, 3)))[: draw(st.integers(0, 7))]
    sizes = [draw(st.sampled_from([1, 2, 3, 50])) for _ in locations]
    segments = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    num_vectors = draw(st.integers(1, 6))
    return {
        "locations": list(locations),
        "segments": segments,
        "vectors": rng.integers(0, num_vectors, segments[-1]),
        "scales": rng.normal(size=segments[-1] if draw(st.booleans()) else 0).astype(np.float32),
        "gradients": (rng.normal(size=(num_vectors, dim)) * 10.0 ** rng.integers(-2, 2)).astype(np.float32),
    }


@both
@every_optimizer
@settings(max_examples=25, deadline=None)
@given(case=updates(), num_chunks=st.integers(1, 3))
def test_update_equals_its_twin_for_any_number_of_chunks(
    choose: Choose, optimizer: RowOptimizer, case: dict[str, Any], num_chunks: int
) -> None:
    """Three updates in a row, so that state counts."""
    dim = case["gradients"].shape[1]
    rows, twin = Rows(optimizer, dim), Rows(optimizer, dim)
    for _ in range(3):
        norms = rows.update(choose, **case, num_chunks=num_chunks)
        np.testing.assert_array_equal(norms, twin.update_slowly(**case))
        assert rows.equals(twin)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("num_chunks", [2, 3, 16])
@every_optimizer
def test_threads_share_many_rows_and_give_the_same_bits(optimizer: RowOptimizer, num_chunks: int) -> None:
    """Enough rows that chunks really run at once."""
    rng = np.random.default_rng(1)
    num = 5000
    alone, shared = (Rows(optimizer, 17, num // 2, num, np.random.default_rng(3)) for _ in range(2))
    locations = rng.permutation(np.arange(-num, num // 2))
    sizes = rng.geometric(0.3, len(locations))
    sizes[0] = 20_000
    segments = np.concatenate([[0], np.cumsum(sizes)])
    gradients = rng.normal(size=(300, 17)).astype(np.float32)
    case = (locations, segments, rng.integers(0, 300, segments[-1]), [], gradients)
    norms = alone.update(lambda kernel: kernel, *case)
    np.testing.assert_array_equal(shared.update(lambda kernel: kernel, *case, num_chunks=num_chunks), norms)
    assert shared.equals(alone)


# --- chunks ----------------------------------------------------------------------------------------------------------


@both
@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 30), max_size=20), num_chunks=st.integers(1, 6))
def test_chunks_cover_all_rows_once_and_evenly(choose: Choose, sizes: list[int], num_chunks: int) -> None:
    """A row weighs as much as a lookup."""
    segments = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    bounds = [int(choose(update.chunk_start)(segments, chunk, num_chunks)) for chunk in range(num_chunks + 1)]
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, len(sizes))
    total, largest = len(sizes) + sum(sizes), 1 + max(sizes, default=0)
    for first, last in itertools.pairwise(bounds):
        assert sum(sizes[first:last]) + last - first <= math.ceil(total / num_chunks) + largest
