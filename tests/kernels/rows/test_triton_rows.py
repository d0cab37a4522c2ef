"""Decay, moves and initial values in Triton: bits of the CPU."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import triton_setup
from support.row_kernels import Floats, random_rows
from support.triton_setup import DEVICE, INTERPRETED, Pinned, assert_same_bits, needs_gpu, ready, run

from adaptive.config import TableConfig
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.tiers.gpu.build import launch_once
from adaptive.kernels.rows import cpu_tensors
from adaptive.kernels.rows.choose import RowKernels
from adaptive.kernels.rows.cpu import decay, initial
from adaptive.kernels.rows.gpu import move
from adaptive.kernels.vector.bfloat16 import NO_KEYS
from adaptive.optim import Adam, RowOptimizer, RowwiseAdagrad

DIMS = [1, 3, 16, 17, 64, 130]
SEEDS = st.integers(0, 2**32 - 1)

# --- decay --------------------------------------------------------------------------------------------------------


def test_only_rows_of_the_tier_decay() -> None:
    device, host = np.ones((3, 2), np.float32), np.ones((2, 2), np.float32)
    locations = np.array([2, ~0, 0])
    for chunks in (1, 2):
        decay.decay(0, locations, np.float32(0.5), NO_KEYS, device, chunks)
        decay.decay(-1, locations, np.float32(0.5), NO_KEYS, host, chunks)
    assert device[:, 0].tolist() == [0.25, 1, 0.25] and host[:, 0].tolist() == [0.25, 1]


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("size", [0, 23])
def test_decay_is_one_multiplication_everywhere(dim: int, size: int) -> None:
    random, factor = np.random.default_rng(dim), np.float32(0.97)
    rows, slots = random_rows(random, 40, dim), random.permutation(40)[:size]
    expected = rows.copy()
    expected[slots] *= factor
    by_numba, by_tensor, by_triton = rows.copy(), torch.from_numpy(rows.copy()), rows.copy()
    decay.decay(0, slots, factor, NO_KEYS, by_numba, 2)
    cpu_tensors.decay(by_tensor, torch.from_numpy(slots), float(factor))
    run(triton_setup.decay, by_triton, slots, float(factor))
    for result in (by_numba, by_tensor.numpy(), by_triton):
        assert_same_bits(result, expected)


# --- moves --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("width", [0, 1, 300])
@pytest.mark.parametrize("to_host", [False, True])
def test_rows_move_with_their_state(dim: int, width: int, to_host: bool) -> None:
    """In either direction. A state wider than 256 values is copied in several turns."""
    rng = np.random.default_rng(dim)
    device, host = (tuple(random_rows(rng, 40, columns) for columns in (dim, width)) for _ in range(2))
    to, source = (host, device) if to_host else (device, host)
    source[0][7, 0] = np.nan
    to_rows, rows = rng.permutation(40)[:20], rng.permutation(40)[:20]
    expected = [array.copy() for array in to]
    for array, values in zip(expected, source, strict=True):
        array[to_rows] = values[rows]
    on_host, on_device = tuple(map(Pinned, host)), device
    run(
        triton_setup.copy_rows,
        *(on_host if to_host else on_device),
        to_rows,
        *(on_device if to_host else on_host),
        rows,
    )
    for array, values in zip(to, expected, strict=True):
        np.testing.assert_array_equal(array, values)


def test_every_bit_of_a_row_moves() -> None:
    """NaN keeps its payload."""
    bits = torch.arange(-32768, 32768, 16, dtype=torch.int32) * 65521
    host = bits.view(torch.float32).reshape(16, 256)
    host = host if INTERPRETED else host.pin_memory()
    weights, rows = torch.zeros(16, 256, device=DEVICE), torch.arange(16, device=DEVICE)
    with ready():
        triton_setup.copy_rows(weights, torch.zeros(16, 0, device=DEVICE), rows, host, torch.zeros(16, 0), rows)
    assert torch.equal(weights.cpu().view(bits.dtype).flatten(), bits)


@pytest.mark.gpu
@needs_gpu
def test_memory_that_is_not_pinned_is_refused() -> None:
    weights, rows = torch.zeros(2, 4, device=DEVICE), torch.arange(2, device=DEVICE)
    with ready(), pytest.raises(ValueError, match="cpu tensor"):
        triton_setup.copy_rows(weights, weights, rows, torch.zeros(2, 4), torch.zeros(2, 4), rows)


@pytest.mark.parametrize(("dim", "state", "count"), [(1, 0, 700), (16, 1, 700), (64, 129, 700), (3, 3, 0)])
def test_a_copy_is_one_launch_of_few_programs(
    dim: int, state: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs alongside the model: all rows by three programs here, which take tile after tile."""
    monkeypatch.setattr(move, "COPY_PROGRAMS", 3)
    grids, kernel = [], move.copy_kernel

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return kernel[grid]

    monkeypatch.setattr(move, "copy_kernel", Counted())
    rng = np.random.default_rng(dim)
    weights, states = np.zeros((count, dim), np.float32), np.zeros((count, state), np.float32)
    host, host_states, rows = random_rows(rng, count, dim), random_rows(rng, count, state), rng.permutation(count)
    run(triton_setup.copy_rows, weights, states, np.arange(count), Pinned(host), Pinned(host_states), rows)
    np.testing.assert_array_equal(weights, host[rows])
    np.testing.assert_array_equal(states, host_states[rows])
    assert grids == ([(3,)] if count else [])


