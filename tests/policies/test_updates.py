"""The skip rule `updates` in training: three tables of rows that move as the test says.

Rows of `mover` move by 0.4 % of a unit per batch, being 0.5 to 5 units long; those of `sleeper` hardly move; those of
`waker` sleep until half-time and move from then on. The threshold lies between the movement of one batch and that
of an interval, per visit of a random walk that covered it.
"""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adaptive import SGD, Batch, SkipConfig, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.counters import Counter
from adaptive.policies.lfu import LFU
from adaptive.policies.rules.updates import Updates

INTERVAL, NUM_INTERVALS, BATCH_SIZE, NUM_ROWS = 16, 48, 8, 20
MOVER, SLEEPER, WAKER = range(3)
STEPS = {MOVER: (0.004, 0.004), SLEEPER: (1e-5, 1e-5), WAKER: (1e-5, 0.004)}  # before and after half-time


def skipped(rule: Updates, depth: int = 2) -> NDArray[np.float64]:
    """(NUM_INTERVALS, tables) share of the updates that was skipped in each interval."""
    tables = [TableConfig(name=name, num_embeddings=NUM_ROWS, embedding_dim=4, init_bound=1.0) for name in "msw"]
    batch = Batch(
        dense=np.zeros((BATCH_SIZE, 0), np.float32),
        ids=np.tile(np.arange(NUM_ROWS), 3 * BATCH_SIZE),
        offsets=np.arange(3 * BATCH_SIZE + 1) * NUM_ROWS,
        labels=np.zeros(BATCH_SIZE, np.float32),
    )
    skip = SkipConfig(interval=INTERVAL, min_visits=INTERVAL, hot_rows="100%", min_accesses=1, feedback_delay=4)
    found, policy = [], LFU()
    policy.rule = rule
    with TieredEmbeddingBag(
        tables, TierConfig(device_rows="100%", device="cpu"), policy=policy, optimizer=SGD(lr=1.0), skip=skip
    ) as embeddings:
        for planned in embeddings.look_ahead([batch] * (INTERVAL * NUM_INTERVALS), depth=depth):
            late = planned.number >= INTERVAL * NUM_INTERVALS // 2
            steps = torch.tensor([STEPS[table][late] for table in range(3)])
            vectors = embeddings.stack(planned)  # (B, 3, 4)
            (vectors.mean(0).sum(1) @ (steps / 2)).backward()  # type: ignore[no-untyped-call]
            embeddings.step()
            if planned.number % INTERVAL == INTERVAL - 1:
                found.append(embeddings.statistics.take().counts[:, Counter.SKIPPED_UPDATES])
    return np.array(found) / (INTERVAL * NUM_ROWS)


def updates(probe_every: int = 4) -> Updates:
    """The short intervals of new rows are over when the warm-up is."""
    return Updates(threshold=0.003, hysteresis=1.5, warmup=INTERVAL * 3, probe_every=probe_every)


def test_rows_that_stand_still_are_skipped_and_those_that_move_are_not() -> None:
    shares = skipped(updates())
    assert shares[:, MOVER].sum() == 0
    assert 0.5 < shares[5:, SLEEPER].mean() < 0.9


def test_rows_that_start_to_move_are_freed_by_a_probe_and_stay_free() -> None:
    """What a row moved while it was skipped says nothing, and must not saturate it again."""
    before, after = np.split(skipped(updates())[:, WAKER], 2)
    assert before[5:].mean() > 0.5
    assert after[-4:].sum() == 0
    assert (np.diff(after[1:]) <= 0).all()


def test_without_probing_saturated_rows_are_never_seen_to_move_again() -> None:
    assert (skipped(updates(probe_every=0))[5:, WAKER] == 1).all()


@pytest.mark.parametrize("depth", [0, 4])
def test_what_is_skipped_does_not_depend_on_the_look_ahead(depth: int) -> None:
    assert np.array_equal(skipped(updates(), depth), skipped(updates(), 2))


def test_nothing_is_skipped_before_the_warm_up_ends() -> None:
    warm = Updates(threshold=1.0, warmup=INTERVAL * 20, probe_every=0)
    shares = skipped(warm)
    assert shares[:20].sum() == 0
    assert shares[21:].min() == 1
