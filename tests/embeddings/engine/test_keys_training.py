"""Tables with keys: which rows keys get, and that look-ahead, tiers and policies change no bit of what is trained.

The slow twin knows no index and no reuse of rows: every admission of a key gets a row of its own in an ordinary table.
"""

import gc
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from contract import LRUOnHost
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.helpers import LFU, Scattered, ScatteredOnHost, Trainee, Windowed
from support.key_cases import (
    EXTREMES,
    KEY_COUNTERS,
    Rows,
    drawn_batches,
    hot_batches,
    key_table,
    rows_by_key,
    train_more_on,
)
from support.skip_rules import Waits

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.planning.key_tables import GroupKeys
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import CheckpointError, ConfigError, InputError
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.hotline import Hotline
from adaptive.policies.lru import LRU
from adaptive.policies.random_drop import RandomDrop
from adaptive.policies.slipstream import DeferAndPredict, Slipstream
from adaptive.policy import Follows, InputRule, Policy, RowStats


def looking_up(*keys: int) -> Batch:
    """A batch of samples of one key each."""
    return Batch.of(item=keys, dense=np.zeros(len(keys)), labels=np.ones(len(keys), np.float32))


@dataclass(frozen=True)
class Trained:
    """The numbers of a training, by key."""

    rows: Rows
    losses: list[float]
    counts: NDArray[np.int64]  # (tables, 4): admitted, expired, evicted keys and unadmitted lookups


def train(
    tables: Sequence[TableConfig], batches: Sequence[Batch], tier: TierConfig, depth: int, **options: Any
) -> tuple[TieredEmbeddingBag, Trained]:
    embeddings, trainee = TieredEmbeddingBag(tables, tier, **options), Trainee(tables)
    train_more_on(embeddings, trainee, batches, depth)
    order = [embeddings.table_names.index(table.name) for table in tables]
    counts = embeddings.statistics.take().counts[order][:, KEY_COUNTERS]
    return embeddings, Trained(rows_by_key(embeddings), trainee.losses, counts)


def train_slowly(tables: Sequence[TableConfig], batches: Sequence[Batch], optimizer: RowOptimizer) -> Trained:
    """Train with the twins: keys become rows of tables that only grow, without tiers."""
    every = {table.config.name: table.sweep_every for g in make_groups(tables, 0) for table in GroupKeys(g).tables}
    books = [reference.KeyBook(table, every[table.name]) for table in tables]
    names = [name for table in tables for name in table.feature_names]
    plain, counts = [], np.zeros((len(tables), 4), np.int64)
    for number, batch in enumerate(batches):
        ids, time = batch.ids.copy(), float(batch.extras["timestamp"].max())
        for t, book in enumerate(books):
            spans = [batch.feature_span(names.index(name)) for name in book.table.feature_names]
            before, rows_before = set(book.rows), len(book.row_keys)
            rows = np.array(
                book.look_up(number, np.concatenate([batch.ids[s] for s in spans]).tolist(), time), np.int64
            )
            for span in spans:
                ids[span], rows = rows[: span.stop - span.start], rows[span.stop - span.start :]
            admitted = len(book.row_keys) - rows_before
            counts[t, 0] += admitted
            counts[t, 1:3] += len(before) + admitted - len(book.rows)  # gone, for either reason
            counts[t, 3] += sum(int((ids[span] == 0).sum()) for span in spans)
        plain.append(Batch(batch.dense, ids, batch.offsets, batch.labels, extras=batch.extras))
    grown = [book.table.model_copy(update={"num_embeddings": len(book.row_keys)}) for book in books]
    initial = {book.table.name: book.initial(0) for book in books}
    trainee = Trainee(grown)
    values = reference.train_reference(
        grown,
        plain,
        optimizer,
        seed=0,
        loss_gradients=trainee.loss_gradients,
        initial=lambda table, _: initial[table.name],
    )
    rows: Rows = {
        book.table.name: {
            key: tuple(array[row].tobytes() for array in values[book.table.name])  # type: ignore[misc]
            for key, row in [(None, 0), *book.rows.items()]
        }
        for book in books
    }
    return Trained(rows, trainee.losses, counts)


