"""Squared errors of labels that are numbers, the softmax of several labels: data, bits, metrics, exports, errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.thread_ranks import on_ranks
from support.toy_runs import all_weights, assert_equal
from torch.nn.functional import cross_entropy, mse_loss

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import DataShape, Feature
from adaptive.data.open import open_dataset
from adaptive.data.prepared.prepared_writer import prepare
from adaptive.data.text.schema import schema_of
from adaptive.embeddings.ranks import ALONE, Ranks
from adaptive.errors import ConfigError, InputError
from adaptive.models.dense.base import Inputs
from adaptive.models.dense.multi_task import MultiTask
from adaptive.models.factory import make_model, model_config
from adaptive.models.tasks import start_at_base_rate
from adaptive.serving import scoring
from adaptive.serving.exporting import export_run
from adaptive.serving.predicting import predict_run
from adaptive.training.components import build
from adaptive.training.evaluation import evaluate, predict
from adaptive.training.runs.loading import evaluate_run
from adaptive.training.runs.resuming import resume_run
from adaptive.training.runs.training import plan_run, train_run
from adaptive.training.trainer import Trainer

SCHEMA = """
label = { column = "rating", number = true }
dense = [{ columns = ["price"], transform = "log" }]
categorical = [{ columns = ["user"], kind = "int", num_embeddings = 30, missing = "reject" }]
"""
MODEL = {"embedding_dim": 4, "bottom_mlp": "4", "top_mlp": "6-1", "loss": "mse"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ratings(count: int = 400) -> list[tuple[float, float, int]]:
    """Rating, price and user; a rating follows from both."""
    rng = np.random.default_rng(0)
    users, prices = rng.integers(30, size=count), rng.integers(9, size=count)
    values = np.round(users / 10 - prices / 3 + rng.normal(0, 0.1, count), 3)
    return list(zip(values.tolist(), prices.tolist(), users.tolist(), strict=True))


def write(rows: list[tuple[Any, Any, Any]]) -> DataOptions:
    Path("rows.csv").write_text("\n".join(["rating,price,user", *(",".join(map(str, row)) for row in rows)]) + "\n")
    Path("rows.toml").write_text(SCHEMA)
    return DataOptions(schema_path=Path("rows.toml"))


def config_of(**changed: Any) -> TrainConfig:
    options = {"schema_path": "rows.toml", "holdout": 0.25}
    given = {"data": "csv:rows.csv", "data_options": options, "model_options": MODEL, "batch_size": 20, "log_every": 3}
    dense = {"name": "adam", "lr": 0.02}
    return TrainConfig.model_validate({**given, "tensorboard": False, "dense_optimizer": dense, **changed})


@pytest.mark.parametrize("kind", ["csv", "parquet", "prepared", "shuffled"])
def test_labels_are_the_numbers_of_their_samples(kind: str) -> None:
    options, spec = write(rows := ratings(30)), "csv:rows.csv"
    if kind == "parquet":
        pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
        csv = pytest.importorskip("pyarrow.csv", reason="needs pyarrow")
        pq.write_table(csv.read_csv("rows.csv"), "rows.parquet")
        spec = "parquet:rows.parquet"
    if kind == "prepared":
        prepare(spec, options, Path("prepared"))
        spec, options = "prepared:prepared", DataOptions()
    data = open_dataset(spec, options.model_copy(update={"shuffle_buffer": 100 * (kind == "shuffled")}))
    assert data.num_dense == 1 and data.dense_names in (("price",), ()) and data.labels == ()
    batches = list(data.train(7))
    actual = [(label, price, user) for batch in batches
              for label, price, user in zip(batch.labels, batch.dense[:, 0], batch.ids, strict=True)]  # fmt: skip
    expected = [(np.float32(rating), np.float32(np.log1p(price)), user) for rating, price, user in rows]
    assert sorted(actual) == sorted(expected) and (actual == expected) == (kind != "shuffled")


@pytest.mark.parametrize(("value", "what"), [("", "label 'rating', got an empty field"), ("inf", "rating, got 'inf'"),
                                             ("nan", "rating, got 'nan'"), ("ten", "rating, got 'ten'")])  # fmt: skip
def test_ratings_that_are_no_numbers_end_the_run(value: str, what: str) -> None:
    options = write([(1.5, 2, 3), (value, 2, 3)])
    with pytest.raises(InputError, match=rf"rows.csv:3: expected a number for {what}"):
        list(open_dataset("csv:rows.csv", options).train(9))


def toy(model: str, loss: str, *, ranks: Ranks = ALONE, depth: int = 2, weights: bool = False, **changed: Any) -> Any:
    """All weights after training on numbers, or on three labels of which one is 1."""
    rng = np.random.default_rng(1)
    shape = DataShape((Feature("user", 60), Feature("item", 90)), 1, ("user", "item"), labels=("a", "b", "c"))
    options = {"embedding_dim": 4, **changed.pop("options", {}), "loss": loss}
    parts = build(TrainConfig.model_validate({"model": model, "model_options": options, **changed}), shape, ranks=ranks)
    batches = []
    for _ in range(8):
        chosen = np.eye(3, dtype=np.float32)[rng.integers(3, size=24)]
        extras = {"b": chosen[:, 1], "c": chosen[:, 2], **({"weight": rng.random(24, np.float32)} if weights else {})}
        labels = chosen[:, 0] if loss == "softmax" else rng.normal(3, 2, 24)
        ids = {"user": rng.integers(60, size=24), "item": rng.integers(90, size=24)}
        batches.append(Batch.of(ids, dense=rng.standard_normal((24, 1)), labels=labels, extras=extras))
    return parts, batches, depth


def trained(*given: Any, **more: Any) -> dict[str, NDArray[Any]]:
    parts, batches, depth = toy(*given, **more)
    with parts.embeddings:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(batches, depth=depth)
        return all_weights(parts)


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("dlrm", "mse", {"bottom_mlp": "4", "top_mlp": "6-1"}),
    ("dcn", "mse", {"widths": {"user": 2}}),
    ("deepfm", "mse", {}),
    ("two-tower", "mse", {"user_tables": ["user"]}),
    ("multi-task", "softmax", {"sharing": "bottom"}),
]


@pytest.mark.parametrize(("model", "loss", "options"), CASES)
def test_a_loop_by_hand_trains_the_same(model: str, loss: str, options: dict[str, Any]) -> None:
    """With torch's own losses: within rounding."""
    for weights in (False, True):
        parts, batches, _ = toy(model, loss, options=options, weights=weights)
        with parts.embeddings as embeddings:
            stack = embeddings.side_by_side if "widths" in options else embeddings.stack
            for planned in embeddings.look_ahead(batches, depth=0):
                outputs = parts.model(planned.dense, stack(planned))
                labels = torch.stack([planned.labels, planned.extras["b"], planned.extras["c"]], dim=1)
                if loss == "mse":
                    each = mse_loss(outputs, planned.labels, reduction="none")
                else:  # outputs are log odds: scores of the softmax up to a constant
                    each = cross_entropy(torch.nn.functional.logsigmoid(outputs), labels, reduction="none")
                parts.optimizer.zero_grad()
                (each * planned.extras.get("weight", torch.ones(24))).mean().backward()
                parts.optimizer.step()
                embeddings.step()
            expected = all_weights(parts)
        for name, values in trained(model, loss, options=options, weights=weights).items():
            np.testing.assert_allclose(values, expected[name], rtol=2e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(("model", "loss", "options"), [CASES[0], CASES[4]])
def test_bits_depend_on_neither_placement_nor_depth_nor_ranks(model: str, loss: str, options: dict[str, Any]) -> None:
    expected = trained(model, loss, options=options, depth=0, tier={"device_rows": "100%"})
    for tier, depth, policy in (("60%", 1, "lfu"), ("90%", 4, "lru"), ("auto", 2, "hybrid")):
        tiers: dict[str, Any] = {"tier": {"device_rows": tier}, "policy": policy}
        assert_equal(trained(model, loss, options=options, depth=depth, **tiers), expected)

    def work(ranks: Ranks) -> dict[str, NDArray[Any]]:
        return trained(model, loss, options=options, ranks=ranks, tier={"device_rows": "100%"})

    (one,) = on_ranks(1, work, blocks=2, gradients="sum")
    for result in on_ranks(2, work, blocks=2, gradients="sum"):
        assert_equal(result, one)


def test_softmax_predicts_probabilities_of_one_label() -> None:
    parts, batches, _ = toy("multi-task", "softmax")
    with parts.embeddings:
        start_at_base_rate(parts.model, batches)
        (logits, *_) = predict(parts.embeddings, parts.model, batches)
        assert isinstance(parts.model, MultiTask)
        np.testing.assert_allclose((1 / (1 + np.exp(-logits.astype(np.float64)))).sum(axis=1), 1, rtol=1e-5)
        quality = evaluate(parts.embeddings, parts.model, batches).labels
        assert set(quality) == {"a", "b", "c"}
        biases = torch.stack([head[-1].bias for head in parts.model.heads]).flatten()  # type: ignore[index]
        labels = [np.stack([batch.labels, batch.extras["b"], batch.extras["c"]], axis=1) for batch in batches]
        shares = np.concatenate(labels).mean(axis=0)
        np.testing.assert_allclose(biases.softmax(0).detach().numpy(), shares, atol=0.01)
        bad = Batch(dense=batches[0].dense, ids=batches[0].ids, offsets=batches[0].offsets,
                    labels=np.ones(24, np.float32), extras=batches[0].extras)  # fmt: skip
        with pytest.raises(InputError, match=r"sample \d+: expected labels of which one is 1 for model.loss = softmax"):
            start_at_base_rate(parts.model, [bad])


def test_a_run_reports_errors_of_numbers_and_is_resumed_scored_and_exported() -> None:
    write(rows := ratings())
    whole = train_run(config_of(out="whole", save_every=4, epochs=4))
    assert (whole["auc"], whole["log_loss"], whole["accuracy"]) == (None, None, None)
    assert f"MSE {whole['mse']:.4f}, MAE {whole['mae']:.4f}, on 100 held-out samples" in whole["table"]
    predict_run(Path("whole"), Path("numbers.npy"))
    numbers, labels = np.load("numbers.npy").astype(np.float64), np.array([row[0] for row in rows[300:]], np.float32)
    assert whole["mse"] == pytest.approx(float(np.square(numbers - labels).mean()))
    assert whole["mae"] == pytest.approx(float(np.abs(numbers - labels).mean()))
    assert whole["mse"] < 0.5 * np.var(labels) and numbers.min() < 0 < 1 < numbers.max()
    records = [json.loads(line) for line in Path("whole/metrics.jsonl").read_text().splitlines()]
    assert [record["mse"] for record in records if "mae" in record][-1] == whole["mse"]
    assert evaluate_run(Path("whole"))["mse"] == whole["mse"]
    train_run(config_of(out="cut", save_every=4, steps=7, epochs=4))
    assert resume_run(Path("cut"), steps=whole["steps"])["mse"] == whole["mse"]
    for form in ("torch", "safetensors"):
        export_run(Path("whole"), Path(form), to=form)
        samples = [{"price": price, "user": user} for _, price, user in rows[300:]]
        np.testing.assert_allclose(scoring.load(Path(form)).score(samples), numbers, rtol=1e-5, atol=1e-5)
        assert "the number that the model predicts" in Path(form, "README.md").read_text()
    best = train_run(config_of(out="best", eval_every=5, epochs=2, save="best"))
    points = [json.loads(line) for line in Path("best/metrics.jsonl").read_text().splitlines() if '"mae"' in line]
    assert best["best"]["metric"] == "mse" and best["best"]["value"] == min(point["mse"] for point in points)


def test_the_bias_begins_at_the_mean() -> None:
    inputs = Inputs(("user",), 0)
    model = make_model("dcn", model_config("dcn", {"loss": "mse"}, inputs), inputs, seed=0)
    start_at_base_rate(model, [Batch.of(user=[1, 2, 3], labels=[-7, 4, 9])])
    with torch.no_grad():
        assert model(torch.zeros(1, 0), torch.zeros(1, 1, 16)).item() == pytest.approx(2, abs=0.2)


def test_mistakes() -> None:
    write(ratings(60))
    with pytest.raises(InputError, match=r"rows.csv:\d+: expected 0 or 1 for model.loss = log, got .* Set model.l"):
        train_run(config_of(model_options={**MODEL, "loss": "log"}))
    for changed, name in (
        ({"eval_by": "user"}, "eval_by"),
        ({"policy": "lru", "skip": {"rule": "predicted"}}, "the rule Predicted"),
    ):
        for run in (train_run, plan_run):
            with pytest.raises(ConfigError, match=rf"model.loss = mse: expected no {name}.*, which need probabilities"):
                run(config_of(**changed))
    inputs = Inputs(("user", "item"), 0, labels=("a", "b"))
    for model, loss, allowed in (("dlrm", "softmax", "log or mse"), ("multi-task", "mse", "log or softmax")):
        with pytest.raises(ConfigError, match=f"expected loss = {allowed} for this model, got {loss}"):
            model_config(model, {"loss": loss}, inputs)
    with pytest.raises(ConfigError, match="expected no loss_weights with loss = softmax"):
        model_config("multi-task", {"loss": "softmax", "loss_weights": {"a": 2}}, inputs)
    values: dict[str, Any] = {"categorical": [{"columns": ["user"]}]}
    with pytest.raises(ConfigError, match="expected one of positive, threshold and number, got threshold and number"):
        schema_of({**values, "label": {"column": "a", "threshold": 1, "number": True}})
    with pytest.raises(ConfigError, match="expected a label of 0 and 1 with more_labels, got number = true"):
        schema_of({**values, "label": {"column": "a", "number": True}, "more_labels": [{"column": "b"}]})
