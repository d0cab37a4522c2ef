"""Lookups that the device searches, or the host sends ahead of plans, on CPU tensors: as if they stayed on the host.

`test_mover.py` tests the order of its stream and the others, `test_torch_lookups.py` the torch operations.
"""

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import LFU, bags, one_table, random_batches, step_all
from support.key_cases import key_table

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.planning.lookups import DistinctFinder, Lookups
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.gpu.build import least_searched
from adaptive.embeddings.tiers.gpu.lookups import (
    FREE,
    LONG_BAGS,
    MANY_LOOKUPS,
    DeviceLookups,
    DeviceSearch,
    DeviceSearcher,
    HostSearch,
    implied_left_out,
)
from adaptive.embeddings.tiers.mover import Mover, inline
from adaptive.errors import ConfigError, InputError
from adaptive.kernels.planning.lookups import hot_chunks
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lru import LRU

TABLES = (
    TableConfig(name="a", num_embeddings=40, embedding_dim=4, features=("x", "y")),
    TableConfig(name="b", num_embeddings=50, embedding_dim=4, pooling="none"),
    TableConfig(name="c", num_embeddings=30, embedding_dim=6),
)
BATCHES = random_batches(TABLES, 12, seed=3, samples=4)


def make(lookups: str, rows: str = "80%", **more: Any) -> TieredEmbeddingBag:
    tier = {"device": "cpu-torch", "device_rows": rows, "lookups": lookups, "when_full": "reduce_lookahead", **more}
    return TieredEmbeddingBag(TABLES, TierConfig.model_validate(tier), policy=LRU)


def searcher_of(group: Any, **least: Any) -> DeviceSearcher:
    return DeviceSearcher(
        group, begun(Mover(inline(torch.device("cpu")))), **({"least": 1, "least_per_bag": 0} | least)
    )


def begun(mover: Mover) -> Mover:
    mover.begin(-1)
    return mover


# --- equal to the host's -------------------------------------------------------------------------------------------


def search(searcher: DeviceSearcher, batch: Batch) -> Lookups:
    started = searcher.start(batch)
    started.launch(DistinctFinder(searcher.group))
    return started.lookups()


def check(lookups: Lookups, expected: Lookups) -> None:
    memory = lookups.on_device
    assert isinstance(memory, DeviceLookups)
    for name in ("rows", "counts", "table_ends"):
        array, expected_array = getattr(lookups.distinct, name), getattr(expected.distinct, name)
        assert array.dtype == expected_array.dtype and array.tolist() == expected_array.tolist()
    assert lookups.segments.tolist() == expected.segments.tolist()
    assert memory.results.inverse.tolist() == expected.distinct.inverse.tolist()
    by_row, elsewhere = (memory.results.vectors, memory.results.scales), (lookups.vectors, lookups.scales)
    if not memory.updates_all:
        by_row, elsewhere = elsewhere, by_row
    assert [array.tolist() for array in by_row] == [expected.vectors.tolist(), expected.scales.tolist()]
    assert [len(array) for array in elsewhere] == [0, 0]
    sent, host = memory.bags, expected.bags
    vectors, starts = implied_left_out(host.num_samples, host.vectors, host.starts)
    for tensor, array in ((sent.vectors, vectors), (sent.starts, starts), (sent.scales, host.scales)):
        assert tensor.tolist() == array.tolist()
    assert len(lookups.distinct.inverse) == 0
    if memory.by_row is not None:
        assert [tensor.tolist() for tensor in memory.by_row] == [
            expected.segments.tolist(),
            hot_chunks(expected.segments).tolist(),
        ]


@pytest.mark.parametrize(("least", "updates_all"), [(1, True), (inf, True), (inf, False)])
@pytest.mark.parametrize("weighted", [False, True])
def test_memory_is_reused_for_batches_of_any_size(weighted: bool, least: float, updates_all: bool) -> None:
    """Distinct rows that do not fit in the room left for them come in a second copy."""
    tables = [table.model_copy(update={"pooling": "sum"}) for table in TABLES]
    sizes = (2, 40, 5, 60, 1)
    batches = [random_batches(tables, 1, seed=n, samples=n, weighted=weighted, max_bag=4)[0] for n in sizes]
    for group in make_groups(tables, 0):
        searcher, finder = searcher_of(group, least=least, updates_all=updates_all), DistinctFinder(group)
        for batch in batches:
            lookups = search(searcher, batch)
            check(lookups, finder.find_lookups(batch))
            lookups.on_device.user = -1  # type: ignore[union-attr]  # trained
        assert len(searcher._memories) == 1


