"""The loops of the synthetic stream: each against its definition, and compiled against plain Python."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from adaptive.data.kernels import synthetic as kernels
from adaptive.data.synthetic import Synthetic, SyntheticConfig, make_fields


def test_hashed_is_splitmix64() -> None:
    """The first numbers of splitmix64 seeded with 0, as published with its reference code."""
    assert [int(kernels.hashed(0, i)) for i in (1, 2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_normal_inverts_the_distribution_function() -> None:
    bits = [0, 2**32, 2**40, 2**62, 2**63, 2**64 - 1]
    expected = ndtri([(float(b >> 32) + 0.5) / 2**32 for b in bits])
    np.testing.assert_allclose([kernels.normal(np.uint64(b)) for b in bits], expected, rtol=2e-7, atol=1e-9)


def test_below_normal_is_the_distribution_function() -> None:
    x = np.linspace(-6, 6, 101)
    np.testing.assert_allclose([kernels.below_normal(v) for v in x], ndtr(x), atol=2e-4)


def test_quick_normal_interpolates_quantiles() -> None:
    quantiles = np.empty(kernels.QUANTILES + 1)
    kernels.fill_quantiles(quantiles)
    share = np.linspace(0.001, 0.999, 997)
    actual = [kernels.quick_normal(quantiles, np.uint64(int(p * 2**32)) << np.uint64(32)) for p in share]
    np.testing.assert_allclose(actual, ndtri(share), atol=0.002)


@pytest.mark.parametrize("bits", [4, 5, 10])
def test_shuffled_is_a_permutation_of_the_period(bits: int) -> None:
    field = make_fields(SyntheticConfig(num_train=2**bits))[2]
    assert field["period"] == 2**bits
    facts = (field["draw_key"], field["period"] - np.uint64(1), field["half"])
    places = [kernels.shuffled(*facts, index) for index in range(2**bits)]
    assert sorted(places) == list(range(2**bits))
    assert places != sorted(places)
    assert [kernels.shuffled(*facts, 2**bits + index) for index in range(2**bits)] == places


@pytest.mark.parametrize("index", [0, 2, 8, 25])
def test_ranks_follow_the_zipf_mandelbrot_law(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Continuous weights (rank + 1 + q)^-s, integrated from one rank to the next, are the shares of look-ups."""
    for name in ("CORRELATION", "DEFAULT_SHARE"):
        monkeypatch.setattr(f"adaptive.data.synthetic.{name}", 0.0)
    num, data = 100_000, Synthetic(SyntheticConfig(singleton_share=0.0))
    field, size = data._fields[index], int(data._fields[index]["size"])
    ids = data.samples(0, num)[0].ids[index * num : (index + 1) * num].astype(object)
    ranks = ((ids - int(field["offset"])) * pow(int(field["stride"]), -1, size) % size).astype(np.int64)
    edges = np.unique(np.geomspace(1, int(field["popular"]) + 1, 12).astype(int)) - 1
    a = 1.0 / field["power"]
    cumulative = ((edges + field["shift"]) ** a - field["low"]) / field["span"]
    actual = np.histogram(ranks, edges)[0] / num
    actual[-1] += (ranks == edges[-1]).mean()
    np.testing.assert_allclose(actual, np.diff(cumulative), atol=4 * 0.5 / math.sqrt(num))


def run_array_kernels(data: Synthetic, pick: Callable[[Any], Any]) -> list[NDArray[Any]]:
    """All outputs for 16 samples, of which the last 6 come after the drift."""
    teacher, fields, start, drifted, num = data._teacher, data._fields, 199_990, 10, 16
    latent, labels, parts = np.empty(num), np.empty(num, np.float32), np.zeros((4, num))
    dense = np.empty((num, data.num_dense), np.float32)
    ids = np.empty((len(fields), num, data.config.lookups), np.int64)
    curves, quantiles = np.empty_like(data._curves), np.empty_like(data._quantiles)
    pick(kernels.fill_quantiles)(quantiles)
    pick(kernels.fill_ranks)(fields[:3], curves[:3])
    pick(kernels.draw_normals)(data._latent_key, start, latent)
    if data.num_dense:
        pick(kernels.draw_dense)(data._dense_keys, data._quantiles, start, 0.8, latent, dense)
    lookups, flat = data.config.lookups, ids.reshape(len(ids), -1)
    of_lookups, places = np.repeat(latent, lookups), (start * lookups, lookups)
    pick(kernels.draw_ids)(fields, data._curves, data._quantiles, *places, of_lookups, flat)
    pick(kernels.add_main)(fields, teacher.main, drifted, ids, parts[0])
    pick(kernels.add_pairs)(fields, teacher.pairs, drifted, ids, parts[1])
    pick(kernels.add_dense)(teacher.linear, teacher.curved, dense, parts[2])
    pick(kernels.add_products)(fields, teacher.products, drifted, ids, dense, parts[3])
    pick(kernels.draw_labels)(data._label_key, start, ndtr(latent), labels)
    return [ids, labels, latent, dense, parts, curves[:3], quantiles]


@pytest.mark.parametrize(
    "shape",
    [{}, {"num_dense": 3, "tables": 5, "lookups": 4, "new_ids": 0.05}, {"num_dense": 0, "tables": 30, "lookups": 2}],
    ids=["criteo", "few multi-hot of new ids", "no dense"],
)
def test_array_kernels_equal_their_plain_python(shape: dict[str, int]) -> None:
    data = Synthetic(SyntheticConfig.model_validate({"drift_at": 0.5, **shape}))
    actual = run_array_kernels(data, lambda kernel: kernel.py_func)
    expected = run_array_kernels(data, lambda kernel: kernel)
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_array_equal(actual[1], expected[1])
    for one, other in zip(actual[2:], expected[2:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
