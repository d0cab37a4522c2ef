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
@pytest.mark.parametrize("sizes", [(4, 6), (10**6, 10**6)], ids=["direct", "hashed"])
def test_distinct_rows_in_order_of_first_look_up(choose: Choose, sizes: tuple[int, int]) -> None:
    """Table 0 is looked up by features 0 and 2 (ids 3 1 3 and 1 0), table 1 by feature 1 (ids 5 5)."""
    found, distinct = find_distinct(choose, [3, 1, 3, 5, 5, 1, 0], [[0, 3], [5, 7], [3, 5]], [0, 0, 1], sizes)
    assert found == 4
    assert distinct.rows == [3, 1, 0, sizes[0] + 5]
    assert distinct.counts == [2, 2, 1, 2]
    assert distinct.inverse == [0, 1, 0, 1, 2, 3, 3]
    assert distinct.table_ends == [3, 4]


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


def lay_out(choose: Choose, offsets: Any, samples: int, features: Any, *, scaled: bool) -> tuple[Any, ...]:
    """(starts, vectors, tables, scales); features: (position, column, table, mean), 2 columns."""
    positions, columns, tables, means = zip(*features, strict=True)
    sizes = [offsets[(at + 1) * samples] - offsets[at * samples] for at in positions]
    num_bags = sum(samples if column >= 0 else size for column, size in zip(columns, sizes, strict=True))
    starts, vectors = np.full(num_bags + 1, -9), np.full(num_bags, -9, np.int32)
    bag_tables, scales = np.full(num_bags, -9, np.int32), np.full(sum(sizes) if scaled else 0, 9, np.float32)
    how = ints(*positions), ints(*columns), np.array(tables, np.int32), np.array(means)
    choose(lookups.lay_out_bags)(ints(*offsets), samples, how, 2, (starts, vectors, bag_tables, scales))
    return starts.tolist(), vectors.tolist(), bag_tables.tolist(), scales.tolist()


OFFSETS = (0, 1, 2, 4, 6, 6, 9, 9, 10, 12)  # three features, three samples: bags of 1 1 2, 2 0 3 and 0 1 2 lookups


@both
def test_bags_of_pooled_features_fill_their_columns(choose: Choose) -> None:
    """Features 1 and 0, in the order of their tables; lookups are counted in that order."""
    features = [(1, 1, 0, True), (0, 0, 1, False)]
    starts, vectors, tables, scales = lay_out(choose, OFFSETS, 3, features, scaled=True)
    assert starts == [0, 2, 2, 5, 6, 7, 9]
    assert vectors == [1, 3, 5, 0, 2, 4]
    assert tables == [0, 0, 0, 1, 1, 1]
    assert scales == [0.5, 0.5, *[float(np.float32(1) / np.float32(3))] * 3, 9, 9, 9, 9]
    assert lay_out(choose, OFFSETS, 3, features, scaled=False) == (starts, vectors, tables, [])


@both
def test_look_ups_of_an_unpooled_feature_are_bags_of_their_own(choose: Choose) -> None:
    """Their vectors, here of features 1 and 2, follow behind 3 x 2 pooled ones."""
    features = [(1, -1, 0, False), (0, 1, 1, False), (2, -1, 2, False)]
    starts, vectors, tables, _ = lay_out(choose, OFFSETS, 3, features, scaled=False)
    assert starts == [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12]
    assert vectors == [6, 7, 8, 9, 10, 1, 3, 5, 11, 12, 13]
    assert tables == [0] * 5 + [1] * 3 + [2] * 3


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
def test_look_ups_are_grouped_by_row_in_look_up_order(choose: Choose) -> None:
    """Bags (row 0, row 1), (), (row 1, row 0, row 1), filling vectors 4, 5, 6."""
    case = ([0, 1, 1, 0, 1], [0, 2, 2, 5], [4, 5, 6], 2)
    assert group_look_ups(choose, *case) == ([0, 2, 5], [4, 6, 4, 6, 6], [0, 3, 1, 2, 4])
    assert group_look_ups(choose, *case, scaled=False) == ([0, 2, 5], [4, 6, 4, 6, 6], [])
    assert group_look_ups(choose, [], [0], [], 0) == ([0], [], [])


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
@pytest.mark.parametrize("scaled", [False, True])
def test_look_ups_of_chosen_rows(choose: Choose, scaled: bool) -> None:
    """Four rows with 2, 1, 3 and 1 lookups."""
    assert take(choose, [1, 2], [0, 2, 3, 6, 7], scaled=scaled) == [[2], [3, 4, 5]]
    assert take(choose, [0, 3], [0, 2, 3, 6, 7], scaled=scaled) == [[0, 1], [6]]
    assert take(choose, [], [0, 2, 3, 6, 7], scaled=scaled) == []
    assert take(choose, [], [0], scaled=scaled) == []


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
