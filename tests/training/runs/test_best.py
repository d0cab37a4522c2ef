"""`save=best` keeps the weights of the best evaluation, those of a run that ended there; `patience` ends a run."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.interrupted import Killed
from support.toy import ToyData, toy_config
from support.toy_runs import assert_equal, data_fixture, nothing_is_left_behind  # noqa: F401 (fixtures)

from adaptive.errors import ConfigError
from adaptive.storage.checkpoint import load_checkpoint
from adaptive.training.evaluation import Evaluation
from adaptive.training.runs import evaluate_run, plan_run, resume_run, run, train_run
from adaptive.training.runs.run import best_evaluation, is_out_of_patience
from adaptive.training.telemetry.record import EvalRecord

Scripted = Callable[..., None]


@pytest.fixture
def aucs(monkeypatch: pytest.MonkeyPatch, data: Any) -> Scripted:
    """`aucs(0.6, 0.7, ...)` is what evaluations of training runs find, by the steps before them."""

    def script(**by_step: float | None) -> None:
        def evaluate(embeddings: Any, model: Any, batches: Any, **more: Any) -> Evaluation:
            samples = sum(batch.num_samples for batch in batches)
            auc = by_step[f"s{embeddings.runtime.pipeline.next_number}"]
            return Evaluation(samples, auc, True, 0.5, None if auc is None else 1 - auc, 1.0, 1.0)

        monkeypatch.setattr(run, "evaluate", evaluate)

    return script


def folders(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir() if one.is_dir())


def assert_same_weights(found: Path, expected: Path) -> None:
    mine, theirs = load_checkpoint(found), load_checkpoint(expected)
    assert_equal(mine.rows, theirs.rows)
    assert mine.meta["steps"] == theirs.meta["steps"]
    assert all(torch.equal(mine.dense[name], weight) for name, weight in theirs.dense.items())


def test_the_weights_of_the_best_evaluation_are_kept(tmp_path: Path, aucs: Scripted) -> None:
    aucs(s5=0.6, s10=0.8, s15=0.7, s20=0.8)
    summary = train_run(toy_config(out=str(tmp_path / "run"), save="best", eval_every=5))
    assert summary["best"] == {"metric": "auc", "value": 0.8, "step": 10, "saved": True, "ended_by_patience": False}
    second, third = summary["table"].splitlines()[1:3]
    assert second.startswith("AUC ") and third == (
        "best AUC 0.8000 after step 10; eval, predict, export and load_run use the weights of that step, not the last "
        "ones"
    )
    assert folders(tmp_path / "run") == ["best-10", "weights"]
    train_run(toy_config(out=str(tmp_path / "short"), steps=10))
    assert_same_weights(tmp_path / "run/best-10", tmp_path / "short/weights")
    found = evaluate_run(tmp_path / "run")
    assert found["steps"] == 10 and found == evaluate_run(tmp_path / "short") | {"run_dir": str(tmp_path / "run")}


@pytest.mark.parametrize(("last", "kept"), [(0.9, "best-20"), (None, "best-5")])
def test_the_last_evaluation_may_be_the_best(tmp_path: Path, aucs: Scripted, last: float | None, kept: str) -> None:
    aucs(s5=0.6, s10=None, s15=0.5, s20=last)
    train_run(toy_config(out=str(tmp_path), save="best", eval_every=5))
    assert folders(tmp_path) == [kept, "weights"]


@pytest.mark.usefixtures("data")
def test_keeping_the_best_changes_no_bit(tmp_path: Path) -> None:
    kept = train_run(toy_config(out=str(tmp_path / "kept"), save="best", eval_every=3, epochs=2))
    plain = train_run(toy_config(out=str(tmp_path / "plain"), eval_every=3, epochs=2))
    assert_same_weights(tmp_path / "kept/weights", tmp_path / "plain/weights")
    points = kept["evaluations"]
    assert points == plain["evaluations"] and "best" not in plain
    best = max(points, key=lambda one: one["auc"])
    assert kept["best"]["step"] == best["step"]
    assert evaluate_run(tmp_path / "kept")["auc"] == best["auc"]


@pytest.mark.parametrize("cut", [6, 12, 17])
def test_a_resumed_run_keeps_what_it_would_have(tmp_path: Path, aucs: Scripted, cut: int) -> None:
    """The evaluation that ends the cut run is made again in the middle of none: it stays a point of the curve."""
    aucs(s4=0.6, s8=0.8, s12=0.7, s16=0.75, s20=0.65, s6=0.1, s17=0.1)
    whole = train_run(toy_config(out=str(tmp_path / "whole"), save="best", eval_every=4))
    train_run(toy_config(out=str(tmp_path / "cut"), save="best", eval_every=4, steps=cut))
    found = resume_run(tmp_path / "cut", steps=20)
    assert found["best"] == whole["best"]
    assert folders(tmp_path / "cut") == ["best-8", "weights"]
    assert_same_weights(tmp_path / "cut/best-8", tmp_path / "whole/best-8")


def test_patience_ends_training(tmp_path: Path, aucs: Scripted) -> None:
    aucs(s4=0.6, s8=0.8, s12=0.7, s16=0.8, s20=0.9)
    summary = train_run(toy_config(out=str(tmp_path), save="best", patience=2, eval_every=4))
    assert summary["steps"] == 16 and summary["auc"] == 0.8
    assert summary["best"] == {"metric": "auc", "value": 0.8, "step": 8, "saved": True, "ended_by_patience": True}
    assert "; training stopped because later evaluations were no better (patience)\n" in summary["table"]
    with pytest.raises(ConfigError, match="its patience ended"):
        resume_run(tmp_path, epochs=3)


def test_a_run_killed_after_its_patience_ended_only_ends(
    tmp_path: Path, aucs: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint knows that training ended, even if the run is made longer."""

    def kill(*_: Any) -> None:
        raise Killed

    aucs(s4=0.6, s8=0.8, s12=0.7, s16=0.8, s20=0.9)
    settings = {"patience": 2, "eval_every": 4, "epochs": 2}
    whole = train_run(toy_config(out=str(tmp_path / "whole"), **settings))
    with monkeypatch.context() as patch:
        patch.setattr(run.Run, "_summary", kill)
        with pytest.raises(Killed):
            train_run(toy_config(out=str(tmp_path / "cut"), **settings))
    resumed = resume_run(tmp_path / "cut", epochs=3)
    assert resumed["steps"] == whole["steps"] == 16
    assert (resumed["evaluations"], resumed["best"]) == (whole["evaluations"], whole["best"])
    assert_same_weights(tmp_path / "cut/weights", tmp_path / "whole/weights")


