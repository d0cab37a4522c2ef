"""When checks are due: how long things take, alarms, and what triggers a check."""

import numpy as np
import pytest
from contract import Carrying
from support.guarded_policies import Defer, DropHalf, Freeze

from adaptive.config import GuardConfig, SkipConfig, TrainConfig
from adaptive.policy import Policy
from adaptive.training.guard.account import GuardState, SkipCounts
from adaptive.training.guard.judge import LOOK, Alarm, Timing, Triggers

SETTINGS = GuardConfig(warmup=50, steps=100, holdout=2000)


class Ahead(Freeze):
    window = 5

    def __init__(self) -> None:
        super().__init__()
        self.rule.warmup = 70


def timing(policy: Policy, total: int | None = 1000, depth: int = 3, delay: int = 6) -> Timing:
    config = TrainConfig(depth=depth, skip=SkipConfig(feedback_delay=delay), batch_size=300)
    return Timing.of(SETTINGS, config, policy, total)


@pytest.mark.parametrize(
    ("policy", "warmup"),
    [
        (Freeze(), 50),
        (Ahead(), 70),
        (Defer(), 50),
        (Carrying(spec="defer+warmup=80"), 80),
        (Carrying(spec="defer+warmup=20"), 50),
    ],
)
def test_the_longest_warm_up_counts(policy: Policy, warmup: int) -> None:
    assert timing(policy).warmup == warmup


def test_decisions_apply_after_all_planned_batches() -> None:
    assert (timing(Freeze()).margin, timing(Freeze(), delay=0).margin, timing(Freeze(), depth=9).margin) == (8, 5, 11)
    assert timing(DropHalf()).margin == 80  # ten batches may be read for one that is trained
    assert timing(Ahead()).margin == 8 + Ahead.window
    without = Timing.of(SETTINGS, TrainConfig(depth=3, skip=None), Freeze(), 1000)
    assert without.margin == 5


def test_a_check_needs_its_steps_and_half_of_the_holdout() -> None:
    found = timing(Freeze())
    assert found.held_back == 7
    assert [found.is_too_late(place) for place in (0, 897, 898, 2000)] == [False, False, True, True]
    assert (found.left(0), found.left(999), found.left(1001)) == (1000, 1, 0)
    unknown = timing(Freeze(), total=None)
    assert unknown.left(10) is None and not unknown.is_too_late(10**9)


def test_what_was_kept_costs_until_it_is_judged_again() -> None:
    standing = GuardState(spent=0.001, rate=1e-5, passed=0.1, passed_at=200)
    assert standing.cost_until(200) == 0.001
    assert standing.cost_until(300) == pytest.approx(0.002)
    standing.passed = None  # undone: nothing is skipped unjudged
    assert standing.cost_until(300) == 0.001


def heard(losses: np.ndarray, positives: np.ndarray | float = 0.25) -> list[int]:
    """After how many batches the alarm rings."""
    alarm, found = Alarm(), []
    positives = np.broadcast_to(positives, losses.shape)
    for number, (loss, positive) in enumerate(zip(losses.tolist(), positives.tolist(), strict=True), 1):
        alarm.hear(loss, positive)
        if alarm.rings():
            found.append(number)
    return found


def test_the_alarm_is_silent_while_the_loss_falls_or_varies() -> None:
    rng = np.random.default_rng(0)
    falling = 0.5 + 0.2 * np.exp(-np.arange(10_000) / 500)
    assert heard(falling + 0.02 * rng.normal(size=10_000)) == []


@pytest.mark.parametrize(("rise", "latest"), [(0.055, 1015), (0.03, 1030)])
def test_the_alarm_rings_soon_after_a_change(rise: float, latest: int) -> None:
    """As if 30% of the ids of the built-in stream change; the loss of batches of 512 varies by 0.022."""
    rng = np.random.default_rng(0)
    losses = 0.477 + rise * (np.arange(1100) >= 1000) + 0.022 * rng.normal(size=1100)
    assert 1000 < heard(losses)[0] <= latest


