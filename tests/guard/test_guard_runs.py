"""Guarded runs from start to end: what is kept, what is undone, and that nothing else changes."""

import json
import os
import signal
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guarded import GUARD, LAX, SAMPLES, SKIP, STRICT, Outcome, assert_same_numbers, read, run, spec
from guarded_policies import Defer, DropHalf, Freeze, FreezeLate, Plain
from toy import ToyData, toy_config
from toy_runs import Hooked, data_fixture, in_model, nothing_is_left_behind, parts_of  # noqa: F401 (fixtures)

from adaptive.batch import Batch
from adaptive.config import GuardConfig
from adaptive.errors import NonFiniteError
from adaptive.guard.fork import Fork
from adaptive.guard.guard import Guard
from adaptive.guard.judge import Outlook
from adaptive.guard.timing import Timing
from adaptive.policy import Policy
from adaptive.recorder import Recorder
from adaptive.runs import training
from adaptive.telemetry.record import IntervalRecord


@pytest.fixture(autouse=True)
def toy_data(data: Any) -> None:
    data(SAMPLES)


@pytest.fixture(scope="module", name="plain")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What skipping nothing trains."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "open_data", lambda *_: ToyData(SAMPLES))
        return run(tmp_path_factory.mktemp("plain"), Plain)


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


@pytest.mark.parametrize(("policy", "depth"), [(Freeze, 0), (Defer, 4)])
def test_what_is_stopped_at_its_first_check_was_never_skipped(
    tmp_path: Path, policy: type[Policy], depth: int, plain: Outcome
) -> None:
    """The run ends with the very numbers of one that skips nothing."""
    guarded = run(tmp_path, policy, {"budget": STRICT}, depth=depth, log_every=1)
    assert guarded.verdicts == ["stop"]
    assert guarded.skipped_between(20, 50) > 0 == guarded.skipped_between(0, 20)
    assert guarded.skipped_between(guarded.decisions[0].from_step, 180) == 0
    assert_same_numbers(guarded, plain)


@pytest.mark.parametrize("policy", [Freeze, DropHalf])
def test_what_is_reduced_is_judged_again(tmp_path: Path, policy: type[Policy]) -> None:
    found = run(tmp_path, policy, {"budget": 0.05})
    assert found.verdicts[:2] == ["reduce", "keep"]
    first, second = found.decisions[:2]
    assert first.auc_change_ci is not None and first.auc_change_ci[0] < -0.05
    assert first.allowance_before == 1 and first.allowance == second.allowance == found.summary["guard_allowance"]
    assert first.allowance == pytest.approx(0.05 / -first.auc_change_ci[0])
    assert second.step >= first.from_step + GUARD["steps"] and second.trigger == "less may be skipped"
    assert first.skipped_share is not None and second.skipped_share is not None
    assert second.skipped_share < 1.5 * first.allowance * first.skipped_share
    assert found.summary["guard_undone_batches"] >= first.from_step - GUARD["warmup"]


@pytest.mark.parametrize("policy", [Freeze, Defer])
def test_decisions_do_not_depend_on_placement_look_ahead_or_records(tmp_path: Path, policy: type[Policy]) -> None:
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


def test_dropping_that_was_harmless_and_is_so_no_longer_is_stopped(tmp_path: Path) -> None:
    """A lower level might have done, and there is time to find out."""
    guard = {"budget": 0.02, "steps": 20, "holdout": 320, "every": 20}
    found = run(tmp_path, FreezeLate, guard, log_every=1)
    assert found.verdicts == ["keep", "keep", "stop"]
    assert found.decisions[0].reason == "nothing was left out in 20 batches"
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


def test_more_skipping_than_was_judged_asks_for_a_check(tmp_path: Path) -> None:
    found = run(tmp_path, FreezeLate, {"budget": LAX, "every": 1000, "warmup": 10, "steps": 20})
    assert [record.step for record in found.decisions] == [30, 150]  # looked at after 80 and 130 batches
    assert found.decisions[1].trigger.endswith("is skipped, 0.0% was when it was judged")