def test_a_group_of_more_rows_than_four_bytes_count() -> None:
    (group,) = make_groups([TableConfig(name="t", num_embeddings=2**32, embedding_dim=1)], 0)
    lookups = search(searcher_of(group), bags([2**31, 7], [2**31, 2**32 - 1]))
    assert lookups.distinct.rows.tolist() == [2**31, 7, 2**32 - 1]
    assert lookups.distinct.counts.tolist() == [2, 1, 1]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_bad_id_is_reported_as_by_the_host(threads: int) -> None:
    spoilt = random_batches(TABLES, 1, seed=9, samples=6)[0]
    ids = spoilt.ids.copy()
    ids[spoilt.feature_span(1).stop - 1] = 10**6
    ids[spoilt.feature_span(2).start] = -1
    batches = [BATCHES[0], Batch(spoilt.dense, ids, spoilt.offsets, spoilt.labels), BATCHES[1]]
    messages = []
    for lookups in ("host", "device"):
        with make(lookups, plan_threads=threads) as embeddings, pytest.raises(InputError) as caught:
            step_all(embeddings, batches, depth=2)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "feature y" in messages[0]


# --- whose they are --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lookups", ["host", "device"])
@pytest.mark.parametrize("depth", [0, 2])
def test_batches_in_flight_have_their_own_memory(depth: int, lookups: str) -> None:
    """At any depth, in several look-aheads, and if some are closed early."""
    with make(lookups) as embeddings:
        step_all(embeddings, BATCHES, depth=depth)
        coming = embeddings.look_ahead(BATCHES, depth=depth)
        next(coming)
        coming.close()
        step_all(embeddings, BATCHES, depth=depth)
        for tiered in embeddings.runtime.pipeline.tiered_groups:
            memories = tiered.device.searcher._memories  # type: ignore[union-attr]
            assert 1 <= len(memories) <= depth + 3  # in flight, read ahead, and one that may be trained by now


def test_memory_belongs_to_its_batch_until_it_is_trained() -> None:
    (group,) = make_groups([TableConfig(name="t", num_embeddings=50, embedding_dim=1)], 0)
    searcher = searcher_of(group)
    first, second = search(searcher, bags([1, 2])), search(searcher, bags([3]))
    assert first.on_device is not second.on_device
    first.on_device.user = 0  # type: ignore[union-attr]  # planned
    searcher.mover.end_training(0)
    searcher.mover.start_moves(1, after=-1)
    assert search(searcher, bags([4])).on_device is not first.on_device
    searcher.mover.start_moves(2, after=0)
    assert search(searcher, bags([5])).on_device is first.on_device
    searcher.begin()
    assert {memory.user for memory in searcher._memories} == {FREE}


def test_a_plan_sends_no_array_as_long_as_lookups_or_samples() -> None:
    batch = bags(*[[row % 7, row % 5, 3] for row in range(200)])
    totals = {}
    for lookups in ("host", "device"):
        with one_table(10, "100%", device="cpu-torch", lookups=lookups) as embeddings:
            for planned in embeddings.look_ahead([batch]):
                (work,) = planned.works
                (transfer_buffer,) = work._tiered.device._transfer_buffers  # type: ignore[attr-defined]
                sent = transfer_buffer.tensors
                fetched = [7, 7]  # their slots and rows
                assert [len(tensor) for tensor in sent] == [7, *([8, 2 * 13] if lookups == "device" else []), *fetched]
                embeddings.discard()
            counts = embeddings.statistics.take().counts
            totals[lookups] = [int(counts[:, column].sum()) for column in (Counter.BYTES_H2D, Counter.BYTES_D2H)]
    by_lookup, starts, inputs = 4 * 600, 8 * 201 + 8, 2 * 4 * 200
    # Fetched; slots and starts of their lookups; 13 chunks of hot rows; slots and rows to fetch.
    rows = 7 * 16 + 2 * 64 + 112 + 2 * 64
    assert totals["host"] == [2 * by_lookup + starts + rows + inputs, 0]
    received = 16 + 2 * 304  # room for distinct rows, an eighth of the lookups
    assert totals["device"] == [by_lookup + 16 + starts + rows + inputs, received]


