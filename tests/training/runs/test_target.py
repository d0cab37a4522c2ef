"""`stop_at`: a run ends at the first evaluation that reaches its target, says so, and is finished then."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.interrupted import Killed, assert_equal, config_of, interrupted, numbers, small_world
from support.toy import toy_config
from support.toy_runs import data_fixture, nothing_is_left_behind  # noqa: F401 (fixtures)

from adaptive.config import StopAtConfig, TrainConfig
from adaptive.errors import ConfigError
from adaptive.storage.checkpoint import load_checkpoint
from adaptive.training.runs import plan_run, resume_run, train_run
from adaptive.training.runs.run import Run
from adaptive.training.settings import load_settings
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import EvalRecord, IntervalRecord

EVERY = 3
Point = dict[str, Any]


def curve(out: Path, **changed: Any) -> list[Point]:
    """The evaluations of a run of 40 batches without a target."""
    points: list[Point] = train_run(toy_config(eval_every=EVERY, epochs=2, out=str(out), **changed))["evaluations"]
    return points


def run(out: Path, metric: str, target: float, **changed: Any) -> dict[str, Any]:
    settings = {"eval_every": EVERY, "epochs": 2, "out": str(out), "stop_at": {metric: target}}
    return train_run(toy_config(**settings | changed))


def saved(out: Path) -> dict[str, Any]:
    found = load_checkpoint(out / "weights")
    return {**found.rows, **{name: value.numpy() for name, value in found.dense.items()}}


# --- the settings ----------------------------------------------------------------------------------------------------


def test_one_of_three() -> None:
    auc, log_loss = StopAtConfig(auc=0.8), StopAtConfig(log_loss=0.5)
    assert (auc.metric, auc.target, auc.is_reached_by(0.8), auc.is_reached_by(0.79)) == ("auc", 0.8, True, False)
    assert log_loss.is_reached_by(0.5) and log_loss.is_reached_by(0.4) and not log_loss.is_reached_by(0.6)
    for given in ({}, {"auc": 0.8, "accuracy": 0.7}):
        with pytest.raises(ValidationError, match="expected one of auc, log_loss, accuracy, mse and mae, got"):
            StopAtConfig.model_validate(given)
    config, _ = load_settings(sets=["stop_at.accuracy=0.7"])
    assert config.stop_at == StopAtConfig(accuracy=0.7)
    with pytest.raises(ConfigError, match=r"stop_at\.auc \(--set\): expected a value less than or equal to 1, got 80"):
        load_settings(sets=["stop_at.auc=80"])


# --- where it ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["auc", "log_loss", "accuracy"])
@pytest.mark.usefixtures("data")
def test_training_ends_at_the_first_evaluation_that_reaches_it(tmp_path: Path, metric: str) -> None:
    points = curve(tmp_path / "whole")
    best = min if metric == "log_loss" else max
    target = best(point[metric] for point in points[:5])
    first = next(point for point in points if point[metric] == target)
    summary = run(tmp_path / "cut", metric, target)
    assert (summary["steps"], summary["auc"]) == (first["step"], first["auc"])
    assert summary["evaluations"] == points[: points.index(first) + 1]
    found = summary["stop_at"]
    assert (found["metric"], found["target"], found["reached"], found["best"]) == (metric, target, True, target)
    assert found["step"] == found["best_step"] == first["step"] and found["samples"] == 32 * first["step"]
    shown = {"auc": "AUC", "log_loss": "log loss"}.get(metric, metric)
    assert f"target {shown} {target:g}: reached ({target:.4f}) after" in summary["table"]


@pytest.mark.usefixtures("data")
def test_what_was_trained_is_what_so_many_steps_train(tmp_path: Path) -> None:
    points = curve(tmp_path / "whole")
    summary = run(tmp_path / "cut", "auc", points[3]["auc"])
    curve(tmp_path / "short", steps=summary["steps"])
    found, expected = saved(tmp_path / "cut"), saved(tmp_path / "short")
    for name, value in expected.items():
        assert (found[name] == value).all(), name


@pytest.mark.usefixtures("data")
def test_seconds_are_those_of_training_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of the intervals; an evaluation's time is in none."""
    summary = run(tmp_path, "auc", 0.01)
    records = [record for record in read_metrics(tmp_path / "metrics.jsonl") if isinstance(record, IntervalRecord)]
    sizes = [after.samples - before for after, before in zip(records, [0, *(r.samples for r in records)], strict=False)]
    seconds = sum(size / record.samples_per_s for size, record in zip(sizes, records, strict=True))
    assert summary["stop_at"]["seconds"] == pytest.approx(seconds) and summary["steps"] == EVERY


