"""Models that rank items: loss, counts, metrics, a plain twin, bits, resuming and exports."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.thread_ranks import on_ranks
from support.toy_runs import all_weights, assert_equal, dense_weights

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.data.dataset import DataShape, Feature
from adaptive.embeddings.ranks import ALONE, Ranks
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError, NonFiniteError, RanksError
from adaptive.models.dense.base import Inputs
from adaptive.models.dense.two_tower import Items, TwoTower
from adaptive.models.factory import make_model, model_config
from adaptive.serving import scoring
from adaptive.serving.exporting import export_run
from adaptive.training import components, ranking
from adaptive.training.components import Components, build
from adaptive.training.evaluation import evaluate
from adaptive.training.ranking import item_vectors, items_of, target_ranks
from adaptive.training.runs.loading import evaluate_run
from adaptive.training.runs.resuming import resume_run
from adaptive.training.runs.training import train_run
from adaptive.training.trainer import Trainer
from benchmarks.two_tower_twin import Twin
from benchmarks.two_tower_twin import train as train_twin

USERS, ITEMS, KINDS = 60, 90, 7
SHAPE = DataShape((Feature("user", USERS), Feature("item", ITEMS)), 0, ("user", "item"))
OPTIONS = {"embedding_dim": 4, "tower_mlp": "6-5", "user_tables": ["user"], "loss": "in_batch_softmax"}


def plain_items(ids: list[int]) -> Items:
    return Items(torch.tensor(ids), torch.zeros((len(ids), 0), dtype=torch.int64), torch.zeros(len(ids), 0))


def config_of(options: dict[str, Any] | None = None, **changed: Any) -> TrainConfig:
    given = {"model": "two-tower", "model_options": {**OPTIONS, **(options or {})}, "batch_size": 32}
    return TrainConfig.model_validate({**given, **changed})


def pairs_of(count: int = 12, size: int = 32) -> list[NDArray[np.int64]]:
    """Pairs (n, 2) of a user and an item; some items are frequent, so a batch has them several times."""
    rng = np.random.default_rng(0)
    return [np.stack([rng.integers(USERS, size=size), (rng.random(size) ** 3 * ITEMS).astype(np.int64)], axis=1)
            for _ in range(count)]  # fmt: skip


def batches_of(pairs: list[NDArray[np.int64]]) -> list[Batch]:
    return [Batch.of(user=one[:, 0], item=one[:, 1], labels=np.ones(len(one))) for one in pairs]


@pytest.mark.parametrize("logq", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_loss_is_the_formula_sample_by_sample(logq: bool, unit: bool) -> None:
    inputs = Inputs(("user", "item"), 0, rows=(USERS, ITEMS))
    options = {**OPTIONS, "logq": logq, "unit_vectors": unit, "temperature": 0.5}
    model = make_model("two-tower", model_config("two-tower", options, inputs), inputs, seed=0).double()
    assert isinstance(model, TwoTower)
    pooled = torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    items = torch.tensor([3, 7, 3, 1, 7, 2])
    labels, weights = torch.tensor([1.0, 1, 1, 0, 1, 0]), torch.tensor([1.0, 2, 1, 5, 0.5, 1])
    model.count(plain_items([3] * 4 + [8] * 30))
    logits, loss = model.in_batch_loss(torch.zeros(6, 0).double(), pooled, items, labels, weights)
    (gradient,) = torch.autograd.grad(loss, pooled)
    assert model.item_counts.sum() == model.total_count == 34  # a step that fails counts nothing
    model.count(plain_items(items.tolist()))
    assert model.item_counts[[1, 2, 3, 7, 8]].tolist() == [1, 1, 6, 2, 30] and model.item_counts.sum() == 40
    users, vectors = model.vectors(torch.zeros(6, 0).double(), pooled)
    total = torch.zeros(()).double()
    for i in (0, 1, 2, 4):
        scores = []
        for j in range(6):
            share = float(model.item_counts[items[j]]) / 40
            score = users[i] @ vectors[j] / 0.5 - (math.log(share) if logq else 0)
            if j == i:
                own = score
            if j == i or items[j] != items[i]:
                scores.append(score)
        total = total + weights[i] * (torch.stack(scores).logsumexp(0) - own)
    torch.testing.assert_close(loss, total / 4)
    torch.testing.assert_close(gradient, torch.autograd.grad(total / 4, pooled)[0])
    torch.testing.assert_close(logits, ((users * vectors).sum(1) / 0.5).detach())


def test_odd_batches_train_nothing_but_numbers() -> None:
    """One sample, one item in all samples: no negatives and no gradient. NaN changes nothing, also no counts."""
    parts = build(config_of(), SHAPE)
    with parts.embeddings:
        trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
        trainer.train(batches_of(pairs_of(2)))
        before = all_weights(parts)
        one, same = Batch.of(user=[3], item=[5], labels=[1]), Batch.of(user=[1, 2, 3], item=[7] * 3, labels=[1] * 3)
        trainer.train([one, same])
        after = all_weights(parts)
        assert after.pop("dense item_counts").sum() - before.pop("dense item_counts").sum() == 4
        for name, values in before.items():
            if not name.startswith("records"):
                np.testing.assert_array_equal(after[name], values, err_msg=name)
        counted = dense_weights(parts)
        bad = Batch.of(user=[1, 2], item=[3, 4], labels=[1, 1], extras={"weight": np.array([1, np.nan], np.float32)})
        with pytest.raises(NonFiniteError, match="the loss is nan"):
            trainer.train([bad])
        assert_equal(dense_weights(parts), counted)


def test_a_batch_without_positives_has_no_loss() -> None:
    parts = build(config_of(), SHAPE)
    with parts.embeddings:
        assert isinstance(parts.model, TwoTower)
        zeros = torch.zeros(3)
        _, loss = parts.model.in_batch_loss(torch.zeros(3, 0), torch.ones(3, 2, 4), torch.arange(3), zeros)
        assert loss.item() == 0


@pytest.mark.parametrize("kinds", [0, KINDS])
def test_a_plain_twin_trains_the_same_within_rounding(kinds: int) -> None:
    """With kinds, gradients reach their table through every item of the batch."""
    rates = {"optimizer": {"name": "adagrad", "lr": 0.05}, "dense_optimizer": {"name": "adagrad", "lr": 0.01}}
    names = ("user", "item", "kind")[: 3 if kinds else 2]
    shape = DataShape(tuple(Feature(*of) for of in zip(names, (USERS, ITEMS, KINDS), strict=False)), 0, names)
    samples = [np.stack([pairs[:, 0], pairs[:, 1], pairs[:, 1] % KINDS], axis=1)[:, : len(names)]
               for pairs in pairs_of(14)]  # fmt: skip
    batches = [Batch.of(dict(zip(names, of.T, strict=True)), labels=np.ones(len(of))) for of in samples]
    parts, twin = build(config_of({"item_id": "item"}, **rates), shape), Twin(USERS, ITEMS, 4, (6, 5), kinds)
    with parts.embeddings:
        assert isinstance(parts.model, TwoTower)
        twin.user.load_state_dict(parts.model.user.state_dict())
        twin.item.load_state_dict(parts.model.item.state_dict())
        rng, tables = np.random.default_rng(1), {name: getattr(twin, f"{name}s") for name in names}
        for name, table in tables.items():
            values = rng.standard_normal((table.num_embeddings, 4), np.float32)
            parts.embeddings.rows.load_table(name, values)
            table.weight.data = torch.from_numpy(values.copy())
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(batches[:12])
        train_twin(twin, samples[:12])
        assert torch.equal(parts.model.item_counts, twin.counts) and int(twin.counts.sum()) == 12 * 32
        for name, table in tables.items():
            values = parts.embeddings.rows.table_weights(name)
            np.testing.assert_allclose(values, table.weight.detach().numpy(), rtol=1e-4, atol=1e-5)
        quality = evaluate(parts.embeddings, parts.model, batches[12:], ranks_items=True).ranking
        expected = twin.recall(torch.from_numpy(np.concatenate(samples[12:])), 20)
        assert quality["recall@20"] == pytest.approx(expected, abs=1.5 / 64)


@pytest.mark.parametrize("most_scores", [1, 200, 1 << 24])
def test_ranks_are_those_of_sorting_all_scores(most_scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small whole numbers, so that many scores are equal: the lower row comes first."""
    monkeypatch.setattr(ranking, "MOST_SCORES", most_scores)
    rng = np.random.default_rng(0)
    users, items = rng.integers(-2, 3, (40, 3)).astype(np.float32), rng.integers(-2, 3, (50, 3)).astype(np.float32)
    targets = rng.integers(50, size=40)
    actual = target_ranks(*map(torch.from_numpy, (users, items, targets)))
    for user, target, rank in zip(users, targets, actual.tolist(), strict=True):
        order = sorted(range(50), key=lambda item: (-float(items[item] @ user), item))
        assert order.index(target) == rank


