"""Rows in bfloat16 in Triton: bits of the CPU's kernels, stochastic and to nearest."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import reference
import torch
from support import triton_setup
from support.row_kernels import OPTIMIZERS, random_rows
from support.triton_setup import DEVICE, hot_of, needs_gpu, ready, settings_of
from torch import Tensor

from adaptive.config import TableConfig
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.tiers.gpu.build import launch_once
from adaptive.kernels.rows import cpu_tensors
from adaptive.kernels.rows.choose import RowKernels
from adaptive.optim import Adagrad, Adam, RowOptimizer

DIMS = [1, 3, 16, 17, pytest.param(64, marks=pytest.mark.smoke), 100]
SPECIAL = np.array([0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0x0001, 0x8000, 0x7F7F, 0x0080], np.uint16)


def halves(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(random_rows(rng, *shape)).to(torch.bfloat16)


def keys_of(number: int, *, nearest: bool) -> Tensor | None:
    keys = np.random.default_rng(number).integers(1, 2**64, number, np.uint64)
    return None if nearest else torch.from_numpy(keys.view(np.int64))


def assert_same_results(by_triton: Callable[..., None], by_numba: Callable[..., None], *arguments: Any, **options: Any
                        ) -> list[Tensor]:  # fmt: skip
    """Both write the same bits to copies of the arguments; NaN may have any payload. Returns the results."""
    ours, theirs = ([a.clone() if isinstance(a, Tensor) else a for a in arguments] for _ in range(2))
    sent = [a.to(DEVICE) if isinstance(a, Tensor) else a for a in ours]
    with ready():
        by_triton(*sent, **{n: a.to(DEVICE) if isinstance(a, Tensor) else a for n, a in options.items()})
    by_numba(*theirs, **{name: a.cpu() if isinstance(a, Tensor) else a for name, a in options.items()})
    results = [a.cpu() for a in sent if isinstance(a, Tensor)]
    for result, expected in zip(results, (a for a in theirs if isinstance(a, Tensor)), strict=True):
        if result.is_floating_point():
            assert torch.equal(result.isnan(), expected.isnan())
            kind = torch.int16 if result.dtype == torch.bfloat16 else torch.int32
            result, expected = (torch.where(a.isnan(), 0, a).view(kind) for a in (result, expected))
        assert torch.equal(result, expected)
    return results


def named(optimizer: RowOptimizer) -> str:
    return type(optimizer).__name__


def states(rng: np.random.Generator, optimizer: RowOptimizer, dim: int) -> Tensor:
    """(9, S) state of rows that had up to 300 updates."""
    state = np.tile(reference.initial_state(optimizer, dim), (9, 1)) + np.abs(random_rows(rng, 9, 1))
    if optimizer.counts:
        state[:, -1] = rng.integers(0, 300, 9)
    return torch.from_numpy(state.astype(np.float32))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=named)
@pytest.mark.parametrize(("nearest", "float_rows"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dim", DIMS)
def test_updates_of_every_width(optimizer: RowOptimizer, dim: int, nearest: bool, float_rows: bool) -> None:
    rng = np.random.default_rng(dim)
    weights = halves(rng, 9, dim)
    weights = weights.float() if float_rows else weights
    state = states(rng, optimizer, dim)
    slots, segments = torch.tensor([4, 0, 7, 2]), np.array([0, 1, 3, 3 + 70, 75])
    vectors = torch.from_numpy(rng.integers(0, 6, segments[-1]).astype(np.int32))
    rule = optimizer.kind, settings_of(optimizer), torch.from_numpy(optimizer.corrections()), torch.zeros(2, 4)
    sums = torch.from_numpy(segments), vectors, torch.zeros(0), torch.from_numpy(random_rows(rng, 6, dim))
    options = {"hot": hot_of(segments), "keys": keys_of(4, nearest=nearest)}
    updated, grown, *_ = assert_same_results(
        triton_setup.update, cpu_tensors.update, weights, state, slots, *sums, *rule, **options
    )
    assert not torch.equal(updated, weights)
    untouched = [1, 3, 5, 6, 8]
    assert torch.equal(updated[untouched], weights[untouched])
    if optimizer.counts:
        counts, before = (each[:, 2 * dim].clone() for each in (grown, state))
        before[slots] += 1
        assert torch.equal(counts, before)


@pytest.mark.parametrize("optimizer", [Adagrad(0.1), Adam(0.1)], ids=named)
def test_sums_that_are_applied(optimizer: RowOptimizer) -> None:
    rng, dim = np.random.default_rng(0), 17
    weights, slots, entries = halves(rng, 9, dim), torch.tensor([4, 0, 7]), torch.tensor([2, 0, 1], dtype=torch.int32)
    state = states(rng, optimizer, dim)
    sums = random_rows(rng, 3, dim)
    squares = np.concatenate([sums * sums, np.full((3, optimizer.squares_width(dim) - dim), 1.0)], 1).astype(np.float32)
    rule = optimizer.kind, settings_of(optimizer), torch.from_numpy(optimizer.corrections()), torch.zeros(2, 3)
    row_updates = torch.arange(4), entries, torch.zeros(0), torch.from_numpy(sums)
    options = {"hot": hot_of(np.arange(4)), "keys": keys_of(3, nearest=False), "squares": torch.from_numpy(squares)}
    assert_same_results(triton_setup.update, cpu_tensors.update, weights, state, slots, *row_updates, *rule, **options)


@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_decay_of_every_width(dim: int, nearest: bool) -> None:
    weights = halves(np.random.default_rng(dim), 9, dim)
    weights.view(torch.uint16).ravel()[: len(SPECIAL)] = torch.from_numpy(SPECIAL)[: weights.numel()]
    assert_same_results(triton_setup.decay, cpu_tensors.decay, weights, torch.tensor([5, 0, 3]), 0.9,
                        keys=keys_of(3, nearest=nearest))  # fmt: skip


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_pooling_of_every_width(dim: int, host: bool) -> None:
    rng = np.random.default_rng(dim)
    locations = torch.tensor([0, ~2 if host else 2, 3, ~0 if host else 1])
    starts = torch.tensor([0, 2, 2, 9, 11])
    inverse = torch.from_numpy(rng.integers(0, 4, 11).astype(np.int32))
    bags = torch.arange(4, dtype=torch.int32), starts, torch.from_numpy(random_rows(rng, 11)), torch.zeros(4, dim)
    far = halves(rng, 5, dim) if host else None
    assert_same_results(triton_setup.pool, cpu_tensors.pool, halves(rng, 6, dim), far, locations, inverse, *bags)


@pytest.mark.parametrize("dim", DIMS)
def test_moves_and_initial_values(dim: int) -> None:
    """Copies keep every bit of what is no NaN; initial values are to nearest."""
    rng = np.random.default_rng(dim)
    source, state, order = (
        halves(rng, 8, dim),
        torch.from_numpy(random_rows(rng, 8, 3)),
        torch.from_numpy(rng.permutation(8)),
    )
    source.view(torch.uint16).ravel()[: len(SPECIAL)] = torch.from_numpy(SPECIAL)[: source.numel()]
    rows = torch.zeros_like(source), torch.zeros_like(state), order, source, state, torch.arange(8)
    copied, *_ = assert_same_results(triton_setup.copy_rows, cpu_tensors.copy_rows, *rows)
    assert torch.equal(copied.view(torch.int16)[order], source.view(torch.int16))
    (group,) = make_groups([TableConfig(name="t", num_embeddings=8, embedding_dim=dim, dtype="bfloat16")], 0)
    tables = [torch.from_numpy(a) for a in (group.table_starts, group.table_keys.view(np.int64), group.table_bounds)]
    fresh = torch.zeros_like(source), torch.zeros_like(state), order, torch.arange(8), *tables, 0.5
    assert_same_results(triton_setup.initial_rows, cpu_tensors.initial_rows, *fresh)


@needs_gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=named)
def test_each_kernel_is_launched_once(optimizer: RowOptimizer) -> None:
    names = RowKernels.__dataclass_fields__
    kernels = RowKernels(**{name: getattr(triton_setup, name) for name in names})
    (group,) = make_groups([TableConfig(name="t", num_embeddings=8, embedding_dim=20, dtype="bfloat16")], 0)
    launch_once(kernels, DEVICE, group, optimizer)
