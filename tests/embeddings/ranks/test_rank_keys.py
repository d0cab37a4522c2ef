"""Tables with keys on several ranks: keys, rows, losses, counts and verdicts are those of one rank with these blocks.

Threads are ranks. Rows are compared by key, since their numbers are internal.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.helpers import LFU, LFUOnHost, Scattered, Windowed
from support.key_cases import KEY_COUNTERS, drawn_batches, hot_batches, key_table
from support.rank_cases import train_parts
from support.thread_ranks import Town, on_ranks, outcomes

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.planning.hot_set import COLUMNS
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.ranks import ALONE, Ranks
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError, RanksError
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer
from adaptive.storage.checkpoint import Checkpoint
from adaptive.storage.run_checkpoints import load_whole
from adaptive.training.runs.distributed import checkpoints_of, readers_of

TABLES = (
    key_table("user", num_embeddings=60, admit=2, expire=4, features=("user", "friend")),
    key_table("item", num_embeddings=20, pooling="mean", expire="60s"),
    key_table("city", num_embeddings=200, embedding_dim=5, admit=2),
    TableConfig(name="day", num_embeddings=100, embedding_dim=3),
)


@dataclass(frozen=True)
class Case:
    batches: tuple[Batch, ...]
    tables: tuple[TableConfig, ...] = TABLES
    optimizer: RowOptimizer = Adagrad(lr=0.1)  # noqa: RUF009 (immutable)
    policy: Any = LFU
    depth: int = 2
    tier: TierConfig = field(default_factory=lambda: TierConfig(device_rows="100%", poison=True, device="cpu"))
    skip: SkipConfig | None = None

    def build(self, ranks: Ranks) -> TieredEmbeddingBag:
        options: dict[str, Any] = {"policy": self.policy, "optimizer": self.optimizer, "skip": self.skip}
        return TieredEmbeddingBag(self.tables, self.tier, **options, ranks=ranks)

    def train(self, ranks: Ranks) -> "Trained":
        return self.go_on(self.build(ranks), self.batches)

    def go_on(self, embeddings: TieredEmbeddingBag, batches: Sequence[Batch]) -> "Trained":
        return snapshot(embeddings, self.tables, train_parts(embeddings, self.tables, batches, depth=self.depth))


@dataclass(frozen=True)
class Trained:
    """Numbers of a training, on one rank."""

    tables: dict[str, dict[str, Any]]
    values: dict[str, dict[int | None, tuple[bytes, bytes]]]  # of rows that changed, by key
    counts: NDArray[np.int64]  # (tables, 4): admitted, expired, evicted keys and unadmitted lookups
    live: list[list[int]]  # keys, places of the index
    losses: list[float]
    arrays: dict[str, Any]


def snapshot(embeddings: TieredEmbeddingBag, tables: Sequence[TableConfig], losses: list[float]) -> Trained:
    rows, of_tables = embeddings.rows, dict[str, dict[str, Any]]()
    for table in tables:
        of_tables[table.name] = {"weights": rows.table_weights(table.name).tolist()}
        if table.keys is not None:
            of_tables[table.name] |= {"key": rows.table_keys(table.name).tolist(), "records": {}}
    arrays = rows.state_arrays()
    values: dict[str, dict[int | None, tuple[bytes, bytes]]] = {}
    for number, lane in enumerate(embeddings.runtime.pipeline.lanes):
        prefix, group = f"rows{number}.", lane.group.undivided
        names: dict[int, int | None] = {}

        def name_of(row: int, group: Group = group) -> str:
            return group.tables[int(group.tables_of(np.array([row]))[0])].name

        if lane.keys is not None:
            keyed, keys = arrays[prefix + "keyed"].tolist(), arrays[prefix + "keys"].tolist()
            names = dict.fromkeys(group.table_starts[:-1].tolist()) | dict(zip(keyed, keys, strict=True))
        for row, weights, state in zip(*(arrays[prefix + n] for n in ("changed", "weights", "state")), strict=True):
            values.setdefault(name_of(row), {})[names.get(int(row), int(row))] = (weights.tobytes(), state.tobytes())
        lookups = dict(zip(*(arrays[prefix + n].tolist() for n in ("seen", "accesses")), strict=True))
        if lane.keys is not None:
            for row, latest in zip(*(arrays[prefix + n].tolist() for n in ("keyed", "key_access")), strict=True):
                of_tables[name_of(row)]["records"][names[row]] = (lookups[row], latest)
    statistics = embeddings.statistics.take()
    live = [statistics.live_keys.tolist(), statistics.index_places.tolist()]
    return Trained(of_tables, values, statistics.counts[:, KEY_COUNTERS], live, losses, arrays)


def assert_equal(results: Sequence[Trained], expected: Trained) -> None:
    """All ranks together have the numbers of one rank."""
    assert sorted(loss for each in results for loss in each.losses) == sorted(expected.losses)
    for each in results:
        assert each.tables == expected.tables
        assert each.counts.tolist() == expected.counts.tolist()
        assert each.live == expected.live
        for name, rows in expected.values.items():  # rows that never changed may be saved or not
            assert all(rows[key] == values for key, values in each.values[name].items() if key in rows)
        for prefix in {name.removesuffix("row") for name in expected.arrays if name.endswith("watched.row")}:
            order, expected_order = (np.argsort(arrays[prefix + "row"]) for arrays in (each.arrays, expected.arrays))
            for name in WATCHED:
                array, other = each.arrays[prefix + name][order], expected.arrays[prefix + name][expected_order]
                assert np.array_equal(array, other, equal_nan=True), name


WATCHED = COLUMNS


def assert_equal_on(sizes: Sequence[int], blocks: int, case: Case) -> Trained:
    (expected,) = on_ranks(1, case.train, blocks=blocks, gradients="sum")
    for size in sizes:
        assert_equal(on_ranks(size, case.train, blocks=blocks, gradients="sum"), expected)
    return expected


@pytest.mark.parametrize("optimizer", [SGD(lr=0.5), Adagrad(lr=0.1), Adam(lr=0.01)], ids=lambda one: type(one).__name__)
def test_one_to_four_ranks_give_the_same_bits(optimizer: RowOptimizer) -> None:
    """Also the keys, counts and ages of a process alone, whose sums round differently."""
    case = Case(tuple(with_days(drawn_batches(TABLES[:3], 3, count=40))), optimizer=optimizer)
    expected = assert_equal_on([2, 3, 4], 4, case)
    alone = case.train(ALONE)
    assert (expected.counts[:3].sum(axis=0) > 0).tolist() == [True] * 4
    for name in ("user", "item", "city"):
        assert {**expected.tables[name], "weights": 0} == {**alone.tables[name], "weights": 0}
        assert np.allclose(expected.tables[name]["weights"], alone.tables[name]["weights"], atol=1e-4)


def with_days(batches: Sequence[Batch]) -> list[Batch]:
    """The batches with a feature of a table without keys."""
    random = np.random.default_rng(7)
    days = [random.integers(0, 100, batch.num_samples) for batch in batches]
    return [
        replace(
            batch,
            ids=np.concatenate([batch.ids, day]),
            offsets=np.concatenate([batch.offsets, batch.offsets[-1] + 1 + np.arange(len(day))]),
            features=(*batch.features, "day"),
        )
        for batch, day in zip(batches, days, strict=True)
    ]


SETTINGS = st.fixed_dictionaries(
    {
        "num_embeddings": st.integers(10, 60),
        "admit": st.integers(1, 4),
        "expire": st.sampled_from([None, 1, 2, 5, "20s", "60s"]),
        "pooling": st.sampled_from(["sum", "mean", "none"]),
        "dtype": st.sampled_from(["float32", "float32", "bfloat16"]),
    }
)


@settings(
    max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(st.data())
def test_drawn_trainings(data: st.DataObject) -> None:
    """With any rules, tiers and look-ahead, and blocks without a sample."""
    draw = data.draw
    rules = draw(st.lists(SETTINGS, min_size=1, max_size=2))
    tables = tuple(key_table(f"t{n}", features=(f"t{n}", f"more{n}"), **each) for n, each in enumerate(rules))
    tables += (
        key_table("large", num_embeddings=5000, embedding_dim=3),
        key_table("halved", dtype="bfloat16", num_embeddings=900),
    )
    blocks = draw(st.integers(1, 5))
    case = Case(
        tuple(drawn_batches(tables, draw(st.integers(0, 2**32)), count=draw(st.integers(1, 30)))),
        tables,
        draw(st.sampled_from([SGD(lr=0.5), Adagrad(lr=0.1), Adam(lr=0.01)])),
        draw(st.sampled_from([LFU, Scattered, Windowed, LFUOnHost])),
        draw(st.integers(0, 4)),
    )
    assert_equal_on([draw(st.integers(1, blocks))], blocks, case)


@pytest.mark.parametrize(
    ("rule", "policy", "depth"),
    [("support.skip_rules:Waits", LFU, 2), ("support.skip_rules:Skips", LFU, 2), ("defer", LFUOnHost, 0)],
)
def test_deferred_updates_of_keys_that_leave(rule: str, policy: Any, depth: int) -> None:
    """If a watched row loses its key on one rank, all take in feedback before they plan on."""
    skip = SkipConfig(rule=rule, interval=4, hot_rows="100%", min_accesses=2, feedback_delay=4)
    tables = (key_table("user", num_embeddings=30, expire=6), key_table("item", num_embeddings=12))
    case = Case(tuple(hot_batches(150)), tables, skip=skip, policy=policy, depth=depth)
    expected = assert_equal_on([3], 3, case)
    assert (expected.counts[:, 1:3].sum(axis=1) > 20).all()


@pytest.mark.parametrize("values_on", [None, "cpu"], ids=["over the host", "between devices"])
@pytest.mark.parametrize(
    ("policy", "rule", "rows"), [(LFU, None, "100%"), (LFUOnHost, None, "30%"), (LFU, "defer", "100%")]
)
def test_device_tiers_of_a_gpu_give_the_bits_of_ordinary_memory(
    policy: Any, rule: str | None, rows: str, values_on: str | None
) -> None:
    skip = SkipConfig(rule=rule, interval=4, hot_rows="100%", min_accesses=2, feedback_delay=4)
    tables = (key_table("user", num_embeddings=30, expire=6), key_table("item", num_embeddings=12))
    case = Case(tuple(hot_batches(60)), tables, policy=policy, skip=skip)
    (expected,) = on_ranks(1, case.train, blocks=3, gradients="sum")
    tier = TierConfig(device="cpu-torch", device_rows=rows, transfer="direct", poison=True)
    on_devices = replace(case, tier=tier).train
    assert_equal(on_ranks(2, on_devices, town=Town(2, values_on=values_on), blocks=3, gradients="sum"), expected)


@pytest.mark.parametrize(("saving", "loading"), [(1, 3), (3, 2), (2, 1)])
def test_resumed_on_another_number_of_ranks(saving: int, loading: int, tmp_path: Path) -> None:
    """In shards: keys move with their rows, and every rank has all keys."""
    batches = with_days(drawn_batches(TABLES[:3], 5, count=40))
    case = Case(tuple(batches))

    def save(ranks: Ranks) -> list[float]:
        embeddings = case.build(ranks)
        losses = case.go_on(embeddings, batches[:19]).losses
        content = Checkpoint(embeddings.rows.state_parts(), {}, {}, {"steps": 19})
        checkpoints_of(tmp_path, ranks, keep=2).add(19, content)
        return losses

    def resume(ranks: Ranks) -> Trained:
        _, checkpoint, damaged = load_whole(tmp_path, readers_of(ranks))
        assert not damaged
        embeddings = case.build(ranks)
        embeddings.rows.load_state_arrays(checkpoint.rows)
        return case.go_on(embeddings, batches[19:])

    (expected,) = on_ranks(1, case.train, blocks=3, gradients="sum")
    first = on_ranks(saving, save, blocks=3, gradients="sum")
    second = on_ranks(loading, resume, blocks=3, gradients="sum")
    lost = [loss for each in first for loss in each]
    second[0].losses.extend(lost)
    for each in second:
        each.counts[:] = expected.counts
    assert_equal(second, expected)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({1: [np.nan, 5.0]}, "sample 0: expected a timestamp in seconds from 0 to the year 9999, got nan"),
        ({1: [400.0, 439.0]}, "batch 1: expected timestamps at most 60s before the latest one, 500, got 439"),
        ({}, r'expected Batch.extras\["timestamp"\] \(2,\) with expire=\'60s\', got none'),
    ],
)
def test_timestamps_that_cannot_be(times: dict[int, list[float]], message: str) -> None:
    """If those of one rank are wrong, no rank trains the batch."""
    item = key_table(expire="60s", num_embeddings=50)

    def train(ranks: Ranks) -> tuple[int, str]:
        extras = [[500.0, 500.0], times.get(ranks.rank, [100.0, 101.0])]
        batches = [Batch.of(item=[3, 4], labels=[1.0, 0.0], extras={"timestamp": np.array(each)}) for each in extras]
        if not times and ranks.rank == 1:
            batches[1] = replace(batches[1], extras={})
        embeddings, trained = TieredEmbeddingBag([item], TierConfig(device="cpu"), ranks=ranks), 0
        try:
            for planned in embeddings.look_ahead(batches, depth=0):
                embeddings(planned)["item"].sum().backward()
                embeddings.step()
                trained += 1
        except InputError as error:
            return trained, str(error)
        return trained, ""

    for trained, text in on_ranks(2, train):
        assert trained == 1
        assert re.search(f"table 'item', {message}|table 'item': {message}", text), text


def test_a_full_table_that_stops_training_stops_all_ranks() -> None:
    item = key_table(num_embeddings=20, when_full="error")

    def train(ranks: Ranks) -> None:
        embeddings = TieredEmbeddingBag([item], TierConfig(device="cpu"), ranks=ranks)
        keys = range(100 * ranks.rank, 100 * ranks.rank + 12)
        for planned in embeddings.look_ahead([Batch.of(item=keys, labels=[1.0] * 12)], depth=1):
            embeddings(planned)["item"].sum().backward()
            embeddings.step()

    for error in outcomes(2, train):
        assert isinstance(error, InputError) and "expected at most 20 keys, got 4 more in batch 0" in str(error)


@pytest.mark.parametrize(("changed", "seed"), [({"admit": 2}, 0), ({"expire": 5}, 0), ({}, 1)])
def test_ranks_whose_tables_have_other_rules(changed: dict[str, Any], seed: int) -> None:
    """They would give keys rows at different times."""

    def train(ranks: Ranks) -> None:
        rules, own_seed = (changed, seed) if ranks.rank else ({}, 0)
        item = key_table(num_embeddings=50, **rules)
        embeddings = TieredEmbeddingBag([item], TierConfig(device="cpu"), seed=own_seed, ranks=ranks)
        next(embeddings.look_ahead([Batch.of(item=[1, 2], labels=[1.0, 0.0])], depth=0))

    for error in outcomes(2, train):
        assert isinstance(error, RanksError)
        assert re.search("expected keys of tables item with the rules and the seed of this rank", str(error)), error


def test_batches_that_are_read_give_no_key_a_row() -> None:
    """Each rank reads its own samples, also of keys without a row; while batches are in flight it is refused."""
    case = Case(tuple(with_days(drawn_batches(TABLES[:3], 4))))

    def read(ranks: Ranks) -> None:
        embeddings = case.build(ranks)
        before = case.go_on(embeddings, case.batches)
        keys = embeddings.rows.table_keys("city")
        unknown = 12345 + ranks.rank
        batch = Batch.of(
            user=[unknown] * 2,
            friend=[1, 2],
            item=[4, unknown],
            city=[unknown, int(keys[1])],
            day=[3, 4],
            labels=[1, 0],
        )
        vectors = embeddings(embeddings.read(batch))
        weights = embeddings.rows.table_weights("city")
        assert vectors["city"].detach().numpy().tobytes() == weights[[-1, 1]].tobytes()
        shared = embeddings.rows.table_weights("user")[-1]
        assert vectors["user"][0].detach().numpy().tobytes() == shared.tobytes() and shared.any()
        assert snapshot(embeddings, TABLES, []).values == before.values
        for planned in embeddings.look_ahead([ranks.own_part(each) for each in case.batches[-3:]], depth=2):
            with pytest.raises(ConfigError, match=r"^read\(\): expected no batches in flight"):
                embeddings.read(planned.batch)

    on_ranks(2, read, blocks=2, gradients="sum")