SETTINGS = st.fixed_dictionaries(
    {
        "num_embeddings": st.integers(1, 40),
        "embedding_dim": st.sampled_from([3, 3, 5]),
        "admit": st.integers(1, 4),
        "expire": st.sampled_from([None, 1, 2, 5, "20s", "60s"]),
        "pooling": st.sampled_from(["sum", "mean", "none"]),
    }
)
POLICIES: list[type[Policy]] = [LRU, LFU, Scattered, Windowed, LRUOnHost, ScatteredOnHost]
OPTIMIZERS: list[RowOptimizer] = [SGD(lr=0.5), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(SETTINGS, min_size=1, max_size=3),
    st.integers(0, 2**32),
    st.sampled_from(POLICIES),
    st.sampled_from(OPTIMIZERS),
    st.sampled_from([0, 1, 4, 8]),
    st.sampled_from(["100%", "1%", "10%"]),
    st.sampled_from([("cpu", 0), ("cpu", 1), ("cpu", 2), ("cpu-torch", 1), ("cpu-torch", 2)]),
    st.sampled_from(["direct", "staged"]),
)
def test_numbers_are_those_of_the_slow_twin(
    drawn: list[dict[str, Any]],
    seed: int,
    policy: type[Policy],
    optimizer: RowOptimizer,
    depth: int,
    size: str,
    device: tuple[str, int],
    transfer: str,
) -> None:
    """Losses, weights and optimizer state agree bit for bit; invalid copies of rows are NaN."""
    tables = [
        key_table(f"t{number}", features=(f"t{number}", f"more{number}"), **each) for number, each in enumerate(drawn)
    ]
    batches = drawn_batches(tables, seed)
    slow = train_slowly(tables, batches, optimizer)
    where = {"device": device[0], "plan_threads": device[1], "transfer": transfer}
    tier = TierConfig.model_validate({"device_rows": size, "poison": True, "when_full": "reduce_lookahead"} | where)
    if policy.misses == "prefetch" and size != "100%":
        tier = tier.model_copy(update={"device_rows": str(least_rows(tables, batches, depth))})
    _, fast = train(tables, batches, tier, depth, policy=policy, optimizer=optimizer)
    assert fast.losses == slow.losses
    assert fast.rows == slow.rows
    assert fast.counts[:, [0, 3]].tolist() == slow.counts[:, [0, 3]].tolist()
    assert fast.counts[:, 1:3].sum(axis=1).tolist() == slow.counts[:, 1].tolist()


def least_rows(tables: Sequence[TableConfig], batches: Sequence[Batch], depth: int) -> int:
    """Device rows with which the keys of all batches in flight fit, for every width."""
    most = max(len(np.unique(np.concatenate([b.ids for b in batches[i : i + depth + 1]]))) for i in range(len(batches)))
    return (most + 1) * len(tables) * len({table.embedding_dim for table in tables})


TABLES = [
    key_table("user", num_embeddings=12, admit=2, expire=4),
    key_table("item", num_embeddings=9, features=("item", "seen"), pooling="mean", expire="60s"),
    key_table("city", num_embeddings=200, embedding_dim=5),
]
FAST = TierConfig(device_rows="100%", device="cpu", plan_threads=1)
AS_ON_A_GPU = TierConfig(device_rows="100%", device="cpu-torch", poison=True)


@pytest.mark.parametrize(("depth", "tier"), [(0, FAST), (4, FAST), (2, AS_ON_A_GPU)])
def test_a_resumed_training_goes_on_with_the_same_bits(depth: int, tier: TierConfig) -> None:
    """At any batch: rows, keys, counts, clock and the order of freed rows are restored."""
    batches = drawn_batches(TABLES, 3, count=36)
    _, whole = train(TABLES, batches, FAST, depth)
    for stop in (1, 13, 20, 35):
        first, trainee = TieredEmbeddingBag(TABLES, tier), Trainee(TABLES)
        train_more_on(first, trainee, batches[:stop], depth)
        again = TieredEmbeddingBag(TABLES, tier)
        again.rows.load_state_arrays(first.rows.state_arrays())
        assert rows_by_key(again) == rows_by_key(first)
        train_more_on(again, trainee, batches[stop:], depth)
        assert rows_by_key(again) == whole.rows and trainee.losses == whole.losses