def uninformed(share: np.ndarray | float) -> np.ndarray:
    """Log loss of always predicting the share of positives."""
    share = np.asarray(share)
    return -share * np.log(share) - (1 - share) * np.log(1 - share)


@pytest.mark.parametrize("share", [0.30, 0.20])
def test_the_share_of_positives_is_not_what_the_model_knows(share: float) -> None:
    """A model loses 0.85 of what the share alone does; then 0.865, less than a batch's positives change it."""
    rng = np.random.default_rng(0)
    expected = np.where(np.arange(1100) < 1000, 0.25, share)
    positives = expected + 0.02 * rng.normal(size=1100)
    noise = np.log(3) * (positives - expected)  # what a calibrated model loses by one more positive
    assert heard(0.85 * uninformed(expected) + noise, positives) == []
    worse = np.where(np.arange(1100) < 1000, 0.85, 0.865)
    assert 1000 < heard(worse * uninformed(expected) + noise, positives)[0] <= 1025


@pytest.mark.parametrize(("before", "latest"), [(0.0, 0.5), (1.0, 0.5), (0.5, 0.0), (0.5, 1.0)])
def test_labels_of_one_class_say_nothing(before: float, latest: float) -> None:
    alarm = Alarm()
    for loss, positive in [(0.1, before), (0.2, before)] * 150 + [(9.0, latest)] * 25:
        alarm.hear(loss, positive)
    assert not alarm.rings()


def test_the_alarm_needs_something_to_compare_with_and_forgets() -> None:
    alarm = Alarm()
    for loss in [0.4, 0.5] * 49 + [0.9] * 25:
        alarm.hear(loss, 0.25)
    assert not alarm.rings()  # 98 batches before the latest 25
    for loss in [0.4, 0.5] * 60 + [0.9] * 25:
        alarm.hear(loss, 0.25)
    assert alarm.rings()
    alarm.forget()
    assert not alarm.rings()


def test_before_the_first_check_only_the_warm_up_counts() -> None:
    triggers, standing = Triggers(), GuardState(due=100)
    assert triggers.due(standing, SkipCounts(100, 100)) == ""
    standing.place = 100
    assert "warm-up" in triggers.due(standing, SkipCounts())


def test_after_it_time_counts_and_the_share() -> None:
    triggers = Triggers()
    standing = GuardState(place=500, due=1000, passed=0.10)
    triggers.passed(500, SkipCounts(updates=1000, skipped=100))
    standing.place = 500 + LOOK - 1
    assert triggers.due(standing, SkipCounts(2000, 1100)) == ""  # not looked at yet
    standing.place = 500 + LOOK
    assert triggers.due(standing, SkipCounts(2000, 259)) == ""  # 15.9%: up to 1.5 * 10% + 1%
    standing.place = 500 + 2 * LOOK
    assert triggers.due(standing, SkipCounts(3000, 420)).startswith("16.1% is skipped, more than the 10.0%")
    standing.place = 1000
    assert triggers.due(standing, SkipCounts(3000, 420)) == "the scheduled check is due"


def test_inputs_count_as_updates_do() -> None:
    assert SkipCounts(100, 10, inputs=50, dropped=20).share_since(SkipCounts()) == 0.4
    assert SkipCounts(100, 60, inputs=50, dropped=20).share_since(SkipCounts(50, 20, inputs=50, dropped=20)) == 0.8
    assert SkipCounts().share_since(SkipCounts()) == 0


def test_worse_predictions_ask_for_a_check() -> None:
    """Once, if a check begins then; also if they became worse while the last one was under way."""
    triggers, standing = Triggers(), GuardState(place=0, due=10_000, passed=0.1)
    for loss in [0.4, 0.5] * 100 + [0.9] * 25:
        triggers.hear(loss, 0.25)
        standing.place += 1
    triggers.passed(standing.place, SkipCounts())
    assert triggers.due(standing, SkipCounts()) == "predictions became worse"
    triggers.opened()
    standing.place += LOOK
    assert triggers.due(standing, SkipCounts()) == ""
