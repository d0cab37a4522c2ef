"""`run --auto-resume`: start a run, resume it after a kill, and stop when it is finished."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptive.errors import InputError
from adaptive.training.trainer import Trainer

Cli = Callable[..., Any]
SMALL = (
    *("--set", "data.synthetic.rows=100000", "--set", "data.synthetic.num_eval=500", "--set", "tensorboard=false"),
    *("--set", "batch_size=64", "--set", "model.bottom_mlp=8-4", "--set", "model.embedding_dim=4"),
    *("--set", "model.top_mlp=8-1", "--set", "save_every=2", "--policy", "lfu", "--json"),
)


def auto_resume(cli: Cli, *words: str, steps: str = "6") -> Any:
    return cli("run", "--auto-resume", "--out", "r", "--steps", steps, *SMALL, *words)


def fails_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the run in a step, as if it were killed: nothing is saved."""
    whole, done = Trainer.step, []

    def step(trainer: Trainer, planned: Any) -> None:
        done.append(1)
        if len(done) > steps:
            raise InputError("gone")
        whole(trainer, planned)

    monkeypatch.setattr(Trainer, "step", step)


@pytest.mark.nightly
@pytest.mark.parametrize("steps_before", [1, 3])  # before the first checkpoint, and behind it
def test_auto_resume_starts_resumes_and_finishes(cli: Cli, monkeypatch: pytest.MonkeyPatch, steps_before: int) -> None:
    whole = cli("run", "--out", "whole", "--steps", "6", *SMALL)
    with monkeypatch.context() as failing:
        fails_after(steps_before, failing)
        begun = auto_resume(cli)
    assert begun.code == 3 and "--auto-resume: r holds no run yet" in begun.err
    result = auto_resume(cli)
    assert result.code == 0
    expected = "resumed after step 2" if steps_before == 3 else "r holds a run without a checkpoint; starting again"
    assert expected in result.err
    assert json.loads(result.out)["auc"] == json.loads(whole.out)["auc"]
    repeated = auto_resume(cli)
    assert repeated.code == 0 and "--auto-resume: the run in r is finished after 6 steps; nothing to do" in repeated.err
    assert json.loads(repeated.out)["auc"] == json.loads(whole.out)["auc"]
    longer = auto_resume(cli, steps="8")
    assert longer.code == 0 and "resumed after step 6" in longer.err and json.loads(longer.out)["steps"] == 8


def test_a_run_with_other_settings_is_refused(cli: Cli) -> None:
    assert auto_resume(cli, steps="2").code == 0
    result = auto_resume(cli, "--set", "optimizer.lr=0.5")
    assert result.code == 2 and "--auto-resume: expected optimizer.lr=0.05 as in the run in r, got 0.5" in result.err


def test_auto_resume_refuses_conflicting_options(cli: Cli) -> None:
    for words in (["--overwrite"], ["--dry-run"]):
        assert "--auto-resume: expected --out DIR, the directory of the run" in auto_resume(cli, *words).err
    assert cli("run", "--auto-resume", *SMALL).code == 2
    assert "got --auto-resume." in cli("run", "--resume", "r", "--auto-resume").err


def test_auto_resume_keeps_foreign_files(cli: Cli) -> None:
    Path("r").mkdir()
    Path("r/mine.txt").write_text("mine")
    result = auto_resume(cli)
    assert result.code == 6 and "expected only files of a run, got mine.txt" in result.err