@pytest.mark.parametrize("device", ["cpu", "cpu-torch"])
@pytest.mark.parametrize(("policy", "depth"), [(LFU, 4), (ScatteredOnHost, 8)])
def test_rows_in_bfloat16_round_alike_in_any_tiers(policy: type[Policy], depth: int, device: str) -> None:
    """By the number of a row, which no look-ahead changes, even if its key has expired while batches are in flight."""
    tables = [table.model_copy(update={"dtype": "bfloat16"}) for table in TABLES]
    batches = drawn_batches(tables, 5, count=36)
    _, single = train(tables, batches, FAST, 0)
    rows = "10%" if policy.misses == "host" else str(least_rows(tables, batches, depth))
    tier = TierConfig.model_validate(
        {"device_rows": rows, "poison": True, "when_full": "reduce_lookahead", "device": device}
    )
    _, other = train(tables, batches, tier, depth, policy=policy)
    assert other.rows == single.rows and other.losses == single.losses
    assert single.counts[:, 1].sum() > 5


def test_reading_inserts_no_key_and_reads_the_row_of_keys_without_one() -> None:
    embeddings, _ = train(TABLES, drawn_batches(TABLES, 4), FAST, 2)
    before = rows_by_key(embeddings)
    keys = embeddings.rows.table_keys("city")
    unknown = int(max(set(EXTREMES) - set(keys.tolist()), default=12345))
    batch = Batch.of(user=[unknown] * 3, item=[1, 2, 3], seen=[4, 5, 6], city=[unknown, int(keys[1]), unknown])
    vectors = embeddings(embeddings.read(batch))["city"].detach().numpy()
    table = embeddings.rows.table_weights("city")
    assert table.shape == (1 + len(keys), 5) and sorted(keys) == keys.tolist()
    assert vectors.tobytes() == table[[-1, 1, -1]].tobytes()
    assert rows_by_key(embeddings) == before


class EagerSlipstream(Slipstream):
    """Skips early and much."""

    def __init__(self) -> None:
        super().__init__()
        assert isinstance(self.rule, DeferAndPredict)
        self.rule.warmup, self.rule.factor, self.rule.rows = 4, 1.0, Waits(most=5)


@pytest.mark.parametrize("depth", [1, 4])
def test_deferred_updates_of_keys_that_leave(depth: int) -> None:
    """A hot row that loses its key takes no sum along; look-ahead and tier change no bit."""
    skip = SkipConfig(rule="support.skip_rules:Waits", interval=4, hot_rows="50%", min_accesses=2, feedback_delay=4)
    tables = [key_table("user", num_embeddings=30, expire=6), key_table("item", num_embeddings=12)]
    batches = list(hot_batches(110))
    runs = [
        train(tables, batches, tier, each, policy=policy, skip=skip)
        for tier, each, policy in [
            (FAST, 0, LRU),
            (FAST, depth, LRU),
            (FAST, depth, LRUOnHost),
            (AS_ON_A_GPU, depth, LRU),
        ]
    ]
    counts = runs[0][0].statistics.counts()
    assert counts[Counter.DEFERRED_UPDATES] > 20 and counts[Counter.EXPIRED_KEYS] > 20 < counts[Counter.EVICTED_KEYS]
    for _, trained in runs[1:]:
        assert trained.rows == runs[0][1].rows and trained.losses == runs[0][1].losses


HOT_SOON = {"interval": 4, "min_accesses": 2, "hot_rows": "100%", "feedback_delay": 8}
ARRANGING: dict[str, tuple[str, Callable[[], Policy]]] = {
    "predicted": ("predicted+warmup=4+factor=1", LRU),
    "slipstream": ("", EagerSlipstream),
    "random_drop": ("", lambda: RandomDrop(share=0.3)),
    "hotline": ("", lambda: Hotline(learn=4)),
    "both": ("predicted+warmup=4+factor=1", lambda: Hotline(learn=4)),
}
KEYED = [key_table("user", num_embeddings=30, expire=6), key_table("item", num_embeddings=12)]


