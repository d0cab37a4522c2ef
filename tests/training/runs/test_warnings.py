"""Warnings about runs that can hardly learn."""

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from support.served import write_csv

from adaptive.config import TrainConfig
from adaptive.training.runs import train_run
from adaptive.training.runs.run import model_hint, steps_hint


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_the_package_can_be_run_as_a_module(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "adaptive", *words], capture_output=True, text=True, check=True)
    assert "Usage: adaptive-train" in done.stdout


def test_few_steps_propose_a_batch_size() -> None:
    config = TrainConfig(data="csv:small.csv", batch_size=2048)
    assert "an epoch has only 17 steps (33,000 samples, batch size 2,048)" in steps_hint(config, 33_000)
    assert "--batch-size 256" in steps_hint(config, 33_000)
    epochs = config.model_copy(update={"epochs": 3})
    assert steps_hint(epochs, 3 * 33_000) == steps_hint(config, 33_000)
    for enough in ({"batch_size": 256}, {"steps": 5}, {"data": "synthetic"}):
        assert steps_hint(config.model_copy(update=enough), 33_000) == "", enough
    assert steps_hint(config, 900) == "", "too few for any batch size"


def test_one_dot_product_proposes_other_models() -> None:
    config, names = TrainConfig(), ["user", "item"]
    assert "--model deepfm or --model dcn" in model_hint(config, names, 0)
    assert model_hint(config, names, 1) == "" and model_hint(config, [*names, "shop"], 0) == ""
    assert model_hint(config.model_copy(update={"model": "dcn"}), names, 0) == ""
    assert model_hint(config.model_copy(update={"model_options": {"interaction": "cat"}}), names, 0) == ""


def test_a_run_prints_both_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("a.csv"), [f"{n % 2},{n % 7},{n % 5}" for n in range(3200)], header="click,user,item")
    Path("s.toml").write_text(
        'label = { column = "click" }\ncategorical = [{ columns = ["user", "item"], hash_rows = 9 }]\n'
    )
    stream = StringIO()
    config = TrainConfig(data="csv:a.csv", data_options={"schema_path": "s.toml"}, out="run", tensorboard=False)
    summary = train_run(config, stream=stream)
    assert "the model dlrm reduces user and item to one number" in stream.getvalue()
    assert "warning: an epoch has only 2 steps" in summary["table"] and "--batch-size 32" in summary["table"]
