"""Commands that are stopped or hang: what they report and keep."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.outcomes import outcome

import adaptive.studies.compare.comparison_runs
from adaptive.config import TrainConfig

Cli = Callable[..., Any]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> dict[str, BaseException]:
    """Trainings that end at once; `stopped["lfu"] = error` is raised by seed 1 of that policy."""
    errors: dict[str, BaseException] = {}

    def train(config: TrainConfig, **more: Any) -> dict[str, Any]:
        if config.seed == 1 and config.policy in errors:
            raise errors[config.policy]
        return outcome("", config.seed, 0.7).summary

    monkeypatch.setattr(adaptive.studies.compare.comparison_runs, "train_run", train)
    return errors


@pytest.mark.parametrize(
    ("error", "code"), [(SystemExit(130), 130), (SystemExit(143), 143), (KeyboardInterrupt(), 130)]
)
def test_a_stopped_comparison_reports_finished_runs(
    cli: Cli, stopped: dict[str, BaseException], error: BaseException, code: int
) -> None:
    stopped["lfu"] = error
    words = ("compare", "--policies", "lru,lfu", "--seeds", "3", "--out", "out", "--csv", "a.csv", "--json")
    result = cli(*words)
    assert result.code == code
    report = json.loads(result.out)
    assert [(entry["policy"], entry["seeds"]) for entry in report["policies"]] == [("lru", [0, 1]), ("lfu", [0])]
    assert report["problems"] == ["stopped after 3 of 6 runs, so the others are missing here"]
    assert json.loads(Path("out/comparison.json").read_text()) == report
    assert len(Path("a.csv").read_text().splitlines()) == 3
    assert ("terminated" if code == 143 else "interrupted") in result.err


def test_a_stop_in_the_first_run_reports_nothing(cli: Cli, stopped: dict[str, BaseException]) -> None:
    stopped["lru"] = SystemExit(130)
    result = cli("compare", "--policies", "lru,lfu", "--seed", "1", "--out", "out")
    assert (result.code, result.out) == (130, "")
    assert not Path("out/comparison.json").exists()


@pytest.mark.parametrize("command", ["show", "check"])
def test_show_reports_an_unknown_policy(cli: Cli, command: str) -> None:
    for spec, text in [("slipstreem", "did you mean slipstream?"), ("my.py", "give its class, my.py:CLASS")]:
        result = cli("policies", command, spec)
        assert result.code == 9 and text in (result.err if command == "show" else result.out)
