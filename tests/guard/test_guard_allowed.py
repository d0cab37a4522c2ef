"""An allowance with which nothing is skipped ends the guarding: nothing is left to check."""

from pathlib import Path

import numpy as np
import pytest
from guarded import Outcome, assert_same_numbers, run, toy_data  # noqa: F401 (fixtures)
from guarded_policies import Defer, DeferOne, Freeze, Plain
from toy_runs import Hooked, data_fixture, in_model, nothing_is_left_behind, parts_of  # noqa: F401 (fixtures)

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embedding import TieredEmbeddingBag
from adaptive.guard.judge import least_allowance
from adaptive.kernels.planning.books import WAITS
from adaptive.optim import SGD, Adagrad, RowOptimizer
from adaptive.planning.deferral import DeferralBook, longest
from adaptive.planning.hot_set import WatchedRows
from adaptive.policy import Deferral, Policy
from policies.random_drop import RandomDrop
from policies.slipstream import Slipstream


def deferred(deferral: Deferral, optimizer: RowOptimizer, allowance: float) -> bool:
    """Whether any of 40 visits of a popular row waits."""
    book = DeferralBook(1, deferral, optimizer)
    watched, fates = WatchedRows(np.zeros(1, np.int32), np.zeros(1, np.int32)), np.zeros(1, np.uint8)
    for number in range(40):
        fates[0] = 0
        accesses = np.full(1, 10**6, np.uint32)
        book.decide(number, watched, np.zeros(1, np.int64), np.ones(1, np.int32), accesses, fates, allowance)
        if fates[0] == WAITS:
            return True
    return False


TABLES = [TableConfig(name="a", num_embeddings=100, embedding_dim=2)]


def embeddings_of(policy: Policy, *, skip: SkipConfig | None = SkipConfig(hot_rows="100%")) -> TieredEmbeddingBag:  # noqa: B008
    return TieredEmbeddingBag(TABLES, TierConfig(device_rows="100%"), policy=policy, skip=skip)


@pytest.mark.parametrize("optimizer", [SGD(), Adagrad()], ids=["sgd", "adagrad"])
@pytest.mark.parametrize("at_most", [None, 1, 2, 4, 8, 16, 17, 255])
def test_from_the_least_allowance_on_something_is_deferred(at_most: int | None, optimizer: RowOptimizer) -> None:
    deferral = Deferral(every=1, at_most=at_most, warmup=0)
    policy = Plain()
    policy.deferral = deferral
    with embeddings_of(policy) as embeddings:
        least = least_allowance(embeddings, optimizer)
    if at_most == 1:
        assert least is None and not deferred(deferral, optimizer, 1.0)
        return
    assert least is not None and deferred(deferral, optimizer, least)
    assert not deferred(deferral, optimizer, float(np.nextafter(least, 0)) - 1e-12)
    assert longest(deferral, optimizer) == round(1 / least) + 1


@pytest.mark.parametrize(
    ("policy", "least"),
    [
        (Plain(), None),
        (Slipstream(skip="off"), None),
        (Slipstream(skip="defer", at_most=5), 0.25),
        (Slipstream(skip="updates"), 0.0),
        (Slipstream(skip="inputs"), 0.0),
        (RandomDrop(), 0.0),
        (Freeze(), 0.0),
    ],
    ids=["plain", "off", "defer", "updates", "inputs", "random", "freeze"],
)
def test_shares_may_be_as_small_as_one_likes(policy: Policy, least: float | None) -> None:
    with embeddings_of(policy) as embeddings:
        assert least_allowance(embeddings, SGD()) == least
    with embeddings_of(policy, skip=None) as embeddings:  # skipping is switched off
        assert least_allowance(embeddings, SGD()) == (least if policy.drops_inputs else None)


def test_deferral_that_would_defer_nothing_is_not_checked(tmp_path: Path) -> None:
    """k is at most 4: an allowance below a third leaves k = 1. The first check finds between -0.0031 and -0.0003."""
    found = run(tmp_path / "a", Defer, {"budget": 0.0005}, log_every=1)
    (stop,) = found.decisions
    assert (stop.verdict, stop.allowance, stop.allowance_before) == ("stop", 0.0, 1.0)
    assert stop.reason.endswith(
        "not shown to be within the budget of 0.0005; at 16.0% of what it asks for the policy defers nothing: nothing "
        "is skipped any more"
    )
    assert found.summary["guard_fork_batches"] == stop.from_step - 20 and found.summary["guard_judged_batches"] == 19
    plain: Outcome = run(tmp_path / "b", Plain)
    assert_same_numbers(found, plain)


def test_a_policy_that_defers_by_one_is_not_guarded(tmp_path: Path) -> None:
    found = run(tmp_path, DeferOne, {"budget": 0.0005})
    assert found.verdicts == ["idle"] and found.summary["guard_fork_batches"] == 0
    assert found.summary["skipped_update_share"] == 0
