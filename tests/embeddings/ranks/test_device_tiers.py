"""Ranks whose device tier is a GPU's, run on the CPU: the bits of one rank with its tier in ordinary memory.

Rows and gradients cross over the host's memory, as over gloo, and from device to device, as by NCCL: threads have a
stand-in for it.
"""

from typing import Any, Literal

import numpy as np
import pytest
import torch
from helpers import LFUOnHost, random_batches
from rank_cases import OPTIMIZERS, TABLES, Case, assert_equal_on
from test_answers import POLICIES, WATCHED, of_all
from thread_ranks import Town, on_ranks

from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.exchange.payload import DevicePayload
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.transport import Kind
from adaptive.embeddings.tiers.cpu_device import CpuDevice
from adaptive.embeddings.tiers.host import MemoryHost
from adaptive.errors import RanksError
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer

BATCHES = tuple(random_batches(TABLES, 10, samples=11))
WATCHED_BATCHES = tuple(random_batches(TABLES, 30, samples=11, seed=3))
NIGHTLY = pytest.mark.nightly
WAYS = pytest.mark.parametrize(
    "values_on", [pytest.param(None, marks=NIGHTLY, id="host"), pytest.param("cpu", id="device")]
)


def tier(transfer: Literal["direct", "staged"] = "staged", rows: str = "60%") -> TierConfig:
    """Staged: rows cross in buffers; direct: in place. Both make initial values on the device."""
    return TierConfig(device="cpu-torch", device_rows=rows, transfer=transfer, poison=True)


@pytest.mark.parametrize(
    "optimizer",
    [pytest.param(one, marks=() if isinstance(one, Adam) else NIGHTLY) for one in OPTIMIZERS],
    ids=lambda one: type(one).__name__,
)
def test_one_to_four_ranks_give_the_bits_of_ordinary_memory(optimizer: RowOptimizer) -> None:
    assert_equal_on([1, 2], 4, Case(BATCHES, optimizer), tier=tier())
    assert_equal_on([3, 4], 4, Case(BATCHES, optimizer), tier=tier(), values_on="cpu")


@WAYS
@pytest.mark.parametrize("transfer", ["direct", pytest.param("staged", marks=NIGHTLY)])
def test_rows_that_stay_on_the_host_do_too(transfer: Any, values_on: str | None) -> None:
    case = Case(BATCHES, Adagrad(lr=0.1), LFUOnHost)
    assert_equal_on([3], 4, case, values_on=values_on, tier=tier(transfer, "30%"), depth=1)


@WAYS
@pytest.mark.parametrize("rule", ["defer", pytest.param("updates", marks=NIGHTLY)])
def test_kept_rows_and_gradients_that_are_left_out(rule: str, values_on: str | None) -> None:
    case = Case(WATCHED_BATCHES, Adagrad(lr=0.1), POLICIES[rule], skip=WATCHED)
    found = assert_equal_on([3], 3, case, values_on=values_on, tier=tier("direct"))[3]
    assert of_all(found, "vectors_spared") > 0
    assert (of_all(found, "gradients_spared") > 0) == (rule == "updates")


@NIGHTLY
@WAYS
def test_values_that_cross_as_bf16(values_on: str | None) -> None:
    assert_equal_on([2], 4, Case(BATCHES, Adagrad(lr=0.1)), wire="bf16", values_on=values_on, tier=tier())


def test_batches_smaller_than_the_ranks_cross_from_device_to_device() -> None:
    few = tuple(random_batches(TABLES, 4, samples=2, seed=1))
    assert_equal_on([4], 4, Case(few), values_on="cpu", tier=tier())


def test_as_many_bytes_cross_either_way() -> None:
    """Beside them eight for each rank and exchange, which tell how many numbers follow."""
    case = Case(BATCHES, Adagrad(lr=0.1))
    host = assert_equal_on([2], 2, case, tier=tier())[2]
    device = assert_equal_on([2], 2, case, tier=tier(), values_on="cpu")[2]
    told = 8 * len(BATCHES)
    assert [one.vectors for one in device] == [one.vectors + told for one in host]
    assert [one.gradients for one in device] == [one.gradients + told for one in host]


# --- what is told before anything crosses between devices ------------------------------------------------------------

GROUPS = make_groups([TableConfig(name=f"w{dim}", num_embeddings=9, embedding_dim=dim) for dim in (3, 2)], 0)


def values_of(ranks: Ranks) -> DevicePayload:
    device = CpuDevice(MemoryHost(GROUPS[0], SGD()), 1, SGD())
    return DevicePayload(ranks, GROUPS, device, torch.device("cpu"), rounds=False)


def test_rows_come_rank_after_rank_and_none_count_as_zeros() -> None:
    """Written out: rank 0 gives two rows of the first group to rank 1; rank 1 has nothing and says so."""

    def work(ranks: Ranks) -> list[list[list[float]]]:
        values, parts = values_of(ranks), None
        if ranks.is_first:
            rows = [torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.zeros((0, 2))]
            parts = values.pack(rows, [np.array([0, 2]), np.array([0, 0])])
        found = ranks.rows.exchange(Kind.GRADIENTS, 0, parts)
        mine = [np.array([0, 1]), np.array([0, 1])] if ranks.is_first else [np.array([2, 1]), np.array([0, 0])]
        return [one.tolist() for one in values.unpack(found, Kind.GRADIENTS, mine)]

    first, second = on_ranks(2, work, town=Town(2, values_on="cpu"))
    assert first == [[[0.0] * 3], [[0.0] * 2]]
    assert second == [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [0.0] * 3], []]


@pytest.mark.parametrize(("counted", "words"), [(2, "says 3"), (1, "a part of 24 bytes")])
def test_other_numbers_are_refused_before_any_cross(counted: int, words: str) -> None:
    """More than are expected; and the rows themselves, of a rank that sends them over the host."""

    def work(ranks: Ranks) -> None:
        values = values_of(ranks)
        rows = [torch.zeros((1, 3)), torch.zeros((0, 2))]
        parts = values.pack(rows, [np.array([1]), np.array([0])])
        found = ranks.rows.exchange(Kind.VECTORS, 5, parts if counted == 2 else [np.zeros(24, np.uint8)])
        with pytest.raises(
            RanksError, match=rf"expected 6 numbers from rank 0, which {words}|{words}: vectors of batch 5"
        ):
            values.unpack(found, Kind.VECTORS, [np.array([2]), np.array([0])])

    on_ranks(1, work, town=Town(1, values_on="cpu"))


def test_a_rank_that_is_gone_when_numbers_cross_is_told() -> None:
    def work(ranks: Ranks) -> None:
        if ranks.is_first:
            with pytest.raises(RanksError, match=r"rank 0 of 2 .*: channel rows, vectors of batch 5, .* gone or late"):
                ranks.rows.swap_values(Kind.VECTORS, 5, torch.zeros(2), [1, 1], [1, 1])
            assert ranks.rows.over

    on_ranks(2, work, town=Town(2, values_on="cpu"))
