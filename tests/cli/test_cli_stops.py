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


def test_simulate_reports_progress_and_runs_a_size_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive.training.telemetry.progress.EVERY", 0.0)
    words = ("--set", "data.synthetic.rows=100000", "--set", "data.synthetic.num_train=4000", "--batch-size", "100")
    result = cli("simulate", *words, "--epochs", "2", "--policies", "lru", "--device-rows", "20%,100%,20%", "--json")
    assert result.code == 0, result.err
    assert [run["size"] for run in json.loads(result.out)["runs"]] == ["20%", "100%"]
    progress = [line.split(", about")[0] for line in result.err.splitlines()]
    assert progress == [f"{n} of 80 batches planned" for n in (32, 40, 72, 80)]


def test_prepare_reports_progress(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("click,a\n" + "1,x\n0,y\n" * 50)
    (tmp_path / "a.toml").write_text('label = { column = "click" }\ncategorical = [{ columns = ["a"] }]\n')
    words = ("--data", "csv:a.csv", "--schema", "a.toml", "--set", "data.holdout=0.5", "--set", "data.vocabulary=true")
    monkeypatch.setattr("adaptive.training.telemetry.progress.EVERY", 3600.0)  # not the machine's load decides
    quiet = cli("prepare", "quiet", *words)
    assert quiet.code == 0 and quiet.err == "", quiet.err  # nothing before it is time for a line
    monkeypatch.setattr("adaptive.training.telemetry.progress.EVERY", 0.0)
    result = cli("prepare", "out", *words)
    assert result.code == 0 and "written" not in result.out, result.err
    assert result.err.splitlines() == [
        "408 B of 408 B read to count rows or fit vocabularies, about 0:00:00 left",
        "50 of 50 samples written (train), about 0:00:00 left",
        "50 of 50 samples written (evaluation), about 0:00:00 left",
    ]
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert "count rows" not in cli("prepare", "other", *words).err  # the first rank says it