@pytest.mark.usefixtures("data")
def test_the_end_of_an_epoch_evaluates_too_and_is_evaluated_once(tmp_path: Path) -> None:
    points = curve(tmp_path / "whole")
    at_end = next(point for point in points if point["step"] == 20)
    summary = run(tmp_path / "cut", "auc", at_end["auc"], eval_every=None)
    assert (summary["steps"], summary["stop_at"]["reached"]) == (20, True)
    records = [record for record in read_metrics(tmp_path / "cut/metrics.jsonl") if isinstance(record, EvalRecord)]
    assert [record.step for record in records] == [20]


@pytest.mark.usefixtures("data")
def test_not_reached_is_told_with_the_best_and_is_no_error(tmp_path: Path) -> None:
    points = curve(tmp_path / "whole")
    best = max(points, key=lambda point: point["auc"])
    summary = run(tmp_path / "cut", "auc", 0.999)
    assert summary["steps"] == 40 and summary["evaluations"] == points
    assert summary["stop_at"] == {
        "metric": "auc", "target": 0.999, "reached": False, "step": None, "samples": None, "seconds": None,
        "best": best["auc"], "best_step": best["step"],
    }  # fmt: skip
    assert f"target AUC 0.999: not reached; best {best['auc']:.4f} after {best['step']} steps" in summary["table"]


# --- placement, stops, resumption ------------------------------------------------------------------------------------


def target_config(folder: Path, **changed: Any) -> TrainConfig:
    """Reached in the middle of the first epoch."""
    settings = {"depth": 2, "eval_every": EVERY, "save_every": 2, "epochs": 2} | changed
    points = train_run(config_of("lru", out=str(folder / "curve"), **settings))["evaluations"]
    return config_of("lru", stop_at={"auc": max(point["auc"] for point in points[:5])}, **settings)


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("at", [3, 4, 9])
def test_a_run_that_goes_on_ends_where_it_would_have(tmp_path: Path, how: Any, at: int) -> None:
    with small_world() as patch:
        config = target_config(tmp_path)
        whole = train_run(config.model_copy(update={"out": str(tmp_path / "whole")}))
        assert at < whole["steps"] < 20
        with interrupted(patch, how, at):
            train_run(config.model_copy(update={"out": str(tmp_path / "cut")}))
        found = resume_run(tmp_path / "cut")
        assert {**found["stop_at"], "seconds": 0} == {**whole["stop_at"], "seconds": 0}
        assert_equal(numbers(tmp_path / "cut", placement=False), numbers(tmp_path / "whole", placement=False))


@pytest.mark.parametrize("eval_every", [EVERY, None])
def test_a_run_killed_behind_its_last_checkpoint_only_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eval_every: int | None
) -> None:
    """Its checkpoint knows that the target is reached, even without its records."""

    def kill(*_: Any) -> None:
        raise Killed

    with small_world():
        config = target_config(tmp_path, eval_every=EVERY)
        if eval_every is None:
            config = config.model_copy(update={"eval_every": None, "stop_at": StopAtConfig(auc=0.01)})
        whole = train_run(config.model_copy(update={"out": str(tmp_path / "whole")}))
        with monkeypatch.context() as patch:
            patch.setattr(Run, "_summary", kill)
            with pytest.raises(Killed):
                train_run(config.model_copy(update={"out": str(tmp_path / "cut")}))
        found = resume_run(tmp_path / "cut", steps=whole["steps"] + 5)
        assert found["steps"] == whole["steps"] and found["evaluations"] == whole["evaluations"]
        assert found["stop_at"]["reached"]
        assert_equal(numbers(tmp_path / "cut", placement=False), numbers(tmp_path / "whole", placement=False))


@pytest.mark.usefixtures("data")
def test_a_run_that_has_reached_its_target_is_finished(tmp_path: Path) -> None:
    for out, changed in ((tmp_path / "middle", {}), (tmp_path / "end", {"epochs": 1, "eval_every": None})):
        run(out, "auc", 0.01, **changed)
        for longer in ({}, {"steps": 100}, {"epochs": 5}):
            with pytest.raises(ConfigError, match=r"it reached auc 0\.01 after .* steps\. .* --set stop_at=null"):
                resume_run(out, **longer)


# --- refused ---------------------------------------------------------------------------------------------------------


def test_where_nothing_evaluates_it_is_refused(tmp_path: Path, data: Any) -> None:
    data(num_eval=0)
    config = toy_config(stop_at={"auc": 0.8}, eval_every=2, out=str(tmp_path))
    for start in (train_run, plan_run):
        with pytest.raises(ConfigError, match=r"evaluation part, got synthetic \(stop_at\.auc=0\.8\)"):
            start(config)
    assert not (tmp_path / "run.json").exists()
