"""Tables with their own optimizers: each trains as in a model of its own, wherever rows are, on any rank."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from support.deferral_twin import Defer
from support.helpers import LFU, LFUOnHost, Scattered, Trainee, random_batches, train, train_more, train_slowly
from support.rank_cases import TABLES as RANK_TABLES
from support.rank_cases import Case, assert_equal_on

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import CheckpointError, ConfigError
from adaptive.optim import FTRL, SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.lru import LRU
from adaptive.policy import Policy

TABLES = (
    TableConfig(name="a", num_embeddings=40, embedding_dim=5, features=("x", "y")),
    TableConfig(name="b", num_embeddings=20, embedding_dim=5, dtype="bfloat16"),
    TableConfig(name="c", num_embeddings=30, embedding_dim=5, pooling="mean"),
    TableConfig(name="d", num_embeddings=25, embedding_dim=16),
    TableConfig(name="e", num_embeddings=25, embedding_dim=5, lr_scale=0.5),
)
MAIN = RowwiseAdagrad(lr=0.1)
OWN = {
    "b": Adam(lr=0.01, state_dtype="bfloat16"),
    "c": FTRL(lr=0.2, l1=0.01),
    "d": Adagrad(lr=0.05, initial_accumulator=0.1),
    "e": FTRL(lr=0.2, l1=0.01),
}
BATCHES = random_batches(TABLES, 14, seed=4, samples=5)


def build(
    policy: type[Policy] = LFU, own: Any = OWN, main: RowOptimizer = MAIN, skip: SkipConfig | None = None, **tier: Any
) -> TieredEmbeddingBag:
    settings = TierConfig(**{"device_rows": "90%", "poison": True, "when_full": "reduce_lookahead"} | tier)
    return TieredEmbeddingBag(TABLES, settings, policy=policy, optimizer=main, table_optimizers=own, skip=skip)


def test_training_is_that_of_the_twin_in_any_tiers(tmp_path: Path) -> None:
    """A group for each width, dtype, rate and optimizer: `c` and `e` differ in their rates."""
    scaled = OWN | {"e": FTRL(lr=0.1, l1=0.01)}  # the twin knows no `lr_scale`
    expected = train_slowly(TABLES, BATCHES, MAIN, table_optimizers=scaled)
    cases = [(LRU, {"device_rows": "100%"}, 0), (LFU, {}, 3), (LFUOnHost, {"device_rows": "20%"}, 2),
             (Scattered, {"host": f"mmap:{tmp_path}"}, 2)]  # fmt: skip
    for policy, tier, depth in cases:
        embeddings = build(policy, **tier)
        train(embeddings, TABLES, BATCHES, depth).assert_equals(expected)
        names = [[table.name for table in lane.group.tables] for lane in embeddings.runtime.pipeline.lanes]
        assert names == [["a"], ["b"], ["c"], ["d"], ["e"]]
    whole = {name: own for name, own in OWN.items() if name != "b"}
    expected = train_slowly(TABLES, BATCHES, MAIN, table_optimizers=scaled | {"b": MAIN})
    for transfer in ("staged", "direct"):
        torch_device = build(own=whole, device="cpu-torch", transfer=transfer)
        train(torch_device, TABLES, BATCHES, 2).assert_equals(expected)


def test_tables_of_one_optimizer_share_a_group() -> None:
    """Equal settings are the same optimizer, and that of all tables is no other one."""
    tables = [TableConfig(name=name, num_embeddings=9, embedding_dim=4) for name in "abcd"]
    own = {"a": FTRL(lr=0.2), "c": FTRL(lr=0.2), "d": SGD(lr=0.1)}
    embeddings = TieredEmbeddingBag(tables, optimizer=SGD(lr=0.3), table_optimizers=own)
    names = [[table.name for table in lane.group.tables] for lane in embeddings.runtime.pipeline.lanes]
    assert names == [["a", "c"], ["b"], ["d"]]
    assert "optimizer of c: FTRL(" in repr(embeddings)


def only(batch: Batch, feature: int) -> Batch:
    """The batch with one of its features."""
    first, last = (int(batch.offsets[(feature + end) * batch.num_samples]) for end in (0, 1))
    offsets = batch.offsets[feature * batch.num_samples : (feature + 1) * batch.num_samples + 1]
    return Batch(dense=batch.dense, ids=batch.ids[first:last], offsets=offsets - first, labels=batch.labels)


def test_two_tables_train_as_in_two_modules() -> None:
    """Also under a schedule: the table's own rate changes by the same factor."""
    tables = [TableConfig(name=name, num_embeddings=30, embedding_dim=4) for name in "ab"]
    batches = random_batches(tables, 8, seed=1)
    own = FTRL(lr=0.25)
    together = TieredEmbeddingBag(tables, optimizer=Adagrad(lr=0.5), table_optimizers={"b": own})
    alone = [TieredEmbeddingBag([tables[0]], optimizer=Adagrad(lr=0.5)), TieredEmbeddingBag([tables[1]], optimizer=own)]
    runs = [(together, batches)] + [(one, [only(batch, n) for batch in batches]) for n, one in enumerate(alone)]
    for embeddings, stream in runs:
        schedule = torch.optim.lr_scheduler.StepLR(embeddings.optimizer, 3, gamma=0.5)
        for planned in embeddings.look_ahead(stream):
            torch.stack([vectors.square().sum() for vectors in embeddings(planned).values()]).sum().backward()
            embeddings.step()
            schedule.step()
    for one, name in zip(alone, "ab", strict=True):
        np.testing.assert_array_equal(one.rows.table_weights(name), together.rows.table_weights(name))