def test_metrics_are_those_of_an_oracle() -> None:
    """Over all items, of samples with label 1 only, by lists and Python's own sorting."""
    parts = build(config_of(), SHAPE)
    with parts.embeddings:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(batches_of(pairs_of()))
        (pairs,) = pairs_of(1, 70)
        labels = np.arange(70) % 3 > 0
        held_out = [Batch.of(user=part[:, 0], item=part[:, 1], labels=wanted)
                    for part, wanted in ((pairs[:40], labels[:40]), (pairs[40:], labels[40:]))]  # fmt: skip
        quality = evaluate(parts.embeddings, parts.model, held_out, ranks_items=True).ranking
        assert isinstance(parts.model, TwoTower)
        user_rows, item_rows = (
            torch.from_numpy(parts.embeddings.rows.table_weights(name)) for name in ("user", "item")
        )
        with torch.no_grad():
            users, items = parts.model.user(user_rows).double().numpy(), parts.model.item(item_rows).double().numpy()
    ranks = [
        sorted(range(ITEMS), key=lambda row: -float(users[user] @ items[row])).index(item)
        for (user, item), wanted in zip(pairs.tolist(), labels, strict=True)
        if wanted
    ]
    assert set(quality) == {f"{name}@{k}" for name in ("recall", "ndcg") for k in (10, 20, 100)}
    for k in (10, 20, 100):
        assert quality[f"recall@{k}"] == pytest.approx(sum(rank < k for rank in ranks) / len(ranks))
        gains = [1 / math.log2(rank + 2) if rank < k else 0.0 for rank in ranks]
        assert quality[f"ndcg@{k}"] == pytest.approx(sum(gains) / len(ranks))
    assert 0 < quality["recall@10"] < quality["recall@20"] < quality["recall@100"] == 1
    assert evaluate(parts.embeddings, parts.model, []).ranking == {}


