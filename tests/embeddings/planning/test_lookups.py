"""Lookups of batches, found ahead by helpers or not: as numpy finds, and plans are equal for any number of threads."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import (
    LFUOnHost,
    Scattered,
    ScatteredOnHost,
    bags,
    featured,
    one_table,
    random_batches,
    step_all,
    sum_of,
    wait_for_look_ahead,
)
from support.skip_rules import LeaveOut

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.planning import books as books_module
from adaptive.embeddings.planning import lookups as distinct_module
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.planning.lookups import DistinctFinder, LookupsAhead, plan_threads
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError
from adaptive.policies.lru import LRU
from adaptive.policies.random_drop import Drop
from adaptive.policy import InputPolicy, Policy

TABLES = (
    TableConfig(name="a", num_embeddings=40, embedding_dim=4, features=("x", "y")),
    TableConfig(name="b", num_embeddings=50, embedding_dim=4, pooling="none"),
    TableConfig(name="c", num_embeddings=30, embedding_dim=6),
    TableConfig(name="d", num_embeddings=30, embedding_dim=4, pooling="mean"),
    TableConfig(name="e", num_embeddings=3, embedding_dim=4),
)
BATCHES = random_batches(TABLES, 10, seed=3, samples=4)
FEW_TABLES = [featured([[1, 2]], [[3]], [[4, 5]], [[6]], [[]], [[]]), featured([[]], [[]], [[]], [[6]], [[]], [[]])]
SKIP = SkipConfig(interval=3, hot_rows="100%", min_accesses=2, feedback_delay=4)


class Skips(LRU):
    window = 2

    def __init__(self) -> None:
        still: Any = lambda rows: (rows.update_size < 0.3) & (rows.rows % 3 == 0)  # noqa: E731
        self.rule = LeaveOut(still, most=3, warmup=2)


class DropsByInputs(Scattered):
    """Its rule runs in the thread that reads, its scores are asked for where rows are planned."""

    def __init__(self) -> None:
        self.rule = Drop(share=0.4)


@pytest.fixture(autouse=True)
def small_batches_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distinct_module, "SHARED_LOOKUPS", 1)
    monkeypatch.setattr(books_module, "SHARED_ROWS", 1)


@pytest.fixture(autouse=True)
def nobody_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


# --- what a batch asks for -------------------------------------------------------------------------------------------


def all_lookups(batch: Batch) -> list[Any]:
    return LookupsAhead(make_groups(TABLES, 0), 0).start(batch)()


def test_lookups_are_those_of_the_batch() -> None:
    groups = make_groups(TABLES, 0)
    for batch, number in itertools.product(BATCHES, range(len(groups))):
        group, lookups = groups[number], all_lookups(batch)[number]
        spans = [batch.feature_span(feature.position) for feature in group.features]
        firsts = [group.table_starts[feature.table] for feature in group.features]
        looked_up = np.concatenate([batch.ids[span] + first for span, first in zip(spans, firsts, strict=True)])
        distinct = lookups.distinct
        assert distinct.rows[distinct.inverse].tolist() == looked_up.tolist()
        assert sorted(set(looked_up.tolist())) == sorted(distinct.rows.tolist())
        assert distinct.counts.tolist() == np.bincount(distinct.inverse, minlength=len(distinct.rows)).tolist()
        vectors = np.repeat(lookups.bags.vectors, np.diff(lookups.bags.starts))  # of each lookup
        order = np.argsort(distinct.inverse, kind="stable")
        assert lookups.vectors.tolist() == vectors[order].tolist()
        assert lookups.segments.tolist() == [0, *np.cumsum(distinct.counts).tolist()]
        assert lookups.scales.tolist() == (lookups.bags.scales[order].tolist() if len(lookups.bags.scales) else [])
        assert set(lookups.bags.vectors.tolist()) == set(range(lookups.bags.num_vectors))


@pytest.mark.parametrize("threads", [2, 3, 9])
def test_threads_that_share_the_tables_find_the_same(threads: int) -> None:
    for batch, group in itertools.product([*BATCHES, *FEW_TABLES], make_groups(TABLES, 0)):
        one, many = (DistinctFinder(group, number).find_lookups(batch) for number in (1, threads))
        for expected, array in zip(arrays(one), arrays(many), strict=True):
            np.testing.assert_array_equal(array, expected)


def test_a_finder_starts_again_before_its_numbers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = make_groups(TABLES, 0)
    expected = [all_lookups(batch)[0].distinct.rows.tolist() for batch in BATCHES]
    monkeypatch.setattr(distinct_module, "MOST_USES", 60)
    for lookups_ahead in (LookupsAhead(groups, 0), LookupsAhead(groups, 0, shared=2)):
        assert [lookups_ahead.start(batch)()[0].distinct.rows.tolist() for batch in BATCHES] == expected


# --- helpers ---------------------------------------------------------------------------------------------------------


def test_helpers_work_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [all_lookups(batch)[0].distinct.rows.tolist() for batch in BATCHES[:3]]
    together, make = threading.Barrier(3, timeout=600), LookupsAhead._make
    monkeypatch.setattr(LookupsAhead, "_make", lambda self, *given: (together.wait(), make(self, *given))[1])
    lookups_ahead = LookupsAhead(make_groups(TABLES, 0), 3)
    lookups_ahead.start_helpers()
    assert lookups_ahead.num_ahead == 3
    promises = [lookups_ahead.start(batch) for batch in BATCHES[:3]]
    found = [promise()[0].distinct.rows.tolist() for promise in promises]
    lookups_ahead.end_helpers()
    assert lookups_ahead.num_ahead == 0
    assert found == expected


def test_what_goes_wrong_is_raised_in_its_turn() -> None:
    """Batch 2 has a bad id; batches 0 and 1 are trained, though the lookups of all three are found before."""
    embeddings = one_table(100, "60", plan_threads=4)
    coming = embeddings.look_ahead([bags([1]), bags([2]), bags([100]), bags([3])], depth=1)
    assert [next(coming).number for _ in range(2)] == [0, 1]
    with pytest.raises(InputError, match="got 100"):
        next(coming)


class _Counted(Iterator[Batch]):
    """Batches, and how many have been read."""

    def __init__(self, num_batches: int) -> None:
        self.num_read = 0
        self._left = num_batches

    def __next__(self) -> Batch:
        if not self._left:
            raise StopIteration
        self._left -= 1
        self.num_read += 1
        return bags([self.num_read])


class Regroups(LRU, InputPolicy):
    def arrange(self, batches: Any, view: Any) -> Any:
        yield from batches


def most_read(policy: type[Policy], threads: int, depth: int) -> int:
    """Batches that have been read when the first is being trained and nothing goes on."""
    source = _Counted(20)
    with one_table(100, "90", policy=policy, plan_threads=threads) as embeddings:
        coming = embeddings.look_ahead(source, depth=depth)
        wait_for_look_ahead(embeddings, next(coming), depth, 20)
        wait_until_steady(lambda: source.num_read)
        coming.close()
    return source.num_read


def wait_until_steady(number: Callable[[], int]) -> None:
    """Return when it has not changed for a while."""
    latest, same = -1, 0
    while same < 50:
        time.sleep(0.002)
        same = same + 1 if number() == latest else 0
        latest = number()


@pytest.mark.parametrize("threads", [1, 4])
def test_batches_are_read_ahead_for_helpers_unless_arranged(threads: int) -> None:
    """With depth 2, batch 3 waits until batch 0 is trained: it has been read, and helpers' batches behind it."""
    assert most_read(LRU, threads, 2) == 4 + (threads - 1)
    assert most_read(Regroups, threads, 2) == 4
    assert most_read(LRU, threads, 0) == 1


