"""The first promise: where rows lie never changes the numbers.

Every drawn training runs three times: by the slow twin that knows no tiers, on a single tier, and in tiers under
some policy, size and look-ahead. Tables, optimizer state, dense weights and losses agree bit for bit. The copy of
each row that is not valid is filled with NaN, so a look-up in the wrong place shows.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from contract import Infinite, LRUOnHost, MostRecentOut, RandomOnHost, RandomScores
from helpers import (
    LFU,
    Fixed,
    LFUOnHost,
    Scattered,
    ScatteredOnHost,
    Trained,
    Trainee,
    Windowed,
    WindowedOnHost,
    random_batches,
    rows_held,
    snapshot,
    train,
    train_more,
    train_slowly,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embedding import TieredEmbeddingBag
from adaptive.errors import DeviceMemoryError, PolicyError
from adaptive.policy import Policy, RowStats
from adaptive.rows.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from policies.device import Device
from policies.hybrid import Hybrid
from policies.lru import LRU

OPTIMIZERS = [SGD(lr=0.5), Adagrad(lr=0.1, initial_accumulator=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01)]
STAGED: list[type[Policy]] = [LRU, LFU, Fixed, Scattered, RandomScores, Windowed, MostRecentOut, Infinite]
ON_HOST: list[type[Policy]] = [LFUOnHost, LRUOnHost, ScatteredOnHost, RandomOnHost, WindowedOnHost]


@dataclass(frozen=True)
class Case:
    """One drawn training."""

    tables: tuple[TableConfig, ...]
    batches: tuple[Batch, ...]
    optimizer: RowOptimizer
    policy: type[Policy]
    depth: int
    tier: TierConfig

    def run(self, policy: type[Policy], tier: TierConfig, depth: int) -> Trained:
        embeddings = TieredEmbeddingBag(self.tables, tier, policy=policy, optimizer=self.optimizer)
        return train(embeddings, self.tables, self.batches, depth)


def table(number: int, rows: int, width: int, pooling: str, num_features: int) -> TableConfig:
    names = tuple(f"t{number}f{feature}" for feature in range(num_features))
    return TableConfig(name=f"t{number}", num_embeddings=rows, embedding_dim=width, pooling=pooling, features=names)


@st.composite
def cases(draw: st.DrawFn, num_batches: int = 8) -> Case:
    weighted = draw(st.booleans())
    poolings = st.sampled_from(["sum", "none"] if weighted else ["sum", "mean", "none"])
    shapes = draw(
        st.lists(
            st.tuples(st.integers(3, 60), st.sampled_from([4, 16]), poolings, st.integers(1, 2)),
            min_size=1,
            max_size=3,
        )
    )
    tables = tuple(table(number, *shape) for number, shape in enumerate(shapes))
    samples, max_bag, seed = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(0, 1000))
    batches = random_batches(tables, num_batches, seed=seed, samples=samples, max_bag=max_bag, weighted=weighted)
    policy = draw(st.sampled_from([*STAGED, *ON_HOST, Hybrid, Device]))
    depth = draw(st.integers(0, 5))
    when_full = draw(st.sampled_from(["error", "shallower"]))
    least = 0.0 if policy.misses == "host" else least_share(tables, batches, 0 if when_full == "shallower" else depth)
    share = least + (100 - least) * draw(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]))
    tier = TierConfig(
        device_rows=policy.device_rows or f"{min(share, 100):.6f}%",
        when_full=when_full,
        release_share=draw(st.sampled_from([0.0, 0.02, 0.5])),
        max_candidates=draw(st.sampled_from([1, 3, 1 << 18])),
        poison=True,
    )
    return Case(tables, tuple(batches), draw(st.sampled_from(OPTIMIZERS)), policy, depth, tier)


def least_share(tables: tuple[TableConfig, ...], batches: list[Batch], depth: int) -> float:
    """Per cent of each width's rows with which a staged look-ahead of `depth` just works."""
    rows: dict[int, int] = {}
    for one in tables:
        rows[one.embedding_dim] = rows.get(one.embedding_dim, 0) + one.num_embeddings
    held = rows_held(tables, batches, depth)
    # A little less than the share, so that rounding up to whole rows ends at the number needed.
    return max((100 * (held[width] - 0.5) / rows[width] for width in rows), default=0.0) if any(held.values()) else 0.0


def check(case: Case) -> None:
    single = case.run(LRU, TierConfig(device_rows="100%", poison=True), 0)
    single.assert_equals(train_slowly(case.tables, case.batches, case.optimizer))
    case.run(case.policy, case.tier, case.depth).assert_equals(single)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_placement_never_changes_the_numbers(case: Case) -> None:
    check(case)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(num_batches=20))
def test_placement_never_changes_the_numbers_in_many_more_cases(case: Case) -> None:
    check(case)
