"""The first promise: where rows lie never changes the numbers.

Every drawn training runs three times: by the slow twin that knows no tiers, on a single tier, and in tiers under
some policy, size and look-ahead. Tables, optimizer state, dense weights and losses agree bit for bit. The copy of
each row that is not valid is filled with NaN, so a lookup in the wrong place shows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import pytest
from contract import Infinite, LRUOnHost, MostRecentOut, RandomOnHost, RandomScores
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.helpers import (
    LFU,
    Fixed,
    LFUOnHost,
    Scattered,
    ScatteredOnHost,
    Trained,
    Trainee,
    Windowed,
    WindowedOnHost,
    bags,
    least_rows,
    one_table,
    random_batches,
    rows_held,
    snapshot,
    sum_of,
    table_states,
    train,
    train_more,
    train_slowly,
)

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.engine.pipeline import Pipeline, ReadyBatch
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import DeviceMemoryError, PolicyError
from adaptive.optim import FTRL, SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.device import Device
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lru import LRU
from adaptive.policy import Policy, RowStats

OPTIMIZERS = [SGD(lr=0.5), Adagrad(lr=0.1, initial_accumulator=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01),
              FTRL(lr=0.1, l1=0.01)]  # fmt: skip
STAGED: list[type[Policy]] = [LRU, LFU, Fixed, Scattered, RandomScores, Windowed, MostRecentOut, Infinite]
ON_HOST: list[type[Policy]] = [LFUOnHost, LRUOnHost, ScatteredOnHost, RandomOnHost, WindowedOnHost]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow on a busy machine; some cases ask for two."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(before)


@dataclass(frozen=True)
class Case:
    """One drawn training."""

    tables: tuple[TableConfig, ...]
    batches: tuple[Batch, ...]
    optimizer: RowOptimizer
    policy: type[Policy]
    depth: int
    tier: TierConfig
    threads: int

    def run(self, policy: type[Policy], tier: TierConfig, depth: int, threads: int = 1) -> Trained:
        numba.set_num_threads(threads)
        embeddings = TieredEmbeddingBag(self.tables, tier, policy=policy, optimizer=self.optimizer)
        return train(embeddings, self.tables, self.batches, depth)


def table(number: int, rows: int, width: int, pooling: str, num_features: int, **options: Any) -> TableConfig:
    names = tuple(f"t{number}f{feature}" for feature in range(num_features))
    shape = {"num_embeddings": rows, "embedding_dim": width, "pooling": pooling}
    return TableConfig(name=f"t{number}", features=names, **shape, **options)


@st.composite
def cases(
    draw: st.DrawFn,
    num_batches: int = 8,
    optimizers: Sequence[RowOptimizer] = OPTIMIZERS,
    plan_threads: Sequence[int] = (0, 1, 2),
) -> Case:
    weighted = draw(st.booleans())
    poolings = st.sampled_from(["sum", "none"] if weighted else ["sum", "mean", "none"])
    shapes = draw(
        st.lists(
            st.tuples(st.integers(3, 60), st.sampled_from([3, 4, 16, 17]), poolings, st.integers(1, 2)),
            min_size=1,
            max_size=3,
        )
    )
    dtype = draw(st.sampled_from(["float32", "bfloat16"]))
    tables = tuple(table(number, *shape, dtype=dtype) for number, shape in enumerate(shapes))
    samples, max_bag, seed = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(0, 1000))
    batches = random_batches(tables, num_batches, seed=seed, samples=samples, max_bag=max_bag, weighted=weighted)
    policy = draw(st.sampled_from([*STAGED, *ON_HOST, Hybrid, Device]))
    depth = draw(st.integers(0, 5))
    when_full = draw(st.sampled_from(["error", "reduce_lookahead"]))
    needed_depth = 0 if when_full == "reduce_lookahead" else depth
    least = 0 if policy.misses == "host" else least_rows(tables, batches, needed_depth)
    more = (sum(one.num_embeddings for one in tables) - least) * draw(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]))
    tier = TierConfig(
        device_rows=policy.device_rows or str(least + int(more)),
        when_full=when_full,
        eviction_share=draw(st.sampled_from([0.0, 0.02, 0.5])),
        max_candidates=draw(st.sampled_from([1, 3, 1 << 18])),
        plan_threads=draw(st.sampled_from(plan_threads)),
        poison=True,
    )
    threads = draw(st.sampled_from([1, 1, 1, min(2, numba.config.NUMBA_NUM_THREADS)]))
    return Case(tables, tuple(batches), draw(st.sampled_from(optimizers)), policy, depth, tier, threads)


def check(case: Case) -> None:
    single = case.run(LRU, TierConfig(device_rows="100%", poison=True), 0)
    single.assert_equals(train_slowly(case.tables, case.batches, case.optimizer))
    case.run(case.policy, case.tier, case.depth, case.threads).assert_equals(single)


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_placement_never_changes_the_numbers(case: Case) -> None:
    check(case)


@pytest.mark.nightly
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(num_batches=20))
def test_placement_never_changes_the_numbers_in_many_more_cases(case: Case) -> None:
    check(case)


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1000), st.integers(0, 4))
def test_one_slot_too_few_is_an_error_and_loses_nothing(seed: int, depth: int) -> None:
    tables = (table(0, 40, 4, "sum", 2),)
    batches = random_batches(tables, 8, seed=seed, samples=4)
    needed = rows_held(tables, batches, depth)[4]
    enough = TieredEmbeddingBag(
        tables, TierConfig(device_rows=str(needed), poison=True), policy=Scattered, optimizer=SGD()
    )
    train(enough, tables, batches, depth).assert_equals(train_slowly(tables, batches, SGD()))

    short = TieredEmbeddingBag(
        tables, TierConfig(device_rows=str(needed - 1), poison=True), policy=Scattered, optimizer=SGD()
    )
    trainee = Trainee(tables)
    with pytest.raises(DeviceMemoryError, match=f"expected at least {needed} device rows of width 4"):
        train_more(short, trainee, batches, depth)
    stepped = len(trainee.losses)
    snapshot(short, trainee).assert_equals(train_slowly(tables, batches[:stepped], SGD()))


def test_a_gradient_of_zero_is_an_update() -> None:
    """Rows with a zero gradient are not rows that nobody touched: Adam's moments decay, and it counts a step."""
    embeddings = one_table(optimizer=Adam(lr=0.1))
    for planned in embeddings.look_ahead([bags([1, 2])] * 2):
        (sum_of(embeddings(planned)) * (0.0 if planned.number else 1.0)).backward()
        embeddings.step()
    state = table_states(embeddings)["t"]
    assert state[1, 8] == 2  # updates of the row, the first with a gradient of 1
    assert state[1, 0] == np.float32(0.9) * ((np.float32(1) - np.float32(0.9)) * np.float32(1))


