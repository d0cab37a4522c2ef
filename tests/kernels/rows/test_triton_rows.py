"""Drift, moves and initial values in Triton: bit for bit as on the CPU, interpreted or on a GPU."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import triton_setup
from support.triton_setup import DEVICE, INTERPRETED, Floats, Pinned, assert_same_bits, random_rows, ready, run

from adaptive.config import TableConfig
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.tiers.gpu.build import launch_once
from adaptive.kernels.rows.choose import RowKernels
from adaptive.kernels.rows.cpu import drift, initial
from adaptive.kernels.rows.gpu import move
from adaptive.optim import Adam, RowOptimizer, RowwiseAdagrad

DIMS = [1, 3, 16, 17, 64, 130]
SEEDS = st.integers(0, 2**32 - 1)

# --- drift --------------------------------------------------------------------------------------------------------


def assert_drift_equals_twin(
    locations: Any, entries: Any, known: Any, device: Floats, host: Floats, old: Floats
) -> Any:
    dim, drifts, expected = device.shape[1], np.zeros((2, len(locations)), np.float32), old.copy()
    drift.drift(locations, entries, known, device, host, expected, drifts[0], np.empty((1, dim), np.float32))
    run(triton_setup.drift, locations, entries, known, device, Pinned(host), old, drifts[1])
    assert_same_bits(*drifts)
    assert_same_bits(old, expected)
    return drifts[1]


def test_drift_compares_with_the_snapshot_and_renews_it() -> None:
    """Slot 0 went from (0, 4) to (3, 4): 3 of 5. Host row 0 had no snapshot. Slot 1 stood still.

    Slots 2 and 3 are zeros: one has become so, the other has always been.
    """
    device, host = np.array([[3, 4], [1, 1], [0, 0], [0, 0]], np.float32), np.array([[6, 8]], np.float32)
    snapshots = np.array([[7, 7], [1, 1], [0, 4], [1, 1], [0, 0]], np.float32)
    known = np.array([True, False, True, True, True])
    entries = np.array([2, 0, 1, 3, 4], np.int32)
    drifts = assert_drift_equals_twin(np.array([0, ~0, 1, 2, 3]), entries, known, device, host, snapshots)
    np.testing.assert_array_equal(drifts, np.array([0.6, np.nan, 0, np.inf, 0], np.float32))
    np.testing.assert_array_equal(snapshots, [[6, 8], [1, 1], [3, 4], [0, 0], [0, 0]])


@pytest.mark.parametrize("dim", DIMS)
def test_drift_of_any_width_equals_the_twin(dim: int) -> None:
    """More rows than a program takes, among them some that are not finite."""
    rng = np.random.default_rng(dim)
    device, host, snapshots = random_rows(rng, 20, dim), random_rows(rng, 20, dim), random_rows(rng, 50, dim)
    device[3, 0], host[4, -1], snapshots[5, 0] = np.nan, np.inf, np.inf
    locations, entries = rng.permutation(np.arange(-20, 20)), rng.permutation(50)[:40].astype(np.int32)
    assert_drift_equals_twin(locations, entries, rng.random(40) < 0.7, device, host, snapshots)


# --- moves --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("width", [0, 1, 300])
def test_rows_move_with_their_state(dim: int, width: int) -> None:
    """There, NaN and all, and back. A state wider than 256 values is copied in several turns."""
    rng = np.random.default_rng(dim)
    weights, state = random_rows(rng, 30, dim), random_rows(rng, 30, width)
    host, host_state = random_rows(rng, 40, dim), random_rows(rng, 40, width)
    host[7, 0] = np.nan
    slots, rows = rng.permutation(30)[:20], rng.permutation(40)[:20]
    expected, expected_state = weights.copy(), state.copy()
    expected[slots], expected_state[slots] = host[rows], host_state[rows]
    run(triton_setup.fetch, weights, state, slots, Pinned(host), Pinned(host_state), rows)
    np.testing.assert_array_equal(weights, expected)
    np.testing.assert_array_equal(state, expected_state)
    slots, rows = rng.permutation(30)[:20], rng.permutation(40)[:20]
    expected, expected_state = host.copy(), host_state.copy()
    expected[rows], expected_state[rows] = weights[slots], state[slots]
    run(triton_setup.write_back, weights, state, slots, Pinned(host), Pinned(host_state), rows)
    np.testing.assert_array_equal(host, expected)
    np.testing.assert_array_equal(host_state, expected_state)


def test_every_bit_of_a_row_moves() -> None:
    """NaN keeps its payload."""
    bits = torch.arange(-32768, 32768, 16, dtype=torch.int32) * 65521
    host = bits.view(torch.float32).reshape(16, 256)
    host = host if INTERPRETED else host.pin_memory()
    weights, rows = torch.zeros(16, 256, device=DEVICE), torch.arange(16, device=DEVICE)
    states = torch.zeros(16, 0, device=DEVICE), torch.zeros(16, 0)
    with ready():
        triton_setup.fetch(weights, states[0], rows, host, states[1], rows)
    assert torch.equal(weights.cpu().view(bits.dtype).flatten(), bits)


@pytest.mark.parametrize(("dim", "state"), [(1, 0), (16, 1), (64, 129)])
def test_a_copy_is_one_launch_of_few_programs_whatever_it_moves(
    dim: int, state: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs beside the model: 700 rows by three programs here, which take tile after tile."""
    monkeypatch.setattr(move, "COPY_PROGRAMS", 3)
    grids, kernel = [], move.copy_kernel

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return kernel[grid]

    monkeypatch.setattr(move, "copy_kernel", Counted())
    rng = np.random.default_rng(dim)
    weights, states = np.zeros((700, dim), np.float32), np.zeros((700, state), np.float32)
    host, host_states, rows = random_rows(rng, 700, dim), random_rows(rng, 700, state), rng.permutation(700)
    run(triton_setup.fetch, weights, states, np.arange(700), Pinned(host), Pinned(host_states), rows)
    np.testing.assert_array_equal(weights, host[rows])
    np.testing.assert_array_equal(states, host_states[rows])
    assert grids == [(3,)]