def samples_of(seed: int, size: int) -> Batch:
    """Positives, samples of label 0 that are negatives only, and weights; items repeat in and among blocks."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(USERS, size=size), (rng.random(size) ** 3 * ITEMS).astype(np.int64)
    extras = {"weight": rng.random(size, np.float32)}
    return Batch.of(user=user, item=item, labels=rng.random(size) < 0.8, extras=extras)


def test_not_a_number_on_one_rank_changes_nothing_on_any() -> None:
    def work(ranks: Ranks) -> dict[str, NDArray[Any]]:
        parts = build(config_of(tier={"device_rows": "100%"}), SHAPE, ranks=ranks)
        with parts.embeddings:
            trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
            trainer.train([samples_of(0, 32)])
            bad = samples_of(1, 32)
            bad.extras["weight"][30] = np.nan
            with pytest.raises((NonFiniteError, RanksError)):
                trainer.train([bad])
            return dense_weights(parts)

    first, second = on_ranks(2, work, blocks=2, gradients="sum")
    assert_equal(first, second)
    assert first["dense item_counts"].sum() == 32


# -- features of items beside their ids ------------------------------------------------------------------------------

SIDE = DataShape(
    (Feature("user", USERS), Feature("kind", KINDS), Feature("item", ITEMS)), 2, ("user", "kind", "item"), 1,
    ("age", "price"),
)  # fmt: skip
SIDE_OPTIONS = {"item_id": "item", "item_dense": ["price"]}


def side_batch(seed: int, size: int, *, changing: bool = False) -> Batch:
    """Samples whose kind and price follow from the item, or also from the sample."""
    rng = np.random.default_rng(seed)
    item = (rng.random(size) ** 3 * ITEMS).astype(np.int64)
    kind = (item * 3 + changing * rng.integers(9, size=size)) % KINDS
    dense = np.stack([rng.normal(size=size), np.sin(item) + changing * rng.random(size)], axis=1)
    labels = rng.random(size) < 0.8
    return Batch.of(user=rng.integers(USERS, size=size), kind=kind, item=item, dense=dense, labels=labels)


def side_parts(
    options: dict[str, Any] | None = None, ranks: Ranks = ALONE, *, features: bool = True, **changed: Any
) -> Components:
    """Components with rows that are no longer initial, so differences show."""
    rates = {"optimizer": {"name": "sgd", "lr": 0.5}, "dense_optimizer": {"name": "sgd", "lr": 0.1}}
    shape, given = (SIDE, SIDE_OPTIONS) if features else (SHAPE, {})
    parts = build(config_of({**given, **(options or {})}, **{**rates, **changed}), shape, ranks=ranks)
    for name, rows in zip(shape.tables, (USERS, KINDS, ITEMS) if features else (USERS, ITEMS), strict=True):
        values = np.random.default_rng(rows).standard_normal((rows, 4), np.float32)
        parts.embeddings.rows.load_table(name, values)
    return parts


def test_items_are_ranked_with_the_features_of_their_latest_samples() -> None:
    """Against an oracle in Python, with features that change; an item without a sample has zeros."""
    batches = [side_batch(seed, 24, changing=True) for seed in range(4)]
    latest: dict[int, tuple[int, float]] = {}
    for batch in batches:
        user, kind, item = batch.ids.reshape(3, -1).tolist()
        latest |= dict(zip(item, zip(kind, batch.dense[:, 1].tolist(), strict=True), strict=True))
    with (parts := side_parts()).embeddings:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(batches)
        assert isinstance(parts.model, TwoTower)
        actual = torch.cat(list(item_vectors(parts.embeddings, parts.model)))
        kinds, items = (torch.from_numpy(parts.embeddings.rows.table_weights(name)) for name in ("kind", "item"))
        expected = []
        for number in range(ITEMS):
            kind, price = latest.get(number, (-1, 0.0))
            vector = kinds[kind] if kind >= 0 else torch.zeros(4)
            expected.append(parts.model.item(torch.cat([torch.tensor([price]), vector, items[number]])))
        torch.testing.assert_close(actual, torch.stack(expected), rtol=1e-5, atol=1e-6)
        assert 0 < len(latest) < ITEMS
        held_out = side_batch(9, 40)
        quality = evaluate(parts.embeddings, parts.model, [held_out], ranks_items=True).ranking
        user, _, item = held_out.ids.reshape(3, -1)
        with torch.no_grad():
            rows = torch.from_numpy(parts.embeddings.rows.table_weights("user"))[user]
            users = parts.model.user(torch.cat([torch.from_numpy(held_out.dense[:, :1]), rows], dim=1))
            ranks = target_ranks(users, torch.stack(expected).detach(), torch.from_numpy(item))
        wanted = ranks[torch.from_numpy(held_out.labels) == 1]
        assert quality["recall@20"] == pytest.approx(float((wanted < 20).double().mean()))


def test_bits_depend_on_neither_placement_nor_depth() -> None:
    batches = [side_batch(seed, 32, changing=True) for seed in range(8)]

    def trained(policy: str, depth: int, rows: str) -> dict[str, NDArray[Any]]:
        with (parts := side_parts(policy=policy, tier={"device_rows": rows})).embeddings:
            Trainer(parts.embeddings, parts.model, parts.optimizer).train(batches, depth=depth)
            return all_weights(parts)

    expected = trained("lru", 0, "100%")
    assert expected["dense item_counts"].sum() == 8 * 32
    assert (expected["dense side_rows"] >= 0).any() and (expected["dense side_numbers"] != 0).any()
    for policy, depth, rows in (("lru", 0, "80"), ("lfu", 1, "110"), ("hotline", 2, "130"), ("hybrid", 4, "auto")):
        assert_equal(trained(policy, depth, rows), expected)


@pytest.mark.parametrize("case", ["plain", "unit vectors and dropout", "features"])
def test_negatives_are_those_of_all_ranks_and_bits_those_of_one(case: str) -> None:
    """On 1, 2 and 4 ranks the same bits, also of metrics; within rounding those of a process without blocks. The last
    batches are smaller than the number of blocks."""
    features = case == "features"
    options = {} if case != "unit vectors and dropout" else {"unit_vectors": True, "temperature": 0.2, "dropout": 0.3}

    def batch_of(seed: int, size: int) -> Batch:
        return side_batch(seed, size, changing=True) if features else samples_of(seed, size)

    batches = [batch_of(seed, size) for seed, size in enumerate((32, 32, 31, 5, 3, 1))]

    def work(ranks: Ranks = ALONE) -> tuple[dict[str, NDArray[Any]], Any]:
        with (parts := side_parts(options, ranks, features=features, tier={"device_rows": "100%"})).embeddings:
            Trainer(parts.embeddings, parts.model, parts.optimizer).train(batches, depth=2)
            quality = evaluate(parts.embeddings, parts.model, [batch_of(9, 40)], ranks_items=True)
            return all_weights(parts), (quality.ranking, quality.log_loss)

    (expected, quality), alone = on_ranks(1, work, blocks=4, gradients="sum")[0], work()[0]
    for size in (2, 4):
        for result, of_rank in on_ranks(size, work, blocks=4, gradients="sum"):
            assert_equal(result, expected)
            assert of_rank == quality and quality[0]["recall@20"] > 0
    for name, values in alone.items():  # masks of dropout are those of samples
        np.testing.assert_allclose(expected[name], values, rtol=1e-3, atol=1e-5, err_msg=name)
    assert expected["dense item_counts"].sum() == 104
    if features:
        assert (expected["dense side_rows"] >= 0).sum() > 20


def test_a_feature_of_an_item_has_one_value() -> None:
    with (parts := side_parts()).embeddings:
        batch = Batch.of(user=[1, 2], kind=[[1], [2, 3]], item=[1, 2], dense=np.zeros((2, 2)), labels=[1, 1])
        with pytest.raises(InputError, match="expected one kind of an item per sample, got none or several"):
            Trainer(parts.embeddings, parts.model, parts.optimizer).train([batch])


@pytest.mark.nightly
def test_a_run_is_resumed_evaluated_and_exported(tmp_path: Path) -> None:
    """The exported vectors are those that the served model computes from the features in the data."""
    rng = np.random.default_rng(0)
    items = (rng.random(900) ** 2 * ITEMS).astype(int)
    lines = [f"1,{rng.integers(USERS)},{item},{item % KINDS},{item / 8:.3f}" for item in items]
    (tmp_path / "pairs.csv").write_text("\n".join(["label,user,item,kind,price", *lines]) + "\n")
    column = '[[categorical]]\nkind = "int"\nnum_embeddings = {}\ncolumns = ["{}"]\nmissing = "reject"\n'
    schema = 'label = { column = "label" }\ndense = [{ columns = ["price"] }]\n'
    schema += "".join(column.format(*of) for of in ((USERS, "user"), (ITEMS, "item"), (KINDS, "kind")))
    (tmp_path / "pairs.toml").write_text(schema)
    given = {
        "data": f"csv:{tmp_path / 'pairs.csv'}",
        "data_options": {"schema_path": str(tmp_path / "pairs.toml"), "holdout": 0.2},
        "tensorboard": False,
        "save_every": 3,
    }
    whole = train_run(config_of(SIDE_OPTIONS, **given, out=str(tmp_path / "whole")))
    train_run(config_of(SIDE_OPTIONS, **given, out=str(tmp_path / "cut"), steps=4))
    assert resume_run(tmp_path / "cut", steps=whole["steps"])["ranking"] == whole["ranking"]
    assert evaluate_run(tmp_path / "whole")["ranking"] == whole["ranking"]
    assert whole["auc"] is None and 0 < whole["ranking"]["recall@20"] < 1
    seen = sorted(set(items[:720].tolist()))
    samples = [{"user": 7, "item": item, "kind": item % KINDS, "price": round(item / 8, 3)} for item in seen]
    vectors = []
    for form, name in (("torch", "item_vectors.npy"), ("safetensors", "item_vectors.safetensors")):
        export_run(tmp_path / "whole", tmp_path / form, to=form)
        served, file = scoring.load(tmp_path / form), tmp_path / form / name
        stored = np.load(file) if form == "torch" else scoring.read_safetensors(file)["item_vectors"].numpy()
        assert stored.shape == (ITEMS, 5) and name in (tmp_path / form / "README.md").read_text()
        logits = np.log(np.array(served.score(samples)) / (1 - np.array(served.score(samples))))
        np.testing.assert_allclose(served.user_vectors(samples[:1]).numpy() @ stored[seen].T, logits[None], atol=1e-4)
        vectors.append(stored)
    assert np.array_equal(*vectors) and len(seen) > 50 and logits.std() > 1e-3


def test_settings_and_data_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Inputs(("user", "item", "kind"), 1, ("price",), rows=(9, 9, 9))
    for options, message in (
        (
            {},
            "in_batch_softmax: expected one feature that is the item's id, got item, kind. Set model.item_id to its t",
        ),
        ({"item_id": "user"}, "model.item_id: expected tables of the item among item, kind, got user"),
        (
            {"user_tables": ["user", "kind"], "feature_norm": "layer"},
            "expected feature_norm = none and tables of one wid",
        ),
    ):
        config = model_config("two-tower", {**OPTIONS, **options}, wide)
        with pytest.raises(ConfigError, match=message):
            make_model("two-tower", config, wide, seed=0)
    steps = Inputs(("user", "item", "item", "kind"), 1, ("price",), rows=(9, 9, 9, 9))
    with pytest.raises(ConfigError, match="got 2 of item, kind"):
        make_model("two-tower", model_config("two-tower", OPTIONS, steps), steps, seed=0)

    class OnGpu(TieredEmbeddingBag):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            self.device = torch.device("cuda")

    monkeypatch.setattr(components, "TieredEmbeddingBag", OnGpu)
    with pytest.raises(ConfigError, match="in_batch_softmax: expected a device tier on the CPU with several ranks"):
        on_ranks(1, lambda ranks: build(config_of(), SHAPE, ranks=ranks), blocks=2)
    inputs = Inputs(("user", "item"), 0, rows=(USERS, ITEMS))
    model = make_model("two-tower", model_config("two-tower", OPTIONS, inputs), inputs, seed=0)
    assert isinstance(model, TwoTower)
    with pytest.raises(InputError, match="expected one item per sample, got none or several"):
        items_of(model, Batch.of(user=[1, 2], item=[[1, 2], [3]], labels=[1, 1]))