def test_patience_counts_evaluations_behind_the_best() -> None:
    def after(*values: float | None) -> list[EvalRecord]:
        return [EvalRecord(step=10 * n, samples=1, auc=auc, log_loss=1.0) for n, auc in enumerate(values)]

    config = toy_config(patience=2)
    assert best_evaluation([]) is None and best_evaluation(after(None)) is None
    for values, ended in [
        ((0.5, 0.4), False),
        ((0.5, 0.4, 0.5), True),
        ((0.5, 0.4, 0.6), False),
        ((None, None), False),
    ]:
        assert is_out_of_patience(config, after(*values)) is ended, values
    assert not is_out_of_patience(toy_config(), after(0.5, 0.4, 0.3))


def test_the_best_needs_evaluations(tmp_path: Path, data: Callable[..., ToyData]) -> None:
    data(num_eval=0)
    for asked in ({"save": "best"}, {"patience": 3}):
        config = toy_config(out=str(tmp_path / "run"), **asked)
        for train in (train_run, plan_run):
            with pytest.raises(ConfigError, match="expected data with an evaluation part, got "):
                train(config)


def test_one_class_in_evaluations_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Any) -> None:
    """There is no AUC then, so neither `save=best` nor `patience` does anything."""
    toy: ToyData = data()
    batches = toy.evaluation
    of_label_0 = lambda size: (replace(one, labels=np.zeros_like(one.labels)) for one in batches(size))  # noqa: E731
    monkeypatch.setattr(toy, "evaluation", of_label_0)
    stream = io.StringIO()
    goals = {"save": "best", "patience": 2, "eval_every": 5}
    train_run(toy_config(out=str(tmp_path / "run"), **goals), stream=stream)
    (line,) = [line for line in stream.getvalue().splitlines() if "warning" in line]
    assert line == (
        "warning: all 256 evaluated samples have label 0, so there is no AUC, and save=best and patience=2 cannot "
        "compare evaluations. Use other data."
    )
    stream = io.StringIO()
    evaluate_run(tmp_path / "run", stream=stream)
    assert "warning: all 256 evaluated samples have label 0, so there is no AUC." in stream.getvalue()
