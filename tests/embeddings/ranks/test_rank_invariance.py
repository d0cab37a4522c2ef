"""The number of ranks changes no bit of tables, state, records, verdicts and losses.

Threads are ranks here. The model takes no matrix product, so its bits cannot depend on the batch; with the products of
a real one, processes are compared (`test_rank_processes.py`).
"""

from typing import Any

import numpy as np
import pytest
from contract import POLICIES
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.helpers import LFU, LFUOnHost, Scattered, Windowed, random_batches
from support.rank_cases import OPTIMIZERS, TABLES, Case, assert_equal_on
from support.thread_ranks import on_ranks

from adaptive.config import SkipConfig, TierConfig
from adaptive.optim import Adagrad, RowOptimizer
from adaptive.plugins import make_policy
from adaptive.policy import Policy, arranges

BATCHES = tuple(random_batches(TABLES, 10, samples=11))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
def test_one_to_four_ranks_give_the_same_bits(optimizer: RowOptimizer) -> None:
    assert_equal_on([2, 3, 4], 4, Case(BATCHES, optimizer))


@pytest.mark.parametrize("optimizer", OPTIMIZERS[1:3], ids=lambda one: type(one).__name__)
def test_rounding_to_bf16_does_not_depend_on_who_owns_a_row(optimizer: RowOptimizer) -> None:
    """Half the bytes; not the numbers of fp32, but those of one rank that rounds."""
    case = Case(BATCHES, optimizer)
    halved = assert_equal_on([2, 4], 4, case, wire="bf16")
    exact = on_ranks(2, case.train, blocks=4, gradients="sum")
    assert [2 * one.vectors for one in halved[2]] == [one[3].vectors for one in exact]
    assert [2 * one.gradients for one in halved[2]] == [one[3].gradients for one in exact]
    rounded = on_ranks(1, case.train, blocks=4, gradients="sum", wire="bf16")[0][0]
    assert any(not np.array_equal(rounded[name], exact[0][0][name]) for name in rounded)
    assert all(np.allclose(rounded[name], exact[0][0][name], atol=0.1) for name in rounded)


def test_small_batches_leave_ranks_without_a_sample() -> None:
    few = tuple(random_batches(TABLES, 6, samples=2, seed=1)) + tuple(random_batches(TABLES, 2, samples=1, seed=2))
    assert_equal_on([4], 4, Case(few))


@settings(
    max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(st.data())
def test_drawn_trainings(data: st.DataObject) -> None:
    """With any tiers, look-ahead and batches of either side."""
    draw = data.draw
    seed, samples, blocks = draw(st.integers(0, 99)), draw(st.integers(1, 9)), draw(st.integers(1, 5))
    weighted = False
    batches = tuple(random_batches(TABLES, draw(st.integers(1, 8)), seed=seed, samples=samples, weighted=weighted))
    case = Case(batches, draw(st.sampled_from(OPTIMIZERS)))
    rows = draw(st.sampled_from(["30%", "60%", "100%"]))
    assert_equal_on(
        [draw(st.integers(1, blocks))],
        blocks,
        case,
        wire=draw(st.sampled_from(["fp32", "bf16"])),
        depth=draw(st.integers(0, 4)),
        policy=draw(st.sampled_from([LFU, Scattered, Windowed, LFUOnHost])),
        tier=TierConfig(device_rows=rows, poison=True),
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("policy", "options"),
    [(cls, options) for cls, options in POLICIES if not arranges(make_policy(cls, options))],
    ids=lambda one: (
        one.__name__ if isinstance(one, type) else "-".join(f"{name}={value}" for name, value in one.items())
    ),
)
def test_every_policy_that_keeps_the_order_of_samples(policy: type[Policy], options: dict[str, Any]) -> None:
    """200 steps on one to four ranks; nothing is watched where a policy skips nothing."""
    batches = tuple(random_batches(TABLES, 200, samples=9, seed=5))
    skip = SkipConfig(interval=5, hot_rows="100%", min_accesses=3, feedback_delay=6)
    tier = TierConfig(device_rows=policy.device_rows or "60%", poison=True)
    case = Case(batches, Adagrad(lr=0.05), lambda: make_policy(policy, options), skip=skip, depth=3, tier=tier)
    assert_equal_on([2, 3, 4], 4, case)
