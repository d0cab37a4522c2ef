"""Common mistakes: exit code, key or place, and how to fix it."""

from collections.abc import Callable
from typing import Any

import pytest

Cli = Callable[..., Any]

MISTAKES: dict[str, tuple[list[str], int, list[str]]] = {
    "key without its section": (
        ["--set", "lr=0.1"], 2, ["lr (--set)", "did you mean optimizer.lr or dense_optimizer.lr?"]),
    "file not there": (["--config", "no.toml"], 2, ["no.toml not found", "--config"]),
    "device tier larger than everything": (["--device-rows", "150%"], 2, ["--device-rows", "at most 100%, got '150%'"]),
    "misspelt policy": (["--policy", "slipstreem"], 9, ["no policy 'slipstreem'", "did you mean slipstream?"]),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_reported(cli: Cli, trainer: Any, mistake: str) -> None:
    words, code, parts = MISTAKES[mistake]
    result = cli("run", *words)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("adaptive-train: error: ") and result.err.count("\n") == 1
    for part in parts:
        assert part in result.err
    assert trainer.calls == []


def test_built_in_data_refuses_options_for_files(cli: Cli) -> None:
    for spec in ("synthetic", "sequences"):
        model = () if spec == "synthetic" else ("--model", "tbsm")
        result = cli("run", "--data", spec, *model, "--set", "data.holdout=0.1", "--schema", "s.toml", "--steps", "1")
        assert (
            result.code == 2 and "expected no data.schema_path, data.holdout, got a value: the stream" in result.err
        ), result.err
