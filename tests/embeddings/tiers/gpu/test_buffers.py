"""Buffers between host and device: reported sizes, and counted bytes of plans."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import Scattered, ScatteredOnHost, bags, one_table, random_batches, resident, step_all
from torch import Tensor

from adaptive.config import TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.gpu import buffers
from adaptive.embeddings.tiers.gpu import device as device_module
from adaptive.embeddings.tiers.gpu.buffers import SMALLEST, TransferBuffer, add_bytes
from adaptive.embeddings.tiers.gpu.link import ComputeLink
from adaptive.embeddings.tiers.gpu.upload import divide_by_weight, send_plan
from adaptive.embeddings.tiers.mover import Mover, inline
from adaptive.policies.hybrid import Hybrid
from adaptive.policy import Policy

TABLES = (
    TableConfig(name="a", num_embeddings=40, embedding_dim=4, features=("x", "y")),
    TableConfig(name="b", num_embeddings=50, embedding_dim=6, pooling="none"),
    TableConfig(name="c", num_embeddings=30, embedding_dim=4),
)
BATCHES = random_batches(TABLES, 12, seed=2, samples=3)


def make(device: str, policy: type[Policy], transfer: str = "staged", lookups: str = "host") -> TieredEmbeddingBag:
    rows = policy.device_rows or "60%"
    tier = TierConfig(device_rows=rows, device=device, transfer=transfer, lookups=lookups)  # type: ignore[arg-type]
    return TieredEmbeddingBag(TABLES, tier, policy=policy)


# --- what they take --------------------------------------------------------------------------------------------------


def test_a_buffer_takes_equal_pinned_and_device_memory() -> None:
    transfer_buffer = TransferBuffer(Mover(inline(torch.device("cpu"))))
    assert (transfer_buffer.num_bytes, transfer_buffer.size) == ((0, 0), 0)
    transfer_buffer.take([(np.int64, 3), (np.float32, (2, 5))])
    assert (transfer_buffer.num_bytes, transfer_buffer.size) == ((SMALLEST, SMALLEST), 32 + 48)
    transfer_buffer.take([(np.int64, 1)])
    assert (transfer_buffer.num_bytes, transfer_buffer.size) == ((SMALLEST, SMALLEST), 16)


def test_a_buffer_works_after_running_out_of_device_memory() -> None:
    """Its pinned memory has grown; the device's has not, but is large enough for the next arrays."""
    transfer_buffer, number = TransferBuffer(Mover(inline(torch.device("cpu")))), np.array([7])
    transfer_buffer.send_arrays([number])

    def fail(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer_buffer._stream, "empty", fail)
        with pytest.raises(torch.OutOfMemoryError):
            transfer_buffer.take([(np.uint8, 2 * SMALLEST)])
    for array in (number + 1, np.zeros(2 * SMALLEST, np.uint8)):
        transfer_buffer.send_arrays([array])
        assert np.array_equal(transfer_buffer.tensors[0].numpy(), array)


def test_a_link_counts_its_reused_blocks_in_both_directions() -> None:
    link = ComputeLink(Mover(inline(torch.device("cpu"))))
    assert link.num_bytes == 0
    link.send(np.zeros(3, np.float32))
    first, second = (link.start_to_host(torch.zeros(2)) for _ in range(2))
    assert link.num_bytes == 3 * SMALLEST
    for array in (first, second):
        array.view()
        array.release()
    link.to_host(torch.zeros(SMALLEST))()
    assert link.num_bytes == 3 * SMALLEST + 3 * SMALLEST  # one of them has become 4 times as large


