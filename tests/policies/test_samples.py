"""Counts of samples' lookups, refilled batches and values by row."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptive.batch import Batch, Origin
from adaptive.batch.batch import Refill
from adaptive.policies.samples import PeekableBatches, Spool, count_lookups
from adaptive.policy import ByRow


def numbered(first: int, num_samples: int, num_features: int = 2, seed: int = 0) -> Batch:
    """Bags of 0 to 2 lookups; the label is the sample's number."""
    random = np.random.default_rng([seed, first])
    sizes = random.integers(0, 3, num_features * num_samples)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Batch(
        dense=np.zeros((num_samples, 0), np.float32),
        ids=random.integers(0, 9, offsets[-1]),
        offsets=offsets,
        labels=np.arange(first, first + num_samples, dtype=np.float32),
    )


def labels(batches: Sequence[Batch]) -> list[list[int]]:
    return [batch.labels.astype(int).tolist() for batch in batches]


@given(st.integers(0, 20), st.integers(1, 4), st.booleans(), st.integers(0, 1000))
def test_counting_agrees_with_a_loop(num_samples: int, num_features: int, one_id: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = np.full(num_features * num_samples, 1) if one_id else random.integers(0, 3, num_features * num_samples)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    ids = np.arange(offsets[-1])
    dense, zeros = np.zeros((num_samples, 0), np.float32), np.zeros(num_samples, np.float32)
    batch = Batch(dense, ids, offsets, zeros)
    chosen = random.random(len(ids)) < 0.5
    expected = [0] * num_samples
    for bag in range(len(sizes)):
        expected[bag % num_samples] += int(chosen[offsets[bag] : offsets[bag + 1]].sum())
    assert count_lookups(batch, chosen).tolist() == expected


@given(st.lists(st.integers(1, 9), max_size=8), st.integers(0, 1000))
def test_nothing_is_lost_or_repeated(sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    refill = Refill()
    found: list[Batch] = []
    expected: list[int] = []
    first = 0
    for size in sizes:
        chosen = random.random(size) < 0.6
        found += refill.add(numbered(first, size), chosen)
        expected += (first + np.flatnonzero(chosen)).tolist()
        first += size
    assert all(batch.num_samples == sizes[0] for batch in found)
    found += refill.rest()
    assert [label for part in labels(found) for label in part] == expected


def test_values_by_row() -> None:
    values = ByRow(np.int64)
    assert values[np.array([3, 0])].tolist() == [0, 0]
    values[np.array([5, 2])] = np.array([7, 8])
    assert values[np.array([2, 5, 4, 1000])].tolist() == [8, 7, 0, 0]
    assert values.rows().tolist() == [2, 5]
    values[np.zeros(0, np.int64)] = 1
    values.reserve(100)
    assert values.rows().tolist() == [2, 5]


@given(st.lists(st.integers(1, 9), max_size=6), st.booleans(), st.booleans(), st.sampled_from([1, 1000, 1 << 20]))
def test_batches_come_back_from_where_they_waited(
    sizes: list[int], weighted: bool, with_origin: bool, memory: int
) -> None:
    given_batches = []
    for number, size in enumerate(sizes):
        batch = numbered(10 * number, size)
        if weighted:
            batch = replace(batch, weights=np.linspace(0, 1, len(batch.ids), dtype=np.float32))
        if with_origin:
            lines = np.arange(size)
            batch = replace(batch, origin=Origin(("a", "b"), (lines % 2).astype(np.int32), lines + number))
        given_batches.append(batch)
    with Spool(memory) as spool:
        for _ in range(2):
            assert list(spool.drain()) == []
            for batch in given_batches:
                spool.add(batch)
            for found, batch in zip(spool.drain(), given_batches, strict=True):
                for name in ("dense", "ids", "offsets", "labels", "weights"):
                    np.testing.assert_array_equal(
                        getattr(found, name), getattr(batch, name), strict=weighted, err_msg=name
                    )
                places = [found.origin and found.origin.where(s) for s in range(batch.num_samples)]
                assert places == [batch.origin and batch.origin.where(s) for s in range(batch.num_samples)]


def test_what_comes_is_read_one_ahead() -> None:
    source = iter([numbered(0, 1), numbered(1, 1), numbered(2, 1)])
    coming = PeekableBatches(source)
    assert coming.more and labels(list(coming.take(2))) == [[0], [1]]
    assert coming.more and next(source, None) is None
    assert labels(list(coming.take(5))) == [[2]] and not coming.more
    assert not PeekableBatches(iter(())).more