def train_arranged(name: str, batches: Sequence[Batch], depth: int, **tier: Any) -> tuple[TieredEmbeddingBag, Trained]:
    rule, policy = ARRANGING[name]
    skip = SkipConfig.model_validate({"rule": rule or None} | HOT_SOON)
    sizes = TierConfig.model_validate({"device_rows": "100%", "device": "cpu", "poison": True} | tier)
    return train(KEYED, batches, sizes, depth, policy=policy(), skip=skip)


@pytest.mark.parametrize("name", ARRANGING)
def test_batches_are_arranged_alike_by_any_look_ahead(name: str) -> None:
    """Rules and policies that arrange inputs see keys as of the batch that is planned last, or their hashes."""
    batches = list(hot_batches(110))
    embeddings, expected = train_arranged(name, batches, 0)
    rule = embeddings.policy.rule
    assert not isinstance(rule, InputRule) or 0 < rule.dropped_inputs < rule.seen_inputs
    assert name != "hotline" or 0 < embeddings.policy.popular_inputs < embeddings.policy.seen_inputs  # type: ignore[attr-defined]
    counts = embeddings.statistics.counts()
    assert counts[Counter.EXPIRED_KEYS] > 20 < counts[Counter.EVICTED_KEYS]
    # The popular rows of hotline, which come first in a batch, are as many as fit: it has the same size each time.
    few = (
        {} if "Hotline" in type(embeddings.policy).__name__ else {"device_rows": "14", "when_full": "reduce_lookahead"}
    )
    as_on_a_gpu = {"device": "cpu-torch"}
    for depth, tier in [(1, {"plan_threads": 2}), (4, few), (8, {"plan_threads": 1} | few), (4, as_on_a_gpu | few)]:
        _, other = train_arranged(name, batches, depth, **tier)
        assert other.losses == expected.losses and other.rows == expected.rows, (depth, tier)
        assert (other.counts == expected.counts).all()


def test_the_row_of_a_key_in_views() -> None:
    """That which it has now, or the first; and the row of its hash, of which a table has as many as rows."""
    embeddings, _ = train(TABLES, drawn_batches(TABLES, 4), FAST, 2)
    random = np.random.default_rng(1)
    keys = np.concatenate([embeddings.rows.table_keys("city"), EXTREMES, random.integers(-(2**63), 2**63 - 1, 4000)])
    batch = Batch.of(user=keys, item=keys, seen=keys, city=keys, labels=np.zeros(len(keys)))
    view, hashed = embeddings.runtime.view, embeddings._hashed_view
    rows, hashed_rows = view.rows(batch), hashed.rows(batch)
    names = embeddings.table_names
    for tiered in embeddings.runtime.pipeline.tiered_groups:
        for table in tiered.keys.tables if tiered.keys is not None else []:
            start = int(view.table_starts[names.index(table.config.name)])
            live = table.live_rows()
            held = dict(zip(tiered.keys.row_keys[live].tolist(), (live - table.start).tolist(), strict=True))
            for name in table.config.feature_names:
                span = batch.feature_span(embeddings.features.index(name))
                assert (rows[span] - start).tolist() == [held.get(key, 0) for key in batch.ids[span].tolist()]
                of_table = hashed_rows[span] - start
                assert of_table.min() == 1 and of_table.max() == table.capacity == len(np.unique(of_table))
    again = TieredEmbeddingBag(TABLES, FAST)
    assert np.array_equal(again._hashed_view.rows(batch), hashed_rows), "no key has a row there"


