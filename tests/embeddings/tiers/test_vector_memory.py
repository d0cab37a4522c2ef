"""Pooled vectors reuse memory once nothing shares it, and not before; rows are exchanged in one pass."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adaptive.batch import one_hot_batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.planning import books
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.planning.plan import Moves
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.cpu_device import CpuDevice
from adaptive.embeddings.tiers.host import MemoryHost
from adaptive.kernels.scratch import LINE_BYTES, empty_rows
from adaptive.optim import Adagrad


@pytest.fixture
def bag() -> Iterator[TieredEmbeddingBag]:
    table = TableConfig(name="a", num_embeddings=9, embedding_dim=16)
    with TieredEmbeddingBag([table], TierConfig(device_rows="50%", device="cpu")) as embeddings:
        yield embeddings


@pytest.fixture
def device(bag: TieredEmbeddingBag) -> CpuDevice:
    (tiered,) = bag.runtime.pipeline.tiered_groups
    assert isinstance(tiered.device, CpuDevice) and isinstance(tiered.host, MemoryHost)
    assert tiered.device.weights.ctypes.data % LINE_BYTES == tiered.host.weights.ctypes.data % LINE_BYTES == 0
    return tiered.device


def test_vectors_are_aligned_and_their_memory_is_reused(device: CpuDevice) -> None:
    tensor = device.empty_vectors(4)
    assert tensor.shape == (4, 16) and tensor.dtype == torch.float32 and tensor.is_contiguous()
    place = tensor.data_ptr()
    assert place % LINE_BYTES == 0 and not tensor.requires_grad
    del tensor
    assert [device.empty_vectors(4).data_ptr() for _ in range(5)] == [place] * 5
    assert device.empty_vectors(3).data_ptr() == place  # the last batch of an epoch
    assert device.empty_vectors(0).shape == (0, 16)


SHARING: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda tensor: tensor,
    "an array": lambda tensor: tensor.numpy()[2:],
    "a leaf with a graph": lambda tensor: (tensor.requires_grad_() ** 2).sum(),
}


@pytest.mark.parametrize("sharing", SHARING)
def test_memory_that_is_shared_is_not_reused(sharing: str, device: CpuDevice) -> None:
    tensor = device.empty_vectors(4)
    place = tensor.data_ptr()
    held = SHARING[sharing](tensor)
    del tensor
    other = device.empty_vectors(4)
    assert other.data_ptr() != place
    del held
    gc.collect()
    assert place in {device.empty_vectors(4).data_ptr(), device.empty_vectors(4).data_ptr()}


def test_vectors_of_a_batch_outlive_it(bag: TieredEmbeddingBag) -> None:
    ids = np.arange(9).reshape(-1, 1)
    larger, smaller = (
        bag.read(one_hot_batch(empty_rows(size, 0), ids[:size], np.zeros(size, np.float32))) for size in (9, 8)
    )
    first = bag.stack(larger)
    values, place = first.clone(), first.data_ptr()
    second = bag.stack(smaller)
    assert torch.equal(first, values) and torch.equal(second, values[:8])
    assert place % LINE_BYTES == second.data_ptr() % LINE_BYTES == 0 and place != second.data_ptr()
    del first
    assert bag.stack(larger).data_ptr() == place


@pytest.mark.parametrize(("initial_share", "left"), [(0.3, (4, 12)), (0.6, (30, 38))])
@pytest.mark.parametrize("threads", [1, 2])
def test_exchanged_rows_equal_those_moved_in_two_passes(
    initial_share: float, left: tuple[int, int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 rows leave; the last 26 are replaced, and 12 more rows come. If most are initial, none is exchanged."""
    monkeypatch.setattr(books, "SHARED_ROWS", 1)
    group = make_groups([TableConfig(name="t", num_embeddings=100, embedding_dim=3)], 0)[0]
    results = []
    for exchanges in (True, False):
        rng, host = np.random.default_rng(0), MemoryHost(group, Adagrad())
        host.threads, device = threads, CpuDevice(host, 60)
        for array in (host.weights, host.state, device.weights, device.state):
            array[:] = rng.random(array.shape, np.float32)
        rows, slots = rng.permutation(100), rng.permutation(60)
        to_slots = np.concatenate([slots[29:3:-1], slots[30:42]])
        moves = Moves(slots[:30], rows[:30], to_slots, rows[30:68], np.arange(38) < 38 * initial_share, swapped=26)
        if exchanges:
            moves = device.swap(moves)
            assert (len(moves.back_rows), len(moves.fetch_rows)) == left
        device.write_back(moves)
        device.fetch(moves)
        results.append([array.tolist() for array in (host.weights, host.state, device.weights, device.state)])
    assert results[0] == results[1]
