"""The commands that a run's report ends with."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adaptive.config import TrainConfig
from adaptive.runs.next_commands import next_commands

ALL: dict[str, Any] = {"has_evaluation": True, "which": lambda name: f"/bin/{name}", "is_installed": lambda name: True}


def test_each_names_the_run_as_a_shell_takes_it() -> None:
    text = next_commands(Path("runs/my run"), TrainConfig(policy="lfu"), **ALL)
    assert [shlex.split(line) for line in text.splitlines()[1:-2]] == [
        ["tensorboard", "--logdir", "runs"],
        ["adaptive-train", "eval", "runs/my run"],
        ["adaptive-train", "report", "runs/my run"],
        ["adaptive-train", "compare", "--config", "runs/my run/run.json", "--policies", "lru,lfu,slipstream"],
    ]
    assert text.splitlines()[-2:] == [
        "in TensorBoard, curves: http://localhost:6006/#custom_scalars",
        "in TensorBoard, rows by table: http://localhost:6006/#adaptive_rows",
    ]


def test_what_the_run_did_not_write_is_not_named_and_its_policy_is_compared() -> None:
    config = TrainConfig(policy="fae", save=False, tensorboard=False)
    text = next_commands(Path("runs/a"), config, **ALL)
    assert text.splitlines()[1:] == [
        "  adaptive-train report runs/a",
        "  adaptive-train compare --config runs/a/run.json --policies lru,lfu,slipstream,fae",
    ]


def test_only_commands_that_work_are_named() -> None:
    """No `eval` of data without an evaluation part, no `report` without matplotlib."""
    text = next_commands(Path("runs/a"), TrainConfig(), **{**ALL, "has_evaluation": False})
    assert "report" in text and "eval" not in text
    text = next_commands(Path("runs/a"), TrainConfig(), **{**ALL, "is_installed": lambda name: False})
    assert "eval" in text and "report" not in text


def test_where_programs_are_not_on_the_path_it_says_how_they_get_there() -> None:
    text = next_commands(Path("a"), TrainConfig(), has_evaluation=True, which=lambda name: None)
    assert text.splitlines()[1] == f"  source {shlex.quote(sys.prefix)}/bin/activate"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_the_package_can_be_run_as_a_module(words: list[str]) -> None:
    found = subprocess.run([sys.executable, "-m", "adaptive", *words], capture_output=True, text=True, check=True)
    assert "Usage: adaptive-train" in found.stdout
