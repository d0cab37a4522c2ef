"""Vectors from elsewhere, and tables of the shapes of torch's modules."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.helpers import LFU, one_table, random_batches, step_all, train
from torch import nn

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings import row_store
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError
from adaptive.optim import Adagrad

TABLES = [TableConfig(name=name, num_embeddings=30, embedding_dim=4) for name in ("a", "b")]
BATCHES = random_batches(TABLES, 6)


@pytest.mark.parametrize("host", ["memory", "file"])
def test_pretrained_vectors_wherever_rows_lie(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "AT_ONCE", 7)
    vectors = np.random.default_rng(0).normal(size=(25, 4)).astype(np.float64)

    def made(device_rows: str) -> TieredEmbeddingBag:
        tier = TierConfig(
            device_rows=device_rows, host="memory" if host == "memory" else f"mmap:{tmp_path}", poison=True
        )
        return TieredEmbeddingBag(TABLES, tier, policy=LFU, optimizer=Adagrad(lr=0.1, initial_accumulator=0.5))

    few, everything = made("60%"), made("100%")
    step_all(few, BATCHES[:3])
    few.rows.load_state_arrays(everything.rows.state_arrays())  # the device tier is used, and rows are as at first
    for embeddings in (few, everything):
        b = embeddings.rows.table_weights("b")
        embeddings.rows.load_table("a", vectors)
        assert np.array_equal(embeddings.rows.table_weights("a")[:25], vectors.astype(np.float32))
        assert np.array_equal(embeddings.rows.table_weights("b"), b)
    train(few, TABLES, BATCHES, 1).assert_equals(train(everything, TABLES, BATCHES, 0))
    for embeddings in (few, everything):
        embeddings.close()


def test_rows_on_the_device_are_replaced_with_fresh_state() -> None:
    embeddings = one_table(10, optimizer=Adagrad(lr=0.1))
    step_all(embeddings, random_batches([TableConfig(name="t", num_embeddings=10, embedding_dim=4)], 3))
    embeddings.rows.load_table("t", np.zeros((10, 4), np.float32))
    arrays = embeddings.rows.state_arrays()
    assert not arrays["rows0.weights"].any() and not arrays["rows0.state"].any()


def test_vectors_that_do_not_fit() -> None:
    embeddings = one_table(10, skip=SkipConfig())
    for shape in ((11, 4), (10, 5), (4,)):
        with pytest.raises(ConfigError, match=r"table 't': expected \(n, 4\) vectors, n up to 10, got"):
            embeddings.rows.load_table("t", np.zeros(shape, np.float32))
    with pytest.raises(ConfigError, match=r"table: expected one of .*, got 'u'"):
        embeddings.rows.load_table("u", np.zeros((1, 4), np.float32))
    for _ in embeddings.look_ahead(random_batches(TABLES[:1], 1, samples=1)):
        with pytest.raises(ConfigError, match=r"load_table\(\): expected no running look-ahead"):
            embeddings.rows.load_table("t", np.zeros((1, 4), np.float32))


def test_tables_in_the_place_of_bags_have_their_values() -> None:
    bags = {"user": nn.EmbeddingBag(20, 4, mode="sum"), "tags": nn.EmbeddingBag(9, 8), "seen": nn.Embedding(7, 4)}
    embeddings = TieredEmbeddingBag.from_bags(bags, TierConfig(device_rows="50%"), policy=LFU)
    assert embeddings.features == ("user", "tags", "seen")
    assert [t.pooling for g in embeddings.runtime.pipeline.groups for t in g.tables] == ["sum", "none", "mean"]
    for name, bag in bags.items():
        weight = bag.weight
        assert isinstance(weight, torch.Tensor)
        assert np.array_equal(embeddings.rows.table_weights(name), weight.detach().numpy())


def test_bags_without_values_give_tables_as_they_are_made() -> None:
    with torch.device("meta"):
        bags = {"user": nn.EmbeddingBag(10**9, 4)}
    embeddings = TieredEmbeddingBag.from_bags(bags, TierConfig(device_rows="10"), seed=3)
    assert len(embeddings.rows.state_arrays()["rows0.changed"]) == 0


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(2, 2), "feature 'user': expected an nn.EmbeddingBag or nn.Embedding, got Linear"),
        (nn.EmbeddingBag(4, 2, max_norm=1.0), "feature 'user': expected an EmbeddingBag .*, got one with max_norm"),
        (nn.EmbeddingBag(4, 2, mode="max"), 'got one with mode="max"'),
        (nn.Embedding(4, 2, padding_idx=0), "expected an Embedding .*, got one with padding_idx"),
    ],
)
def test_modules_that_tables_cannot_stand_for(module: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TieredEmbeddingBag.from_bags({"user": module})


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ma.masked_equal(np.zeros((3, 4)), 0), "table 't': vectors: expected values without a mask, got 12"),
        (np.zeros((3, 4), complex), "table 't': vectors: expected booleans, integers or floats, got complex128"),
        (
            np.array([[0.0] * 4, [0.0, 0.0, 1e300, 0.0]]),
            r"table 't': vectors from row 0: .* got 1e\+300 \(at \[1, 2\]\)",
        ),
    ],
)
def test_vectors_that_a_cast_would_change_replace_no_row(vectors: np.ndarray, message: str) -> None:
    embeddings = one_table(10, optimizer=Adagrad(lr=0.1))
    before = embeddings.rows.table_weights("t")
    with pytest.raises(InputError, match=message):
        embeddings.rows.load_table("t", vectors)
    assert np.array_equal(embeddings.rows.table_weights("t"), before)
    embeddings.close()
