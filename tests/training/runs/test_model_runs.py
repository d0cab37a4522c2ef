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
from adaptive.errors import ConfigError
from adaptive.serving import export_run, predict_run, scoring
from adaptive.training.runs import evaluate_run, resume_run, train_run
from adaptive.training.trainer import Trainer

OWN = str(Path(__file__).parents[3] / "examples" / "custom_model.py") + ":SumAndDot"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dcn": ("dcn", {"deep_mlp": [8], "cross_rank": 2}),
    "deepfm": ("deepfm", {"deep_mlp": [8]}),
    "own": (OWN, {"hidden": 8}),
    "dlrm, widths": ("dlrm", {"bottom_mlp": [8, 4], "top_mlp": [8, 1], "widths": {"user": 2, "hour": 8}}),
    "dcn, widths": ("dcn", {"deep_mlp": [8], "widths": {"user": 2}}),
    "dlrm, dropout": ("dlrm", {"bottom_mlp": [8, 4], "top_mlp": [8, 1], "dropout": 0.3}),
}
ONE_EACH = (
    "dcn",
    "deepfm",
    "own",
    "dlrm, widths",
    "dlrm, dropout",
)


def settings(name: str) -> dict[str, Any]:
    model, options = MODELS[name]
    return {"model": model, "model_options": {"embedding_dim": 4, **options}}


def trained(name: str, policy: str, depth: int) -> dict[str, NDArray[Any]]:
    parts, toy = parts_of(policy=policy, **settings(name))
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


@pytest.mark.parametrize("name", [name for name in MODELS if "dropout" not in name])
def test_parts_are_trained_as_the_whole(name: str) -> None:
    found, expected = trained(name, "contract:InParts", 2), trained(name, "lru", 2)
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=0, atol=1e-4, err_msg=key)


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_run_that_goes_on_is_one_that_was_not_cut(tmp_path: Path, data: Callable[..., ToyData], name: str) -> None:
    data()
    whole = train_run(toy_config(out=str(tmp_path / "whole"), **settings(name)))
    train_run(toy_config(out=str(tmp_path / "cut"), steps=9, **settings(name)))
    found = resume_run(tmp_path / "cut", steps=20, code={"model": OWN} if name == "own" else {})
    for key in ("steps", "auc", "log_loss", "calibration"):
        assert found.get(key) == whole.get(key), key
    weights = [load_run(tmp_path / one, model=OWN if name == "own" else None) for one in ("whole", "cut")]
    with weights[0] as one, weights[1] as other:
        for table in SIZES:
            assert np.array_equal(one.embeddings.rows.table_weights(table), other.embeddings.rows.table_weights(table))
        for key, value in one.model.state_dict().items():
            assert torch.equal(value, other.model.state_dict()[key]), key


@pytest.mark.parametrize("name", MODELS)
def test_it_is_evaluated_scored_and_exported(tmp_path: Path, data: Callable[..., ToyData], name: str) -> None:
    toy = data()
    summary = train_run(toy_config(out=str(tmp_path / "run"), eval_by="user", **settings(name)))
    named = {"model": OWN} if name == "own" else {}
    found = evaluate_run(tmp_path / "run", group_by="user", settings=named)
    for key in ("auc", "log_loss", "calibration", "gauc", "gauc_groups"):
        assert found.get(key) == summary.get(key), key
    assert 0 < summary["gauc"] < 1 and "calibration" in summary["table"] and "groups" in summary["table"]
    predict_run(tmp_path / "run", tmp_path / "scores.npy", settings=named)
    export_run(tmp_path / "run", tmp_path / "served", settings=named)
    scores = np.load(tmp_path / "scores.npy")
    assert scores.shape == (256,)
    (batch,) = toy.evaluation(1000)
    model = scoring.load(tmp_path / "served")
    bags = [(torch.from_numpy(batch.ids[batch.feature_span(f)]), torch.arange(256)) for f in range(3)]
    with torch.no_grad():
        logits = model(torch.from_numpy(batch.dense), bags)
    np.testing.assert_allclose(torch.sigmoid(logits).numpy(), scores, atol=1e-6)
    sample = {"site": 3, "user": 2, "hour": 1, "dense_0": 0.5, "dense_1": 1.0}
    (score,) = model.score([sample])
    assert 0 < score < 1


# --- dropout ----------------------------------------------------------------------------


def test_dropout_changes_training_and_no_evaluation(tmp_path: Path, data: Callable[..., ToyData]) -> None:
    data()
    name = "dlrm, dropout"
    summary = train_run(toy_config(out=str(tmp_path / "a"), seed=1, **settings(name)))
    plain = settings(name) | {"model_options": {**settings(name)["model_options"], "dropout": 0.0}}
    assert train_run(toy_config(out=str(tmp_path / "b"), seed=1, **plain))["log_loss"] != summary["log_loss"]
    found = [evaluate_run(tmp_path / "a", settings={"eval_batch_size": size})["auc"] for size in (7, 256)]
    assert found == [pytest.approx(summary["auc"], abs=1e-6)] * 2  # other sizes of products may round otherwise


def test_rows_of_a_table_are_stored_as_its_setting_says(tmp_path: Path, data: Callable[..., ToyData]) -> None:
    data()
    dtypes = {"user": "bfloat16"}
    rows = []
    for number, size in enumerate(("100%", "60%")):
        model = {"embedding_dim": 4, "deep_mlp": [8], "bf16": True, "widths": {"hour": 2}, "row_dtypes": dtypes}
        out = tmp_path / f"run{number}"
        train_run(toy_config(out=str(out), model="dcn", model_options=model, tier={"device_rows": size}))
        with load_run(out) as run:
            actual = {table.name: (table.dtype, table.embedding_dim) for table in run.components.tables}
            assert actual == {"site": ("float32", 4), "user": ("bfloat16", 4), "hour": ("float32", 2)}
            rows.append(run.embeddings.rows.table_weights("user"))
    np.testing.assert_array_equal(rows[0], rows[1])


# --- comparisons ----------------------------------------------------------------------------


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
