"""`run` and `eval`: flags become settings, results go to stdout, everything else to stderr."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from adaptive.cli.app import app
from adaptive.cli.options import FLAGS, flag_of
from adaptive.config import TrainConfig
from adaptive.training.settings import load_settings

Cli = Callable[..., Any]


def setting(config: TrainConfig, key: str) -> Any:
    result: Any = config.model_dump()
    for name in key.replace("data.", "data_options.").replace("model.", "model_options.").split("."):
        result = result[name]
    return result


def test_result_goes_to_stdout_and_progress_to_stderr(cli: Cli, trainer: Any) -> None:
    result = cli("run")
    assert (result.code, result.out, result.err) == (0, "AUC 0.75\n", "training\n")
    assert trainer.calls == [("train", TrainConfig())]


def test_json_is_one_object_without_table_and_nan(cli: Cli, trainer: Any) -> None:
    result = cli("run", "--json", "--overwrite")
    assert json.loads(result.out) == {"schema": 1, "auc": 0.75, "log_loss": None, "overwrite": True}
    assert result.out.count("\n") == 1


def test_parquet_without_pyarrow_is_refused_early(cli: Cli, trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive.cli.run_command.find_spec", lambda name: None)
    result = cli("run", "--data", "parquet:clicks.parquet")
    assert (result.code, trainer.calls) == (2, [])
    assert "data parquet: expected pyarrow, which is not installed. Run pip install" in result.err


def test_dry_run_only_plans(cli: Cli, trainer: Any) -> None:
    result = cli("run", "--dry-run", "--steps", "3", "--json")
    assert result.code == 0
    assert json.loads(result.out)["settings_from"] == {"steps": "flag --steps"}
    assert [call for call, _ in trainer.calls] == ["plan"]


def test_eval_prints_the_quality_of_a_run(cli: Cli, trainer: Any) -> None:
    result = cli("eval", "runs/x", "--group-by", "user", "--json")
    assert json.loads(result.out)["auc"] == 0.75
    assert trainer.calls == [("eval", (Path("runs/x"), {"data": None, "group_by": "user", "settings": {}}))]


VALUES = {
    "--data": "csv:x.csv",
    "--schema": "x.toml",
    "--batch-size": 64,
    "--device": "cpu",
    "--device-rows": "25%",
    "--depth": 0,
    "--policy": "lfu",
    "--preset": "rmc2",
    "--model": "dlrm",
    "--optimizer": "sgd",
    "--lr": 0.5,
    "--steps": 3,
    "--epochs": 4,
    "--eval-every": 11,
    "--seed": 5,
    "--skip": "defer",
    "--init-from": "runs/y",
    "--out": "runs/x",
}


def test_each_flag_gives_its_setting(cli: Cli, trainer: Any) -> None:
    result = cli("run", *(word for name, value in VALUES.items() for word in (name, str(value))))
    assert result.code == 0, result.err
    ((_, config),) = trainer.calls
    assert {flag_of(key): setting(config, key) for key in FLAGS} == VALUES


def test_every_option_and_command_is_documented() -> None:
    def check(command: Any, name: str) -> None:
        assert command.help, name
        for option in command.params:
            assert getattr(option, "help", None), f"{name} {option.name}"
        for name_below, below in getattr(command, "commands", {}).items():
            check(below, f"{name} {name_below}")

    check(typer.main.get_command(app), "adaptive-train")


def test_defaults_in_the_help_are_the_real_ones() -> None:
    config, _ = load_settings()
    shown = {key: option.show_default for key, option in FLAGS.items() if option.show_default}
    del shown["steps"], shown["out"]
    assert shown == {key: str(setting(config, key)) for key in shown}
    assert len(shown) > 8
