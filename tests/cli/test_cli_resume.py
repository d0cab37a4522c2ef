"""`run --resume`: the options that it accepts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_resume_takes_only_lengths(cli: Cli, trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTIVE_STEPS", "2")  # does not apply to a run that is resumed
    result = cli("run", "--resume", "runs/x", "--json")
    assert (result.code, result.err) == (0, "resuming\n") and json.loads(result.out)["auc"] == 0.75
    assert cli("run", "--resume", "runs/x", "--steps", "70", "--epochs", "3").code == 0
    lengths = {"steps": 70, "epochs": 3}
    assert trainer.calls == [("resume", (Path("runs/x"), {})), ("resume", (Path("runs/x"), lengths))]


def test_all_refused_options_are_named(cli: Cli, trainer: Any) -> None:
    Path("a.toml").write_text("seed = 1\n")
    words = ("--config", "a.toml", "--set", "depth=1", "--dry-run", "--overwrite", "--depth", "1", "--steps", "9")
    result = cli("run", "--resume", "runs/x", *words)
    assert result.code == 2 and trainer.calls == []
    assert "got --config, --set, --dry-run, --overwrite, --depth." in result.err


def test_files_with_code_are_named(cli: Cli, trainer: Any) -> None:
    assert cli("run", "--resume", "runs/x", "--policy", "a.py:A", "--skip", "b.py:B").code == 0
    assert trainer.calls == [("resume", (Path("runs/x"), {"code": {"policy": "a.py:A", "skip.rule": "b.py:B"}}))]


@pytest.mark.parametrize("value", ["0", "-3", "all", "1.5", "\N{ARABIC-INDIC DIGIT THREE}"])
def test_lengths_are_whole_numbers(cli: Cli, trainer: Any, value: str) -> None:
    result = cli("run", "--resume", "runs/x", "--steps", value)
    assert (
        result.code == 2
        and trainer.calls == []
        and f"expected a whole number above 0, got --steps {value}" in result.err
    )
