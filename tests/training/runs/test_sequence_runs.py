"""Runs of a TBSM: where rows lie changes no bit, runs go on from checkpoints, and it learns what a stream holds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.interrupted import numbers
from support.toy_runs import assert_equal, state

from adaptive.config import TrainConfig
from adaptive.errors import ConfigError, InputError
from adaptive.serving.predicting import predict_run
from adaptive.training.components import build, open_data
from adaptive.training.runs.loading import evaluate_run
from adaptive.training.runs.resuming import resume_run
from adaptive.training.runs.training import train_run
from adaptive.training.settings import load_settings
from adaptive.training.trainer import Trainer

STREAM = {"users": 60, "items": 400, "categories": 20, "num_train": 320, "num_eval": 100}
SMALL: dict[str, Any] = {
    "model": "tbsm",
    "model_options": {
        "embedding_dim": 4,
        "bottom_mlp": "4",
        "top_mlp": "6-5",
        "attention_mlp": "3",
        "final_mlp": "7-1",
    },
    "data": "sequences",
    "data_options": {"history": 6, "sequences": STREAM},
    "batch_size": 32,
    "calibrate": 2,
    "tensorboard": False,
}


def config_of(**changed: Any) -> TrainConfig:
    return TrainConfig.model_validate({**SMALL, **changed})


def trained(**changed: Any) -> dict[str, NDArray[Any]]:
    """All weights and state after ten batches."""
    config = config_of(**changed)
    dataset = open_data(config)
    parts = build(config, dataset, list(dataset.train(32)))
    with parts.embeddings:
        assert (
            Trainer(parts.embeddings, parts.model, parts.optimizer).train(dataset.train(32), depth=config.depth) == 10
        )
        return {name: value for name, value in state(parts).items() if not name.startswith("next")}


@pytest.mark.parametrize(("model", "optimizer"), [("tbsm", "adagrad"), ("tbsm", "sgd"), ("din", "sgd")])
def test_where_rows_lie_changes_no_bit(model: str, optimizer: str) -> None:
    given: dict[str, Any] = {"model": model, "optimizer": {"name": optimizer}}
    given |= {"model_options": {"embedding_dim": 4, "deep_mlp": "6"}} if model != "tbsm" else {}
    expected = trained(**given, depth=0, tier={"device_rows": "100%"})
    assert {f"dense {name}" for name in (["inner"] if model == "tbsm" else ["deep.0.weight"])} <= expected.keys()
    for tier, depth, policy in (
        ({"device_rows": "300"}, 0, "lru"),
        ({"device_rows": "400"}, 1, "lfu"),
        ({"device_rows": "400", "device": "cpu-torch"}, 4, "lru"),
        ({"device_rows": "auto"}, 3, "hybrid"),
    ):
        assert_equal(trained(**given, tier=tier, depth=depth, policy=policy), expected)


def test_a_run_goes_on_and_is_evaluated_again(tmp_path: Path) -> None:
    events = tmp_path / "events.csv"
    rng = np.random.default_rng(0)
    lines = [
        f"{user},{rng.integers(90)},{rng.integers(9)},pv,{1000 * step + user}"
        for user in range(9)
        for step in range(50)
    ]
    events.write_text("\n".join(lines) + "\n")
    given = {"data": f"taobao:{events}", "data_options": {"history": 6, "holdout": 0.2, "shuffle_buffer": 64}}
    whole = train_run(config_of(**given, out=str(tmp_path / "whole"), epochs=2, save_every=2))
    train_run(config_of(**given, out=str(tmp_path / "cut"), epochs=2, save_every=2, steps=3))
    resumed = resume_run(tmp_path / "cut", steps=whole["steps"])
    assert whole["steps"] == 10 and whole["eval_samples"] == 36 and whole["auc_of"] == "evaluation"
    assert (resumed["auc"], resumed["accuracy"], resumed["steps"]) == (whole["auc"], whole["accuracy"], 10)
    found, expected = (numbers(tmp_path / name, placement=False) for name in ("cut", "whole"))
    assert len(found.pop("evaluations")) == 1 + len(expected.pop("evaluations"))  # the shorter run has evaluated too
    assert_equal(found, expected)
    again = evaluate_run(tmp_path / "whole")
    assert [again[name] for name in ("auc", "log_loss", "accuracy")] == [
        whole[name] for name in ("auc", "log_loss", "accuracy")
    ]
    with pytest.raises(ConfigError, match="got taobao with sampled negatives"):
        predict_run(tmp_path / "whole", tmp_path / "scores.npy", data=str(events))
    events.write_text(events.read_text().replace("pv", "fav"))
    with pytest.raises(InputError, match=r"expected the data of .*sha256"):
        evaluate_run(tmp_path / "whole")


def test_it_learns_to_hold_a_candidate_against_a_history(tmp_path: Path) -> None:
    """Users come too seldom to be learnt by heart."""
    stream = {"users": 100_000, "items": 200, "categories": 10, "num_train": 20_000, "num_eval": 5000}
    sets = [f"data.sequences.{name}={value}" for name, value in stream.items()]
    sets += ["tensorboard=false", "save=false", "batch_size=64", f"out={tmp_path / 'run'}"]
    config, origins = load_settings(flags={"model": "tbsm"}, sets=sets)
    assert config.data == "sequences" and origins["data"] == "model tbsm"
    assert train_run(config)["auc"] > 0.65  # seeds 0 to 2: 0.72 to 0.77; the best possible predictor 0.91


def test_which_models_take_data_of_sequences(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model tbsm: expected samples that are sequences.*--data sequences"):
        train_run(config_of(data="synthetic", out=str(tmp_path / "a")))
    options = {"embedding_dim": 4, "bottom_mlp": "7-4", "top_mlp": "1"}
    found = train_run(config_of(model="dlrm", model_options=options, steps=2, out=str(tmp_path / "b")))
    assert found["steps"] == 2
