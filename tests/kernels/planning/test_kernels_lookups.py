"""What is computed about a batch's lookups alone: answers written out, then against the slow twins."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.variants import both

from adaptive.kernels.planning import lookups

Choose = Callable[[Any], Callable[..., Any]]


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


# --- distinct rows -------------------------------------------------------------------------------------------------


def left_over(size: int) -> NDArray[np.int32]:
    """A hash table as earlier batches leave it: numbers below those in use."""
    return np.arange(size, dtype=np.int32) % 100


def find_distinct(choose: Choose, ids: Any, spans: Any, span_tables: Any, sizes: Any) -> tuple[int, reference.Distinct]:
    """What the kernel returned, and its outputs."""
    ids, spans, sizes = (
        np.asarray(ids, np.int64),
        np.asarray(spans, np.int64).reshape(-1, 2),
        np.asarray(sizes, np.int64),
    )
    num_lookups = int((spans[:, 1] - spans[:, 0]).sum())
    scratch = 16
    while scratch < 2 * num_lookups:
        scratch *= 2
    rows, counts, inverse = (
        np.empty(num_lookups, np.int64),
        np.full(num_lookups, 77, np.int32),  # memory is lent: it holds what was there before
        np.empty(num_lookups, np.int32),
    )
    ends = np.empty(len(sizes), np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    features, hash_table = (ids, spans, np.asarray(span_tables, np.int32)), (left_over(scratch), np.array([100]))
    tables, distinct = (sizes, starts), (rows, counts, inverse, ends)
    found = choose(lookups.distinct_rows)(0, features, tables, hash_table, distinct)
    outputs = reference.Distinct(rows[:found].tolist(), counts[:found].tolist(), inverse.tolist(), ends.tolist())
    return int(found), outputs


@both
@pytest.mark.parametrize("bad", [-1, 4, 2**31, 2**32, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("size", [4, 2**20])
def test_distinct_rows_tells_the_position_of_a_bad_id(choose: Choose, bad: int, position: int, size: int) -> None:
    ids = [3, 3, 3]
    ids[position] = bad if bad != 4 else size
    if 0 <= bad < size and bad != 4:
        pytest.skip("not bad for this table")
    assert find_distinct(choose, ids, [[0, 3]], [0], (size,))[0] == -(position + 1)


@both
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 7, 40, 2**33]), min_size=1, max_size=3),
    features=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=5),
    seed=st.integers(0, 2**32 - 1),
    spread=st.integers(1, 2**34),
)
def test_distinct_rows_equal_the_twin(
    choose: Choose, sizes: list[int], features: list[tuple[int, int]], seed: int, spread: int
) -> None:
    """Features lie in the batch in any order; `features`: (table, lookups) of each."""
    rng = np.random.default_rng(seed)
    tables = [min(table, len(sizes) - 1) for table, _ in features]
    parts = [rng.integers(0, min(sizes[t], spread), num) for t, (_, num) in zip(tables, features, strict=True)]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    spans = np.stack([ends - [len(part) for part in parts], ends], axis=1)
    order = np.argsort(tables, kind="stable")
    by_table = [
        [int(i) for part, t in zip(parts, tables, strict=True) if t == table for i in part]
        for table in range(len(sizes))
    ]
    ids = np.concatenate([*parts, np.zeros(0, np.int64)])
    found, distinct = find_distinct(choose, ids, spans[order], np.array(tables)[order], sizes)
    expected = reference.distinct_rows(by_table, [0, *np.cumsum(sizes).tolist()])
    assert found == len(expected.rows)
    assert distinct == expected


@both
def test_a_hash_table_is_used_again_and_again(choose: Choose) -> None:
    """The same table for batches of many sizes; what one batch leaves in it means nothing to the next."""
    rng, places, used = np.random.default_rng(0), np.zeros(64, np.int32), np.ones(1, np.int64)
    for size in (20, 3, 32, 1, 0, 32):
        ids, rows, counts = (
            rng.integers(0, 10**6, size) // 10**5 * 7,
            np.empty(size, np.int64),
            np.empty(size, np.int32),
        )
        inverse, ends, before = np.empty(size, np.int32), np.empty(1, np.int64), int(used[0])
        features = ids, ints(0, size).reshape(1, 2), np.zeros(1, np.int32)
        tables, distinct = (ints(10**6), ints(0, 10**6)), (rows, counts, inverse, ends)
        found = choose(lookups.distinct_rows)(0, features, tables, (places, used), distinct)
        assert rows[:found].tolist() == list(dict.fromkeys(ids.tolist()))
        assert rows[inverse].tolist() == ids.tolist()
        assert used[0] == before + found


# --- bags ------------------------------------------------------------------------------------------------------------


# --- lookups by row -------------------------------------------------------------------------------------------------


def group_look_ups(choose: Choose, inverse: Any, bag_starts: Any, bag_vectors: Any, num_rows: int,
                   *, scaled: bool = True) -> tuple[Any, ...]:  # fmt: skip
    """(segments, vectors, origins)."""
    counts = np.bincount(np.array(inverse, np.int64), minlength=num_rows).astype(np.int32)
    segments = np.zeros(num_rows + 1, np.int64)
    vectors = np.full(len(inverse), -9, np.int32)
    origins = np.full(len(inverse) if scaled else 0, -9, np.int64)
    choose(lookups.fill_segments)(
        np.array(inverse, np.int32), counts, 0, ints(*bag_starts), np.array(bag_vectors, np.int32),
        segments[1:], vectors, origins,
    )  # fmt: skip
    return segments.tolist(), vectors.tolist(), origins.tolist()


@both
@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    sizes=st.one_of(st.lists(st.sampled_from([0, 1, 2, 30]), max_size=8), st.lists(st.just(1), max_size=40)),
)
def test_groups_equal_the_twin(choose: Choose, data: st.DataObject, sizes: list[int]) -> None:
    ids = data.draw(st.lists(st.integers(0, 5), min_size=sum(sizes), max_size=sum(sizes)))
    distinct = reference.distinct_rows([ids], [0])
    starts = [0, *np.cumsum(sizes).tolist()]
    scaled = data.draw(st.booleans())
    vectors_of = np.repeat(np.arange(len(sizes)), sizes)
    num_rows = len(distinct.rows)
    segments, vectors, origins = group_look_ups(
        choose, distinct.inverse, starts, range(len(sizes)), num_rows, scaled=scaled
    )
    groups = reference.group_by_row(distinct.inverse, num_rows)
    in_order = [p for group in groups for p in group]
    assert segments == [0, *itertools.accumulate(map(len, groups))]
    assert vectors == [int(vectors_of[p]) for p in in_order]
    assert origins == (in_order if scaled else [])


def take(choose: Choose, chosen: list[int], segments: list[int], *, scaled: bool) -> list[list[int]]:
    """The lookups of each chosen row; lookup p fills vector 10 * p, scaled by it."""
    vectors = np.arange(segments[-1], dtype=np.int32) * 10
    scales = vectors.astype(np.float32) if scaled else np.zeros(0, np.float32)
    taken, taken_vectors, taken_scales = np.full(len(chosen) + 1, -9), np.full_like(vectors, -9), scales - 9
    outputs = taken, taken_vectors, taken_scales
    choose(lookups.take_segments)(ints(*chosen), (ints(*segments), vectors, scales), outputs)
    if scaled:
        assert taken_scales[: taken[-1]].tolist() == taken_vectors[: taken[-1]].tolist()
    return [(taken_vectors[a:b] // 10).tolist() for a, b in itertools.pairwise(taken)]


@both
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12), scaled=st.booleans())
def test_look_ups_of_any_chosen_rows(choose: Choose, rows: list[tuple[int, bool]], scaled: bool) -> None:
    """rows: (lookups, True if chosen) of each."""
    segments = [0, *itertools.accumulate(size for size, _ in rows)]
    chosen = [u for u, (_, is_chosen) in enumerate(rows) if is_chosen]
    expected = [list(range(segments[u], segments[u + 1])) for u in chosen]
    assert take(choose, chosen, segments, scaled=scaled) == expected


@pytest.mark.parametrize(
    ("starts", "expected"), [([0], True), ([0, 1, 2], True), ([0, 2, 2], False), ([0, 0, 2], False)]
)
def test_bags_of_one_lookup(starts: list[int], expected: bool) -> None:
    assert lookups.one_each(np.array(starts), 0, starts[-1]) == expected