class Following(Follows):
    """Notes where rows are and which lose their keys."""

    def __init__(self) -> None:
        self.resident, self.gone = set[int](), list[int]()

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        assert (rows.age == rows.step - rows.last_access).all() and (rows.age >= 0).all()
        return -rows.age

    def evicted(self, number: int, rows: NDArray[np.int64]) -> None:
        assert self.resident >= set(rows.tolist())
        self.resident -= set(rows.tolist())

    def admitted(self, number: int, rows: NDArray[np.int64]) -> None:
        assert not self.resident & set(rows.tolist())
        self.resident |= set(rows.tolist())

    def expired(self, number: int, rows: NDArray[np.int64]) -> None:
        assert not self.resident & set(rows.tolist())
        self.gone += rows.tolist()


@pytest.mark.nightly
def test_a_capacity_beyond_memory_costs_what_is_touched() -> None:
    """10^9 rows of 4 KiB, in memory: made, trained, swept, read and saved like a table for 10^5."""
    batches = [looking_up(*range(first, first + 300)) for first in range(0, 12_000, 300)]

    def train_and_save(capacity: int) -> tuple[int, Rows]:
        """Bytes that were added to the memory of this process, and all rows."""
        before = resident_bytes()
        embeddings = TieredEmbeddingBag(
            [key_table(num_embeddings=capacity, embedding_dim=1024, expire=16, init_bound=0.1)],
            TierConfig(device_rows=2000, device="cpu"),
        )
        for planned in embeddings.look_ahead(batches, depth=2):
            embeddings(planned)["item"].sum().backward()
            embeddings.step()
        assert len(embeddings.rows.table_keys("item")) < 20 * 300
        assert sum(array.nbytes for array in embeddings.rows.state_arrays().values()) < 50 * 2**20
        grown, rows = resident_bytes() - before, rows_by_key(embeddings)
        embeddings.close()
        return grown, rows

    train_and_save(10**5)  # compiles kernels
    small, expected = train_and_save(10**5)
    large, rows = train_and_save(10**9)
    assert rows == expected
    assert large < small + 64 * 2**20


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_policies_learn_which_rows_lose_their_keys() -> None:
    """They have left the device by then, and come back with their next key."""
    batches = drawn_batches(TABLES, 11, count=60)
    tier = TierConfig(device_rows=str(least_rows(TABLES, batches, 2)), device="cpu")
    embeddings, trained = train(TABLES, batches, tier, 2, policy=Following)
    policy = embeddings.policy
    assert isinstance(policy, Following) and len(policy.gone) == trained.counts[:, 1:3].sum() > len(set(policy.gone))
    assert embeddings.runtime.view.resident(np.arange(embeddings.runtime.view.num_rows)).sum() == len(policy.resident)


def test_a_full_table_may_stop_training() -> None:
    batches = [looking_up(1, 2, 3), looking_up(3, 4, 1)]
    with pytest.raises(InputError, match=r"table 'item': expected at most 3 keys, got 1 more in batch 1"):
        train([key_table(num_embeddings=3, when_full="error")], batches, FAST, 1)


def timed(times: Sequence[float]) -> list[Batch]:
    return [replace(looking_up(3), extras={"timestamp": np.array([time])}) for time in times]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (
            [Batch.of(item=[1], labels=[1.0])],
            r'expected Batch.extras\["timestamp"\] \(1,\) with expire=\'60s\', got none',
        ),
        (timed([5.0, float("nan")]), "sample 0: expected a timestamp in seconds from 0 to the year 9999, got nan"),
        (timed([5.0, 1.7e12]), "expected a timestamp in seconds from 0 to the year 9999, got 17"),
        (timed([5.0, -1.0]), "expected a timestamp in seconds from 0"),
        (timed([500.0, 439.0]), "expected timestamps at most 60s before the latest one, 500, got 439"),
    ],
)
def test_timestamps_that_cannot_be(batches: list[Batch], message: str) -> None:
    """Training ends before the batch, with all keys of the batches before it."""
    embeddings = TieredEmbeddingBag([key_table(expire="60s")], FAST)
    with pytest.raises(InputError, match=f"table 'item'.*{message}"):
        train_more_on(embeddings, Trainee([key_table()]), batches, 0)
    assert len(embeddings.rows.table_keys("item")) == len(batches) - 1


