"""Skip rules in training: rows that move as the test says, and inputs that are dropped at random."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from contract import row_stats
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.builders import View, batch_of
from support.helpers import planner_of

from adaptive import SGD, Batch, RowwiseAdagrad, SkipConfig, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.counters import Counter
from adaptive.policies.lfu import LFU
from adaptive.policies.random_drop import Drop
from adaptive.policies.rules.defer import Defer
from adaptive.policies.rules.updates import Updates

# --- `updates`: three tables -----------------------------------------------------------------------------------------
#
# Rows of `mover` move by 0.4 % of a unit per batch, being 0.5 to 5 units long; those of `sleeper` hardly move; those of
# `waker` sleep until half-time and move from then on. The threshold lies between the movement of one batch and that of
# an interval, per visit of a random walk that covered it.


INTERVAL, NUM_INTERVALS, BATCH_SIZE, TABLE_ROWS = 16, 48, 8, 20
MOVER, SLEEPER, WAKER = range(3)
STEPS = {MOVER: (0.004, 0.004), SLEEPER: (1e-5, 1e-5), WAKER: (1e-5, 0.004)}  # before and after half-time


def skipped(rule: Updates, depth: int = 2) -> NDArray[np.float64]:
    """(NUM_INTERVALS, tables) share of the updates that was skipped in each interval."""
    tables = [TableConfig(name=name, num_embeddings=TABLE_ROWS, embedding_dim=4, init_bound=1.0) for name in "msw"]
    batch = Batch(
        dense=np.zeros((BATCH_SIZE, 0), np.float32),
        ids=np.tile(np.arange(TABLE_ROWS), 3 * BATCH_SIZE),
        offsets=np.arange(3 * BATCH_SIZE + 1) * TABLE_ROWS,
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
    return np.array(found) / (INTERVAL * TABLE_ROWS)


def updates(probe_every: int = 4) -> Updates:
    """The short intervals of new rows are over when the warm-up is."""
    return Updates(threshold=0.003, hysteresis=1.5, warmup=INTERVAL * 3, probe_every=probe_every)


def test_resting_rows_are_skipped_and_moving_rows_are_not() -> None:
    shares = skipped(updates())
    assert shares[:, MOVER].sum() == 0
    assert 0.5 < shares[5:, SLEEPER].mean() < 0.9


def test_rows_that_start_to_move_are_freed_by_a_probe() -> None:
    """What a row moved while it was skipped says nothing, and must not saturate it again."""
    before, after = np.split(skipped(updates())[:, WAKER], 2)
    assert before[5:].mean() > 0.5
    assert after[-4:].sum() == 0
    assert (np.diff(after[1:]) <= 0).all()


def test_without_probes_saturated_rows_stay_saturated() -> None:
    assert (skipped(updates(probe_every=0))[5:, WAKER] == 1).all()


# --- `defer` after a drift: rows that move again wait for nothing, within three of their own intervals ---------------


NUM_ROWS, LOOK_UPS = 20, 64  # lookups of a row between two snapshots, in as many batches


@pytest.mark.parametrize("by", ["least", "movement"])
@pytest.mark.parametrize("optimizer", [SGD(lr=1.0), RowwiseAdagrad(lr=0.05)], ids=["sgd", "rowwise_adagrad"])
def test_a_drift_frees_the_rows_that_it_touches_and_no_others(by: str, optimizer: SGD | RowwiseAdagrad) -> None:
    """Every row comes in every batch and walks to and fro; then every other row is drawn one way."""
    table = TableConfig(name="t", num_embeddings=NUM_ROWS, embedding_dim=4, init_bound=1.0)
    batch = batch_of([[row] for row in range(NUM_ROWS)])
    rule = f"defer+by={by}+warmup=0"
    skip = SkipConfig(rule=rule, interval=8, hot_rows="100%", min_accesses=LOOK_UPS, feedback_delay=4)
    tier, drift_at, random = TierConfig(device_rows="100%", device="cpu"), 16 * LOOK_UPS, np.random.default_rng(0)
    scale = 0.001 if isinstance(optimizer, SGD) else 1.0
    waits = []
    with TieredEmbeddingBag([table], tier, policy=LFU(), optimizer=optimizer, skip=skip) as embeddings:
        skipper = planner_of(embeddings).skipper
        assert skipper is not None
        for planned in embeddings.look_ahead([batch] * (drift_at + 3 * LOOK_UPS), depth=2):
            gradients = random.standard_normal((NUM_ROWS, 4)).astype(np.float32)
            if planned.number >= drift_at:
                gradients[::2] = 10
            (embeddings(planned)["t"] * torch.from_numpy(scale * gradients)).sum().backward()
            embeddings.step()
            hot = skipper.hot
            waits.append(hot.waits[np.argsort(hot.rows[: hot.num_entries])])
    before = np.array(waits[drift_at - 4 * LOOK_UPS : drift_at])
    assert (before > 0).mean() > 0.9
    after = np.array(waits[drift_at:])
    assert (after[:, ::2] == 0).any(axis=0).all(), "freed within three intervals"
    assert (after[:, 1::2] > 0).mean() > 0.9


def test_a_row_moves_again_at_three_times_its_usual_movement() -> None:
    """Over 16 visits: 0.4 usually, so 0.1 a visit. An old measurement says what it said when it was new."""
    rule = Defer(by="movement", bound=1.0, at_most=8)
    found = []
    for drift in (0.4, 0.4, 0.8, 1.5, 1.5, 2.0, 2.0, 3.0, 0.4):
        found.append(int(rule.visits(row_stats(1, drift=[drift], drift_visits=[16]))[0]))
    # usual 0.1, -, 0.125; 0.375 is not more than three times that; 0.188; -; 0.266; -; 0.387; falls
    assert found == [8, 8, 8, 7, 7, 4, 4, 1, 8]
    assert int(rule.visits(row_stats(1, drift=[6.0], drift_visits=[16]))[0]) == 1
    assert rule.state_dict()["moving"].tolist() == [True]
    assert int(rule.visits(row_stats(1, drift=[6.0], drift_visits=[16]))[0]) == 1, "nothing new"
    assert int(rule.visits(row_stats(1, drift=[0.5], drift_visits=[16]))[0]) == 8
    assert rule.state_dict()["moving"].tolist() == [False]


# --- `drop`: exactly as many inputs as the run that it stands beside -------------------------------------------------


def stream(num_batches: int, size: int) -> Iterator[Batch]:
    for first in range(0, num_batches * size, size):
        numbers = np.arange(first, first + size)
        yield batch_of(numbers)


def kept(rule: Drop, num_batches: int, size: int) -> list[list[int]]:
    return [batch.ids.tolist() for batch in rule.arrange(stream(num_batches, size), View())]


@settings(deadline=None)
@given(st.integers(2, 60), st.integers(1, 40), st.data(), st.integers(0, 9))
def test_the_share_of_another_run_is_repeated_to_the_input(
    num_batches: int, size: int, data: st.DataObject, seed: int
) -> None:
    trained = data.draw(st.integers(1, num_batches))
    dropped = (num_batches - trained) * size
    rule = Drop(share=dropped / (num_batches * size), seed=seed)
    found = kept(rule, num_batches, size)
    assert [len(batch) for batch in found] == trained * [size]
    assert (rule.dropped_inputs, rule.seen_inputs) == (dropped, num_batches * size)
    assert sorted({number for batch in found for number in batch}) == [number for batch in found for number in batch]


def test_rounding_costs_no_input() -> None:
    """31 / 55 * 55 is 30.999999999999996."""
    assert len(kept(Drop(share=31 / 55), 55, 1)) == 24


def test_every_input_has_the_same_chance() -> None:
    counts = np.zeros(40)
    for seed in range(400):
        counts[np.concatenate(kept(Drop(share=0.25, seed=seed), 4, 10))] += 1
    assert counts.sum() == 400 * 30
    assert counts.min() > 260 and counts.max() < 340  # 300 +- 8.7


def labeled(labels: Sequence[Sequence[float]]) -> list[Batch]:
    batches = [batch_of(np.arange(len(values))) for values in labels]
    return [replace(b, labels=np.array(v, np.float32)) for b, v in zip(batches, labels, strict=True)]


def test_negatives_are_dropped_by_label_and_weighted() -> None:
    """A quarter of 16 samples is dropped. The first batch owes two, but has two negatives and keeps one, so the second
    drops three of its six. A kept negative weighs as much as all of its batch over those kept, and every sample times
    the share that stays: the weights sum up to 0.75 of all samples."""
    rule = Drop(share=0.25, by="label", keep_steps=True, seed=3)
    out = list(rule.arrange(iter(labeled([[1, 0, 1, 1, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0, 0, 1]])), View()))
    assert [batch.num_samples for batch in out] == [6, 6] and (rule.seen_inputs, rule.dropped_inputs) == (16, 4)
    labels, weights = (np.concatenate(c) for c in zip(*((b.labels, b.extras["weight"]) for b in out), strict=True))
    assert labels[:7].tolist().count(1) == 6 and labels[7:].tolist().count(1) == 2
    assert weights[labels == 1].tolist() == 8 * [0.75] and weights[labels == 0].tolist() == 4 * [1.5]
    assert weights.sum() == 0.75 * 16 and rule.effective_share == 12**2 / (12 * (8 * 0.75**2 + 4 * 1.5**2))


@pytest.mark.parametrize("by", ["chance", "label"])
@pytest.mark.parametrize(("keep_steps", "sizes"), [(True, [6] * 8), (False, [10, 10, 10, 10, 8])])
def test_as_many_steps_if_wanted(by: Literal["chance", "label"], keep_steps: bool, sizes: list[int]) -> None:
    rule, again = (Drop(share=0.4, by=by, keep_steps=keep_steps) for _ in range(2))
    source = labeled([[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]] * 8)
    assert [batch.num_samples for batch in rule.arrange(iter(source), View())] == sizes
    again.load_state_dict(rule.state_dict())
    assert again.effective_share == rule.effective_share and (rule.effective_share < 1) == (by == "label")
    assert (again.seen_inputs, again.dropped_inputs) == (rule.seen_inputs, rule.dropped_inputs)
