"""The rule of `random_drop`, a control: it leaves out exactly as many inputs as the run that it stands beside."""

from collections.abc import Iterator

import numpy as np
import pytest
from builders import View, batch_of
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.batch import Batch
from adaptive.policies.rules.drop import Drop


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


def test_every_input_has_the_same_chance() -> None:
    counts = np.zeros(40)
    for seed in range(400):
        counts[np.concatenate(kept(Drop(share=0.25, seed=seed), 4, 10))] += 1
    assert counts.sum() == 400 * 30
    assert counts.min() > 260 and counts.max() < 340  # 300 +- 8.7


@pytest.mark.parametrize("allowance", [0.0, 0.5, 1.0])
def test_a_guard_may_allow_less(allowance: float) -> None:
    rule = Drop(share=0.5)
    rule.allowance = allowance
    kept(rule, 8, 8)
    assert rule.dropped_inputs == 32 * allowance
