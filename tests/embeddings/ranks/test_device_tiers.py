"""Ranks whose device tier is a GPU's, run on the CPU: the bits of one rank with its tier in ordinary memory.

Rows and gradients cross over the host's memory, as over gloo, and from device to device, as by NCCL: threads have a
stand-in for it.
"""

from typing import Any, Literal

import pytest
from support.helpers import LFUOnHost, random_batches
from support.rank_cases import OPTIMIZERS, TABLES, Case, assert_equal_on
from test_answers import POLICIES, WATCHED, of_all

from adaptive.config import TierConfig
from adaptive.optim import Adagrad, Adam, RowOptimizer

BATCHES = tuple(random_batches(TABLES, 10, samples=11))
WATCHED_BATCHES = tuple(random_batches(TABLES, 30, samples=11, seed=3))
NIGHTLY = pytest.mark.nightly
WAYS = pytest.mark.parametrize(
    "values_on", [pytest.param(None, marks=NIGHTLY, id="host"), pytest.param("cpu", id="device")]
)


def tier(transfer: Literal["direct", "staged"] = "staged", rows: str = "60%") -> TierConfig:
    """Staged: rows cross in buffers; direct: in place. Both make initial values on the device."""
    return TierConfig(device="cpu-torch", device_rows=rows, transfer=transfer, poison=True)


@pytest.mark.nightly
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


@pytest.mark.nightly
@WAYS
@pytest.mark.parametrize("rule", ["defer", pytest.param("skip", marks=NIGHTLY)])
def test_kept_rows_and_gradients_that_are_left_out(rule: str, values_on: str | None) -> None:
    case = Case(WATCHED_BATCHES, Adagrad(lr=0.1), POLICIES[rule], skip=WATCHED)
    traffic = assert_equal_on([3], 3, case, values_on=values_on, tier=tier("direct"))[3]
    assert of_all(traffic, "vectors_spared") > 0
    assert (of_all(traffic, "gradients_spared") > 0) == (rule == "skip")


@NIGHTLY
@WAYS
def test_values_that_cross_as_bf16(values_on: str | None) -> None:
    assert_equal_on([2], 4, Case(BATCHES, Adagrad(lr=0.1)), wire="bf16", values_on=values_on, tier=tier())


def test_batches_smaller_than_the_ranks_cross_devices() -> None:
    few = tuple(random_batches(TABLES, 4, samples=2, seed=1))
    assert_equal_on([4], 4, Case(few), values_on="cpu", tier=tier())


def test_as_many_bytes_cross_either_way() -> None:
    """Plus eight for each rank and exchange, with how many numbers follow."""
    case = Case(BATCHES, Adagrad(lr=0.1))
    host = assert_equal_on([2], 2, case, tier=tier())[2]
    device = assert_equal_on([2], 2, case, tier=tier(), values_on="cpu")[2]
    told = 8 * len(BATCHES)
    assert [one.vectors for one in device] == [one.vectors + told for one in host]
    assert [one.gradients for one in device] == [one.gradients + told for one in host]