@pytest.mark.parametrize("transfer", ["direct", "staged"])
@pytest.mark.parametrize(
    ("policy", "lookups"), [(Scattered, "host"), (Scattered, "device"), (ScatteredOnHost, "host"), (Hybrid, "host")]
)
def test_all_pinned_memory_is_reported(
    policy: type[Policy], lookups: str, transfer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[weakref.ref[Tensor]] = []

    def pinned(self: Any, num_bytes: int) -> Tensor:
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        alive.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(Mover, "pinned", pinned, raising=False)
    monkeypatch.setattr(
        Mover, "__setattr__", lambda self, name, value: name == "pinned" or vars(self).update({name: value})
    )
    embeddings = make("cpu-torch", policy, transfer, lookups)
    step_all(embeddings, BATCHES, depth=2)
    gc.collect()
    pinned_bytes, device_bytes = add_bytes(
        tiered.device.buffer_bytes for tiered in embeddings.runtime.pipeline.tiered_groups
    )
    assert pinned_bytes == sum(memory.nbytes for reference in alive if (memory := reference()) is not None) > 0
    assert 0 < device_bytes <= pinned_bytes + 2 * 8 * (1 << 20)  # twins, and a count of rows to a block


@pytest.mark.parametrize("transfer", ["direct", "staged"])
def test_lists_of_rows_are_sent_in_bounded_pieces(transfer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush names every row; buffers are never freed."""
    monkeypatch.setattr(buffers, "LIST_ROWS", 1 << 10)
    rows = 40_000
    embeddings = one_table(rows, "100%", device="cpu-torch", transfer=transfer)
    step_all(embeddings, [bags(list(range(rows)))])
    embeddings.rows.flush()
    (tiered,) = embeddings.runtime.pipeline.tiered_groups
    num_lists = 8 if transfer == "direct" else 0  # of plans they cross with the plan, and staged rows have their blocks
    assert tiered.device._transfer._lists.num_bytes == (num_lists * SMALLEST,) * 2  # type: ignore[attr-defined]


# --- what crosses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Scattered, ScatteredOnHost, Hybrid], ids=lambda policy: policy.__name__)
def test_plans_are_counted_as_sent_to_the_device(policy: type[Policy], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noted(plan: Any, transfer: Any, transfer_buffer: Any, inputs: Any) -> Any:
        sent = send_plan(plan, transfer, transfer_buffer, inputs)
        tensors = transfer_buffer.tensors + ([] if plan.on_device is None else plan.on_device.sent.tensors)
        sizes.append(sum(-(-tensor.nbytes // 16) * 16 for tensor in tensors))
        return sent

    monkeypatch.setattr(device_module, "send_plan", noted)
    counts = {}
    for device in ("cpu", "cpu-torch"):
        embeddings = make(device, policy)
        step_all(embeddings, BATCHES, depth=2)
        counts[device] = embeddings.statistics.take().counts
    difference = counts["cpu-torch"] - counts["cpu"]
    assert len(sizes) == 2 * len(BATCHES)
    assert difference[:, Counter.BYTES_H2D].sum() == sum(sizes)
    assert sum(sizes) > 0
    difference[:, Counter.BYTES_H2D] = 0
    assert not difference.any()


@pytest.mark.parametrize("lookups", ["host", "device"])
def test_locations_are_sent_once_for_forward_and_update(lookups: str) -> None:
    with one_table(200, "20", device="cpu-torch", lookups=lookups) as embeddings:
        ahead = embeddings.look_ahead([bags(list(range(100, 116))), bags([3, 1], [4, 3]), bags([3])], depth=1)
        next(ahead)
        next(ahead)
        sent = plan_of(embeddings, 1)
        assert sent.pooling.bags.row_locations is sent.row_updates.segments.locations
        slots = resident(embeddings)
        assert sent.pooling.bags.row_locations.tolist() == [slots[row] for row in (3, 1, 4)]
        by_row = 32 if lookups == "device" else 0  # starts of their lookups
        fetched = 2 * 32  # their slots and rows
        (tiered,) = embeddings.runtime.pipeline.tiered_groups
        assert tiered.device._transfer_buffers[1].size == 32 + by_row + fetched
        ahead.close()


def plan_of(embeddings: TieredEmbeddingBag, number: int) -> Any:
    (plan,) = next(ready.device_plans for ready in embeddings.runtime.pipeline.in_flight() if ready.number == number)
    return plan


@given(total=st.integers(0, 2**40), weights=st.lists(st.integers(0, 2**20), min_size=1, max_size=30))
def test_shares_add_up_and_follow_the_weights(total: int, weights: list[int]) -> None:
    shares = divide_by_weight(total, np.array(weights))
    assert shares.sum() == total and (shares >= 0).all()
    if sum(weights):
        assert (np.abs(shares - np.array(weights) / sum(weights) * total) <= len(weights) + 1e-12 * total).all()