def test_auto_depends_on_cores_and_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    auto = TierConfig()
    assert plan_threads(auto, on_cpu=True) == 1
    for cores, training, threads in ((1, 1, 1), (2, 1, 1), (2, 2, 0), (4, 4, 0), (4, 3, 1), (8, 8, 1)):
        monkeypatch.setattr(distinct_module, "usable_cores", lambda cores=cores: cores)
        assert plan_threads(auto, on_cpu=True, training_threads=training) == threads
    assert plan_threads(TierConfig(plan_threads=7), on_cpu=True) == 7
    for cores, threads in ((1, 1), (4, 1), (8, 2), (16, 3), (96, 3)):
        monkeypatch.setattr(distinct_module, "usable_cores", lambda cores=cores: cores)
        assert plan_threads(auto, on_cpu=False) == threads


# --- plans -----------------------------------------------------------------------------------------------------------


def arrays(thing: Any) -> Iterator[np.ndarray[Any, Any]]:
    """All arrays in a plan, in order."""
    if isinstance(thing, np.ndarray):
        yield thing
    elif is_dataclass(thing):
        for item in fields(thing):
            yield from arrays(getattr(thing, item.name))


def run(threads: int, policy: type[Policy], depth: int, device: str = "cpu") -> tuple[list[Any], dict[str, Any]]:
    tier = TierConfig(device_rows="70%", device=device, plan_threads=threads, poison=True)
    embeddings = TieredEmbeddingBag(TABLES, tier, policy=policy, skip=SKIP)
    plans = []
    for planned in embeddings.look_ahead(BATCHES, depth=depth):
        plans += [array.copy() for work in planned.works for array in arrays(work.plan)]
        sum_of(embeddings(planned)).backward()
        embeddings.step()
    return plans, dict(embeddings.rows.state_arrays())


