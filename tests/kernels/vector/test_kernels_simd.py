"""Vectors of 16 values: compiled and in plain Python, the same bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive.kernels.jit import kernel
from adaptive.kernels.vector.simd import add_product, load, store, transpose, zeros

Items = NDArray[np.float32]


@kernel()
def weighted_sum(weights: Items, rows: Items, out: Items) -> None:
    """`out[3 : 19]` = the sum of rows of 17 items, without their first, times their weights."""
    total = zeros()
    for i in range(len(weights)):
        total = add_product(total, weights, i, load(rows, 17 * i + 1))
    store(out, 3, total)


@kernel()
def transposed(items: Items, stride: int, out: Items, out_stride: int) -> None:
    transpose(items, 2, stride, out, 5, out_stride)


def both(function: Any) -> list[Callable[..., None]]:
    return [function, function.py_func]


def test_sums_are_rounded_once_per_product() -> None:
    rng = np.random.default_rng(0)
    weights, rows = rng.standard_normal(9, np.float32), rng.standard_normal(9 * 17, np.float32)
    expected = np.zeros(16, np.float32)
    for i, weight in enumerate(weights):  # a product of two float32 is exact in float64
        expected = (expected + np.float64(weight) * rows[17 * i + 1 : 17 * i + 17]).astype(np.float32)
    for function in both(weighted_sum):
        out = np.full(20, 7, np.float32)
        function(weights, rows, out)
        np.testing.assert_array_equal(out[3:19], expected)
        assert out[[0, 1, 2, 19]].tolist() == [7, 7, 7, 7]


@pytest.mark.parametrize(("stride", "out_stride"), [(16, 16), (16, 48), (37, 18)])
def test_transpose(stride: int, out_stride: int) -> None:
    items = np.arange(2 + 16 * stride, dtype=np.float32)
    rows = np.array([items[2 + i * stride :][:16] for i in range(16)])
    for function in both(transposed):
        out = np.full(5 + 16 * out_stride, -1, np.float32)
        function(items, stride, out, out_stride)
        found = np.array([out[5 + j * out_stride :][:16] for j in range(16)])
        np.testing.assert_array_equal(found, rows.T)
        assert np.count_nonzero(out == -1) == len(out) - 256