# -- where a check cannot come to its end -------------------------------------------------------------------------


def test_a_run_that_is_too_short_skips_nothing(tmp_path: Path, plain: Outcome) -> None:
    found = run(tmp_path, Freeze, {"budget": LAX, "warmup": 150})
    assert found.verdicts == ["stop"] and found.decisions[0].step == 0
    assert "too short" in found.decisions[0].reason and found.summary["skipped_update_share"] == 0
    assert_same_numbers(found, plain)


def test_too_few_batches_for_another_check_end_a_reduction(tmp_path: Path) -> None:
    """A check takes 35 batches, and half of the samples wanted make 10."""
    found = run(tmp_path, Freeze, {"budget": 0.01, "warmup": 130, "steps": 35})
    assert found.verdicts == ["stop"]
    bounds = found.decisions[0].auc_change_ci
    assert bounds is not None and bounds[0] > -0.08  # else there is nothing to reduce


def test_what_a_stop_leaves_unjudged_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run told to stop in the middle of its first check saves what skipping nothing would have trained."""

    def send(model: Hooked, *_: Any) -> None:
        if model.training and model.calls == 40 and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    sent: list[bool] = []
    with monkeypatch.context() as patch:
        in_model(patch, send)
        with pytest.raises(SystemExit):
            run(tmp_path / "a", Freeze, {"budget": LAX})
    stopped = read(tmp_path / "a", {})
    assert stopped.skipped_between(20, 40) > 0
    assert [record.reason for record in stopped.decisions] == [
        "training ended before this check did: its skipping is undone"
    ]
    assert stopped.saved.meta["steps"] == 40
    plain = run(tmp_path / "b", Plain, steps=40)
    # Rows of batches that were planned and not trained are saved, too: with their initial values.
    trained = np.isin(stopped.saved.rows["rows0.changed"], plain.saved.rows["rows0.changed"])
    for name, expected in plain.numbers.items():
        found = stopped.numbers[name]
        np.testing.assert_array_equal(found[trained] if name.startswith("rows") else found, expected, err_msg=name)


@pytest.mark.parametrize("stop", [60, 170])
def test_a_decision_that_has_not_taken_effect_does_so_at_the_end(tmp_path: Path, stop: int) -> None:
    """The check ends 5 batches before the end of the run; its outcome would count 6 batches later."""
    guard = {"budget": STRICT, "warmup": stop - 30, "steps": 25, "holdout": 100}
    first = run(tmp_path / "a", Freeze, guard, steps=stop)
    assert first.verdicts == ["stop"] and first.decisions[0].from_step > stop - 5
    assert_same_numbers(first, run(tmp_path / "b", Plain, steps=stop))


def test_a_passed_level_keeps_what_a_last_check_cannot_judge(tmp_path: Path) -> None:
    """The second check would begin at batch 90; it takes 30 batches, and half of the samples wanted make 10."""
    guarded = run(tmp_path / "a", Freeze, {"budget": LAX, "warmup": 0}, steps=125)
    assert guarded.verdicts == ["keep"]
    assert_same_numbers(guarded, run(tmp_path / "b", Freeze, steps=125))


def test_a_fork_that_fails_ends_skipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fork: Fork, batch: Batch) -> None:
        raise NonFiniteError("step 3: the loss is nan")

    monkeypatch.setattr(Fork, "train", fail)
    found = run(tmp_path, Freeze, {"budget": LAX}, log_every=1)
    assert found.verdicts == ["stop"]
    assert found.decisions[0].reason == "the fork, which skips nothing, failed: step 3: the loss is nan"
    assert found.skipped_between(found.decisions[0].from_step, 180) == 0


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


def test_samples_are_held_back_from_the_next_pass_if_this_one_has_too_few(tmp_path: Path, data: Any) -> None:
    data(45 * 32)
    found = run(tmp_path, Freeze, {"budget": LAX, "warmup": 0, "steps": 40, "holdout": 640}, epochs=3)
    assert found.decisions[0].fork_steps == 45 and found.decisions[0].samples == 640


def test_what_was_reduced_and_not_judged_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A level that once passed does not vouch for one that broke the budget."""
    seen: list[float] = []

    def within(outlook: Outlook, budget: float) -> bool:
        seen.append(outlook.change)
        return outlook.change == seen[0]

    monkeypatch.setattr(Outlook, "within", within)
    monkeypatch.setattr(Timing, "too_late", lambda *_: False)
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
    assert [record.step for record in found.decisions] == [150, 330]  # looked at after 200, 250 and 300 batches
    assert found.decisions[1].trigger == "the log loss of training has risen"