# --- initial values -----------------------------------------------------------------------------------------------


def initial_on_device(group: Any, slots: Any, rows: Any, num_slots: int, keys: Any = None) -> tuple[Any, Any]:
    weights = torch.full((num_slots, group.embedding_dim), torch.nan, device=DEVICE)
    state = torch.full((num_slots, 2), torch.nan, device=DEVICE)
    arrays = slots, rows, group.table_starts, group.table_keys.view(np.int64), group.table_bounds
    row_keys = None if keys is None else torch.from_numpy(keys).to(DEVICE)
    with ready():
        on_device = (torch.from_numpy(array).to(DEVICE) for array in arrays)
        triton_setup.initial_rows(weights, state, *on_device, 0.5, row_keys=row_keys)
    return weights.cpu(), state.cpu().numpy()


def initial_by_twin(group: Any, slots: Any, rows: Any, num_slots: int, keys: Any = None) -> tuple[Floats, Floats]:
    weights = np.full((num_slots, group.embedding_dim), np.nan, np.float32)
    state = np.full((num_slots, 2), np.nan, np.float32)
    tables = group.table_starts, group.table_keys, group.table_bounds, np.float32(0.5)
    if keys is None:
        initial.initial_rows(weights, state, slots, rows, *tables)
    else:
        initial.initial_rows_by_key(weights, state, slots, rows, keys, *tables)
    return weights, state


def tables(sizes: list[int], dim: int, seed: int) -> Any:
    configs = [TableConfig(name=f"t{i}", num_embeddings=size, embedding_dim=dim) for i, size in enumerate(sizes)]
    (group,) = make_groups(configs, seed)
    return group


@settings(max_examples=15, deadline=None)
@given(
    dim=st.sampled_from(DIMS),
    sizes=st.lists(st.sampled_from([1, 2, 9, 2**33]), min_size=1, max_size=5),
    seed=SEEDS,
    data=st.data(),
)
def test_initial_values_equal_the_twin(dim: int, sizes: list[int], seed: int, data: st.DataObject) -> None:
    group = tables(sizes, dim, seed)
    numbers = st.sampled_from(group.table_starts[:-1].tolist()) | st.integers(0, group.num_rows - 1)
    rows = data.draw(st.lists(numbers, unique=True, max_size=9))
    slots = np.random.default_rng(seed).permutation(10)[: len(rows)]
    keys = data.draw(st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=len(rows), max_size=len(rows)))
    case = group, slots, np.array(rows, np.int64), 10, None if keys is None else np.array(keys, np.int64)
    (weights, state), (expected, expected_state) = initial_on_device(*case), initial_by_twin(*case)
    assert_same_bits(weights.numpy(), expected)
    assert_same_bits(state, expected_state)


# --- all of them --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [Adam(), RowwiseAdagrad(weight_decay=0.1)], ids=lambda o: type(o).__name__)
def test_kernels_are_launched_once_when_tiers_are_made(optimizer: RowOptimizer) -> None:
    """Those that two threads would otherwise compile at once."""
    (group,) = make_groups([TableConfig(name="t", num_embeddings=1, embedding_dim=16)], 0)
    launched = []

    def noted(name: str) -> Any:
        def kernel(*arguments: Any, **options: Any) -> None:
            launched.append(name)
            getattr(triton_setup, name)(*arguments, **options)

        return kernel

    kernels = RowKernels(**{field.name: noted(field.name) for field in fields(RowKernels)})
    with ready():
        launch_once(kernels, DEVICE, group, optimizer)
    expected = ["initial_rows", "copy_rows", "pool", "pool", "update"]
    assert sorted(launched) == sorted([*expected, *(["decay"] if optimizer.decay_factor != 1 else [])])
