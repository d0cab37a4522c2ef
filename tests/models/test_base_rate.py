"""Models start at the base rate of the labels: the output's bias, how the rate is counted, runs of every kind."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.toy import ToyData, toy_config
from support.toy_runs import data_fixture, nothing_is_left_behind  # noqa: F401

from adaptive import load_run
from adaptive.batch import Batch
from adaptive.models.dense.base import Inputs
from adaptive.models.factory import make_model, model_config
from adaptive.models.loss import BASE_RATE_SAMPLES, start_at_base_rate
from adaptive.models.model_settings import OPTIONS
from adaptive.training.runs import train_run

SETTINGS: dict[str, dict[str, Any]] = {"deepfm": {"widths": {"item": 2}}}
OWN = "from torch import nn\n\nclass Mine(nn.Module):\n  def forward(self, dense, pooled): return pooled.sum((1, 2))"


class Noting(torch.nn.Module):
    """Keeps the log odds it is given."""

    def set_output_bias(self, logits: torch.Tensor) -> None:
        assert logits.dtype == torch.float32
        self.given = logits.tolist()


def batch(labels: Any) -> Batch:
    return Batch.of(user=np.zeros(len(labels), np.int64), labels=np.array(labels, np.float32))


@pytest.mark.parametrize("name", OPTIONS)
def test_the_bias_is_the_logit_of_nothing(name: str) -> None:
    """With all other weights at zero, zero vectors give the log odds."""
    steps = 3 if name in ("tbsm", "din") else 1
    inputs = Inputs(("user", "item") * steps, 2 * steps, steps=steps)
    config = model_config(name, {"embedding_dim": 4, **SETTINGS.get(name, {})}, inputs)
    model = make_model(name, config, inputs, seed=0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    logits = torch.tensor([-1.5])
    model.set_output_bias(logits)
    width = (4 + 2,) if name == "deepfm" else (2 * steps, 4)  # tables of other widths: vectors side by side
    actual = model(torch.randn(3, 2 * steps), torch.zeros(3, *width))
    assert torch.equal(actual, logits.expand(3))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([1, 0, 0, 0], math.log(1.5 / 3.5)), ([0, 0], math.log(0.5 / 2.5)), ([1, math.nan], math.log(1.5 / 0.5))],
)
def test_log_odds_of_few_labels(labels: list[float], expected: float) -> None:
    model = Noting()
    start_at_base_rate(model, [batch(labels[:1]), batch(labels[1:])])
    assert model.given == pytest.approx([expected])


def test_the_first_samples_count() -> None:
    whole = np.arange(2 * BASE_RATE_SAMPLES) < BASE_RATE_SAMPLES // 4
    actual = []
    for size in (64, 1000, BASE_RATE_SAMPLES):
        model = Noting()
        start_at_base_rate(model, (batch(whole[at : at + size]) for at in range(0, len(whole), size)))
        actual.append(model.given[0])
    assert actual[0] == actual[2] == pytest.approx(math.log(1 / 3), abs=1e-3)
    assert actual[1] == pytest.approx(math.log(1 / 3), abs=0.05)  # whole batches: up to one more


def test_without_samples_or_without_the_method_nothing_happens() -> None:
    model = Noting()
    start_at_base_rate(model, [])
    assert not hasattr(model, "given")
    start_at_base_rate(torch.nn.Linear(1, 1), (pytest.fail("read for nothing") for _ in range(1)))


@pytest.mark.parametrize("changed", [{"depth": 0}, {"calibrate": 0}, {"policy": "hotline"}, {"batch_size": 7}])
def test_runs_start_there(tmp_path: Path, data: Any, changed: dict[str, Any]) -> None:
    """However rows are placed and inputs arranged; `lr` is too small to move from there."""
    toy: ToyData = data()
    config = toy_config(out=str(tmp_path / "run"), dense_optimizer={"lr": 1e-12}, **changed)
    train_run(config)
    positives = sum(float(one.labels.sum()) for one in toy.train(100))
    expected = np.log((positives + 0.5) / (640 - positives + 0.5))
    with load_run(tmp_path / "run") as run:
        assert run.model.top[-1].bias.item() == pytest.approx(expected, rel=1e-6)


def test_a_model_that_cannot_is_trained_as_it_is(tmp_path: Path, data: Any) -> None:
    data()
    (tmp_path / "mine.py").write_text(OWN)
    spec = f"{tmp_path}/mine.py:Mine"
    config = {"model": spec, "model_options": {"embedding_dim": 4, "widths": {"user": 2}}, "save": False}
    assert train_run(toy_config(out=str(tmp_path / "run"), **config))["steps"] == 20
