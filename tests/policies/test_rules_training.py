"""Inputs that are dropped at random."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import batch_of, kept_batches

from adaptive import Batch
from adaptive.policies.random_drop import Drop

# --- `drop`: exactly as many inputs as the run that it stands beside -------------------------------------------------


def stream(num_batches: int, size: int) -> Iterator[Batch]:
    for first in range(0, num_batches * size, size):
        numbers = np.arange(first, first + size)
        yield batch_of(numbers)


def kept(rule: Drop, num_batches: int, size: int) -> list[list[int]]:
    return [batch.ids.tolist() for batch in kept_batches(rule, stream(num_batches, size))]


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
    out = kept_batches(rule, iter(labeled([[1, 0, 1, 1, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0, 0, 1]])))
    assert [batch.num_samples for batch in out] == [6, 6] and (rule.seen_inputs, rule.dropped_inputs) == (16, 4)
    labels, weights = (np.concatenate(c) for c in zip(*((b.labels, b.extras["weight"]) for b in out), strict=True))
    assert labels[:7].tolist().count(1) == 6 and labels[7:].tolist().count(1) == 2
    assert weights[labels == 1].tolist() == 8 * [0.75] and weights[labels == 0].tolist() == 4 * [1.5]
    assert weights.sum() == 0.75 * 16 and rule.effective_share == 12**2 / (12 * (8 * 0.75**2 + 4 * 1.5**2))


@pytest.mark.parametrize("by", ["chance", "label"])
@pytest.mark.parametrize(("keep_steps", "sizes"), [(True, [6] * 8), (False, [10, 10, 10, 10, 8])])
def test_as_many_steps_if_wanted(by: Literal["chance", "label"], keep_steps: bool, sizes: list[int]) -> None:
    rule = Drop(share=0.4, by=by, keep_steps=keep_steps)
    source = labeled([[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]] * 8)
    assert [batch.num_samples for batch in kept_batches(rule, iter(source))] == sizes
    assert (rule.effective_share < 1) == (by == "label")
