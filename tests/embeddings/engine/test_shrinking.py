"""Out of memory on the device: slots are given back in the middle of training, and the numbers do not notice."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from contract import InParts
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import (
    LFUOnHost,
    Scattered,
    Trainee,
    bags,
    one_table,
    planner_of,
    random_batches,
    resident,
    skipped_rows,
    snapshot,
    step_all,
    sum_of,
    train,
    wait_for_look_ahead,
)
from support.skip_rules import LeaveOut

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.gpu import build
from adaptive.errors import DeviceMemoryError
from adaptive.optim import Adagrad, Adam
from adaptive.policies.device import Device
from adaptive.policies.lru import LRU
from adaptive.policy import Policy
from adaptive.system import is_out_of_memory, running_out

TABLES = (
    TableConfig(name="a", num_embeddings=40, embedding_dim=4, features=("x", "y")),
    TableConfig(name="b", num_embeddings=50, embedding_dim=6, pooling="none"),
)
BATCHES = random_batches(TABLES, 16, seed=2, samples=3)
SKIP = SkipConfig(interval=4, min_visits=1, hot_rows="100%", min_accesses=2, feedback_delay=3)


class Skips(LRU):
    def __init__(self) -> None:
        self.rule = LeaveOut(self.choose, every=2, at_most=3, warmup=2)

    def choose(self, rows):  # type: ignore[no-untyped-def]
        return (rows.drift < 0.2) & (rows.rows % 3 == 0)


def make(policy: type[Policy], device: str, **tier: object) -> TieredEmbeddingBag:
    settings = TierConfig.model_validate({"device_rows": "100%", "device": device, "poison": True} | tier)
    return TieredEmbeddingBag(TABLES, settings, policy=policy, optimizer=Adagrad(lr=0.1), skip=SKIP)


def train_running_out(embeddings: TieredEmbeddingBag, when: Sequence[int], depth: int) -> Trainee:
    """Memory runs out in the backward pass of the batches `when`, once the rows' gradients are there."""
    trainee = Trainee(TABLES)
    for planned in embeddings.look_ahead(BATCHES, depth=depth):
        if planned.number in when:
            wait_for_look_ahead(embeddings, planned, depth, len(BATCHES))
            sum_of(embeddings(planned)).backward()
            embeddings.runtime.make_room()
        trainee.learn(embeddings(planned), planned.batch)
        trainee.skipped.append(skipped_rows(embeddings, TABLES, planned))
        embeddings.step()
    return trainee


@pytest.mark.nightly
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    when=st.lists(st.integers(0, 15), min_size=1, max_size=3),
    depth=st.integers(0, 3),
    policy=st.sampled_from([Scattered, LFUOnHost, LRU, Skips]),
    device=st.sampled_from(["cpu", "cpu-torch"]),
    transfer=st.sampled_from(["direct", "staged"]),
)
def test_slots_given_back_in_the_middle_change_no_number(
    when: list[int], depth: int, policy: type[Policy], device: str, transfer: str
) -> None:
    embeddings = make(policy, device, transfer=transfer)
    before = embeddings.runtime.view.device_rows
    trainee = train_running_out(embeddings, when, depth)
    assert embeddings.runtime.view.device_rows < before
    train(make(policy, "cpu"), TABLES, BATCHES, depth).assert_equals(snapshot(embeddings, trainee))


def test_a_batch_in_parts_can_be_run_again() -> None:
    batches = list(InParts().arrange(iter(BATCHES), None))  # type: ignore[arg-type]
    assert any(batch.part_sizes for batch in batches)
    for device in ("cpu", "cpu-torch"):
        embeddings, losses = make(LRU, device), []
        for planned in embeddings.look_ahead(batches, depth=2):
            for again in range(2 if planned.number == 5 else 1):
                if again:
                    embeddings.runtime.make_room()
                parts = [sum_of(embeddings(part)) for part in planned.parts()]
                torch.stack(parts).sum().backward()
            losses.append(float(sum(part.detach() for part in parts)))
            embeddings.step()
        plain = make(LRU, "cpu")
        step_all(plain, BATCHES)
        assert np.array_equal(embeddings.rows.table_weights("a"), plain.rows.table_weights("a"))


def test_the_least_recently_used_rows_are_evicted() -> None:
    embeddings = one_table(20, "100%", device="cpu-torch")
    step_all(embeddings, [bags([row]) for row in range(20)])
    values = embeddings.rows.table_weights("t")
    embeddings.statistics.take()
    embeddings.runtime.make_room()
    assert sorted(resident(embeddings)) == list(range(2, 20))
    assert sorted(resident(embeddings).values()) == list(range(18))
    assert planner_of(embeddings).slots.num_free == 0
    assert np.array_equal(embeddings.rows.table_weights("t"), values)
    assert embeddings.statistics.take().resident_rows.tolist() == [18]
    text = embeddings.statistics.device_rows_text()
    assert "18 of 20 rows" in text and "out of GPU memory" in text
    assert embeddings.statistics.memory()["device_weights"] == 18 * 4 * 4


