"""Ranks whose device tier is a GPU's, run on the CPU: the bits of one rank with its tier in ordinary memory."""

from typing import Any, Literal

import pytest
from helpers import LFU, LFUOnHost, random_batches
from rank_cases import OPTIMIZERS, TABLES, Case, assert_equal_on
from test_answers import POLICIES, WATCHED, of_all

from adaptive.config import TierConfig
from adaptive.optim import Adagrad, RowOptimizer

BATCHES = tuple(random_batches(TABLES, 10, samples=11))
WATCHED_BATCHES = tuple(random_batches(TABLES, 30, samples=11, seed=3))


def tier(transfer: Literal["direct", "staged"] = "staged", rows: str = "60%") -> TierConfig:
    """Staged: rows cross in buffers; direct: in place. Both make initial values on the device."""
    return TierConfig(device="cpu-torch", device_rows=rows, transfer=transfer, poison=True)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
def test_one_to_four_ranks_give_the_bits_of_ordinary_memory(optimizer: RowOptimizer) -> None:
    assert_equal_on([1, 2, 4], 4, Case(BATCHES, optimizer), tier=tier())


@pytest.mark.parametrize("transfer", ["direct", "staged"])
def test_rows_that_stay_on_the_host_do_too(transfer: Any) -> None:
    case = Case(BATCHES, Adagrad(lr=0.1), LFUOnHost)
    assert_equal_on([3], 4, case, tier=tier(transfer, "30%"), depth=1)


@pytest.mark.parametrize("rule", [name for name in POLICIES if name != "off"])
def test_kept_rows_and_gradients_that_are_left_out(rule: str) -> None:
    case = Case(WATCHED_BATCHES, Adagrad(lr=0.1), POLICIES[rule], skip=WATCHED)
    found = assert_equal_on([3], 3, case, tier=tier("direct"))[3]
    assert of_all(found, "vectors_spared") > 0
    assert (of_all(found, "gradients_spared") > 0) == (rule in ("updates", "all updates"))


def test_values_that_cross_as_bf16() -> None:
    assert_equal_on([2], 4, Case(BATCHES, Adagrad(lr=0.1), LFU), wire="bf16", tier=tier())