@cache
def run_alone(policy: type[Policy], depth: int, device: str = "cpu") -> tuple[list[Any], dict[str, Any]]:
    return run(1, policy, depth, device)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    threads=st.integers(2, 9),
    policy=st.sampled_from([Scattered, ScatteredOnHost, LFUOnHost, Skips, Regroups]),
    depth=st.integers(0, 2),
    device=st.sampled_from(["cpu", "cpu-torch"]),
)
def test_plans_are_equal_for_any_number_of_threads(threads: int, policy: type[Policy], depth: int, device: str) -> None:
    one, many = run_alone(policy, depth, device), run(threads, policy, depth, device)
    assert len(one[0]) == len(many[0]) > 0
    assert all(map(np.array_equal, one[0], many[0]))
    assert one[1].keys() == many[1].keys()
    for name, array in one[1].items():
        np.testing.assert_array_equal(many[1][name], array, err_msg=name)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    policy=st.sampled_from([Scattered, ScatteredOnHost, LFUOnHost, Skips, DropsByInputs]),
    depth=st.integers(1, 3),
    shared=st.integers(1, 2),
)
def test_plans_are_equal_if_the_training_thread_makes_them(policy: type[Policy], depth: int, shared: int) -> None:
    expected = run_alone(policy, depth)
    before = numba.get_num_threads()
    numba.set_num_threads(min(shared, numba.config.NUMBA_NUM_THREADS))
    try:
        plans, state = run(0, policy, depth)
    finally:
        numba.set_num_threads(before)
    assert len(plans) == len(expected[0]) > 0
    assert all(map(np.array_equal, plans, expected[0]))
    for name, array in expected[1].items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("update", "policy", "reason"),
    [
        ({"device": "cpu-torch"}, LRU, "a device that computes"),
        ({"host": "mmap:{}"}, LRU, "rows in files"),
        ({}, Regroups, "policy Regroups, which arranges"),
    ],
)
def test_some_look_aheads_need_a_thread(
    update: dict[str, Any], policy: type[Policy], reason: str, tmp_path: Path
) -> None:
    update = {name: value.format(tmp_path) for name, value in update.items()}
    with pytest.raises(ConfigError, match=rf"tier\.plan_threads=0: expected .*, got {reason}"):
        TieredEmbeddingBag(TABLES, TierConfig(plan_threads=0, **update), policy=policy)


@pytest.mark.parametrize("table", ["a", "c", "e"])
def test_a_bad_id_is_named_as_by_one_thread(table: str) -> None:
    spoilt = random_batches(TABLES, 1, seed=9, samples=6)[0]
    feature = ["x", "y", "b", "c", "d", "e"].index({"a": "y"}.get(table, table))
    ids = spoilt.ids.copy()
    own = spoilt.feature_span(feature)
    ids[own.stop - 1] = 10**6
    ids[spoilt.feature_span(5).start] = -1  # of a later table, which another thread may find first
    messages = set()
    for threads in (1, 2, 8, 0):
        tier = TierConfig(device_rows="100%", plan_threads=threads)
        embeddings = TieredEmbeddingBag(TABLES, tier)
        if not threads:
            pipeline = embeddings.runtime.pipeline
            pipeline.lookups_ahead = LookupsAhead(pipeline.groups, 0, shared=3)
        with pytest.raises(InputError) as caught:
            list(embeddings.look_ahead([type(spoilt)(spoilt.dense, ids, spoilt.offsets, spoilt.labels)], depth=1))
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_helpers_end_with_the_look_ahead_however_it_ends() -> None:
    before = set(threading.enumerate())
    embeddings = one_table(100, "60", plan_threads=4)
    coming = embeddings.look_ahead([bags([row]) for row in range(20)], depth=2)
    next(coming)
    assert any(thread.name.startswith("adaptive-lookups") for thread in threading.enumerate())
    coming.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(InputError):
        step_all(embeddings, [bags([1]), bags([100])], depth=2)
    assert set(threading.enumerate()) == before
