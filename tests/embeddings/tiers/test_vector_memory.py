"""Memory is taken again once nothing shares it, and not before."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adaptive.batch import one_hot_batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.cpu_device import CpuDevice, VectorMemory
from adaptive.embeddings.tiers.host import MemoryHost
from adaptive.kernels.scratch import LINE_BYTES, MOST_PIECES, empty_rows


def test_a_tensor_as_asked_for() -> None:
    tensor = VectorMemory().take(3, 16)
    assert tensor.shape == (3, 16) and tensor.dtype == torch.float32 and tensor.is_contiguous()
    assert tensor.data_ptr() % LINE_BYTES == 0 and not tensor.requires_grad
    assert VectorMemory().take(0, 16).shape == (0, 16)


def test_memory_is_taken_again() -> None:
    memory = VectorMemory()
    place = memory.take(4, 16).data_ptr()
    assert [memory.take(4, 16).data_ptr() for _ in range(5)] == [place] * 5
    assert memory.take(3, 16).data_ptr() == place  # the last batch of an epoch
    assert memory.take(4, 16).data_ptr() == place


SHARING: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda tensor: tensor,
    "a view": lambda tensor: tensor.view(2, 2, 16)[1],
    "detached": lambda tensor: tensor.detach(),
    "an array": lambda tensor: tensor.numpy()[2:],
    "a leaf with a graph": lambda tensor: (tensor.requires_grad_() ** 2).sum(),
    "its storage": lambda tensor: tensor.untyped_storage(),
}


@pytest.mark.parametrize("kept", SHARING)
def test_what_shares_the_memory_keeps_it(kept: str) -> None:
    memory = VectorMemory()
    tensor = memory.take(4, 16)
    place = tensor.data_ptr()
    held = SHARING[kept](tensor)
    del tensor
    other = memory.take(4, 16)
    assert other.data_ptr() != place
    del held
    gc.collect()
    assert place in {memory.take(4, 16).data_ptr(), memory.take(4, 16).data_ptr()}


def test_values_that_are_held_do_not_change() -> None:
    memory, held = VectorMemory(), []
    for number in range(3 * MOST_PIECES):
        held.append(memory.take(4, 16).fill_(number))
    assert [np.unique(tensor).tolist() for tensor in held] == [[number] for number in range(3 * MOST_PIECES)]


def test_what_is_kept_for_later_is_bounded() -> None:
    memory = VectorMemory()
    held = [memory.take(4, 16) for _ in range(3 * MOST_PIECES)]
    held.clear()
    free = memory._memory._free
    assert len(free) == MOST_PIECES
    memory.take(100, 16)
    assert [len(piece) for piece in free] == [6656]  # too small ones are dropped; 6400 bytes and room for more
    memory.take(4, 16)
    assert [len(piece) for piece in free] == [256]  # and those that are far too large


def test_vectors_of_a_batch_outlive_it() -> None:
    bag = TieredEmbeddingBag(
        [TableConfig(name="a", num_embeddings=9, embedding_dim=16)], TierConfig(device_rows="50%", device="cpu")
    )
    ids = np.arange(9).reshape(-1, 1)
    one, other = (
        bag.read(one_hot_batch(empty_rows(size, 0), ids[:size], np.zeros(size, np.float32))) for size in (9, 8)
    )
    first = bag.stack(one)
    before, place = first.clone(), first.data_ptr()
    second = bag.stack(other)
    assert torch.equal(first, before) and torch.equal(second, before[:8])
    assert place % LINE_BYTES == second.data_ptr() % LINE_BYTES == 0 and place != second.data_ptr()
    del first
    assert bag.stack(one).data_ptr() == place
    (lane,) = bag.runtime.pipeline.lanes
    assert isinstance(lane.device, CpuDevice) and isinstance(lane.host, MemoryHost)
    assert lane.device.weights.ctypes.data % LINE_BYTES == lane.host.weights.ctypes.data % LINE_BYTES == 0
    bag.close()