def test_a_loop_that_ends_early_leaves_tables_that_train_on() -> None:
    batches = drawn_batches(TABLES, 8, count=60)
    embeddings, trainee = TieredEmbeddingBag(TABLES, FAST), Trainee(TABLES)
    for start in range(0, 50, 10):
        ahead = embeddings.look_ahead(batches[start:], depth=4)
        for planned in ahead:
            trainee.learn(embeddings(planned), planned.batch)
            embeddings.step()
            if len(trainee.losses) % 7 == 0:
                break
        with pytest.warns(UserWarning, match="closed with [1-4] planned batches that are not trained, whose lookups"):
            ahead.close()
        for tiered in embeddings.runtime.pipeline.tiered_groups:
            assert tiered.keys is not None
            for table in tiered.keys.tables:
                assert (tiered.planner.slots.last_access(table.live_rows()) > 0).all()
                assert not tiered.planner.tracker.codes[table.freed_rows()].any()
        again = TieredEmbeddingBag(TABLES, FAST)
        again.rows.load_state_arrays(embeddings.rows.state_arrays())
        assert rows_by_key(again) == rows_by_key(embeddings)


def test_nothing_is_read_or_saved_while_batches_are_in_flight() -> None:
    """Keys of batches that are not trained yet have rows already, so the numbers would depend on the look-ahead."""
    batches = drawn_batches(TABLES, 9)
    embeddings, trainee = TieredEmbeddingBag(TABLES, FAST), Trainee(TABLES)
    for planned in embeddings.look_ahead(batches, depth=2):
        trainee.learn(embeddings(planned), planned.batch)
        embeddings.step()
        for name, method in {
            "read": lambda: embeddings.read(batches[0]),
            "state_arrays": embeddings.rows.state_arrays,
            "table_keys": lambda: embeddings.rows.table_keys("city"),
        }.items():
            with pytest.raises(ConfigError, match=rf"^{name}\(\): expected no batches in flight.*depth 2"):
                method()


def test_combinations_that_do_not_support_keys() -> None:
    table = key_table()
    cases: list[tuple[dict[str, Any], TableConfig]] = [
        ({"policy": "fae"}, table),
        ({"policy": "static"}, table),
    ]
    for options, each in cases:
        with pytest.raises(ConfigError, match="table 'item': expected a policy that supports keys, got "):
            TieredEmbeddingBag([each], **({"tier": TierConfig(device="cpu")} | options))


def test_checkpoints_of_other_keys() -> None:
    tables = [table.model_copy(update={"init_bound": 0.3}) for table in TABLES]
    embeddings, _ = train(tables, drawn_batches(tables, 10), FAST, 0)
    arrays = embeddings.rows.state_arrays()

    def loading(tables: Sequence[TableConfig], changed: dict[str, Any], match: str) -> None:
        other = TieredEmbeddingBag(tables, FAST)
        for grow in (False, True):
            with pytest.raises(CheckpointError, match=match):
                other.rows.load_state_arrays(arrays | changed, grow=grow)
        assert all(list(rows) == [None] for rows in rows_by_key(other).values())

    larger = [table.model_copy(update={"num_embeddings": table.num_embeddings + 1}) for table in tables]
    loading(larger, {}, r"expected (tables of|a checkpoint with a capacity of)")
    keys = arrays["rows0.keys"]
    loading(tables, {"rows0.keys": keys[:-1]}, r"array keys: expected int64 \(")
    without = {name: array for name, array in arrays.items() if name != "rows0.keys0.clock"}
    with pytest.raises(CheckpointError, match=r"rows0\.keys0\.clock: expected one for keys, got none"):
        TieredEmbeddingBag(tables, FAST).rows.load_state_arrays(without)
    plain = TieredEmbeddingBag([TableConfig(name="item", num_embeddings=9, embedding_dim=3, init_bound=0.3)], FAST)
    saved, _ = train([key_table(num_embeddings=8, init_bound=0.3)], timed([1.0]), FAST, 0)
    with pytest.raises(CheckpointError, match="tables item: expected a checkpoint of tables without keys"):
        plain.rows.load_state_arrays(saved.rows.state_arrays())