# -- what is told -------------------------------------------------------------------------------------------------


def test_every_decision_is_in_every_view(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stream = StringIO()
    found = run(tmp_path, Freeze, {"budget": 0.05}, tensorboard=True, stream=stream)
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("guard")]
    assert len(lines) == len(found.decisions) == 2
    about = "reduce skipping to 15.4 % from batch 56 on: expected change of AUC by the end -0.23"
    assert lines[0].startswith(f"guard after step 50: {about}")
    assert [json.loads(json.dumps(asdict(r))) for r in found.decisions] == found.summary["guard_decisions"]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for tag, name in (("allowance", "allowance"), ("auc_difference", "auc_difference"), ("auc_change", "auc_change")):
        shown = [(event.step, event.value) for event in events.Scalars(f"guard/{tag}")]
        assert shown == [(r.step, pytest.approx(getattr(r, name))) for r in found.decisions]
    low = [event.value for event in events.Scalars("guard/auc_difference_low")]
    assert low == [pytest.approx(r.auc_difference_ci[0]) for r in found.decisions if r.auc_difference_ci]
    texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("guard/decision")]
    assert texts[0].startswith(about) and texts[1].startswith("keep skipping at 15.4 % of what the policy asks for")


def test_the_account_of_what_a_guard_costs(tmp_path: Path) -> None:
    found = run(tmp_path, Freeze, {"budget": 0.05})
    reduced, kept = found.decisions
    assert (reduced.fork_batches, reduced.judged_batches) == (30, 19)  # 600 samples held back
    assert (kept.fork_batches, kept.judged_batches) == (66, 38)  # the same fork went on
    assert (found.summary["guard_fork_batches"], found.summary["guard_judged_batches"]) == (66, 38)
    assert found.summary["guard_undone_batches"] == 36
    assert reduced.fork_bytes > 4 * 4 * 250  # most of 347 rows of width 4
    assert found.summary["time_ms"]["guard"] > 0
    assert (
        "guard: decisions reduce, keep; skipping is allowed at 15.4 % of what the policy asks for; forks trained 66 "
        "batches more (36.7 %), 38 were judged; what was skipped in 36 batches has been undone\n"
    ) in found.summary["table"]


def test_a_run_without_a_guard_says_nothing_of_one(tmp_path: Path) -> None:
    found = run(tmp_path, Freeze)
    assert found.decisions == [] and not [name for name in found.summary if name.startswith("guard")]
    assert "guard" not in found.saved.meta and "guard: " not in found.summary["table"]


# -- going on -----------------------------------------------------------------------------------------------------


def test_what_a_guard_knows_is_saved_and_restored(tmp_path: Path) -> None:
    found = run(tmp_path, Freeze, {"budget": 0.05})
    state = json.loads(json.dumps(found.saved.meta["guard"]))
    assert state["allowance"] == found.summary["guard_allowance"] and state["place"] == 180
    parts, _ = parts_of(policy=spec(Freeze), skip=SKIP)
    settings = GuardConfig(**(GUARD | {"budget": 0.05}))
    guard = Guard(settings, toy_config(policy=spec(Freeze), skip=SKIP), parts, Recorder(parts.embeddings), 1000)
    guard.restore(state)
    assert guard.state() == state
    with parts.embeddings:
        guard.watch(iter([]))
        assert parts.embeddings.policy.allowance == state["allowance"]
        guard.close()
