"""The Triton kernels on a GPU, at sizes where programs run side by side: bits as on the CPU, again and again."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support import triton_setup
from support.triton_setup import (
    DEVICE,
    INTERPRETED,
    OPTIMIZERS,
    assert_same_bits,
    needs_gpu,
    random_rows,
    ready,
    settings_of,
)
from torch import Tensor

from adaptive.kernels.rows.cpu import deferred, pool, update
from adaptive.optim import RowOptimizer

pytestmark = [pytest.mark.gpu, needs_gpu]

NUM_SLOTS, NUM_HOST, NUM_VECTORS = (40_000, 20_000, 5_000) if not INTERPRETED else (40, 20, 9)


def pinned(array: Any) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor if INTERPRETED else tensor.pin_memory()


def on_device(*arrays: Any) -> list[Tensor]:
    return [torch.from_numpy(array).to(DEVICE) for array in arrays]


@pytest.fixture
def _never_waiting() -> Iterator[None]:
    """What waits for the GPU raises."""
    if INTERPRETED:
        yield
        return
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


class Case:
    """Rows in slots, and an update of most of them in which a few rows have very many lookups."""

    def __init__(self, optimizer: RowOptimizer, dim: int) -> None:
        rng = np.random.default_rng(dim)
        self.optimizer, self.dim = optimizer, dim
        width = optimizer.state_width(dim)
        self.rows = [random_rows(rng, NUM_SLOTS, dim), np.zeros((NUM_SLOTS, width), np.float32)]
        self.slots = rng.permutation(NUM_SLOTS)[: NUM_SLOTS // 2]
        sizes = np.minimum(rng.zipf(1.5, len(self.slots)), 3000 if not INTERPRETED else 40)
        segments = np.concatenate([[0], np.cumsum(sizes)])
        vectors = rng.integers(0, NUM_VECTORS, segments[-1]).astype(np.int32)
        self.row_updates = segments, vectors, random_rows(rng, segments[-1]), random_rows(rng, NUM_VECTORS, dim)

    def update(self) -> list[Any]:
        """[weights, state, norms] after one update on the device."""
        rows, tensors = on_device(*(array.copy() for array in self.rows)), on_device(self.slots, *self.row_updates)
        corrections, norms = on_device(self.optimizer.corrections(), np.empty(len(self.slots), np.float32))
        with ready():
            triton_setup.update(*rows, *tensors, self.optimizer.kind, settings_of(self.optimizer), corrections, norms)
        return [tensor.cpu().numpy() for tensor in (*rows, norms)]

    def visits(self, num: int) -> list[Any]:
        """(entries, segments, vectors, scales) of two visits of sums (num, D); the first `num` rows are the case's."""
        rng, (segments, vectors, scales, _) = np.random.default_rng(0), self.row_updates
        half, stop = num // 2, segments[num // 2]
        return [(rng.permutation(num)[:half], segments[: half + 1], vectors[:stop], scales[:stop]) for _ in range(2)]

    def empty_sums(self, num: int) -> list[Any]:
        """[sums, squares, pending]"""
        widths = self.dim, self.optimizer.squares_width(self.dim)
        return [*(np.zeros((num, width), np.float32) for width in widths), np.zeros(num, np.bool_)]

    def defer(self, num: int) -> list[Any]:
        """[weights, state, norms, sums, squares] after the visits and one update."""
        rows = on_device(*(array.copy() for array in self.rows))
        sums, squares, pending = on_device(*self.empty_sums(num))
        (gradients,), where = on_device(self.row_updates[3]), on_device(self.slots[:num])
        due = on_device(np.arange(num + 1), np.arange(num, dtype=np.int32), np.zeros(0, np.float32))
        corrections, norms = on_device(self.optimizer.corrections(), np.empty(num, np.float32))
        numbers = self.optimizer.kind, settings_of(self.optimizer), corrections, norms
        with ready():
            for visit in self.visits(num):
                triton_setup.accumulate(*on_device(*visit), gradients, sums, squares, pending)
            triton_setup.update(*rows, *where, *due, sums, *numbers, squares=squares)
        return [tensor.cpu().numpy() for tensor in (*rows, norms, sums, squares)]

    def defer_by_twin(self, num: int) -> list[Any]:
        rows, norms = [array.copy() for array in self.rows], np.empty(num, np.float32)
        (sums, squares, pending), g = self.empty_sums(num), np.empty((1, self.dim), np.float32)
        for visit in self.visits(num):
            deferred.accumulate(0, num // 2, *visit, self.row_updates[3], sums, squares, pending, g)
        optimizer = self.optimizer
        numbers = optimizer.kind, optimizer.settings(), optimizer.corrections(), norms, g
        deferred.apply_sums(0, num, 0, self.slots[:num], np.arange(num), sums, squares, *rows, *numbers)
        return [*rows, norms, sums, squares]

    def update_by_twin(self) -> list[Any]:
        rows, norms = [array.copy() for array in self.rows], np.empty(len(self.slots), np.float32)
        optimizer, scratch = self.optimizer, np.empty((1, 2, self.dim), np.float32)
        update.update(
            self.slots, *self.row_updates, *rows, *(array[:0] for array in rows),
            optimizer.kind, optimizer.settings(), optimizer.corrections(), norms, scratch,
        )  # fmt: skip
        return [*rows, norms]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("dim", [16, 100, 300])
def test_updates_have_the_bits_of_the_cpu_every_time(optimizer: RowOptimizer, dim: int) -> None:
    case = Case(optimizer, dim)
    expected = case.update_by_twin()
    for _ in range(3):
        for found, wanted in zip(case.update(), expected, strict=True):
            assert_same_bits(found, wanted)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("dim", [16, 100, 300])
def test_deferred_sums_have_the_bits_of_the_cpu_every_time(optimizer: RowOptimizer, dim: int) -> None:
    """Two visits of half the entries each, drawn anew; then every entry's sum is applied."""
    case, num = Case(optimizer, dim), NUM_SLOTS // 2
    expected = case.defer_by_twin(num)
    for _ in range(3):
        for found, wanted in zip(case.defer(num), expected, strict=True):
            assert_same_bits(found, wanted)


@pytest.mark.parametrize("dim", [16, 100, 300])
def test_pooling_has_the_bits_of_the_cpu(dim: int) -> None:
    rng = np.random.default_rng(dim)
    device, host = random_rows(rng, NUM_SLOTS, dim), random_rows(rng, NUM_HOST, dim)
    starts = np.concatenate([[0], np.cumsum(rng.integers(0, 30, NUM_VECTORS))])
    locations, scales = rng.integers(-NUM_HOST, NUM_SLOTS, starts[-1]), random_rows(rng, starts[-1])
    vectors, expected = rng.permutation(NUM_VECTORS).astype(np.int32), np.empty((NUM_VECTORS, dim), np.float32)
    pool.pool(expected, vectors, starts, np.arange(len(locations), dtype=np.int32), locations, scales, device, host, 1)
    each = np.arange(len(locations), dtype=np.int32)
    (weights, *indices), out = on_device(device, locations, each, vectors, starts, scales), torch.empty(expected.shape)
    out = out.to(DEVICE)
    with ready():
        triton_setup.pool(weights, pinned(host), *indices, out)
    assert_same_bits(out.cpu().numpy(), expected)


@pytest.mark.usefixtures("_never_waiting")
def test_nothing_waits_for_the_gpu() -> None:
    """Counts, and whether a row lies on the host, are decided on the device."""
    slots = torch.arange(8, device=DEVICE)
    weights, state, out = (torch.zeros(8, 4, device=DEVICE) for _ in range(3))
    host, host_state = pinned(np.zeros((8, 4), np.float32)), pinned(np.zeros((8, 4), np.float32))
    starts = torch.arange(9, device=DEVICE)
    none, flags = torch.zeros(0, device=DEVICE), torch.zeros(8, dtype=torch.bool, device=DEVICE)
    sizes = torch.ones(3, device=DEVICE)
    with ready():
        triton_setup.fetch(weights, state, slots, host, host_state, slots)
        triton_setup.pool(weights, host, slots, slots, slots, starts, none, out)
        triton_setup.pool(weights, None, slots, slots, slots, none, none, out, 8)
        triton_setup.update(
            weights, state, slots, starts, slots, none, out, 1, [0.1] * 5, none, out[:, 0].clone(), hot=slots[:0].int()
        )
        for squares in (out[:, :0].clone(), out[:, :1].clone(), out.clone(), torch.zeros(8, 5, device=DEVICE)):
            triton_setup.accumulate(slots, starts, slots, none, out, weights, squares, flags)
        for kind, width, state_width in ((1, 4, 4), (2, 1, 1), (3, 5, 9)):
            squares, accumulators = (torch.zeros(8, columns, device=DEVICE) for columns in (width, state_width))
            triton_setup.update(
                weights, accumulators, slots, starts, slots, none, out, kind, [0.1] * 5, sizes,
                out[:, 0].clone(), squares=squares,
            )  # fmt: skip
        triton_setup.drift(slots, slots, flags, weights, host, out, state[:, 0].clone())
        triton_setup.initial_rows(weights, state, slots, slots, starts[:2], starts[:1], out[0, :1], 0.5)
        triton_setup.write_back(weights, state, slots, host, host_state, slots)


def test_memory_that_is_not_pinned_is_refused() -> None:
    weights, rows = torch.zeros(2, 4, device=DEVICE), torch.arange(2, device=DEVICE)
    with ready(), pytest.raises(ValueError, match="cpu tensor"):
        triton_setup.fetch(weights, weights, rows, torch.zeros(2, 4), torch.zeros(2, 4), rows)
