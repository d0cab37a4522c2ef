"""`TieredEmbeddingBag` as its users see it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import (
    LFU,
    after_sums,
    bags,
    featured,
    one_table,
    random_batches,
    resident,
    step_all,
    sum_of,
    table_rows,
)

from adaptive.batch import Batch, one_hot_batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.planned_batch import PooledVectors
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError, PolicyError
from adaptive.optim import SGD, Adagrad, Adam
from adaptive.policies.lru import LRU
from adaptive.policy import Calibrates, TierView

SHARED = TableConfig(name="items", num_embeddings=20, embedding_dim=4, features=("seen", "bought"))
USERS = TableConfig(name="users", num_embeddings=30, embedding_dim=4)
WORDS = TableConfig(name="words", num_embeddings=50, embedding_dim=16, pooling="none")


def several(*tables: TableConfig, **tier: object) -> TieredEmbeddingBag:
    settings = TierConfig.model_validate({"device_rows": "100%", "poison": True} | tier)
    return TieredEmbeddingBag(tables, settings, optimizer=SGD(lr=1.0))


# --- forward -------------------------------------------------------------------------------------------------------


def test_one_tensor_a_feature_in_the_order_of_the_tables() -> None:
    embeddings = several(WORDS, SHARED, USERS)
    assert embeddings.features == ("words", "seen", "bought", "users")
    batch = featured([[1, 2, 2], []], [[0], [1]], [[2, 3], []], [[4], [5]])
    items, users, words = (embeddings.rows.table_weights(name) for name in ("items", "users", "words"))
    for planned in embeddings.look_ahead([batch]):
        vectors = {name: tensor.detach().numpy() for name, tensor in embeddings(planned).items()}
    assert list(vectors) == ["words", "seen", "bought", "users"]
    assert np.array_equal(vectors["words"], words[[1, 2, 2]])
    assert np.array_equal(vectors["seen"], items[[0, 1]])
    assert np.array_equal(vectors["bought"], np.stack([items[2] + items[3], np.zeros(4, np.float32)]))
    assert np.array_equal(vectors["users"], users[[4, 5]])


def test_stack_is_the_same_vectors_in_one_block() -> None:
    """Of tables of one width, all pooled."""
    embeddings = several(SHARED, USERS)
    for planned in embeddings.look_ahead(random_batches([SHARED, USERS], 3)):
        stacked, vectors = embeddings.stack(planned), embeddings(planned)
        assert stacked.shape == (5, 3, 4)
        assert torch.equal(stacked, torch.stack([vectors[name] for name in embeddings.features], dim=1))
    for tables in ((USERS, WORDS), (WORDS,)):
        embeddings = several(*tables)
        for planned in embeddings.look_ahead(random_batches(tables, 1)):
            with pytest.raises(ConfigError, match=r"expected (tables of one width|pooled features)"):
                embeddings.stack(planned)


def test_some_rows_of_a_table() -> None:
    embeddings = several(SHARED, USERS)
    step_all(embeddings, random_batches([SHARED, USERS], 3))
    rows, table = np.array([3, 0, 3]), embeddings.rows.table_weights("users")
    assert np.array_equal(embeddings.rows.table_weights("users", rows), table[rows])
    assert embeddings.rows.table_weights("users", rows[:0]).shape == (0, 4)


def test_mean_and_weights() -> None:
    mean = several(USERS.model_copy(update={"pooling": "mean"}))
    table = mean.rows.table_weights("users")
    for planned in mean.look_ahead([bags([1, 2, 2], [3], [])]):
        vectors = mean(planned)["users"].detach().numpy()
    third = np.float32(1) / np.float32(3)
    assert np.array_equal(vectors[0], (third * table[1] + third * table[2]) + third * table[2])
    assert np.array_equal(vectors[1], table[3])
    assert vectors[2].tolist() == [0.0] * 4

    weighted = several(USERS)
    for planned in weighted.look_ahead([bags([1, 2], [3], weights=[0.5, -2.0, 0.0])]):
        vectors = weighted(planned)["users"].detach().numpy()
    assert np.array_equal(vectors[0], np.float32(0.5) * table[1] + np.float32(-2) * table[2])
    assert vectors[1].tolist() == [0.0] * 4


def test_initial_values_depend_on_seed_and_name_alone() -> None:
    alone = TieredEmbeddingBag([USERS], seed=5).rows.table_weights("users")
    among = TieredEmbeddingBag([WORDS, SHARED, USERS], seed=5).rows.table_weights("users")
    other = TieredEmbeddingBag([USERS], seed=6).rows.table_weights("users")
    renamed = TieredEmbeddingBag([USERS.model_copy(update={"name": "u"})], seed=5).rows.table_weights("u")
    assert np.array_equal(alone, among)
    assert not np.isin(alone, other).any()
    assert not np.isin(alone, renamed).any()
    assert np.abs(alone).max() <= 30**-0.5 < np.abs(alone).max() * 1.5


# --- backward and step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["two backward passes", "two forward passes", "two steps"])
def test_gradients_of_one_batch_add_up(way: str) -> None:
    embeddings = one_table()
    expected = after_sums(embeddings.rows.table_weights("t"), [bags([1, 1, 2, 2])])
    for planned in embeddings.look_ahead([bags([1, 2])]):
        vectors = sum_of(embeddings(planned))
        if way == "two forward passes":
            vectors = vectors + sum_of(embeddings(planned))
        vectors.backward(retain_graph=True)
        if way == "two steps":
            embeddings.step()
        if way != "two forward passes":
            vectors.backward()
        embeddings.step()
    assert np.array_equal(embeddings.rows.table_weights("t"), expected)


def test_a_step_needs_a_backward_pass_of_its_own() -> None:
    embeddings = one_table()
    initial = embeddings.rows.table_weights("t")
    for planned in embeddings.look_ahead([bags([1]), bags([2])]):
        with torch.no_grad():
            assert not embeddings(planned)["t"].requires_grad
        embeddings(planned)
        with pytest.raises(
            ValueError, match=r"expected gradients of the current batch, got none\. Call loss\.backward"
        ):
            embeddings.step()
    assert np.array_equal(embeddings.rows.table_weights("t"), initial)
    for planned in embeddings.look_ahead([bags([1])]):
        sum_of(embeddings(planned)).backward()
        embeddings.step()
        with pytest.raises(ValueError, match=r"step\(\): expected gradients of the current batch, got none"):
            embeddings.step()


def test_a_loss_of_some_features_trains_these_only() -> None:
    embeddings = several(USERS, WORDS)
    before = embeddings.rows.table_weights("words")
    for planned in embeddings.look_ahead([featured([[1]], [[2, 3]])]):
        embeddings(planned)["users"].sum().backward()
        embeddings.step()
    assert np.array_equal(embeddings.rows.table_weights("words"), before)


def test_gradients_that_are_not_contiguous() -> None:
    embeddings = one_table()
    initial = embeddings.rows.table_weights("t")
    for planned in embeddings.look_ahead([bags([1], [2])]):
        embeddings(planned)["t"].t().flip(0).expand(4, 2).sum().backward()
        embeddings.step()
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, [bags([1, 2])]))


def test_features_with_bad_gradients_are_named() -> None:
    embeddings = several(SHARED, USERS, WORDS)
    for planned in embeddings.look_ahead([featured([[1]], [[2]], [[3]], [[4]])]):
        vectors = embeddings(planned)
        assert embeddings.optimizer.bad_gradients() == []
        (vectors["users"] * 3e38).sum().backward(retain_graph=True)
        assert embeddings.optimizer.bad_gradients() == [], "finite ones whose sum is not"
        bad = vectors["bought"].sum() * float("inf") + vectors["words"].sum() * float("nan")
        (bad + vectors["seen"].sum()).backward()
        assert embeddings.optimizer.bad_gradients() == ["bought", "words"]
        embeddings.discard()


def test_the_modules_parameter_has_no_values() -> None:
    """Rows are updated by `step`; an optimizer over `parameters()` finds nothing to change."""
    embeddings = one_table()
    assert [weight.numel() for weight in embeddings.parameters()] == [0]
    assert "rows_anchor" not in embeddings.state_dict()


# --- calibration ---------------------------------------------------------------------------------------------------


def test_calibrate_hands_the_sample_and_a_view_to_the_policy() -> None:
    class Calibrated(LRU, Calibrates):
        def calibrate(self, sample: Sequence[Batch], view: TierView) -> None:
            self.seen = [view.rows(batch).tolist() for batch in sample]

    policy = Calibrated()
    embeddings = TieredEmbeddingBag([SHARED, USERS], policy=policy)
    embeddings.calibrate([featured([[1]], [[2]], [[3]])])
    assert policy.seen == [[1, 2, 20 + 3]]
    assert embeddings.statistics.take().batches == 0


# --- mistakes ------------------------------------------------------------------------------------------------------


AGAIN = USERS.model_copy(update={"features": ("seen",)})
MEAN = USERS.model_copy(update={"pooling": "mean"})
MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: TieredEmbeddingBag([]), ConfigError, "at least one TableConfig, got none"),
    (
        lambda: TieredEmbeddingBag([USERS, USERS]),
        ConfigError,
        "unique table names, got these more than once: users",
    ),
    (lambda: TieredEmbeddingBag([SHARED, AGAIN]), ConfigError, "expected unique feature names, .* seen"),
    (lambda: TieredEmbeddingBag([USERS], policy="mru"), PolicyError, "no policy 'mru'"),
    (lambda: step_all(several(SHARED), [bags([1])]), InputError, "a batch with 2 features, as the tables, got 1"),
    (lambda: one_table().calibrate([featured([[1]], [[2]])]), InputError, "batch with 1 features, as the tables, got"),
    (lambda: step_all(several(MEAN), [bags([1], weights=[0.5])]), InputError, "expected weights of 1"),
    (lambda: several(SHARED, USERS).rows.table_weights("u"), ConfigError, "expected one of items, users, got 'u'"),
    (
        lambda: several(USERS).rows.table_weights("users", np.array([0, -1])),
        InputError,
        "rows from 0 to 29, got -1 to 0",
    ),
    (lambda: several(USERS).rows.table_weights("users", np.array([0.5])), InputError, "got dtype float64"),
]


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES, ids=[message[:30] for _, _, message in MISTAKES])
def test_mistakes_are_told(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# --- reports -------------------------------------------------------------------------------------------------------


def slow_counts(tables: Sequence[TableConfig], batches: Sequence[Batch]) -> dict[str, tuple[int, int]]:
    """Table -> (lookups, distinct rows of each batch, summed)."""
    counts = {table.name: (0, 0) for table in tables}
    for batch in batches:
        distinct = table_rows(tables, batch)
        feature = 0
        for table in tables:
            lookups, rows = counts[table.name]
            for _ in table.feature_names:
                bounds = batch.offsets[feature * batch.num_samples], batch.offsets[(feature + 1) * batch.num_samples]
                lookups += int(bounds[1] - bounds[0])
                feature += 1
            counts[table.name] = lookups, rows + len(distinct[table.name])
    return counts


@pytest.mark.parametrize("depth", [0, 3])
def test_statistics_equal_a_slow_count(depth: int) -> None:
    tables = (WORDS, SHARED, USERS)
    embeddings, batches = several(*tables, device_rows="70%", when_full="reduce_lookahead"), random_batches(tables, 12)
    for first, last in [(0, 5), (5, 5), (5, 12)]:
        step_all(embeddings, batches[first:last], depth=depth)
        statistics = embeddings.statistics.take()
        assert statistics.batches == last - first
        counted = dict(zip(embeddings.table_names, statistics.counts, strict=True))
        for name, (lookups, rows) in slow_counts(tables, batches[first:last]).items():
            counts = counted[name]
            assert counts[Counter.LOOKUPS] == lookups
            assert counts[Counter.UNIQUE_ROWS] == rows
            assert counts[Counter.FETCHED] == rows - counts[Counter.ROW_HITS]
            assert counts[Counter.ADMITTED] == counts[Counter.FETCHED]
            assert 0 <= counts[Counter.LOOKUP_HITS] <= lookups
        assert statistics.resident_rows.sum() == embeddings.runtime.view.resident(np.arange(100)).sum()


def test_statistics_of_a_loop_that_is_left_early() -> None:
    embeddings = one_table()
    for planned in embeddings.look_ahead([bags([n, n + 1]) for n in range(9)], depth=3):
        sum_of(embeddings(planned)).backward()
        embeddings.step()
        if planned.number == 3:
            break
    statistics = embeddings.statistics.take()
    assert statistics.batches == 4
    assert statistics.counts[0, Counter.LOOKUPS] == 8
    assert statistics.resident_rows.tolist() == [len(resident(embeddings))]


def test_evaluation_is_not_counted() -> None:
    embeddings = one_table()
    embeddings(embeddings.read(bags([1, 2])))
    statistics = embeddings.statistics.take()
    assert statistics.batches == 0
    assert statistics.counts.sum() == 0


def test_statistics_name_the_stages() -> None:
    embeddings = one_table()
    step_all(embeddings, [bags([1])], depth=1)
    times = embeddings.statistics.take().times_ms
    assert {"read", "plan", "write_back", "fetch", "wait", "row_update", "policy"} <= set(times)
    assert all(value >= 0 for value in times.values())


def test_memory_in_bytes() -> None:
    embeddings = TieredEmbeddingBag([USERS, WORDS], TierConfig(device_rows="10%"), optimizer=Adam())
    memory = embeddings.statistics.memory()
    assert memory["host_weights"] == 4 * (30 * 4 + 50 * 16)
    assert memory["host_state"] == 4 * (30 * 9 + 50 * 33)
    assert memory["device_weights"] == 4 * (4 * 4 + 4 * 16)
    assert memory["device_state"] == 4 * (4 * 9 + 4 * 33)
    assert memory["bookkeeping"] == 8 * (30 + 50) + 17 * (4 + 4)
    scored = TieredEmbeddingBag([USERS, WORDS], TierConfig(device_rows="10%"), policy=LFU, optimizer=Adam())
    assert scored.statistics.memory()["bookkeeping"] == (8 + 4) * (30 + 50) + 17 * (4 + 4)
    assert memory["sums"] == 0


def test_memory_of_hot_sets() -> None:
    """The rule is `defer`: sums, and for Adagrad as many squares."""
    skip = SkipConfig(rule="defer", hot_rows="10%")
    embeddings = TieredEmbeddingBag([USERS, WORDS], TierConfig(), policy=LFU, optimizer=Adagrad(), skip=skip)
    assert embeddings.statistics.memory()["sums"] == 2 * 4 * (3 * 4 + 5 * 16)


def test_unapplied_gradients_are_an_error() -> None:
    """Accumulating over batches would lose them silently: rows of the last batch may leave."""
    table = TableConfig(name="t", num_embeddings=9, embedding_dim=4)
    embeddings = TieredEmbeddingBag([table], TierConfig(device_rows="100%"))
    batches = [one_hot_batch(np.zeros((2, 0), np.float32), np.array([[1], [2]]), np.zeros(2, np.float32))] * 2
    coming = embeddings.look_ahead(batches, depth=1)
    embeddings(next(coming))["t"].sum().backward()
    with pytest.raises(ConfigError, match=r"batch 0: expected step\(\) or discard\(\) between backward"):
        next(coming)
    before = embeddings.rows.table_weights("t")
    for planned in embeddings.look_ahead(batches, depth=1):
        embeddings(planned)["t"].sum().backward()
        embeddings.discard()
    assert np.array_equal(embeddings.rows.table_weights("t"), before)


def test_a_module_of_depth_two_with_few_names() -> None:
    """Everything else is behind `rows`, `optimizer`, `statistics` and `runtime`."""
    assert TieredEmbeddingBag.__bases__ == (PooledVectors,)
    assert PooledVectors.__bases__ == (torch.nn.Module,)
    embeddings, plain = (
        TieredEmbeddingBag([TableConfig(name="t", num_embeddings=3, embedding_dim=4)]),
        torch.nn.Module(),
    )
    names = {name for name in {*dir(TieredEmbeddingBag), *vars(embeddings)} if not name.startswith("_")}
    assert len(names - {*dir(plain)}) <= 25
