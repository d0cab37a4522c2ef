"""When a check is due: at its time, when more is skipped than was judged, when the data have changed."""

import numpy as np

from adaptive.guard.alarm import Alarm
from adaptive.guard.share import LeftOut
from adaptive.guard.standing import Standing
from adaptive.guard.triggers import LOOK, Triggers


def heard(losses: np.ndarray) -> list[int]:
    """Looks, one every 50 batches, at which the alarm rings."""
    alarm, found = Alarm(), []
    for number, loss in enumerate(losses.tolist()):
        alarm.hear(loss)
        if number % 50 == 49 and alarm.rings():
            found.append(number + 1)
    return found


def test_the_alarm_is_silent_while_the_loss_falls_or_varies() -> None:
    rng = np.random.default_rng(0)
    falling = 0.5 + 0.2 * np.exp(-np.arange(20_000) / 500)
    assert heard(falling + 0.02 * rng.normal(size=20_000)) == []


def test_the_alarm_rings_within_a_hundred_batches_of_a_change() -> None:
    """As when 30 % of the ids of the built-in stream change: 0.477 before, 0.53 after, 0.02 from batch to batch."""
    rng = np.random.default_rng(0)
    losses = np.where(np.arange(1500) < 1000, 0.477, 0.53) + 0.02 * rng.normal(size=1500)
    first, *_ = heard(losses)
    assert 1000 < first <= 1100


def test_the_alarm_needs_something_to_compare_with_and_forgets() -> None:
    alarm = Alarm()
    for loss in [0.4, 0.5] * 40 + [0.9] * 50:
        alarm.hear(loss)
    assert not alarm.rings()  # 80 batches before the latest 50
    for loss in [0.4, 0.5] * 60 + [0.9] * 50:
        alarm.hear(loss)
    assert alarm.rings()
    alarm.forget()
    assert not alarm.rings()


def test_before_the_first_check_only_the_warm_up_counts() -> None:
    triggers, standing = Triggers(), Standing(due=100)
    assert triggers.due(standing, LeftOut(100, 100)) == ""
    standing.place = 100
    assert "warm-up" in triggers.due(standing, LeftOut())


def test_after_it_time_counts_and_the_share() -> None:
    triggers = Triggers()
    standing = Standing(place=500, due=1000, passed=0.10)
    triggers.restart(500, LeftOut(updates=1000, skipped=100))
    standing.place = 500 + LOOK - 1
    assert triggers.due(standing, LeftOut(2000, 1100)) == ""  # not looked at yet
    standing.place = 500 + LOOK
    assert triggers.due(standing, LeftOut(2000, 259)) == ""  # 15.9 %: up to 1.5 * 10 % + 1 %
    standing.place = 500 + 2 * LOOK
    assert triggers.due(standing, LeftOut(3000, 420)).startswith("16.1% is skipped, 10.0%")
    standing.place = 1000
    assert triggers.due(standing, LeftOut(3000, 420)) == "the time has come"


def test_inputs_count_as_updates_do() -> None:
    assert LeftOut(100, 10, 50, 20).share_since(LeftOut()) == 0.4
    assert LeftOut(100, 60, 50, 20).share_since(LeftOut(50, 20, 50, 20)) == 0.8
    assert LeftOut().share_since(LeftOut()) == 0


def test_a_rising_loss_asks_for_a_check() -> None:
    triggers, standing = Triggers(), Standing(place=0, due=10_000, passed=0.1)
    triggers.restart(0, LeftOut())
    for loss in [0.4, 0.5] * 100 + [0.9] * 50:
        triggers.hear(loss)
        standing.place += 1
    assert triggers.due(standing, LeftOut()) == "the log loss of training has risen"
    triggers.restart(standing.place, LeftOut())
    standing.place += LOOK
    assert triggers.due(standing, LeftOut()) == ""