# --- who searches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "device", "hindrance", "expected"),
    [
        ("auto", "cuda", "", (MANY_LOOKUPS, LONG_BAGS)),
        ("auto", "cuda", "updates are selected", (inf, 0)),
        ("auto", "cpu", "", (inf, 0)),
        ("host", "cuda", "", (inf, 0)),
        ("host", "cuda", "updates are selected", (inf, 0)),
        ("device", "cuda", "", (1, 0)),
        ("device", "cpu", "", (1, 0)),
    ],
)
def test_device_or_host_searches(setting: Any, device: str, hindrance: str, expected: object) -> None:
    tier = TierConfig(lookups=setting, device="cpu-torch" if device == "cpu" else "cuda")
    assert least_searched(tier, torch.device(device), hindrance) == expected


def test_lookups_stay_on_the_host_where_it_pools() -> None:
    assert least_searched(TierConfig(device="cpu"), torch.device("cpu"), "") is None
    for setting in ("auto", "host"):
        tier = TierConfig(lookups=setting, device="cuda")  # type: ignore[arg-type]
        assert least_searched(tier, torch.device("cuda"), "rows stay", pools_on_host=True) is None


@pytest.mark.parametrize(
    ("samples", "size", "searches"),
    [
        (MANY_LOOKUPS // 4, LONG_BAGS, True),
        (MANY_LOOKUPS // 4 - 1, LONG_BAGS, False),
        (MANY_LOOKUPS, LONG_BAGS - 1, False),
    ],
)
def test_auto_lets_a_gpu_search_many_lookups_in_long_bags(samples: int, size: int, searches: bool) -> None:
    (group,) = make_groups([TableConfig(name="t", num_embeddings=50, embedding_dim=1)], 0)
    offsets = np.arange(samples + 1) * size
    batch = Batch(np.zeros((samples, 0), np.float32), np.zeros(offsets[-1], np.int64), offsets, np.zeros(samples, "f"))
    for least, kind in (((MANY_LOOKUPS, LONG_BAGS), DeviceSearch if searches else HostSearch), ((1, 0), DeviceSearch)):
        searcher = DeviceSearcher(group, begun(Mover(inline(torch.device("cpu")))), *least)
        assert isinstance(searcher.start(batch), kind)


def test_the_host_searches_groups_without_lookups() -> None:
    """The device searches the others, and the batch is trained."""
    empty = random_batches(TABLES, 1, seed=1, samples=3)[0]
    span = empty.feature_span(3)
    offsets = np.minimum(empty.offsets, span.start)
    batch = Batch(empty.dense, empty.ids[: span.start], offsets, empty.labels)
    with make("device") as embeddings, make("host") as expected:
        embeddings.runtime.pipeline.mover.begin(-1)
        started = [searcher.start(batch) for searcher in embeddings.runtime.pipeline.lookups_ahead._searchers]  # type: ignore[union-attr]
        assert [type(search) for search in started] == [DeviceSearch, HostSearch]
        for trained in (embeddings, expected):
            step_all(trained, [BATCHES[0], batch, BATCHES[1]], depth=1)
        for table in TABLES:
            assert np.array_equal(embeddings.rows.table_weights(table.name), expected.rows.table_weights(table.name))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda tier: TieredEmbeddingBag(TABLES, tier(device="cpu"), policy=LRU), "tier.device=cpu is main memory"),
        (lambda tier: TieredEmbeddingBag(TABLES, tier(device_rows="0"), policy=Hybrid), "policy Hybrid leaves rows on"),
        (
            lambda tier: TieredEmbeddingBag(TABLES, tier(), policy=LFU, skip="defer"),
            "deferred and skipped updates",
        ),
        (
            lambda tier: TieredEmbeddingBag([*TABLES, key_table("k")], tier(), policy=LFU),
            "keys get rows when their batch is planned",
        ),
    ],
)
def test_runs_that_need_lookups_on_the_host_are_refused(
    build: Callable[[Callable[..., TierConfig]], TieredEmbeddingBag], reason: str
) -> None:
    def tier(**more: Any) -> TierConfig:
        return TierConfig.model_validate({"device": "cpu-torch", "lookups": "device", "device_rows": "80%"} | more)

    with pytest.raises(ConfigError, match=f"tier.lookups=device: .*{reason}.* Set tier.lookups to auto or host"):
        build(tier)


def test_a_policy_that_looks_ahead_sees_rows_of_the_device() -> None:
    class Looks(LFU):
        window = 2

    def trained(lookups: str) -> Any:
        tier = TierConfig(device="cpu-torch", device_rows="90%", lookups=lookups, when_full="reduce_lookahead")  # type: ignore[arg-type]
        with TieredEmbeddingBag(TABLES, tier, policy=Looks) as embeddings:
            step_all(embeddings, BATCHES, depth=2)
            return [embeddings.rows.table_weights(table.name) for table in TABLES]

    assert all(map(np.array_equal, trained("device"), trained("host")))
