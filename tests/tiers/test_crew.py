"""Threads that share the loops of planning: every part is done once, plans are equal for any number of threads."""

import threading
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from helpers import LFUOnHost, Scattered, ScatteredOnHost, bags, one_table, random_batches, step_all, sum_of
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embedding import TieredEmbeddingBag
from adaptive.errors import InputError
from adaptive.policy import Deferral, Policy
from adaptive.tiers import crew as crew_module
from adaptive.tiers.crew import ALONE, LEAST_ITEMS, PARTS_PER_THREAD, Crew
from policies.lru import LRU

TABLES = (
    TableConfig(name="a", num_embeddings=40, embedding_dim=4, features=("x", "y")),
    TableConfig(name="b", num_embeddings=50, embedding_dim=4, pooling="none"),
    TableConfig(name="c", num_embeddings=30, embedding_dim=6),
    TableConfig(name="d", num_embeddings=30, embedding_dim=4, pooling="mean"),
    TableConfig(name="e", num_embeddings=3, embedding_dim=4),
)
BATCHES = random_batches(TABLES, 10, seed=3, samples=4)
SKIP = SkipConfig(interval=3, hot_rows="100%", min_accesses=2, lag=4)


class Skips(LRU):
    deferral = Deferral(every=2, at_most=3, warmup=2)
    window = 2

    def saturated(self, rows: Any) -> Any:
        return (rows.drift < 0.2) & (rows.rows % 3 == 0)


@pytest.fixture(autouse=True)
def nobody_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "LEAST_ITEMS", 1)


# --- the crew --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("parts", [0, 1, 2, 7, 100])
def test_every_part_is_done_once(size: int, parts: int) -> None:
    crew, done = Crew(size), []
    with crew.working():
        for _ in range(20):
            crew.share(parts, lambda worker, part: done.append((part, 0 <= worker < size)))
    assert sorted(done) == sorted([(part, True) for part in range(parts)] * 20)


def test_threads_work_at_once_with_numbers_of_their_own() -> None:
    crew, together, seen = Crew(3), threading.Barrier(3, timeout=10), set[int]()
    with crew.working():
        crew.share(3, lambda worker, part: (together.wait(), seen.add(worker))[1])
    assert seen == {0, 1, 2}


def test_without_threads_the_asking_one_does_all() -> None:
    names: list[str] = []
    for crew in (Crew(4), ALONE):
        crew.share(3, lambda worker, part: names.append(threading.current_thread().name))
    assert names == 6 * [threading.current_thread().name]


def test_what_the_first_failing_part_raised_is_raised_when_all_are_done() -> None:
    crew, done = Crew(3), []

    def work(worker: int, part: int) -> None:
        time.sleep(0.01 if part == 1 else 0)
        done.append(part)
        if part in (1, 4):
            raise ValueError(f"part {part}")

    with crew.working():
        with pytest.raises(ValueError, match="part 1"):
            crew.share(6, work)
        assert sorted(done) == list(range(6))
        crew.share(2, lambda worker, part: done.append(part))
    assert len(done) == 8


def test_a_crew_works_again_and_ends_when_its_block_does() -> None:
    crew = Crew(3)
    for _ in range(3):
        with pytest.raises(ValueError, match="not mine"), crew.working():
            fail_unless_two_help()
        assert helpers() == 0


def helpers() -> int:
    return sum(thread.name.startswith("adaptive-plan-") for thread in threading.enumerate())


def fail_unless_two_help() -> None:
    assert helpers() == 2
    raise ValueError("not mine")


@given(num_items=st.integers(0, 100_000), size=st.integers(1, 20), least=st.sampled_from([1, 7, LEAST_ITEMS]))
def test_stretches_follow_each_other(num_items: int, size: int, least: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew_module, "LEAST_ITEMS", least)
        stretches = Crew(size).cut(num_items)
    assert [0, *(one.stop for one in stretches)] == [*(one.start for one in stretches), num_items]
    sizes = [one.stop - one.start for one in stretches]
    assert 1 <= len(sizes) <= PARTS_PER_THREAD * size and max(sizes) - min(sizes) <= 1
    assert len(sizes) == 1 or (min(sizes) >= least and size > 1)