def test_no_rows_move() -> None:
    weights, none = np.ones((2, 3), np.float32), np.zeros(0, np.int64)
    for moving in (triton_setup.fetch, triton_setup.write_back):
        run(moving, weights, weights, none, Pinned(weights), Pinned(weights), none)
    assert (weights == 1).all()


# --- initial values -----------------------------------------------------------------------------------------------


def initial_on_device(group: Any, slots: Any, rows: Any, num_slots: int) -> tuple[Any, Any]:
    weights = torch.full((num_slots, group.embedding_dim), torch.nan, device=DEVICE)
    state = torch.full((num_slots, 2), torch.nan, device=DEVICE)
    arrays = slots, rows, group.table_starts, group.table_keys.view(np.int64), group.table_bounds
    with ready():
        triton_setup.initial_rows(weights, state, *(torch.from_numpy(array).to(DEVICE) for array in arrays), 0.5)
    return weights.cpu(), state.cpu().numpy()


def initial_by_twin(group: Any, slots: Any, rows: Any, num_slots: int) -> tuple[Floats, Floats]:
    weights = np.full((num_slots, group.embedding_dim), np.nan, np.float32)
    state = np.full((num_slots, 2), np.nan, np.float32)
    initial.initial_rows(
        weights, state, slots, rows, group.table_starts, group.table_keys, group.table_bounds, np.float32(0.5)
    )
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
    rows = data.draw(st.lists(st.integers(0, group.num_rows - 1), unique=True, max_size=9))
    slots = np.random.default_rng(seed).permutation(10)[: len(rows)]
    case = group, slots, np.array(rows, np.int64), 10
    (weights, state), (expected, expected_state) = initial_on_device(*case), initial_by_twin(*case)
    assert_same_bits(weights.numpy(), expected)
    assert_same_bits(state, expected_state)


# --- all of them --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [Adam(), RowwiseAdagrad(weight_decay=0.1)], ids=lambda o: type(o).__name__)
def test_each_kernel_is_launched_once_when_tiers_are_made(optimizer: RowOptimizer) -> None:
    """Of those that two threads would otherwise compile at once."""
    launched = []

    def noted(name: str) -> Any:
        def kernel(*arguments: Any, **options: Any) -> None:
            launched.append(name)
            getattr(triton_setup, name)(*arguments, **options)

        return kernel

    kernels = RowKernels(**{field.name: noted(field.name) for field in fields(RowKernels)})
    with ready():
        launch_once(kernels, DEVICE, 16, optimizer)
    expected = ["initial_rows", "fetch", "write_back", "pool", "pool", "update"]
    assert sorted(launched) == sorted([*expected, *(["decay"] if optimizer.kept != 1 else [])])
