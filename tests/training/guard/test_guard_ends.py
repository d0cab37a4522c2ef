"""Where a check cannot come to its end: the run is too short, is stopped, or the fork fails."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.guarded import LAX, STRICT, Outcome, assert_same_numbers, plain_run, read, run, toy_data  # noqa: F401 (fixtures)
from support.guarded_policies import Freeze, Plain
from support.toy_runs import Hooked, data_fixture, in_model, nothing_is_left_behind, parts_of  # noqa: F401 (fixtures)

from adaptive.batch import Batch
from adaptive.errors import NonFiniteError
from adaptive.training.guard.fork import Fork


def test_a_run_that_is_too_short_skips_nothing(tmp_path: Path, plain: Outcome) -> None:
    guarded = run(tmp_path, Freeze, {"budget": LAX, "warmup": 150})
    assert guarded.verdicts == ["stop"] and guarded.decisions[0].step == 0
    assert guarded.decisions[0].reason == (
        "the run has 180 batches, but the guard's warm-up and check need 189 (guard.warmup, guard.steps, "
        "guard.holdout), so nothing is skipped"
    )
    assert guarded.summary["skipped_update_share"] == 0
    assert_same_numbers(guarded, plain)


@pytest.mark.parametrize(("budget", "warmup", "steps"), [(0.01, 130, 35), (0.05, 108, 30)])
def test_too_few_batches_for_another_check_end_a_reduction(
    tmp_path: Path, budget: float, warmup: int, steps: int
) -> None:
    """A check takes 35 or 30 batches, and half of the samples wanted make 9. In the second case 42 are left, but what
    is decided counts 6 batches later."""
    guarded = run(tmp_path, Freeze, {"budget": budget, "warmup": warmup, "steps": steps})
    assert guarded.verdicts == ["stop"] and guarded.decisions[0].from_step == warmup + steps + 6
    bounds = guarded.decisions[0].auc_change_ci
    assert bounds is not None and bounds[0] > -8 * budget  # else there is nothing to reduce


def stopped_after(batches: int, out: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """A run that is stopped by a signal."""

    def send(model: Hooked, *_: Any) -> None:
        if model.training and model.calls == batches and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    sent: list[bool] = []
    with monkeypatch.context() as patch:
        in_model(patch, send)
        with pytest.raises(SystemExit):
            run(out, Freeze, {"budget": LAX})
    return read(out, {})


def test_what_a_stop_leaves_unjudged_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of its first check a run saves what skipping nothing would have trained."""
    stopped = stopped_after(40, tmp_path / "a", monkeypatch)
    assert stopped.skipped_between(20, 40) > 0
    assert [record.reason for record in stopped.decisions] == [
        "training ended during this check, so its skipping is undone"
    ]
    assert stopped.saved.meta["steps"] == 40
    plain = run(tmp_path / "b", Plain, steps=40)
    # Rows of batches that were planned and not trained are saved, too: with their initial values.
    trained = np.isin(stopped.saved.rows["rows0.changed"], plain.saved.rows["rows0.changed"])
    for name, expected in plain.numbers.items():
        array = stopped.numbers[name]
        np.testing.assert_array_equal(array[trained] if len(array) == len(trained) else array, expected, err_msg=name)


def test_an_open_check_is_undone_even_after_a_passed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first check was passed at batch 50, the second began at 110."""
    stopped = stopped_after(120, tmp_path, monkeypatch)
    assert stopped.verdicts == ["keep", "stop"] and stopped.decisions[1].fork_steps == 10
    assert stopped.saved.meta["guard"]["undone_batches"] == 10


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


def test_a_fork_that_fails_ends_skipping_and_undoes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fork: Fork, batch: Batch) -> None:
        raise NonFiniteError("step 3: the loss is nan")

    monkeypatch.setattr(Fork, "train", fail)
    guarded = run(tmp_path, Freeze, {"budget": LAX}, log_every=1)
    assert guarded.verdicts == ["stop"]
    assert guarded.decisions[0].reason == "the fork, which skips nothing, failed: step 3: the loss is nan"
    assert guarded.skipped_between(guarded.decisions[0].from_step, 180) == 0
    assert guarded.summary["guard_kept"]["skipped_update_share"] == guarded.summary["skipped_update_share"] > 0
    assert not guarded.summary["guard_exact"] and "The tables differ from those of a run" in guarded.summary["table"]