# --- policies that return nonsense --------------------------------------------------------------------------------


def write_into(rows: RowStats) -> object:
    rows.rows[:] = 0
    return rows.last_access


def fail(rows: RowStats) -> object:
    raise KeyError("my own mistake")


NONSENSE: dict[str, Callable[[RowStats], object]] = {
    "too short": lambda rows: rows.last_access[:-1],
    "too many dimensions": lambda rows: rows.last_access[:, None],
    "not a number": lambda rows: np.where(rows.rows == rows.rows[-1], np.nan, 1.0),
    "complex numbers": lambda rows: rows.last_access + 1j,
    "words": lambda rows: np.full(len(rows), "high"),
    "objects": lambda rows: np.array([None] * len(rows)),
    "nothing": lambda rows: None,
    "a list": lambda rows: rows.last_access.tolist(),
    "an error": fail,
    "changed arguments": write_into,
}


class Nonsense(LRU):
    """Well-behaved until batch 4; then, once, this answer."""

    def __init__(self, answer: Callable[[RowStats], object]) -> None:
        self.answer, self.bad = answer, True

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        if rows.step < 4 or not self.bad:
            return rows.last_access
        self.bad = False
        answer: NDArray[np.int64] = self.answer(rows)  # type: ignore[assignment]
        return answer


def books(embeddings: TieredEmbeddingBag) -> list[NDArray[np.int64]]:
    """Copies of all that says where rows lie."""
    planners = [tiered.planner for tiered in embeddings.runtime.pipeline.tiered_groups]
    return [
        array.copy()
        for planner in planners
        for array in (
            planner.slots.rows,
            planner.slots.flags,
            planner.slots.used,
            planner.slots.free[: planner.slots.num_free],
            planner.tracker.codes,
            planner.tracker.accesses,
        )
    ]


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("answer", NONSENSE)
def test_nonsense_is_a_policy_error_and_nothing_has_moved(
    answer: str, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = (table(0, 60, 4, "sum", 1), table(1, 60, 16, "sum", 1))
    batches = random_batches(tables, 8, seed=5)
    policy = Nonsense(NONSENSE[answer])
    tier = TierConfig(device_rows=str(least_rows(tables, batches, depth)), poison=True)
    embeddings = TieredEmbeddingBag(tables, tier, policy=policy, optimizer=SGD())
    trainee, before, plan = Trainee(tables), [books(embeddings)], Pipeline.plan_and_move

    def recorded(pipeline: Pipeline, *coming: Any) -> tuple[ReadyBatch, bool]:
        before[0] = books(embeddings)  # a batch that fails is the last
        return plan(pipeline, *coming)

    monkeypatch.setattr(Pipeline, "plan_and_move", recorded)
    with pytest.raises(PolicyError, match=r"policy Nonsense\.score at batch [4-7]\b.*Nothing was moved"):
        train_more(embeddings, trainee, batches, depth)
    assert all(map(np.array_equal, books(embeddings), before[0]))
    stepped = len(trainee.losses)
    snapshot(embeddings, trainee).assert_equals(train_slowly(tables, batches[:stepped], SGD()))
    # The policy has come to its senses: training goes on as if nothing had been.
    train_more(embeddings, trainee, batches[stepped:], depth).assert_equals(train_slowly(tables, batches, SGD()))