def test_free_slots_go_first() -> None:
    embeddings = one_table(20, "100%", device="cpu-torch")
    step_all(embeddings, [bags([3, 4, 5])])
    embeddings.runtime.make_room()
    assert sorted(resident(embeddings)) == [3, 4, 5]


def test_what_the_batches_in_flight_hold_cannot_be_given_back() -> None:
    embeddings, trained = one_table(30, "10", device="cpu-torch"), []
    batches = [bags(list(range(start, start + 5))) for start in (0, 5, 10, 15)]
    initial = embeddings.rows.table_weights("t")
    for planned in embeddings.look_ahead(batches, depth=1):
        wait_for_look_ahead(embeddings, planned, 1, len(batches))
        loss = sum_of(embeddings(planned))
        if planned.number == 1:
            before = resident(embeddings)
            with pytest.raises(
                DeviceMemoryError, match=r"batch 1: out of device memory.*got 10 of width 4, .*hold 10\."
            ):
                embeddings.runtime.make_room()
            assert resident(embeddings) == before
            loss = sum_of(embeddings(planned))
        loss.backward()
        embeddings.step()
        trained.append(planned.number)
    expected = initial.copy()
    expected[:20] -= 1
    assert trained == [0, 1, 2, 3] and np.array_equal(embeddings.rows.table_weights("t"), expected)


@pytest.mark.parametrize(
    ("device_rows", "policy", "message"),
    [
        ("100%", Device, r"expected device rows to release, got 5 of width 4, all of which policy Device needs\."),
        ("1", LRU, r"expected device rows to release, got 1 in all, the least that the batches in flight need\."),
    ],
)
def test_rows_that_cannot_be_released(device_rows: str, policy: type[Policy], message: str) -> None:
    with pytest.raises(DeviceMemoryError, match=message):
        one_table(5, device_rows, policy=policy, device="cpu-torch").runtime.make_room()


# --- when the tiers are made -----------------------------------------------------------------------------------------


class FullDevice:
    """`torch.full` fails for more than `room` values, as on a device whose memory is full."""

    def __init__(self, room: int) -> None:
        self.room, self.asked = room, []

    def __call__(self, host, num_slots, *arguments, **options):  # type: ignore[no-untyped-def]
        self.asked.append(num_slots)
        if num_slots > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return TORCH_DEVICE(host, num_slots, *arguments, **options)


TORCH_DEVICE = build.TorchDevice


def test_out_of_memory_when_the_tiers_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "TorchDevice", full := FullDevice(75))
    embeddings = one_table(100, "100%", device="cpu-torch")
    assert full.asked == [100, 90, 81, 72]
    assert embeddings.statistics.device_rows_text().startswith("device tier: 72 of 100 rows")
    assert "reduced: out of GPU memory" in embeddings.statistics.device_rows_text()
    batches = [bags([row, row + 1]) for row in range(40)]
    other = one_table(100, "100%")
    step_all(embeddings, batches, depth=2)
    step_all(other, batches)
    assert np.array_equal(embeddings.rows.table_weights("t"), other.rows.table_weights("t"))


@pytest.mark.parametrize(("least", "options"), [(30, {"held_rows": 30}), (100, {"policy": Device})])
def test_out_of_memory_below_what_must_be_held(
    least: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "TorchDevice", FullDevice(20))
    with pytest.raises(DeviceMemoryError, match=f"out of GPU memory with {least} device rows") as caught:
        one_table(100, "100%", device="cpu-torch", **options)
    assert caught.value.exit_code == 7


def test_out_of_memory_where_nothing_can_be_run_again() -> None:
    with (
        pytest.raises(DeviceMemoryError, match=r"out of GPU memory here: CUDA out. Lower device_rows"),
        running_out("here"),
    ):
        raise torch.OutOfMemoryError("CUDA out\nmore lines")


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("CUDA error: out of memory"), False),
    ],
)
def test_libraries_have_their_own_words_for_memory_that_is_full(error: Exception, full: bool) -> None:
    assert is_out_of_memory(error) == full
    with pytest.raises(DeviceMemoryError if full else type(error)), running_out("here"):
        raise error


@pytest.mark.parametrize("part", ["look-ahead", "update"])
def test_out_of_memory_outside_of_passes_is_exit_code_7(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = one_table(20, "100%", device="cpu-torch", optimizer=Adam())
    method = {"look-ahead": "fetch", "update": "update"}[part]

    def fail(self: object, *arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(build.TorchDevice, method, fail)
    with pytest.raises(DeviceMemoryError, match="out of GPU memory"):
        step_all(embeddings, [bags([1]), bags([2])], depth=1)


def test_out_of_memory_in_a_write_back_is_exit_code_7(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = one_table(20, "100%", device="cpu-torch")
    step_all(embeddings, [bags([1]), bags([2])])

    def fail(self: object, *arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(build.TorchDevice, "write_back", fail)
    with pytest.raises(DeviceMemoryError, match="out of GPU memory while the device tier got smaller"):
        embeddings.runtime.make_room()
