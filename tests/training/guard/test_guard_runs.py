"""Guarded runs from start to end: what is kept, what is undone, and that nothing else changes."""

from pathlib import Path
from typing import Any

import pytest
from support.guarded import GUARD, LAX, STRICT, Outcome, assert_same_numbers, plain_run, run, toy_data  # noqa: F401 (fixtures)
from support.guarded_policies import Defer, DropHalf, DropHalfInTwo, Freeze, FreezeLate, Plain
from support.toy import ToyData
from support.toy_runs import Hooked, data_fixture, in_model, nothing_is_left_behind, parts_of  # noqa: F401 (fixtures)

from adaptive.policy import Policy
from adaptive.training.guard.judge import Outlook, Timing
from adaptive.training.runs import training
from adaptive.training.telemetry.record import IntervalRecord


@pytest.mark.parametrize(("policy", "depth"), [(Freeze, 3), (Defer, 0), (DropHalf, 3), (Plain, 0)])
def test_a_guard_that_changes_nothing_changes_nothing(tmp_path: Path, policy: type[Policy], depth: int) -> None:
    """Not the numbers of the run, and not what its records say of each step."""
    guarded = run(tmp_path / "a", policy, {"budget": LAX, "warmup": 0}, depth=depth, log_every=1)
    bare = run(tmp_path / "b", policy, depth=depth, log_every=1)
    assert_same_numbers(guarded, bare)
    steps = [[r.loss for r in found.records if isinstance(r, IntervalRecord)] for found in (guarded, bare)]
    assert steps[0] == steps[1] and len(steps[0]) == 180
    assert guarded.summary["skipped_input_share"] == bare.summary["skipped_input_share"]
    if policy is Plain:
        assert guarded.verdicts == ["idle"]
    else:
        assert set(guarded.verdicts) == {"keep"} and len(guarded.verdicts) == 2


@pytest.mark.parametrize("policy", [Freeze, DropHalf])
def test_what_is_reduced_is_judged_again(tmp_path: Path, policy: type[Policy]) -> None:
    found = run(tmp_path, policy, {"budget": 0.05})
    assert found.verdicts[:2] == ["reduce", "keep"]
    first, second = found.decisions[:2]
    assert first.auc_change_ci is not None and first.auc_change_ci[0] < -0.05
    assert first.allowance_before == 1 and first.allowance == second.allowance == found.summary["guard_allowance"]
    assert first.allowance == pytest.approx(min(0.5, 0.05 / -first.auc_change_ci[0]))  # halved at least
    assert second.step >= first.from_step + GUARD["steps"] and second.trigger == "skipping was reduced"
    assert first.skipped_share is not None and second.skipped_share is not None
    assert second.skipped_share < 1.5 * first.allowance * first.skipped_share
    assert found.summary["guard_undone_batches"] >= first.from_step - GUARD["warmup"]


@pytest.mark.nightly
@pytest.mark.parametrize("policy", [Freeze, Defer])
def test_decisions_do_not_depend_on_placement(tmp_path: Path, policy: type[Policy]) -> None:
    guard = {"budget": 0.05 if policy is Freeze else 0.003}
    expected = run(tmp_path / "a", policy, guard, depth=2)
    assert len(expected.decisions) >= 2
    for changed in ({"depth": 0}, {"tier": {"device_rows": "60%", "device": "cpu-torch"}, "log_every": 1000}):
        found = run(tmp_path / "b", policy, guard, **changed)
        assert found.decisions == expected.decisions
        assert_same_numbers(found, expected)


def test_dropped_inputs_are_guarded_alike_for_every_look_ahead(tmp_path: Path) -> None:
    """Also where a batch is put together from what is left of several."""
    changed: dict[str, Any] = {"policy_options": {"share": 0.7}, "tier": {"device_rows": "100%"}}
    found, expected = (run(tmp_path / str(d), "random_drop", {"budget": 0.05}, depth=d, **changed) for d in (3, 0))
    assert found.decisions == expected.decisions and found.verdicts == ["reduce", "keep"]
    assert_same_numbers(found, expected)
    assert 0 < found.summary["skipped_input_share"] < 0.7


def test_a_batch_may_be_trained_in_several_steps(tmp_path: Path) -> None:
    found = run(tmp_path, DropHalfInTwo, {"budget": LAX})
    assert found.verdicts == ["keep", "keep"] and found.decisions[0].step > 2 * found.decisions[0].fork_steps > 0
    assert found.decisions[0].skipped_share == 0.5


def test_dropping_that_becomes_harmful_is_stopped(tmp_path: Path) -> None:
    """A lower level might have done, and there is time to find out."""
    guard = {"budget": 0.02, "steps": 20, "holdout": 320, "every": 20}
    found = run(tmp_path, FreezeLate, guard, log_every=1)
    assert found.verdicts == ["keep", "keep", "stop"]
    assert found.decisions[0].reason == "nothing was skipped in 20 batches"
    assert found.decisions[0].auc_difference == 0 == found.decisions[0].skipped_share
    bounds = found.decisions[2].auc_change_ci
    assert bounds is not None and -0.1 < bounds[0] < -0.02
    assert found.skipped_between(0, 100) == 0 < found.skipped_between(100, 120)
    assert found.skipped_between(found.decisions[2].from_step, 180) == 0


