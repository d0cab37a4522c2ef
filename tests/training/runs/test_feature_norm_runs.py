"""Runs with `model.feature_norm`: repeated batches, resumed runs and parts give the same bits and statistics."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.toy import SMALL_DLRM, ToyData, toy_config
from support.toy_runs import Hooked, data_fixture, everything, in_model, nothing_is_left_behind, parts_of  # noqa: F401
from torch import Tensor

from adaptive.errors import NonFiniteError
from adaptive.training.components import build
from adaptive.training.runs import train_run
from adaptive.training.trainer import Trainer

KINDS = ["batch", "layer"]


def model(kind: str) -> dict[str, Any]:
    return {"model_options": SMALL_DLRM | {"feature_norm": kind}}


def trained(kind: str, policy: str, depth: int, **changed: Any) -> dict[str, NDArray[Any]]:
    parts, toy = parts_of(policy=policy, **model(kind), **changed)
    with parts.embeddings:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(toy.train(32), depth=depth)
        return everything(parts)


# --- a batch that is tried again, or not trained -------------------------------------------------------------------


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_batch_that_is_run_again_counts_once(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Memory runs out before, or after, it entered the running statistics."""
    tier, toy = {"device_rows": "100%", "held_rows": 9}, ToyData()

    def train() -> tuple[dict[str, NDArray[Any]], int]:
        parts = build(toy_config(tier=tier, **model("batch")), toy)
        with parts.embeddings:
            Trainer(parts.embeddings, parts.model, parts.optimizer).train(toy.train(32), depth=1)
            return everything(parts), parts.embeddings.runtime.view.device_rows

    expected, before = train()
    failed: list[int] = []

    def run_out(net: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if net.calls == 8 and not failed:
            failed.append(net.calls)
            if where == "after":
                net.feature_norm(pooled)
            raise torch.OutOfMemoryError("no room")

    in_model(monkeypatch, run_out)
    found, rows = train()
    assert failed and rows < before
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, strict=True, err_msg=name)


def test_untrained_batches_do_not_change_statistics() -> None:
    parts, toy = parts_of(policy="lru", **model("batch"))
    with parts.embeddings:
        trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
        with pytest.raises(NonFiniteError, match="step 5"):
            trainer.train(ToyData(spoil={150: float("nan")}).train(32), depth=2)
        found = everything(parts)
    parts, _ = parts_of(policy="lru", **model("batch"))
    with parts.embeddings:
        batches = [batch for number, batch in enumerate(toy.train(32)) if number < 4]
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(batches, depth=2)
        expected = everything(parts)
    assert expected["dense feature_norm.batches"] == 4
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, strict=True, err_msg=name)


# --- parts of a batch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 2])
def test_statistics_are_of_whole_batches(depth: int) -> None:
    """To the bit: the batch is trained whole."""
    found, expected = trained("batch", "contract:InParts", depth), trained("batch", "lru", depth)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, strict=True, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("data")
def test_hotline_trains_with_it(tmp_path: Path, kind: str) -> None:
    options = {"learn": 2, "capacity": 0.3}
    summary = train_run(toy_config(policy="hotline", policy_options=options, out=str(tmp_path), depth=2, **model(kind)))
    assert summary["steps"] == 20 and summary["policy_numbers"]["in_parts_share"] > 0