@given(items=st.lists(st.integers(0, 50), min_size=1, max_size=40), size=st.integers(1, 20))
def test_runs_of_tables_follow_each_other(items: list[int], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew_module, "LEAST_ITEMS", 1)
        runs = Crew(size).cut_runs(items)
    assert [0, *(run.stop for run in runs)] == [*(run.start for run in runs), len(items)]
    share = sum(items) / (PARTS_PER_THREAD * size)
    assert all(run.stop > run.start for run in runs) and len(runs) <= PARTS_PER_THREAD * size
    assert all(sum(items[run]) <= share + 1 + max(items) for run in runs) or size == 1


# --- plans -----------------------------------------------------------------------------------------------------------


def arrays(thing: Any) -> Iterator[np.ndarray[Any, Any]]:
    """All arrays in a plan, in order."""
    if isinstance(thing, np.ndarray):
        yield thing
    elif is_dataclass(thing):
        for item in fields(thing):
            yield from arrays(getattr(thing, item.name))


def run(threads: int, policy: type[Policy], depth: int, device: str) -> tuple[list[Any], dict[str, Any]]:
    tier = TierConfig(device_rows="70%", device=device, plan_threads=threads, poison=True)
    embeddings = TieredEmbeddingBag(TABLES, tier, policy=policy, skip=SKIP)
    plans = []
    for planned in embeddings.look_ahead(BATCHES, depth=depth):
        plans += [array.copy() for work in planned.works for array in arrays(work.plan)]
        sum_of(embeddings(planned)).backward()
        embeddings.step()
    return plans, dict(embeddings.state_arrays())


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    threads=st.integers(2, 9),
    policy=st.sampled_from([Scattered, ScatteredOnHost, LFUOnHost, Skips]),
    depth=st.integers(0, 2),
    device=st.sampled_from(["cpu", "cpu-torch"]),
)
def test_plans_are_equal_for_any_number_of_threads(threads: int, policy: type[Policy], depth: int, device: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew_module, "LEAST_ITEMS", 1)
        one, many = run(1, policy, depth, device), run(threads, policy, depth, device)
    assert len(one[0]) == len(many[0]) > 0
    assert all(map(np.array_equal, one[0], many[0]))
    assert one[1].keys() == many[1].keys()
    for name, array in one[1].items():
        np.testing.assert_array_equal(many[1][name], array, err_msg=name)


def test_loops_are_shared_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In finding rows, putting them together, locating, gathering, counting, bags and updates; not in reading."""
    shared: list[int] = []
    share = Crew.share
    monkeypatch.setattr(Crew, "share", lambda self, parts, work: (shared.append(parts), share(self, parts, work))[1])
    embeddings = one_table(1000, "300", plan_threads=4)
    batches = [bags(list(range(start, start + 150))) for start in range(0, 900, 150)]
    step_all(embeddings, batches[:3], depth=0)
    shared.clear()
    step_all(embeddings, batches[3:4], depth=0)
    assert shared.count(8) >= 3  # stretches of rows; there is one table
    with embeddings:
        shared.clear()
        embeddings(embeddings.read(batches[0]))
        assert set(shared) <= {1}


@pytest.mark.parametrize("table", ["a", "c", "e"])
def test_a_bad_id_is_named_as_by_one_thread(table: str) -> None:
    spoilt = random_batches(TABLES, 1, seed=9, samples=6)[0]
    feature = ["x", "y", "b", "c", "d", "e"].index({"a": "y"}.get(table, table))
    ids = spoilt.ids.copy()
    own = spoilt.feature_span(feature)
    ids[own.stop - 1] = 10**6
    ids[spoilt.feature_span(5).start] = -1  # of a later table, which another thread may find first
    messages = set()
    for threads in (1, 2, 8):
        tier = TierConfig(device_rows="100%", plan_threads=threads)
        embeddings = TieredEmbeddingBag(TABLES, tier)
        with pytest.raises(InputError) as caught:
            list(embeddings.look_ahead([type(spoilt)(spoilt.dense, ids, spoilt.offsets, spoilt.labels)], depth=1))
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_threads_end_with_the_look_ahead_however_it_ends() -> None:
    before = set(threading.enumerate())
    for depth in (0, 2):
        embeddings = one_table(100, "60", plan_threads=4)
        coming = embeddings.look_ahead([bags([row]) for row in range(20)], depth=depth)
        next(coming)
        assert helpers() == 3
        coming.close()
        assert set(threading.enumerate()) == before
        with pytest.raises(InputError):
            step_all(embeddings, [bags([1]), bags([100])], depth=depth)
        assert set(threading.enumerate()) == before
