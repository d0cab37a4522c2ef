"""Weight decay of rows: numba's kernel, on tensors too, and Triton's have the same bits, and touch no other row."""

import numpy as np
import pytest
import torch
from support import triton_setup
from support.triton_setup import assert_same_bits, random_rows, run

from adaptive.kernels.rows import cpu_tensors
from adaptive.kernels.rows.cpu import decay

KEPT = np.float32(0.97)


def test_only_rows_of_the_tier_are_scaled() -> None:
    device, host = np.ones((3, 2), np.float32), np.ones((2, 2), np.float32)
    locations = np.array([2, ~0, 0])
    for chunks in (1, 2):
        decay.decay(0, locations, np.float32(0.5), device, chunks)
        decay.decay(-1, locations, np.float32(0.5), host, chunks)
    assert device[:, 0].tolist() == [0.25, 1, 0.25] and host[:, 0].tolist() == [0.25, 1]


@pytest.mark.parametrize("dim", [1, 3, 16, 17, 100])
def test_all_ways_have_the_same_bits(dim: int) -> None:
    random = np.random.default_rng(dim)
    rows, slots = random_rows(random, 40, dim), random.permutation(40)[:23]
    expected = rows.copy()
    expected[slots] *= KEPT
    by_numba, by_tensor, by_triton = rows.copy(), torch.from_numpy(rows.copy()), rows.copy()
    decay.decay(0, slots, KEPT, by_numba, 2)
    cpu_tensors.decay(by_tensor, torch.from_numpy(slots), float(KEPT))
    run(triton_setup.decay, by_triton, slots, float(KEPT))
    for found in (by_numba, by_tensor.numpy(), by_triton):
        assert_same_bits(found, expected)


def test_no_rows_are_no_launch() -> None:
    rows = np.ones((2, 4), np.float32)
    run(triton_setup.decay, rows, np.zeros(0, np.int64), 0.5)
    assert (rows == 1).all()
