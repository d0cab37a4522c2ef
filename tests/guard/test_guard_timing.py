"""How long things take: counted from the settings, before anything has happened."""

import pytest
from guarded_policies import Defer, DropHalf, Freeze

from adaptive.config import GuardConfig, SkipConfig, TrainConfig
from adaptive.guard.account import GuardState
from adaptive.guard.schedule import Timing
from adaptive.policy import Policy
from policies.slipstream import Slipstream

SETTINGS = GuardConfig(warmup=50, steps=100, holdout=2000)


class Ahead(Freeze):
    window = 5
    warmup = 70


def timing(policy: Policy, total: int | None = 1000, depth: int = 3, lag: int = 6) -> Timing:
    config = TrainConfig(depth=depth, skip=SkipConfig(lag=lag), batch_size=300)
    return Timing.of(SETTINGS, config, policy, total)


@pytest.mark.parametrize(
    ("policy", "warmup"),
    [(Freeze(), 50), (Ahead(), 70), (Defer(), 50), (Slipstream(warmup=80), 80), (Slipstream(warmup=20), 50)],
)
def test_the_longest_warm_up_counts(policy: Policy, warmup: int) -> None:
    assert timing(policy).warmup == warmup


def test_what_is_decided_counts_behind_everything_that_may_be_planned() -> None:
    assert (timing(Freeze()).margin, timing(Freeze(), lag=0).margin, timing(Freeze(), depth=9).margin) == (8, 5, 11)
    assert timing(DropHalf()).margin == 80  # ten batches may be read for one that is trained
    assert (timing(Ahead()).window, timing(Freeze()).window) == (5, 0)
    without = Timing.of(SETTINGS, TrainConfig(depth=3, skip=None), Freeze(), 1000)
    assert without.margin == 5


def test_a_check_needs_its_batches_and_half_of_what_it_holds_back() -> None:
    found = timing(Freeze())
    assert found.held_back == 7
    assert [found.too_late(place) for place in (0, 897, 898, 2000)] == [False, False, True, True]
    assert (found.left(0), found.left(999), found.left(1001)) == (1000, 1, 0)
    unknown = timing(Freeze(), total=None)
    assert unknown.left(10) is None and not unknown.too_late(10**9)


def test_what_was_kept_costs_until_it_is_judged_again() -> None:
    standing = GuardState(spent=0.001, rate=1e-5, passed=0.1, passed_at=200)
    assert standing.cost_until(200) == 0.001
    assert standing.cost_until(300) == pytest.approx(0.002)
    standing.passed = None  # undone: nothing is skipped unjudged
    assert standing.cost_until(300) == 0.001
