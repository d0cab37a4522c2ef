"""Evaluation: the numbers are right, and nothing that training depends on changes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from support.toy import ToyData, toy_config
from support.toy_runs import assert_equal, state
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.errors import NonFiniteError
from adaptive.training import evaluation
from adaptive.training.components import Components, build
from adaptive.training.evaluation import evaluate, evaluating
from adaptive.training.telemetry.record import TableCounts
from adaptive.training.trainer import Trainer

POLICIES = ["lru", "lfu", "static", "hybrid", "device"]


def make(**changed: Any) -> tuple[ToyData, Components]:
    data = ToyData()
    config = toy_config(tier={"device_rows": "auto"}, **changed)
    sample = list(data.train(32))[:2]
    parts = build(config, data, sample)
    parts.embeddings.calibrate(sample)
    return data, parts


def test_numbers_equal_those_of_scikit_learn() -> None:
    data, parts = make()
    with parts.embeddings as embeddings:
        Trainer(embeddings, parts.model, parts.optimizer).train(data.train(32))
        quality = evaluate(embeddings, parts.model, data.evaluation(100))
        scores, labels = predictions(data, parts)
    assert quality.samples == 256 and quality.auc_exact
    assert quality.auc == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert quality.auc is not None and quality.auc > 0.6
    probabilities = 1 / (1 + np.exp(-scores))
    assert quality.log_loss == pytest.approx(log_loss(labels, probabilities), abs=1e-9)
    assert quality.accuracy == accuracy_score(labels, scores > 0)
    assert quality.calibration == pytest.approx(probabilities.sum() / labels.sum(), abs=1e-6)
    rate = labels.mean()
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert quality.normalised_entropy == pytest.approx(quality.log_loss / entropy, abs=1e-9)


def predictions(data: ToyData, parts: Components) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Logits from the tables as they stand, without the tiers."""
    batch = next(data.evaluation(256))
    tables = [torch.from_numpy(parts.embeddings.rows.table_weights(table.name)) for table in parts.tables]
    ids = torch.from_numpy(batch.ids.reshape(len(tables), -1))
    pooled = torch.stack([table[rows] for table, rows in zip(tables, ids, strict=True)], dim=1)
    with torch.no_grad():
        return parts.model(torch.from_numpy(batch.dense), pooled).double().numpy(), batch.labels


def test_batch_size_does_not_matter_and_the_stream_is_close(monkeypatch: pytest.MonkeyPatch) -> None:
    data, parts = make()
    with parts.embeddings as embeddings:
        whole = evaluate(embeddings, parts.model, data.evaluation(256))
        parted = evaluate(embeddings, parts.model, data.evaluation(7))
        monkeypatch.setattr(evaluation, "MAX_EXACT", 255)
        streamed = evaluate(embeddings, parts.model, data.evaluation(7))
    assert whole.auc == pytest.approx(parted.auc, abs=1e-6)
    assert not streamed.auc_exact and streamed.auc == pytest.approx(whole.auc, abs=2e-3)


def test_nothing_to_evaluate_is_none() -> None:
    _, parts = make()
    with parts.embeddings as embeddings:
        found = evaluate(embeddings, parts.model, [])
    assert (found.samples, found.auc, found.accuracy, found.log_loss) == (0, None, None, None)


@pytest.mark.parametrize("policy", POLICIES)
def test_training_is_bit_equal_with_and_without_evaluations(policy: str) -> None:
    def trained(evaluations: bool) -> tuple[dict[str, NDArray[Any]], dict[str, TableCounts], Tensor]:
        torch.manual_seed(1)  # dropout draws from torch's generator
        data, parts = make(policy=policy)
        model = WithDropout(parts.model)
        with parts.embeddings as embeddings:

            def batches() -> Iterator[Batch]:
                for number, batch in enumerate(data.train(32)):
                    if evaluations and number % 5 == 3:  # while an earlier batch is in flight
                        evaluate(embeddings, model, data.evaluation(50))
                    yield batch

            trainer = Trainer(embeddings, model, parts.optimizer)
            trainer.train(batches(), depth=0)
            if evaluations:
                evaluate(embeddings, model, data.evaluation(50))
            trainer.train(data.train(32), depth=3)
            return state(parts), trainer.recorder.totals.tables, torch.get_rng_state()

    found, expected = trained(True), trained(False)
    assert_equal(found[0], expected[0])
    assert found[1] == expected[1] and found[1]["user"].lookups == 2 * 640
    assert torch.equal(found[2], expected[2])


class WithDropout(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.dropout = model, nn.Dropout(0.5)

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        logits: Tensor = self.model(self.dropout(dense), pooled)
        return logits


def test_each_module_gets_its_mode_back() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()  # frozen on purpose
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert model.training and model[0].training and not model[1].training


def test_a_prediction_that_is_not_finite_is_an_error() -> None:
    _, parts = make()
    with parts.embeddings as embeddings, torch.no_grad():
        bad = ToyData(spoil={640 + 105: float("nan")})
        with pytest.raises(
            NonFiniteError, match=r"evaluation batch 1; 1 of 100 predictions are not finite, at b\.tsv:646"
        ):
            evaluate(embeddings, parts.model, bad.evaluation(100))


def test_samples_count_by_their_weights() -> None:
    """A weight of 3 counts as three samples, exactly and in bins; GAUC counts each once."""
    data, parts = make()
    rng = np.random.default_rng(0)
    (whole,) = data.evaluation(256)
    weights = rng.integers(0, 4, 256)
    weighted = replace(whole, extras={"weight": weights.astype(np.float32)})
    repeated = whole.take(np.repeat(np.arange(256), weights))
    with parts.embeddings as embeddings:
        found = evaluate(embeddings, parts.model, [weighted], by=0)
        expected = evaluate(embeddings, parts.model, [repeated])
        plain = evaluate(embeddings, parts.model, [whole], by=0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluation, "MAX_EXACT", 255)
            streamed = evaluate(embeddings, parts.model, [weighted])
    for name in ("auc", "accuracy", "log_loss", "calibration", "normalised_entropy"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-6), name
    assert streamed.auc == pytest.approx(found.auc, abs=2e-3)
    assert found.gauc == plain.gauc and found.auc != plain.auc and found.samples == 256