def test_what_was_kept_is_part_of_what_is_expected(tmp_path: Path) -> None:
    """30 batches cost so much, so the 60 that nobody watched cost twice that."""
    first, second = run(tmp_path, Freeze, {"budget": LAX}).decisions
    assert (first.step, second.step, first.spent) == (50, 140, 0)
    assert first.auc_difference is not None and first.auc_difference < 0 and second.auc_difference is not None
    assert second.spent == pytest.approx(-3 * first.auc_difference)
    assert first.auc_change == pytest.approx(first.auc_difference * (30 + 130) / 30)
    assert second.auc_change == pytest.approx(second.auc_difference * (30 + 40) / 30 - second.spent)


def test_what_is_deferred_costs_no_more_the_longer_it_goes_on(tmp_path: Path) -> None:
    for decision in run(tmp_path, Defer, {"budget": LAX}).decisions:
        assert decision.auc_change == decision.auc_difference != 0 and decision.spent == 0


def test_more_skipping_than_was_judged_asks_for_a_check(tmp_path: Path) -> None:
    found = run(tmp_path, FreezeLate, {"budget": LAX, "every": 1000, "warmup": 10, "steps": 20})
    assert [record.step for record in found.decisions] == [30, 150]  # looked at after 80 and 130 batches
    assert found.decisions[1].trigger.endswith("is skipped, more than the 0.0% of the last check")


# -- several passes over the data ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "share"), [(Freeze, None), ("random_drop", 0.7)])
def test_checks_go_on_from_pass_to_pass(
    tmp_path: Path, policy: type[Policy] | str, share: float | None, data: Any
) -> None:
    """45 batches a pass: the first fork lives through the end of the first."""
    data(45 * 32)
    guard = {"budget": LAX, "warmup": 30, "holdout": 320, "every": 40}
    changed: dict[str, Any] = {"epochs": 4, "tier": {"device_rows": "100%"}}
    changed |= {} if share is None else {"policy_options": {"share": share}}
    found = run(tmp_path / "a", policy, guard, depth=2, **changed)
    assert set(found.verdicts) == {"keep"}
    assert found.decisions[0].from_step - found.decisions[0].fork_steps == 30
    assert 99 < found.decisions[1].from_step - found.decisions[1].fork_steps < 110
    if share is not None:
        assert [r.skipped_share for r in found.decisions] == [pytest.approx(share, abs=0.06)] * 2
    assert_same_numbers(found, run(tmp_path / "b", policy, guard, depth=0, **changed))


def test_what_is_stopped_in_a_later_pass_was_never_skipped(tmp_path: Path, data: Any) -> None:
    data(45 * 32)
    guard = {"budget": STRICT, "warmup": 30, "holdout": 320}
    found, plain = run(tmp_path / "a", Freeze, guard, epochs=3, depth=2), run(tmp_path / "b", Plain, epochs=3)
    assert found.verdicts == ["stop"] and found.decisions[0].step == 60
    assert_same_numbers(found, plain)


def test_the_holdout_can_come_from_the_next_pass(tmp_path: Path, data: Any) -> None:
    """A pass that is shorter than the holdout is held back completely."""
    for batches, steps, holdout, fork_steps in ((45, 40, 640, 45), (20, 10, 1400, 20)):
        data(batches * 32)
        guard = {"budget": LAX, "warmup": 0, "steps": steps, "holdout": holdout}
        (first, *_) = run(tmp_path / str(batches), Freeze, guard, epochs=6).decisions
        assert (first.fork_steps, first.samples) == (fork_steps, 640)


def test_what_was_reduced_and_not_judged_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A level that once passed does not vouch for one that broke the budget."""
    seen: list[float] = []

    def within(outlook: Outlook, budget: float) -> bool:
        seen.append(outlook.change)
        return outlook.change == seen[0]

    monkeypatch.setattr(Outlook, "within", within)
    monkeypatch.setattr(Timing, "is_too_late", lambda *_: False)
    found = run(tmp_path, Defer, {"steps": 40})
    assert found.verdicts == ["keep", "reduce", "stop"]
    assert [record.step for record in found.decisions] == [60, 160, 180]
    assert found.summary["guard_undone_batches"] == 46 + 14 and found.summary["guard_allowance"] == 0


class Turned(ToyData):
    """From a sample on, clicks mean the opposite."""

    def __init__(self, num_train: int, turn: int) -> None:
        super().__init__(num_train)
        self._labels[turn:] = 1 - self._labels[turn:]


def test_a_change_of_the_data_asks_for_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "open_data", lambda *_: Turned(400 * 32, 250 * 32))
    found = run(tmp_path, Defer, {"budget": LAX, "warmup": 120, "every": 1000})
    assert [record.step for record in found.decisions] == [150, 282]
    assert found.decisions[1].trigger == "predictions became worse"


@pytest.mark.parametrize("policy", [Freeze, Defer])
def test_a_change_too_late_for_a_check_ends_skipping(
    tmp_path: Path, policy: type[Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 400 batches the last 35; a check would take 30, and half of the samples wanted 9."""
    monkeypatch.setattr(training, "open_data", lambda *_: Turned(400 * 32, 365 * 32))
    found = run(tmp_path, policy, {"budget": LAX, "warmup": 200, "every": 1000}, log_every=1)
    assert found.verdicts == ["keep", "stop"]
    stop = found.decisions[1]
    assert stop.reason == "predictions became worse, but too few batches are left for a check"
    assert 366 <= stop.step <= 375 and found.skipped_between(stop.from_step, 400) == 0
    assert found.skipped_between(stop.step, stop.from_step) > 0 == found.summary["guard_undone_batches"]
