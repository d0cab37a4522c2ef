"""Rounding to bfloat16: to nearest as torch rounds, stochastic with the bits of the twin and the right mean."""

from itertools import combinations

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.row_kernels import Choose, Floats
from support.variants import both

from adaptive.config import TableConfig
from adaptive.embeddings.planning.layout import make_groups
from adaptive.kernels.jit import kernel
from adaptive.kernels.rows.cpu.move import copy_row
from adaptive.kernels.rows.cpu.rounding import rounding_keys
from adaptive.kernels.rows.cpu.update import NEAREST
from adaptive.kernels.vector.bfloat16 import narrow, stream_key, widen

Bits = NDArray[np.uint16]
EVERY = np.arange(2**16, dtype=np.uint16)  # every bfloat16
SPECIAL = np.array([0x00000001, 0x007FFFFF, 0x80000001, 0x00008000, 0x00018000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF,
                    0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0x80000000], np.uint32)  # fmt: skip


@kernel()
def round_rows(out, rows, keys):  # type: ignore[no-untyped-def]
    for i in range(len(keys)):
        copy_row(out, i, rows, i, keys[i])


def rounded(choose: Choose, rows: Floats, keys: NDArray[np.uint64]) -> Bits:
    out = np.zeros(rows.shape, np.uint16)
    choose(round_rows)(out, rows, keys)
    return out


def random_keys(number: int, seed: int = 0) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(1, 2**64, number, np.uint64)


@both
def test_nearest_is_what_torch_rounds_to(choose: Choose) -> None:
    """Ties to even, denormals, overflow to infinity; NaN stays NaN, with any bits."""
    bits = np.concatenate([SPECIAL, np.random.default_rng(0).integers(0, 2**32, 4096 - len(SPECIAL), np.uint32)])
    values = bits.view(np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    numbers = ~np.isnan(values)
    for result in (narrow(values), rounded(choose, values.reshape(-1, 64), np.zeros(64, np.uint64)).ravel()):
        np.testing.assert_array_equal(result[numbers], expected[numbers])
        assert np.isnan(widen(result[~numbers])).all() and not numbers.all()


@both
def test_values_of_bfloat16_are_exact_with_any_key(choose: Choose) -> None:
    values = widen(EVERY)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(
        torch.from_numpy(EVERY).view(torch.bfloat16).float().numpy()[numbers], values[numbers]
    )
    for keys in (random_keys(1024), np.full(1024, NEAREST)):
        result = rounded(choose, values.reshape(1024, 64), keys).ravel()
        np.testing.assert_array_equal(result[numbers], EVERY[numbers])
        assert np.isnan(widen(result[~numbers])).all()


@both
@settings(max_examples=25, deadline=None)
@given(dim=st.sampled_from([1, 3, 4, 16, 17, 64, 85]), seed=st.integers(0, 2**32 - 1))
def test_bits_of_the_twin_in_blocks_of_any_width(choose: Choose, dim: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 2**32, (5, dim), np.uint32).view(np.float32)
    keys = random_keys(5, seed)
    expected = [reference.as_bfloat16(row, int(key)) for row, key in zip(rows, keys, strict=True)]
    result = widen(rounded(choose, rows, keys))
    np.testing.assert_array_equal(result.view(np.uint32), np.stack(expected).view(np.uint32))
    np.testing.assert_array_equal(np.stack([narrow(row, int(key)) for row, key in zip(rows, keys, strict=True)]),
                                  narrow(result))  # fmt: skip


@both
def test_keys_of_rows_are_those_of_the_twin(choose: Choose) -> None:
    """Rows of three tables in any order; a key is never 0."""
    tables = [TableConfig(name=name, num_embeddings=9, embedding_dim=2, dtype="bfloat16") for name in "abc"]
    (group,) = make_groups(tables, 3)
    rows = np.random.default_rng(0).permutation(27)
    keys = np.empty(27, np.uint64)
    for number in (0, 1, 2**31 - 2):
        choose(rounding_keys)(rows, group.table_starts, group.table_keys, number, keys)
        assert keys.tolist() == [reference.rounding_key(tables[row // 9], 3, row % 9, number) for row in rows.tolist()]
        assert keys.all() and len(set(keys.tolist())) == 27


# --- statistics, with fixed seeds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1 / 65536, 0.01, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("low", [1.0, -3.0, 2.0**-130])
def test_the_mean_is_the_value(low: float, share: float) -> None:
    """Of values at a share of the way from one bfloat16 to the next: five standard errors; far below for nearest."""
    bits = np.float32(low).view(np.uint32)
    value = (bits + np.uint32(round(share * 65536))).view(np.float32)
    results = np.stack([narrow(np.full(256, value), int(key)) for key in random_keys(4096, seed=1)])
    ups = results - np.uint16(bits >> 16)
    assert set(np.unique(ups)) <= {0, 1}
    deviation = np.sqrt(share * (1 - share) / ups.size)
    assert abs(ups.mean() - share) < 5 * deviation
    assert (np.abs(ups.mean(axis=0) - share) < 6 * np.sqrt(share * (1 - share) / len(ups)) + 1 / len(ups)).all()


def test_rows_columns_and_batches_round_independently() -> None:
    """Correlations of whether halves round up: between neighboring columns, rows and batches of the real keys."""
    starts, seeds = np.array([0, 512]), np.array([12345], np.uint64)
    ups = np.empty((64, 512, 32))
    keys = np.empty(512, np.uint64)
    half = np.full(32, np.uint32(0x3F808000).view(np.float32))
    for number in range(len(ups)):
        rounding_keys(np.arange(512), starts, seeds, number, keys)
        ups[number] = [narrow(half, int(key)) - 0x3F80 for key in keys]
    signs = 2 * ups - 1
    limit = 5 / np.sqrt(signs.size)
    assert abs(signs.mean()) < limit
    for axis in range(3):
        for lag in (1, 2, 16):
            first, second = (
                np.take(signs, range(*ends), axis) for ends in ((0, signs.shape[axis] - lag), (lag, signs.shape[axis]))
            )
            assert abs((first * second).mean()) < 1.2 * limit


def test_parts_of_a_row_round_independently() -> None:
    """Correlations between the streams of weights, of both moments, and of the decay, for the real keys."""
    starts, seeds, keys = np.array([0, 2048]), np.array([12345], np.uint64), np.empty(2048, np.uint64)
    rounding_keys(np.arange(2048), starts, seeds, 3, keys)
    half = np.full(32, np.uint32(0x3F808000).view(np.float32))
    parts = [[stream_key(int(key), part) for key in keys] for part in (0, 2, 3)]
    parts += [[reference.mix(int(key)) for key in keys]]
    signs = [np.array([narrow(half, key) - 0x3F80 for key in of_part]) * 2.0 - 1 for of_part in parts]
    limit = 5 / np.sqrt(signs[0].size)
    for one, other in combinations(signs, 2):
        assert abs((one * other).mean()) < limit and abs((one[:, 1:] * other[:, :-1]).mean()) < limit
