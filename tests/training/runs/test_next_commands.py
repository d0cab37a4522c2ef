"""The commands at the end of a run's report, and warnings about runs that can hardly learn."""

import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from support.served import write_csv

from adaptive.config import TrainConfig
from adaptive.training.runs import train_run
from adaptive.training.runs.run import model_hint, next_commands, quality_hint, steps_hint
from adaptive.training.telemetry.record import EvalRecord

ALL: dict[str, Any] = {"has_evaluation": True, "which": lambda name: f"/bin/{name}"}


def test_commands_quote_the_run_directory() -> None:
    text = next_commands(Path("runs/my run"), TrainConfig(policy="lfu"), **ALL)
    assert [shlex.split(line) for line in text.splitlines()[2::2]] == [
        ["tensorboard", "--logdir", "runs"],
        ["adaptive-train", "eval", "runs/my run"],
        ["adaptive-train", "compare", "--config", "runs/my run/run.json", "--policies", "lru,lfu,slipstream"],
    ]
    assert text.splitlines()[1::2] == [
        "  view curves at http://localhost:6006/#custom_scalars and the rows of each table at "
        "http://localhost:6006/#adaptive_rows:",
        "  evaluate the saved weights:",
        "  train the same model under several policies and compare them:",
    ]


def test_only_existing_outputs_are_suggested() -> None:
    config = TrainConfig(policy="fae", save=False, tensorboard=False)
    text = next_commands(Path("runs/a"), config, **ALL)
    assert text.splitlines()[2::2] == [
        "    adaptive-train compare --config runs/a/run.json --policies lru,lfu,slipstream,fae",
    ]


def test_only_commands_that_can_work_are_suggested() -> None:
    """No `eval` of data without an evaluation part."""
    text = next_commands(Path("runs/a"), TrainConfig(), **{**ALL, "has_evaluation": False})
    assert "compare" in text and "eval" not in text


def test_the_environment_is_activated_first_if_needed() -> None:
    text = next_commands(Path("a"), TrainConfig(), has_evaluation=True, which=lambda name: None)
    assert text.splitlines()[2] == f"    source {shlex.quote(sys.prefix)}/bin/activate"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_the_package_can_be_run_as_a_module(words: list[str]) -> None:
    found = subprocess.run([sys.executable, "-m", "adaptive", *words], capture_output=True, text=True, check=True)
    assert "Usage: adaptive-train" in found.stdout


def test_a_fallen_auc_proposes_to_save_the_best_weights() -> None:
    def said(*aucs: float | None, save: Any = True) -> str:
        records = [EvalRecord(step=n, samples=9, auc=auc, log_loss=0.5) for n, auc in enumerate(aucs, start=1)]
        return quality_hint(TrainConfig(save=save), records)

    assert "fell from 0.8000 after step 2 to 0.7900. Keep the best weights with --set save=best" in said(0.7, 0.8, 0.79)
    for quiet in ((), (0.8,), (0.7, 0.8), (0.8, 0.7999), (0.8, None)):
        assert said(*quiet) == "", quiet
    assert said(0.8, 0.7, save="best") == ""


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
