"""Weight decay of rows: as the slow twin, as torch's AdamW, and the same bits wherever rows lie."""

import io
from typing import Any

import numpy as np
import pytest
import reference
import torch
from helpers import LFU, assert_equal_rows, random_batches, sum_of
from skip_rules import waits

from adaptive import SGD, Adagrad, Adam, Batch, RowOptimizer, RowwiseAdagrad, SkipConfig, TableConfig, TierConfig
from adaptive.config import OptimizerConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError
from adaptive.optim import row_optimizer
from adaptive.policies.lru import LRU

TABLES = (
    TableConfig(name="user", num_embeddings=60, embedding_dim=8),
    TableConfig(name="kind", num_embeddings=20, embedding_dim=4, pooling="mean", lr_scale=0.5),
)
BATCHES = random_batches(TABLES, 12, samples=4)
OPTIMIZERS = [
    SGD(0.3, weight_decay=0.2),
    Adagrad(0.2, weight_decay=0.3),
    RowwiseAdagrad(0.2, weight_decay=0.1),
    Adam(0.1, weight_decay=0.5),
]
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
DEFER = SkipConfig(rule="defer", interval=2, min_accesses=1, min_visits=1)


class OnHost(LRU):
    misses = "host"


def made(optimizer: RowOptimizer, device_rows: str = "100%", *, policy: Any = LFU, **options: Any):  # type: ignore[no-untyped-def]
    tier = TierConfig.model_validate({"device_rows": device_rows, "poison": True, **options.pop("tier", {})})
    return TieredEmbeddingBag(TABLES, tier, policy=policy, optimizer=optimizer, **options)


def train(embeddings: TieredEmbeddingBag, first: int = 0, last: int = 12, depth: int = 0) -> TieredEmbeddingBag:
    for planned in embeddings.look_ahead(BATCHES[first:last], depth=depth):
        (sum_of(embeddings(planned)) ** 2).backward()
        embeddings.step()
    return embeddings


@every_optimizer
def test_rows_that_are_looked_up_decay_as_the_twins_do(optimizer: RowOptimizer) -> None:
    """A gradient of 1 for each look-up, row by row in plain numpy; rows that no batch looks up stay as they are."""
    table = TableConfig(name="t", num_embeddings=9, embedding_dim=3)
    ids = [[1, 2, 2], [2, 5], [1], [5, 5, 2]]
    with TieredEmbeddingBag([table], TierConfig(device_rows="5"), policy=LRU, optimizer=optimizer) as embeddings:
        for planned in embeddings.look_ahead(Batch.of(t=[batch], labels=[0]) for batch in ids):
            embeddings(planned)["t"].sum().backward()
            embeddings.step()
        found = embeddings.rows.table_weights("t")
    weights = reference.initial_table(table, 0)
    untouched = weights.copy()
    states = reference.initial_states(table, optimizer)
    for batch in ids:
        for row in sorted(set(batch)):
            gradient = reference.weighted_sum(np.ones((batch.count(row), 3), np.float32))
            reference.update_row(optimizer, weights[row], states[row], gradient)
    assert np.array_equal(found, weights)
    assert np.array_equal(found[[0, 3, 4, 6, 7, 8]], untouched[[0, 3, 4, 6, 7, 8]])


def test_where_every_row_is_looked_up_it_is_torchs_adamw() -> None:
    table = TableConfig(name="t", num_embeddings=6, embedding_dim=4)
    optimizer = Adam(0.05, weight_decay=0.4)
    target = torch.linspace(-1, 1, 24).reshape(6, 4)
    with TieredEmbeddingBag([table], TierConfig(device_rows="100%"), policy=LRU, optimizer=optimizer) as embeddings:
        weights = torch.nn.Parameter(torch.from_numpy(embeddings.rows.table_weights("t")))
        plain = torch.optim.AdamW([weights], lr=0.05, weight_decay=0.4)
        for planned in embeddings.look_ahead([Batch.of(t=list(range(6)), labels=[0] * 6)] * 8):
            (embeddings(planned)["t"] - target).square().sum().backward()
            embeddings.step()
            plain.zero_grad()
            (weights - target).square().sum().backward()
            plain.step()
        assert np.allclose(
            embeddings.rows.table_weights("t"), weights.detach().numpy(), atol=1e-5
        )  # eps is added at another place


@every_optimizer
@pytest.mark.parametrize("skip", [None, DEFER], ids=["plain", "deferred"])
def test_placement_depth_and_device_change_nothing(optimizer: RowOptimizer, skip: SkipConfig | None) -> None:
    single = train(made(optimizer, skip=skip))
    assert_equal_rows(train(made(optimizer, "80%", skip=skip), depth=2), single)
    assert_equal_rows(train(made(optimizer, "90%", skip=skip, tier={"device": "cpu-torch"}), depth=3), single)
    assert_equal_rows(train(made(optimizer, "20%", policy=OnHost, skip=skip), depth=1), single)
    assert_equal_rows(train(made(optimizer, "20%", policy=OnHost, skip=skip, tier={"device": "cpu-torch"})), single)


@pytest.mark.parametrize("skip", [None, DEFER], ids=["plain", "deferred"])
def test_it_goes_on_where_it_was_saved(skip: SkipConfig | None) -> None:
    whole, optimizer = made(OPTIMIZERS[3], skip=skip), OPTIMIZERS[3]
    train(whole, 0, 7)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    other = made(optimizer, "80%", skip=skip)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_equal_rows(train(other, 7, depth=2), train(whole, 7))


@every_optimizer
def test_a_deferred_sum_decays_its_row_once(optimizer: RowOptimizer) -> None:
    """Three visits wait and are applied together: one decay, then the step of their sum. Reading sees the same."""
    policy = LRU()
    policy.rule = waits(every=1, at_most=3)
    skip = SkipConfig(hot_rows="100%", min_accesses=1, interval=1, min_visits=1)
    table = TableConfig(name="t", num_embeddings=4, embedding_dim=2)
    options: dict[str, Any] = {"policy": policy, "optimizer": optimizer, "skip": skip}
    with TieredEmbeddingBag([table], TierConfig(device_rows="100%"), **options) as embeddings:
        weights, state = reference.initial_table(table, 0)[1], reference.initial_state(optimizer, 2)
        earlier, ones, seen = None, np.ones(2, np.float32), []
        for planned in embeddings.look_ahead([Batch.of(t=[1], labels=[0])] * 9):
            embeddings(planned)["t"].sum().backward()
            embeddings.step()
            seen.append(embeddings.rows.table_weights("t")[1])
        position = 0
        for k in (1, 3, 3, 2):  # visits of each sum; the last one still waits
            for _ in range(k):
                earlier = reference.put_off(optimizer, ones, earlier)
                copy, copied = weights.copy(), state.copy()
                reference.update_row(optimizer, copy, copied, earlier.gradient, earlier.squares)
                assert np.array_equal(seen[position], copy), position
                position += 1
            weights, state, earlier = copy, copied, None
        assert position == 9


def test_settings_reach_the_optimizer_and_nonsense_is_refused() -> None:
    for name in ("sgd", "adagrad", "rowwise_adagrad", "adam"):
        assert row_optimizer(OptimizerConfig(name=name, lr=0.5, weight_decay=0.1)).kept == np.float32(0.95)  # type: ignore[arg-type]
    assert SGD(0.5).kept == 1 and SGD(2.0, weight_decay=3.0).kept == 0
    assert Adagrad(weight_decay=0.2).at(0.5).weight_decay == 0.2
    with pytest.raises(ConfigError, match="Adam: weight_decay from 0"):
        Adam(weight_decay=-1)
