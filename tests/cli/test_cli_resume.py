"""`run --resume`: what may be given with it, and real runs that are killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive.cli.flags import FLAGS
from adaptive.storage.checkpoint import load_checkpoint

Cli = Callable[..., Any]
LENGTHS = ("--steps", "--epochs", "--num-batches", "--nepochs")
CODE = ("--policy", "--skip", "--model")
SMALL = (
    *("--set", "data.synthetic.rows=100000", "--set", "data.synthetic.num_train=12000"),
    *("--set", "data.synthetic.num_eval=2000", "--set", "tensorboard=false", "--batch-size", "500"),
    *("--policy", "slipstream", "--set", "policy.every=2", "--set", "policy.warmup=2", "--set", "skip.min_accesses=4"),
    *("--set", "policy.by=visits"),
)


def test_resume_takes_lengths_only(cli: Cli, trainer: Any) -> None:
    result = cli("run", "--resume", "runs/x", "--json")
    assert (result.code, result.err) == (0, "resuming\n") and json.loads(result.out)["auc"] == 0.75
    assert cli("run", "--resume", "runs/x", "--steps", "70", "--epochs", "3").code == 0
    assert cli("run", "--resume", "runs/x", "--num-batches", "70", "--nepochs", "3").code == 0
    assert trainer.calls == [
        ("resume", (Path("runs/x"), {})),
        *[("resume", (Path("runs/x"), {"steps": 70, "epochs": 3}))] * 2,
    ]


@pytest.mark.parametrize(
    "flag", [flag for flag in FLAGS if flag.name not in (*LENGTHS, *CODE)], ids=lambda flag: flag.name
)
def test_other_flags_are_named(cli: Cli, trainer: Any, flag: Any) -> None:
    result = cli("run", "--resume", "runs/x", flag.name, *([] if flag.value else ["1"]))
    assert (result.code, result.out, trainer.calls) == (2, "", [])
    assert f"settings of the run; {flag.name} cannot be given with it, only --steps" in result.err


def test_all_that_cannot_be_given_is_named(cli: Cli, trainer: Any) -> None:
    Path("a.toml").write_text("seed = 1\n")
    words = ("--config", "a.toml", "--set", "depth=1", "--dry-run", "--overwrite", "--depth", "1", "--steps", "9")
    result = cli("run", "--resume", "runs/x", *words)
    assert result.code == 2 and trainer.calls == []
    assert "--config, --set, --dry-run, --overwrite, --depth cannot be given with it" in result.err


def test_code_that_is_trusted_is_named(cli: Cli, trainer: Any) -> None:
    assert cli("run", "--resume", "runs/x", "--policy", "a.py:A", "--skip", "b.py:B").code == 0
    assert trainer.calls == [("resume", (Path("runs/x"), {"code": {"policy": "a.py:A", "skip.rule": "b.py:B"}}))]


@pytest.mark.parametrize("value", ["0", "-3", "all", "1.5", "\N{ARABIC-INDIC DIGIT THREE}"])
def test_lengths_are_whole_numbers(cli: Cli, trainer: Any, value: str) -> None:
    result = cli("run", "--resume", "runs/x", "--steps", value)
    assert result.code == 2 and trainer.calls == [] and f"--steps {value}: a whole number from 1 on" in result.err


def test_the_environment_has_no_say(cli: Cli, trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTIVE_STEPS", "2")
    assert cli("run", "--resume", "runs/x").code == 0
    assert trainer.calls == [("resume", (Path("runs/x"), {}))]


def test_mistakes_end_with_their_code(cli: Cli) -> None:
    result = cli("run", "--resume", "nowhere")
    assert result.code == 4 and "nowhere/run.json: expected the record of a run" in result.err
    result = cli("run", "--set", "save_every=5", "--set", "save=false")
    assert result.code == 2 and "save_every=5 and save=false exclude each other" in result.err
    result = cli("run", "--set", "save_every=0")
    assert result.code == 2 and "save_every (--set): expected a value greater than or equal to 1, got 0" in result.err


def kill_when(process: subprocess.Popen[str], line: str) -> None:
    """kill -9, as soon as progress says this."""
    assert process.stderr is not None
    for found in process.stderr:
        if found.startswith(line):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.nightly
def test_a_run_that_was_killed_goes_on(cli: Cli, tmp_path: Path) -> None:
    words = ["run", *SMALL, "--set", "save_every=8", "--set", "log_every=1", "--epochs", "2", "--out", "cut"]
    command = [sys.executable, "-m", "adaptive.cli.app", *words]
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}  # as here: torch rounds products otherwise on more
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **threads}, text=True, **pipes) as process:
        kill_when(process, "step 28/48")
    assert json.loads(Path("cut/run.json").read_text())["status"] == "running"
    evaluated = json.loads(cli("eval", "cut", "--json").out)
    assert evaluated["steps"] >= 24 and evaluated["steps"] % 8 == 0
    resumed = cli("run", "--resume", "cut", "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.err.startswith(f"resumed after step {evaluated['steps']} from cut/checkpoint-")
    whole = cli("run", *SMALL, "--set", "save_every=8", "--set", "log_every=1", "--epochs", "2", "--out", "a", "--json")
    found, expected = json.loads(resumed.out), json.loads(whole.out)
    for name in ("steps", "samples", "auc", "log_loss", "skipped_update_share", "deferred_update_share"):
        assert found[name] == expected[name], name
    assert found["skipped_update_share"] > 0.1
    mine, theirs = load_checkpoint(Path("cut/weights")), load_checkpoint(Path("a/weights"))
    for group in ("rows", "optimizer", "policy", "run"):
        for name, value in getattr(theirs, group).items():
            np.testing.assert_array_equal(getattr(mine, group)[name], value, strict=True, err_msg=name)
