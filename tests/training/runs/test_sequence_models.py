"""DIN on columns of sequences: bits, a plain twin, odd lengths, NaN, resuming, exports."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.toy_runs import all_weights, assert_equal
from torch import nn

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.data.dataset import DataShape, Feature
from adaptive.errors import ConfigError, InputError, NonFiniteError
from adaptive.models.dense.attention import DIN, SampleVectors
from adaptive.serving import scoring
from adaptive.serving.exporting import export_run
from adaptive.serving.predicting import predict_run
from adaptive.training.components import build
from adaptive.training.evaluation import vectors_of
from adaptive.training.runs.loading import evaluate_run
from adaptive.training.runs.resuming import resume_run
from adaptive.training.runs.training import train_run
from adaptive.training.trainer import Trainer

LENGTH = 5
SHAPE = DataShape(
    (Feature("user", 60), Feature("item", 200), Feature("items", 200), Feature("kind", 9), Feature("kinds", 9)),
    num_dense=2,
    tables=("user", "item", "item", "kind", "kind"),
    sequences={"items": LENGTH, "kinds": LENGTH},
)


def config_of(**changed: Any) -> TrainConfig:
    options = {"embedding_dim": 4, "deep_mlp": "6", "attention_mlp": "5"}
    return TrainConfig.model_validate({"model": "din", "model_options": options, "batch_size": 24, **changed})


def make_batch(rng: np.random.Generator, lengths: NDArray[np.int64]) -> Batch:
    size, total = len(lengths), int(lengths.sum())
    bags = np.concatenate([[0], np.cumsum(lengths)])
    return Batch.of(
        user=rng.integers(60, size=size),
        item=rng.integers(200, size=size),
        items=(rng.integers(200, size=total), bags),
        kind=rng.integers(9, size=size),
        kinds=(rng.integers(9, size=total), bags),
        dense=rng.standard_normal((size, 2)),
        labels=rng.integers(2, size=size),
    )


def make_batches(count: int = 10) -> list[Batch]:
    """Batches with empty sequences, one batch of empty ones only, and one of a single sample."""
    rng = np.random.default_rng(0)
    batches = [make_batch(rng, rng.integers(0, LENGTH + 1, 24)) for _ in range(count)]
    return [*batches, make_batch(rng, np.zeros(24, np.int64)), make_batch(rng, np.full(1, 3))]


def trained(*, depth: int = 2, **changed: Any) -> dict[str, NDArray[Any]]:
    parts = build(config_of(**changed), SHAPE)
    with parts.embeddings:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(make_batches(), depth=depth)
        return all_weights(parts)


def test_bits_depend_on_neither_placement_nor_depth() -> None:
    expected = trained(depth=0, tier={"device_rows": "100%"})
    for tier, depth, policy in (
        ({"device_rows": "150"}, 0, "lru"),
        ({"device_rows": "280"}, 8, "lfu"),
        ({"device_rows": "180", "device": "cpu-torch"}, 1, "lru"),
        ({"device_rows": "auto"}, 3, "hybrid"),
    ):
        assert_equal(trained(depth=depth, tier=tier, policy=policy), expected)


class Twin(nn.Module):
    """The model with plain `nn.Embedding`s, fed sample by sample with sequences of their own lengths."""

    def __init__(self, model: DIN, tables: dict[str, NDArray[np.float32]]) -> None:
        super().__init__()
        self.model = model
        self.tables = nn.ModuleDict({name: nn.Embedding.from_pretrained(torch.from_numpy(values.copy()), freeze=False)
                                     for name, values in tables.items()})  # fmt: skip

    def forward(self, batch: Batch) -> torch.Tensor:
        logits = []
        for sample in range(batch.num_samples):
            one = batch.take(np.array([sample]))
            vectors = [
                self.tables[table](torch.from_numpy(one.ids[one.feature_span(feature)]))
                for feature, table in enumerate(SHAPE.tables)
            ]
            single = torch.stack([vectors[0], vectors[1], vectors[3]], dim=1)
            steps, lengths = [vectors[2], vectors[4]], [torch.tensor([len(vectors[2])])] * 2
            logits.append(self.model(torch.from_numpy(one.dense), SampleVectors(single, steps, lengths)))
        return torch.cat(logits)


def test_a_plain_twin_trains_the_same_within_rounding() -> None:
    config = config_of(optimizer={"name": "sgd", "lr": 0.1}, dense_optimizer={"name": "sgd", "lr": 0.1})
    ours, other = build(config, SHAPE), build(config, SHAPE)
    with ours.embeddings, other.embeddings:
        rng, tables = np.random.default_rng(1), {}
        for table in ours.tables:
            values = rng.standard_normal((table.num_embeddings, table.embedding_dim), np.float32)
            ours.embeddings.rows.load_table(table.name, values)
            tables[table.name] = values
        assert isinstance(other.model, DIN)
        twin = Twin(other.model, tables)
        rates = [(twin.model.parameters(), 0.1), (twin.tables.parameters(), 0.1)]
        optimizer = torch.optim.SGD([{"params": list(weights), "lr": lr} for weights, lr in rates], lr=0.1)
        Trainer(ours.embeddings, ours.model, ours.optimizer).train(make_batches())
        for batch in make_batches():
            loss = nn.functional.binary_cross_entropy_with_logits(twin(batch), torch.from_numpy(batch.labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for name, weight in ours.model.named_parameters():
            torch.testing.assert_close(weight, twin.model.get_parameter(name), rtol=2e-5, atol=2e-6)
        for name, trained_table in twin.tables.items():
            values = ours.embeddings.rows.table_weights(name)
            assert isinstance(trained_table, nn.Embedding)
            np.testing.assert_allclose(values, trained_table.weight.detach().numpy(), rtol=2e-5, atol=2e-6)
            assert np.abs(values - tables[name]).max() > 1e-3


def test_nan_changes_nothing_and_is_explained() -> None:
    parts = build(config_of(), SHAPE)
    with parts.embeddings:
        trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
        (good, *_) = make_batches(1)
        trainer.train([good])
        before = all_weights(parts)
        dense = good.dense.copy()
        dense[7, 1] = np.nan
        bad = Batch(dense=dense, ids=good.ids, offsets=good.offsets, labels=good.labels)
        with pytest.raises(NonFiniteError, match=r"step 2: the loss is nan; not finite: dense input 1; 1 of 24"):
            trainer.train([bad])
        assert_equal(all_weights(parts), before)
        parts.embeddings.rows.load_table("kind", np.full((9, 4), np.nan, np.float32))
        with pytest.raises(NonFiniteError, match="embedding vectors"):
            trainer.train([good])


def test_nan_of_one_sample_reaches_no_other() -> None:
    """A row that is not a number, in the shortest sequence of its batch, which is padded."""
    parts = build(config_of(), SHAPE)
    rng = np.random.default_rng(0)
    batch, dense = make_batch(rng, np.array([5, 1, 0, 3])), torch.zeros(4, 2)
    with parts.embeddings, torch.no_grad():
        vectors = vectors_of(parts.embeddings, parts.model, parts.embeddings.read(batch))
        assert isinstance(vectors, SampleVectors)
        before = parts.model(dense, vectors)
        for steps in vectors.steps:
            steps[5] = torch.nan  # the only step of the second sample
        after = parts.model(dense, vectors)
    assert torch.isnan(after).tolist() == [False, True, False, False]
    assert torch.equal(before[[0, 2, 3]], after[[0, 2, 3]]) and torch.isfinite(before).all()


def test_a_single_sample_of_any_length_trains_and_a_longer_one_is_refused() -> None:
    rng = np.random.default_rng(0)
    parts = build(config_of(), SHAPE)
    with parts.embeddings:
        trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
        for length in range(LENGTH + 1):
            before = all_weights(parts)
            assert trainer.train([make_batch(rng, np.array([length]))]) == 1
            assert not np.array_equal(before["dense deep.2.bias"], all_weights(parts)["dense deep.2.bias"])
        trained = all_weights(parts)
        text = "sample 1: expected sequences of at most 5 ids of items, 5 ids of kinds, got 6 of items, 6 of kinds"
        with pytest.raises(InputError, match=text):
            trainer.train([make_batch(rng, np.array([2, LENGTH + 1]))])
        assert_equal(all_weights(parts), trained)


def test_models_that_do_not_fit_are_refused() -> None:
    lonely = DataShape((Feature("user", 60), Feature("items", 200)), 0, ("user", "item"), sequences={"items": 5})
    with pytest.raises(ConfigError, match="model din: expected a candidate for the sequence of table 'item'"):
        build(config_of(), lonely)
    options = {"embedding_dim": 4, "widths": {"user": 2}}
    with pytest.raises(ConfigError, match=r"model.widths: expected tables of one width for model .* got user=2"):
        build(config_of(model_options=options), SHAPE)


def write_files(tmp_path: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rows = [f"{rng.integers(2)},{rng.integers(60)},{rng.integers(200)},"
            + "|".join(map(str, rng.integers(200, size=rng.integers(0, 9)))) for _ in range(400)]  # fmt: skip
    (tmp_path / "data.csv").write_text("\n".join(["label,user,item,items", *rows]) + "\n")
    column = '[[categorical]]\nkind = "int"\nnum_embeddings = {}\ncolumns = ["{}"]\ntable = "{}"\nmissing = "{}"\n'
    schema = 'label = { column = "label" }\n' + column.format(60, "user", "user", "row")
    schema += column.format(200, "item", "item", "reject") + column.format(200, "items", "item", "row")
    (tmp_path / "data.toml").write_text(schema + 'inner_separator = "|"\nsequence = true\nmax_length = 5\n')
    options = {"schema_path": str(tmp_path / "data.toml"), "holdout": 0.25}
    return {"data": f"csv:{tmp_path / 'data.csv'}", "data_options": options, "tensorboard": False, "save_every": 4}


@pytest.mark.nightly
def test_a_run_is_resumed_evaluated_scored_and_exported(tmp_path: Path) -> None:
    given = write_files(tmp_path)
    whole = train_run(config_of(**given, out=str(tmp_path / "whole")))
    train_run(config_of(**given, out=str(tmp_path / "cut"), steps=5))
    resumed = resume_run(tmp_path / "cut", steps=whole["steps"])
    assert (resumed["auc"], resumed["log_loss"]) == (whole["auc"], whole["log_loss"])
    assert evaluate_run(tmp_path / "whole")["log_loss"] == whole["log_loss"]
    lines = [line.split(",") for line in (tmp_path / "data.csv").read_text().splitlines()[1:]]
    assert whole["truncated_sequences"] == {"items": sum(len(line[3].split("|")) > 5 for line in lines)}
    predict_run(tmp_path / "whole", tmp_path / "scores.npy")
    expected = np.load(tmp_path / "scores.npy")
    export_run(tmp_path / "whole", tmp_path / "served")
    served = scoring.load(tmp_path / "served")
    held_out = [{"user": int(user), "item": int(item), "items": items} for _, user, item, items in lines[300:]]
    np.testing.assert_allclose(served.score(held_out), expected, atol=1e-6)
    np.testing.assert_allclose([served.score([sample])[0] for sample in held_out[:9]], expected[:9], atol=1e-6)
    assert expected.std() > 1e-3
