"""Pooled vectors reuse memory once nothing shares it, and not before."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adaptive.batch import one_hot_batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.cpu_device import CpuDevice
from adaptive.embeddings.tiers.host import MemoryHost
from adaptive.kernels.scratch import LINE_BYTES, empty_rows


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
