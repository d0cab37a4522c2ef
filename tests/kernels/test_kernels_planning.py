"""What the look-ahead thread computes about ids: answers written out, then against the slow twins.

The group of most tests: two tables of 4 and 6 rows, so rows 0..3 and 4..9.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from variants import both

from adaptive.config import TableConfig
from adaptive.counters import Counter
from adaptive.kernels import planning
from adaptive.rows.tracker import bin_guesses
from adaptive.tiers.layout import make_groups

Choose = Callable[[Any], Callable[..., Any]]
Int64s = NDArray[np.int64]

STARTS = np.array([0, 4, 10])
INITIAL, ON_HOST = planning.INITIAL, planning.ON_HOST
DIRTY, CHANGED = int(planning.DIRTY), int(planning.CHANGED)


def ints(*values: int) -> Int64s:
    return np.array(values, np.int64)


def i32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def new_tally(tables: int = 2) -> Int64s:
    return np.zeros((tables, len(Counter)), np.int64)


def counted(tally: Int64s) -> dict[str, list[int]]:
    """Counter name -> counts per table, of what was counted."""
    return {counter.name: tally[:, counter].tolist() for counter in Counter if tally[:, counter].any()}


# --- distinct rows -------------------------------------------------------------------------------------------------


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
        np.empty(num_lookups, np.int32),
        np.empty(num_lookups, np.int32),
    )
    ends = np.empty(len(sizes), np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    found = choose(planning.distinct_rows)(
        ids, spans, np.asarray(span_tables, np.int32), sizes, starts,
        np.full(scratch, 99, np.int64), np.full(scratch, 99, np.int32), rows, counts, inverse, ends,
    )  # fmt: skip
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
def test_distinct_rows_of_empty_features_and_batches(choose: Choose) -> None:
    found, distinct = find_distinct(choose, [2], [[0, 0], [0, 1]], [0, 2], (4, 5, 6))
    assert (found, distinct.rows, distinct.table_ends) == (1, [11], [0, 0, 1])
    assert find_distinct(choose, [], [[0, 0]], [0], (4,))[0] == 0


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
def test_an_id_is_bad_by_its_own_table(choose: Choose) -> None:
    """5 is a row of table 1 (6 rows) and none of table 0 (4 rows)."""
    assert find_distinct(choose, [3, 5], [[0, 1], [1, 2]], [0, 1], (4, 6))[0] == 2
    assert find_distinct(choose, [5, 3], [[0, 1], [1, 2]], [0, 1], (4, 6))[0] == -1


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
    """Features lie in the batch in any order; `features`: (table, look-ups) of each."""
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


# --- where rows lie --------------------------------------------------------------------------------------------------


@both
def test_locate_changes_nothing(choose: Choose) -> None:
    codes = i32(INITIAL, 3, ON_HOST, 1)
    locations, missing = np.full(3, 9), np.full(3, 9)
    assert choose(planning.locate)(ints(2, 1, 0), codes, locations, missing) == 2
    assert locations.tolist() == [-1, 2, -1]
    assert missing[:2].tolist() == [0, 2]
    assert codes.tolist() == [INITIAL, 3, ON_HOST, 1]


@both
def test_hold_marks_slots_and_only_slots(choose: Choose) -> None:
    used = i32(-1, 4, 5)
    choose(planning.hold)(ints(2, -1, 0), 7, used)
    assert used.tolist() == [7, 4, 7]


@both
def test_touch_counts_look_ups_and_holds(choose: Choose) -> None:
    accesses, last, used = np.array([1, 0, 2**32 - 3], np.uint32), i32(0, 0, 4), i32(3, 3)
    choose(planning.touch)(ints(2, 0), i32(2, 5), ints(~2, 1), 6, accesses, last, used)
    assert accesses.tolist() == [6, 0, 2**32 - 1]
    assert last.tolist() == [7, 0, 7]
    assert used.tolist() == [3, 6]


@both
def test_count_tables(choose: Choose) -> None:
    """Table 0: rows looked up 3 and 1 times, the first on the device. Table 1: none. Table 2: one row, a hit."""
    tally = new_tally(3)
    choose(planning.count_tables)(ints(2, 2, 3), i32(3, 1, 4), ints(5, -1, 0), tally)
    assert counted(tally) == {
        "LOOKUPS": [4, 0, 4], "UNIQUE_ROWS": [2, 0, 1], "LOOKUP_HITS": [3, 0, 4], "ROW_HITS": [1, 0, 1]
    }  # fmt: skip


@both
def test_count_host_vectors(choose: Choose) -> None:
    """Bags: (slot, host), (host, host), (), (slot): two need the host, both of table 1; each counts once."""
    vectors = ints(0, 10)
    choose(planning.count_host_vectors)(i32(1, 1, 0, 0), ints(0, 2, 4, 4, 5), ints(0, -1, -2, -3, 1), vectors)
    assert vectors.tolist() == [0, 12]


# --- slots -----------------------------------------------------------------------------------------------------------


def idle(choose: Choose, rows: Any, used: Any, *, oldest: int, start: int = 0, limit: int = 9) -> tuple[list[int], int]:
    found = np.full(limit, -9)
    count, following = choose(planning.idle_slots)(ints(*rows), i32(*used), oldest, start, limit, found)
    return found[:count].tolist(), int(following)


@both
def test_idle_slots_hold_a_row_that_no_planned_batch_needs(choose: Choose) -> None:
    """Slot 1 is free, slot 2 is needed by batch 5, slot 3 by batch 6."""
    rows, used = (7, -1, 8, 9, 3), (4, 2, 5, 6, -1)
    assert idle(choose, rows, used, oldest=5)[0] == [0, 4]
    assert idle(choose, rows, used, oldest=6)[0] == [0, 2, 4]
    assert idle(choose, rows, used, oldest=-3)[0] == []


@both
def test_idle_slots_go_on_where_the_last_search_ended(choose: Choose) -> None:
    rows, used = range(5), [0] * 5
    assert idle(choose, rows, used, oldest=1, limit=2) == ([0, 1], 2)
    assert idle(choose, rows, used, oldest=1, limit=2, start=2) == ([2, 3], 4)
    assert idle(choose, rows, used, oldest=1, limit=2, start=4) == ([4, 0], 1)
    assert idle(choose, rows, used, oldest=1, limit=5, start=3) == ([3, 4, 0, 1, 2], 3)


@both
def test_idle_slots_of_no_slots(choose: Choose) -> None:
    assert idle(choose, (), (), oldest=1) == ([], 0)


def slot_arrays() -> dict[str, Any]:
    """Slots 0..3 hold rows 1 (dirty), 6 (clean, changed before), 9 (clean, initial), 3 (dirty); slot 4 is free."""
    codes = np.zeros(10, np.int32)
    codes[[1, 6, 9, 3]] = [1, 2, 3, 4]
    codes[5] = ON_HOST
    return {
        "rows": ints(1, 6, 9, 3, -1),
        "flags": np.array([DIRTY, CHANGED, 0, DIRTY | CHANGED, 0], np.uint8),
        "codes": codes,
        "free": ints(4, -9, -9, -9, -9),
    }


@both
def test_release_writes_back_what_changed_and_remembers_what_never_did(choose: Choose) -> None:
    slots, tally = slot_arrays(), new_tally()
    back_slots, back_rows = np.full(4, -9), np.full(4, -9)
    count = choose(planning.release_slots)(
        ints(3, 1, 2, 0), slots["rows"], slots["flags"], slots["codes"], slots["free"], 1, STARTS,
        back_slots, back_rows, tally,
    )  # fmt: skip
    assert (back_slots[:count].tolist(), back_rows[:count].tolist()) == ([3, 0], [3, 1])
    assert slots["rows"].tolist() == [-1] * 5
    assert slots["flags"].tolist() == [0] * 5
    assert slots["free"].tolist() == [4, 3, 1, 2, 0]
    assert slots["codes"][[1, 3, 6, 9, 5]].tolist() == [ON_HOST, ON_HOST, ON_HOST, INITIAL, ON_HOST]
    assert counted(tally) == {"WRITTEN_BACK": [2, 0], "DEMOTED": [2, 2]}


@both
def test_take_gives_slots_from_the_end_of_the_free_list(choose: Choose) -> None:
    """Row 5 was changed on the host before, row 0 is at its initial value."""
    slots, tally = slot_arrays(), new_tally()
    slots["free"][:3] = [4, 7, 6]
    slots["rows"], slots["flags"] = np.full(8, -1), np.full(8, 99, np.uint8)
    rows, locations = ints(6, 5, 0), ints(1, -1, -1)
    out, initial = np.full(2, -9), np.zeros(2, np.bool_)
    choose(planning.take_slots)(
        ints(1, 2), rows, slots["codes"], locations, slots["rows"], slots["flags"], slots["free"], 3, STARTS,
        out, initial, tally,
    )  # fmt: skip
    assert out.tolist() == [6, 7]
    assert initial.tolist() == [False, True]
    assert locations.tolist() == [1, 6, 7]
    assert slots["rows"][[6, 7]].tolist() == [5, 0]
    assert slots["flags"][[6, 7]].tolist() == [CHANGED, 0]
    assert slots["codes"][[5, 0]].tolist() == [7, 8]
    assert counted(tally) == {"FETCHED": [1, 1], "PROMOTED": [1, 1]}


@both
def test_rows_without_a_slot_are_used_on_the_host_and_made_once(choose: Choose) -> None:
    codes, locations, fresh = i32(INITIAL, ON_HOST, 3), ints(2, -1, -1), np.full(3, -9)
    assert choose(planning.use_rows_on_host)(ints(2, 1, 0), codes, locations, fresh) == 1
    assert locations.tolist() == [2, ~1, ~0]
    assert fresh[0] == 0
    assert codes.tolist() == [ON_HOST, ON_HOST, 3]
    assert choose(planning.use_rows_on_host)(ints(0), codes, ints(-1), fresh) == 0


@both
def test_mark_dirty_keeps_other_flags(choose: Choose) -> None:
    flags = np.array([0, CHANGED, CHANGED], np.uint8)
    choose(planning.mark_dirty)(ints(0, 2), ints(1, 2, ~5), flags)
    assert flags.tolist() == [0, CHANGED | DIRTY, CHANGED]


@both
def test_tables_of_rows(choose: Choose) -> None:
    """Buckets of 4 rows: rows 0..3 start in table 0, 4..7 in table 1, 8..11 in table 1; tables end at 4, 10 and 12."""
    tables = np.empty(6, np.int32)
    choose(planning.tables_of)(ints(3, 4, 9, 10, 11, 0), ints(0, 4, 10, 12), i32(0, 1, 1), 2, tables)
    assert tables.tolist() == [0, 1, 1, 2, 2, 0]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.sampled_from([1, 2, 3, 4095, 4096, 5000, 2**33 - 1]), min_size=1, max_size=12), data=st.data())
def test_tables_of_rows_equal_a_search(sizes: list[int], data: st.DataObject) -> None:
    tables = [TableConfig(name=f"t{i}", num_embeddings=size, embedding_dim=1) for i, size in enumerate(sizes)]
    (group,) = make_groups(tables, 0)
    edges = sorted({row for start in group.table_starts[:-1].tolist() for row in (start, max(start - 1, 0))})
    drawn = data.draw(st.lists(st.integers(0, group.num_rows - 1), max_size=10))
    rows = np.array([*edges, *drawn, group.num_rows - 1])
    expected = np.searchsorted(group.table_starts, rows, side="right") - 1
    np.testing.assert_array_equal(group.tables_of(rows), expected)


@both
def test_mark_next_access_from_the_farthest_batch_to_the_nearest(choose: Choose) -> None:
    codes, following = i32(2, 1, ON_HOST, INITIAL), np.full(2, 99)
    choose(planning.mark_next_access)(ints(0, 1, 2, 3), codes, 8, following)
    choose(planning.mark_next_access)(ints(0), codes, 7, following)
    assert following.tolist() == [8, 7]


# --- bags and groups -------------------------------------------------------------------------------------------------


def lay_out(choose: Choose, offsets: Any, *, samples: int, feature: int, column: int, mean: bool = False,
            scales: Any = ()) -> tuple[list[int], list[int], list[float]]:  # fmt: skip
    """Starts, vectors and scales of one feature; 2 columns, and un-pooled vectors run on from 100."""
    starts, vectors = np.full(20, -9), np.full(20, -9, np.int32)
    scales = np.array(scales, np.float32)
    count = choose(planning.lay_out_bags)(
        ints(*offsets), samples, feature, column, 2, 100, starts, vectors, scales, mean
    )
    assert (starts[count:] == -9).all() and (vectors[count:] == -9).all()
    return starts[:count].tolist(), vectors[:count].tolist(), scales.tolist()


@both
def test_bags_of_a_pooled_feature_fill_its_column(choose: Choose) -> None:
    """Feature 1 of 2, 3 samples: bags of 2, 0 and 3 look-ups, which start at look-up 4 of the batch."""
    offsets = (0, 1, 2, 4, 6, 6, 9)
    expected = ([0, 2, 2], [1, 3, 5])
    assert lay_out(choose, offsets, samples=3, feature=1, column=1)[:2] == expected
    *bags, scales = lay_out(choose, offsets, samples=3, feature=1, column=1, mean=True, scales=[9] * 5)
    assert tuple(bags) == expected
    assert scales == [0.5, 0.5, *[float(np.float32(1) / np.float32(3))] * 3]
    assert lay_out(choose, offsets, samples=3, feature=1, column=1, scales=[9] * 5)[2] == [9] * 5


@both
def test_look_ups_of_an_unpooled_feature_are_bags_of_their_own(choose: Choose) -> None:
    offsets = (0, 1, 2, 4, 6, 6, 9)
    assert lay_out(choose, offsets, samples=3, feature=1, column=-1)[:2] == ([0, 1, 2, 3, 4], list(range(100, 105)))


@both
def test_lookup_locations(choose: Choose) -> None:
    lookups = np.empty(4, np.int64)
    choose(planning.lookup_locations)(i32(1, 0, 1, 2), ints(5, ~3, 7), lookups)
    assert lookups.tolist() == [~3, 5, ~3, 7]


def fates_of(skipped: Any, later: Any, num_rows: int) -> NDArray[np.uint8]:
    """Rows that come later have a sum that waits or is due, in turn."""
    if not len(skipped) and not len(later):
        return np.zeros(0, np.uint8)
    fates = np.zeros(num_rows, np.uint8)
    waiting = np.flatnonzero(later)
    fates[waiting] = np.where(np.arange(len(waiting)) % 2, planning.DUE, planning.WAITS)
    fates[np.flatnonzero(skipped)] = planning.SKIPPED
    return fates


def group_look_ups(choose: Choose, inverse: Any, skipped: Any, bag_starts: Any, bag_vectors: Any, num_rows: int,
          scaled: bool = True, later: Any = ()) -> tuple[Any, ...]:  # fmt: skip
    """(updated, segments, vectors, origins) as lists."""
    counts = np.bincount(inverse, minlength=num_rows).astype(np.int32)
    cursors, segments, updated = (
        np.empty(num_rows, np.int64),
        np.empty(num_rows + 1, np.int64),
        np.empty(num_rows, np.int64),
    )
    vectors = np.full(len(inverse), -9, np.int32)
    origins = np.full(len(inverse) if scaled else 0, -9, np.int64)
    kept, first = choose(planning.lay_out_segments)(
        counts, fates_of(skipped, later, num_rows), cursors, segments, updated
    )
    choose(planning.fill_segments)(
        np.array(inverse, np.int32), np.array(bag_starts, np.int64), np.array(bag_vectors, np.int32),
        cursors, vectors, origins,
    )  # fmt: skip
    assert not any(later[u] for u in updated[:first] if later) and all(later[u] for u in updated[first:kept])
    grouped = segments[kept]
    return (
        updated[:kept].tolist(),
        segments[: kept + 1].tolist(),
        vectors[:grouped].tolist(),
        origins[:grouped].tolist(),
    )


@both
def test_look_ups_are_grouped_by_row_in_look_up_order(choose: Choose) -> None:
    """Bags (row 0, row 1), (), (row 1, row 0, row 1), filling vectors 4, 5, 6."""
    case = ([0, 1, 1, 0, 1], [0, 2, 2, 5], [4, 5, 6], 2)
    inverse, *bags = case
    updated, segments, vectors, origins = group_look_ups(choose, inverse, [], *bags)
    assert (updated, segments, vectors) == ([0, 1], [0, 2, 5], [4, 6, 4, 6, 6])
    assert origins == [0, 3, 1, 2, 4]
    assert group_look_ups(choose, inverse, [], *bags, scaled=False) == (updated, segments, vectors, [])


@both
def test_skipped_rows_are_left_out_of_the_groups(choose: Choose) -> None:
    inverse, *bags = ([0, 1, 2, 0, 1], [0, 2, 5], [0, 1], 3)
    assert group_look_ups(choose, inverse, [True, False, True], *bags) == ([1], [0, 2], [0, 1], [1, 4])
    assert group_look_ups(choose, inverse, [True] * 3, *bags) == ([], [0], [], [])


@both
def test_rows_to_be_updated_later_are_grouped_behind_the_others(choose: Choose) -> None:
    inverse, *bags = ([0, 1, 2, 0, 1], [0, 2, 5], [0, 1], 3)
    updated, segments, vectors, origins = group_look_ups(choose, inverse, [], *bags, later=[True, False, False])
    assert (updated, segments, vectors, origins) == ([1, 2, 0], [0, 2, 3, 5], [0, 1, 1, 0, 1], [1, 4, 2, 0, 3])
    skipped = [False, False, True]
    assert group_look_ups(choose, inverse, skipped, *bags, later=[True, False, True])[0] == [1, 0]


@both
@settings(max_examples=60, deadline=None)
@given(data=st.data(), sizes=st.lists(st.sampled_from([0, 1, 2, 30]), max_size=8))
def test_groups_equal_the_twin(choose: Choose, data: st.DataObject, sizes: list[int]) -> None:
    ids = data.draw(st.lists(st.integers(0, 5), min_size=sum(sizes), max_size=sum(sizes)))
    distinct = reference.distinct_rows([ids], [0])
    num_rows = len(distinct.rows)
    skipped, later = (data.draw(st.lists(st.booleans(), min_size=num_rows, max_size=num_rows)) for _ in range(2))
    starts = [0, *np.cumsum(sizes).tolist()]
    vectors_of = np.repeat(np.arange(len(sizes)), sizes)
    expected = reference.group_by_row(distinct.inverse, skipped, num_rows)
    updated, segments, vectors, origins = group_look_ups(
        choose, distinct.inverse, skipped, starts, np.arange(len(sizes)), num_rows, later=later
    )
    assert updated == sorted(expected, key=lambda u: later[u])
    assert [origins[a:b] for a, b in itertools.pairwise(segments)] == [expected[u] for u in updated]
    assert vectors == [int(vectors_of[p]) for p in origins]


# --- records ---------------------------------------------------------------------------------------------------------


@both
def test_update_norms_add_up_and_fall_into_bins(choose: Choose) -> None:
    """Edges 1, 2, 4: a bin holds its lower edge; what lies outside counts in the first or last bin."""
    totals, bins = np.array([0.5, 1, 2], np.float32), np.zeros(2, np.int64)
    edges, norms = np.array([1, 2, 4], np.float32), np.array([1, 2], np.float32)
    assert choose(planning.add_update_norms)(ints(2, 0), norms, totals, edges, bin_guesses(edges), bins) == 3
    assert totals.tolist() == [2.5, 1, 3]
    assert bins.tolist() == [1, 1]
    outside = np.array([0, 0.99, 4, np.inf], np.float32)
    choose(planning.add_update_norms)(ints(0, 1, 2, 0), outside, totals, edges, bin_guesses(edges), bins)
    assert bins.tolist() == [3, 3]


@both
def test_the_sum_of_norms_is_kept_in_64_bits(choose: Choose) -> None:
    norms = np.array([2.0**24, 1, 1], np.float32)
    edges, bins = np.array([1, 2, 4], np.float32), np.zeros(2, np.int64)
    total = choose(planning.add_update_norms)(
        ints(0, 1, 2), norms, np.zeros(3, np.float32), edges, bin_guesses(edges), bins
    )
    assert total == 2**24 + 2


@both
def test_gather_gives_batch_numbers_and_wide_counts(choose: Choose) -> None:
    accesses, last = np.array([0, 2**32 - 1], np.uint32), i32(0, 2**31 - 1)
    out = [np.empty(2, np.int64), np.empty(2, np.int64), np.empty(2, np.float32), np.empty(2, np.int32)]
    choose(planning.gather_records)(ints(1, 0), i32(-1, 4), accesses, last, np.array([0.5, 2], np.float32), *out)
    assert [array.tolist() for array in out] == [[2**32 - 1, 0], [2**31 - 2, -1], [2, 0.5], [4, -1]]