@pytest.mark.parametrize("by_torch", [False, True])
def test_a_resumed_training_is_one_that_was_not_stopped(by_torch: bool) -> None:
    expected = train(build(LRU), TABLES, BATCHES, 2)
    first, second, trainee = build(), build(LFUOnHost, device_rows="30%"), Trainee(TABLES)
    train_more(first, trainee, BATCHES[:6], 3)
    if by_torch:
        second.load_state_dict(first.state_dict())
    else:
        second.rows.load_state_arrays(first.rows.state_arrays())
    train_more(second, trainee, BATCHES[6:], 1).assert_equals(expected)


def test_ranks_give_the_same_bits() -> None:
    own = {"b": FTRL(lr=0.1), "c": Adam(lr=0.01, state_dtype="bfloat16")}
    batches = tuple(random_batches(RANK_TABLES, 8, samples=11))
    assert_equal_on([2, 3], 4, Case(batches, RowwiseAdagrad(lr=0.1), table_optimizers=own))


def test_a_checkpoint_of_other_optimizers_is_refused() -> None:
    one = build()
    train(one, TABLES, BATCHES[:3], 1)
    for own in ({}, OWN | {"d": RowwiseAdagrad(lr=0.1)}, OWN | {"c": Adam()}):
        with pytest.raises(CheckpointError, match=r"expected .*, got "):
            build(own=own).rows.load_state_arrays(one.rows.state_arrays())


def test_a_rule_that_defers_needs_one_kind_of_optimizer() -> None:
    """Of different rates is fine."""
    skip = SkipConfig(interval=4, min_visits=1, hot_rows="100%", min_accesses=3, feedback_delay=5)
    with pytest.raises(ConfigError, match=r"skip: expected one kind of row optimizer.*got Adagrad, Adam, FTRL"):
        build(Defer, skip=skip)
    own = MappingProxyType({"d": RowwiseAdagrad(lr=0.3)})
    expected = train(build(Defer, own=own, skip=skip, device_rows="100%"), TABLES, BATCHES, 0)
    train(build(Defer, own=own, skip=skip), TABLES, BATCHES, 3).assert_equals(expected)


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"table_optimizers.*expected tables among a, b, c, d, e, got 'bb'"):
        build(own={"bb": SGD()})
    with pytest.raises(ConfigError, match=r"table_optimizers\['b'\]: expected a RowOptimizer, got str"):
        build(own={"b": "adam"})
    with pytest.raises(ConfigError, match=r"optimizer.lr: expected a rate above 0 with table_optimizers, got 0"):
        build(main=SGD(lr=0.0))
