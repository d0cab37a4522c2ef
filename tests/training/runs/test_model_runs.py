"""Runs of every model by name: the same bits wherever rows lie, however a run is cut; evaluated, scored, exported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.toy import SIZES, ToyData, toy_config
from support.toy_runs import data_fixture, everything, nothing_is_left_behind, parts_of, train_all  # noqa: F401

from adaptive import load_run
from adaptive.errors import ConfigError, InputError
from adaptive.serving import export_run, predict_run, scoring
from adaptive.studies.compare.comparison_runs import claim
from adaptive.studies.compare.contenders import Contender
from adaptive.studies.compare.verdicts import judge
from adaptive.training.components import build
from adaptive.training.runs import evaluate_run, resume_run, train_run
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import EvalRecord, IntervalRecord
from adaptive.training.trainer import Trainer

OWN = str(Path(__file__).parents[3] / "examples" / "custom_model.py") + ":SumAndDot"
LABELS = ("click", "high")
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dcn": ("dcn", {"deep_mlp": [8], "cross_rank": 2}),
    "deepfm": ("deepfm", {"deep_mlp": [8]}),
    "two-tower": ("two-tower", {"user_tables": ["user"], "tower_mlp": [8, 4]}),
    "multi-task": ("multi-task", {"shared_mlp": [8], "task_mlp": [4], "experts": 2}),
    "shared bottom": ("multi-task", {"sharing": "bottom", "shared_mlp": [8], "task_mlp": [4]}),
    "own": (OWN, {"hidden": 8}),
    "dlrm, widths": ("dlrm", {"bottom_mlp": [8, 4], "top_mlp": [8, 1], "widths": {"user": 2, "hour": 8}}),
    "dcn, widths": ("dcn", {"deep_mlp": [8], "widths": {"user": 2}}),
    "dlrm, dropout": ("dlrm", {"bottom_mlp": [8, 4], "top_mlp": [8, 1], "dropout": 0.3}),
    "multi-task, dropout": ("multi-task", {"shared_mlp": [8], "task_mlp": [4], "dropout": 0.3}),
    "dcn, batch norm": ("dcn", {"deep_mlp": [8], "feature_norm": "batch"}),
    "dlrm, optimizers": ("dlrm", {"bottom_mlp": [8, 4], "top_mlp": [8, 1]}),
    "dlrm, layer norm": ("dlrm", {"bottom_mlp": [8, 4], "top_mlp": [8, 1], "feature_norm": "layer"}),
}
TABLE_OPTIMIZERS = {"user": {"name": "ftrl", "lr": 0.1}, "hour": {"name": "adam", "state_dtype": "bfloat16"}}
ONE_EACH = (
    "dlrm, optimizers",
    "dcn",
    "deepfm",
    "two-tower",
    "multi-task",
    "own",
    "dlrm, widths",
    "dlrm, dropout",
    "dcn, batch norm",
)


def settings(name: str) -> dict[str, Any]:
    model, options = MODELS[name]
    optimizer = {"optimizer": {"tables": TABLE_OPTIMIZERS}} if name == "dlrm, optimizers" else {}
    return {"model": model, "model_options": {"embedding_dim": 4, **options}, **optimizer}


def labels(name: str) -> tuple[str, ...]:
    return LABELS if MODELS[name][0] == "multi-task" else ()


def trained(name: str, policy: str, depth: int) -> dict[str, NDArray[Any]]:
    parts, toy = parts_of(policy=policy, labels=labels(name), **settings(name))
    with parts.embeddings:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(toy.train(32), depth=depth)
        values = {table.name: parts.embeddings.rows.table_weights(table.name) for table in parts.tables}
        return values | {f"dense {n}": value.numpy() for n, value in parts.model.state_dict().items()}


@pytest.mark.parametrize("name", MODELS)
def test_placement_changes_no_number(name: str) -> None:
    expected = trained(name, "device", 0)
    for policy, depth in (("lru", 3), ("hybrid", 1)):
        for key, values in trained(name, policy, depth).items():
            np.testing.assert_array_equal(values, expected[key], strict=True, err_msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_parts_are_trained_as_the_whole(name: str) -> None:
    """Dropout's masks included: they are those of the whole batch's samples."""
    found, expected = trained(name, "contract:InParts", 2), trained(name, "lru", 2)
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=0, atol=1e-4, err_msg=key)


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_run_that_goes_on_is_one_that_was_not_cut(tmp_path: Path, data: Callable[..., ToyData], name: str) -> None:
    data(labels=labels(name))
    whole = train_run(toy_config(out=str(tmp_path / "whole"), **settings(name)))
    train_run(toy_config(out=str(tmp_path / "cut"), steps=9, **settings(name)))
    found = resume_run(tmp_path / "cut", steps=20, code={"model": OWN} if name == "own" else {})
    for key in ("steps", "auc", "log_loss", "calibration", "labels"):
        assert found.get(key) == whole.get(key), key
    weights = [load_run(tmp_path / one, model=OWN if name == "own" else None) for one in ("whole", "cut")]
    with weights[0] as one, weights[1] as other:
        for table in SIZES:
            assert np.array_equal(one.embeddings.rows.table_weights(table), other.embeddings.rows.table_weights(table))
        for key, value in one.model.state_dict().items():
            assert torch.equal(value, other.model.state_dict()[key]), key


@pytest.mark.parametrize("name", MODELS)
def test_it_is_evaluated_scored_and_exported(tmp_path: Path, data: Callable[..., ToyData], name: str) -> None:
    toy = data(labels=labels(name))
    summary = train_run(toy_config(out=str(tmp_path / "run"), eval_by="user", **settings(name)))
    named = {"model": OWN} if name == "own" else {}
    found = evaluate_run(tmp_path / "run", group_by="user", settings=named)
    for key in ("auc", "log_loss", "calibration", "gauc", "gauc_groups", "labels"):
        assert found.get(key) == summary.get(key), key
    assert 0 < summary["gauc"] < 1 and "calibration" in summary["table"] and "groups" in summary["table"]
    predict_run(tmp_path / "run", tmp_path / "scores.npy", settings=named)
    export_run(tmp_path / "run", tmp_path / "served", settings=named)
    scores = np.load(tmp_path / "scores.npy")
    assert scores.shape == ((256, 2) if labels(name) else (256,))
    (batch,) = toy.evaluation(1000)
    model = scoring.load(tmp_path / "served")
    bags = [(torch.from_numpy(batch.ids[batch.feature_span(f)]), torch.arange(256)) for f in range(3)]
    with torch.no_grad():
        logits = model(torch.from_numpy(batch.dense), bags)
    np.testing.assert_allclose(torch.sigmoid(logits).numpy(), scores, atol=1e-6)
    sample = {"site": 3, "user": 2, "hour": 1, "dense_0": 0.5, "dense_1": 1.0}
    (score,) = model.score([sample])
    assert len(score) == 2 if labels(name) else 0 < score < 1


# --- several labels ----------------------------------------------------------------------------


def test_each_label_is_learned_and_reported(tmp_path: Path, data: Callable[..., ToyData]) -> None:
    data(num_train=3200, labels=LABELS)
    optimizers = {"dense_optimizer": {"name": "adam", "lr": 0.02}}
    summary = train_run(toy_config(out=str(tmp_path), tensorboard=True, **optimizers, **settings("multi-task")))
    assert summary["labels"]["high"]["auc"] > 0.95 and summary["labels"]["click"]["auc"] == pytest.approx(
        summary["auc"], abs=1e-3
    )
    assert "  label high: AUC 0.9" in summary["table"]
    records = read_metrics(tmp_path / "metrics.jsonl")
    (evaluation,) = (record for record in records if isinstance(record, EvalRecord))
    *_, interval = (record for record in records if isinstance(record, IntervalRecord))
    assert evaluation.labels["high"]["auc"] == summary["labels"]["high"]["auc"]
    assert interval.labels["click"]["auc"] == interval.auc and 0.5 < (interval.labels["high"]["auc"] or 0) < 1
    assert b"2_evaluation/auc_high" in next((tmp_path / "tensorboard").glob("*")).read_bytes()


def test_without_held_out_samples_labels_are_judged_in_training(tmp_path: Path, data: Callable[..., ToyData]) -> None:
    data(num_eval=0, labels=LABELS)
    summary = train_run(toy_config(out=str(tmp_path), **settings("multi-task")))
    assert summary["auc_of"] == "training" and set(summary["labels"]) == set(LABELS)


def test_a_label_of_weight_0_is_not_learnt() -> None:
    """Then the other alone moves what both share."""
    names = {"click": ("click", "high"), "other": ("click", "other", "low")}
    found = {}
    for key, labels_ in names.items():
        options = {
            "sharing": "bottom",
            "shared_mlp": [8],
            "task_mlp": [4],
            "loss_weights": dict.fromkeys(labels_[1:], 0),
        }
        parts, toy = parts_of(model="multi-task", model_options={"embedding_dim": 4, **options}, labels=labels_)
        with parts.embeddings:
            Trainer(parts.embeddings, parts.model, parts.optimizer).train(toy.train(32), depth=1)
            found[key] = {
                n: v.numpy() for n, v in parts.model.state_dict().items() if n.startswith(("shared", "heads.0"))
            }
    for name, value in found["click"].items():
        np.testing.assert_array_equal(value, found["other"][name], err_msg=name)


def test_samples_that_lack_a_label_are_told() -> None:
    parts, _ = parts_of(labels=LABELS, **settings("multi-task"))
    with parts.embeddings, pytest.raises(InputError, match=r"labels: expected 'high', .* got none"):
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(ToyData().train(32), depth=1)


def test_models_of_one_label_leave_the_others_alone(tmp_path: Path, data: Callable[..., ToyData]) -> None:
    alone = train_run(toy_config(out=str(tmp_path / "alone")))
    data(labels=LABELS)
    assert train_run(toy_config(out=str(tmp_path / "several")))["auc"] == alone["auc"]


# --- dropout ----------------------------------------------------------------------------


def test_dropout_changes_training_and_no_evaluation(tmp_path: Path, data: Callable[..., ToyData]) -> None:
    data()
    name = "dlrm, dropout"
    summary = train_run(toy_config(out=str(tmp_path / "a"), seed=1, **settings(name)))
    plain = settings(name) | {"model_options": {**settings(name)["model_options"], "dropout": 0.0}}
    assert train_run(toy_config(out=str(tmp_path / "b"), seed=1, **plain))["log_loss"] != summary["log_loss"]
    found = [evaluate_run(tmp_path / "a", settings={"eval_batch_size": size})["auc"] for size in (7, 256)]
    assert found == [pytest.approx(summary["auc"], abs=1e-6)] * 2  # other sizes of products may round otherwise


# --- comparisons ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["multi-task, dropout", "own", "dlrm, widths"])
def test_policies_are_compared_under_it(tmp_path: Path, data: Callable[..., ToyData], name: str) -> None:
    data(labels=labels(name))
    tiers = {"lru": "60%", "lfu": "70%", "hybrid": "auto"}
    rivals = [
        Contender(policy, toy_config(policy=policy, tier={"device_rows": rows}, **settings(name)))
        for policy, rows in tiers.items()
    ]
    result = judge(train_all(rivals, 1, claim(str(tmp_path / "out"))), auc_budget=0.0005)
    reasons = {line.policy: line.reason for line in result.policies}
    assert not result.problems
    assert sorted(reasons.values()) == ["equal to the control bit for bit"] * 2 + ["the control"], reasons


# --- what cannot be ----------------------------------------------------------------------------


def test_code_that_only_a_run_names_is_not_run(tmp_path: Path, data: Callable[..., ToyData]) -> None:
    data()
    train_run(toy_config(out=str(tmp_path / "run"), **settings("own")))
    for read in (load_run, evaluate_run):
        with pytest.raises(ConfigError, match=r"model=.*:SumAndDot is code .* name it yourself: --set model="):
            read(tmp_path / "run")
    with pytest.raises(ConfigError, match="Other settings of a trained run cannot change"):
        evaluate_run(tmp_path / "run", settings={"model.hidden": 3})
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["model"] == OWN


def test_the_feature_of_gauc_must_be_there(tmp_path: Path, data: Callable[..., ToyData]) -> None:
    data()
    with pytest.raises(ConfigError, match=r"one of the features site, user, hour, got you \(eval_by\)"):
        train_run(toy_config(out=str(tmp_path), eval_by="you"))


def test_a_model_that_does_not_fit_leaves_nothing_open() -> None:
    with pytest.raises(ConfigError, match="expected samples with several labels"):
        build(toy_config(**settings("multi-task")), ToyData())
