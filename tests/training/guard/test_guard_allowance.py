"""The allowance: only that share of a policy's skipping happens, from the next batch on."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import View, batch_of
from support.guarded_policies import Freeze
from support.helpers import planner_of
from support.skip_rules import LeaveOut, everything, waits

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.planning.hot_set import WatchedRows
from adaptive.embeddings.planning.lookups import Distinct
from adaptive.embeddings.planning.skipping import DeferralBook
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.kernels.planning.books import WAITS
from adaptive.policies.random_drop import Drop
from adaptive.policies.rules.inputs import Inputs
from adaptive.policy import SkipRule

NUM_ROWS = 400
SKIP = SkipConfig(interval=16, min_visits=1, hot_rows="100%", min_accesses=1, feedback_delay=2)
TABLES = [
    TableConfig(name="a", num_embeddings=NUM_ROWS, embedding_dim=4),
    TableConfig(name="b", num_embeddings=NUM_ROWS, embedding_dim=2),  # a separate group, rows from 400 on
]


def allowing(allowance: float) -> SkipRule:
    rule = LeaveOut(everything)
    rule.allowance = allowance
    return rule


numbers = np.concatenate([np.arange(5000), 2**40 + 7 * np.arange(5000)])


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_lower_allowance_allows_a_subset(one: float, other: float) -> None:
    low, high = (allowing(allowance).allows(numbers) for allowance in sorted((one, other)))
    assert not (low & ~high).any()
    assert abs(high.mean() - max(one, other)) < 0.03
    assert np.array_equal(high[::-1], allowing(max(one, other)).allows(numbers[::-1]))


def test_all_or_nothing() -> None:
    assert allowing(1.0).allows(numbers).all() and not allowing(0.0).allows(numbers).any()
    assert LeaveOut(everything).allowance == 1


def all_rows(num: int) -> list[Batch]:
    ids = np.stack([np.arange(NUM_ROWS)] * 2, axis=1)
    return [batch_of(ids)] * num


@pytest.mark.parametrize(("depth", "threads"), [(0, 1), (2, 1), (2, 0)])
def test_saturated_rows_are_cut_when_the_allowance_changes(depth: int, threads: int) -> None:
    """Batches 16 to 63 are planned under the verdicts of batches 16, 32 and 48; no question comes at 24 and 40.

    In turn (0 threads), the thread that reads has changed the allowance before earlier batches are planned.
    """
    policy = Freeze()

    read = 0

    def batches() -> Any:
        nonlocal read
        for number, batch in enumerate(all_rows(64)):
            policy.rule.allowance = 1.0 if number < 24 else 0.25 if number < 40 else 0.0
            read = number + 1
            yield batch

    def wait_until_read(number: int) -> None:
        deadline = time.monotonic() + 600  # only a hang comes to it
        while read < number:
            assert time.monotonic() < deadline
            time.sleep(0.0005)

    shares: list[list[float]] = []
    tier = TierConfig(device_rows="100%", plan_threads=threads)
    with TieredEmbeddingBag(TABLES, tier, policy=policy, skip=SKIP) as embeddings:
        for planned in embeddings.look_ahead(batches(), depth=depth):
            if not threads:
                wait_until_read(min(planned.number + depth + 2, 64))
            vectors = embeddings(planned)
            (vectors["a"].sum() + vectors["b"].sum()).backward()
            embeddings.step()
            if planned.number:
                counts = embeddings.statistics.take().counts  # of the batch before
                shares.append((counts[:, Counter.SKIPPED_UPDATES] / NUM_ROWS).tolist())
        saturated = embeddings.statistics.take().saturated_rows
    assert all(share == [0, 0] for share in shares[:16] + shares[40:])
    assert all(share == [1, 1] for share in shares[16:24])
    allowed = [allowing(0.25).allows(np.arange(first, first + NUM_ROWS)).mean() for first in (0, NUM_ROWS)]
    assert all(share == allowed for share in shares[24:40]) and 0.15 < allowed[0] != allowed[1] < 0.35
    assert saturated.tolist() == [0, 0]


def test_verdicts_that_are_cut_are_counted() -> None:
    policy = Freeze()
    with TieredEmbeddingBag(TABLES, TierConfig(device_rows="100%"), policy=policy, skip=SKIP) as embeddings:
        list(embeddings.look_ahead(all_rows(20), depth=0))
        assert planner_of(embeddings).watched_counts().saturated.tolist() == [NUM_ROWS]
        policy.rule.allowance = 0.5
        list(embeddings.look_ahead(all_rows(1), depth=0))
        found = [int(planner_of(embeddings, group).watched_counts().saturated[0]) for group in (0, 1)]
        assert found == [allowing(0.5).allows(np.arange(first, first + NUM_ROWS)).sum() for first in (0, NUM_ROWS)]


@pytest.mark.parametrize(("allowance", "longest"), [(1.0, 8), (0.99, 7), (0.5, 4), (0.2, 2), (0.1, 1), (0.0, 1)])
def test_deferral_waits_for_fewer_visits(allowance: float, longest: int) -> None:
    rule = waits(every=1, at_most=8)
    rule.allowance = allowance
    book = DeferralBook(1, rule)
    one = Distinct(np.zeros(1, np.int64), np.ones(1, np.int32), np.zeros(1, np.int32), np.ones(1, np.int64))
    watched, due = WatchedRows(np.zeros(1, np.int32), np.zeros(1, np.int32)), []
    for number in range(40):
        fates = np.zeros(1, np.uint8)
        outputs = fates, *np.zeros((3, 1), np.int32)
        book.decide(number, watched, one, np.full(1, 1000, np.uint32), outputs, np.zeros(1, np.uint8))
        due.append(fates[0] != WAITS)
    assert np.diff(np.flatnonzero(due[20:])).max() == longest


def samples(num: int) -> list[Batch]:
    ids = np.arange(num * 50).reshape(num, 50, 1) % 20
    return [batch_of(one) for one in ids]


class AllAtRest(Inputs):
    """Every row is watched and known to stand still."""

    def __init__(self) -> None:
        super().__init__(threshold=0.1, warmup=0, probe_every=0)
        self._moved[np.arange(20)] = 1.0


@pytest.mark.parametrize(
    ("make", "share"), [(lambda: Drop(share=0.6), 0.6), (AllAtRest, 0.9)], ids=["random", "inputs"]
)
def test_rules_that_drop_inputs_drop_the_allowed_share(make: Any, share: float) -> None:
    dropped = {}
    for allowance in (1.0, 0.5, 0.1, 0.0):
        rule = make()
        rule.allowance = allowance
        arranged = list(rule.arrange(iter(samples(100)), View(sizes=(20,))))
        dropped[allowance] = rule.dropped_inputs / rule.seen_inputs
        if not allowance:  # not even regrouped
            assert [batch.ids.tolist() for batch in arranged] == [batch.ids.tolist() for batch in samples(100)]
    assert dropped[0.0] == 0
    assert dropped[1.0] == pytest.approx(share, abs=0.03)
    assert dropped[0.5] == pytest.approx(0.5 if share == 0.9 else 0.3, abs=0.03)
    assert dropped[0.1] == pytest.approx(0.1 if share == 0.9 else 0.06, abs=0.02)
