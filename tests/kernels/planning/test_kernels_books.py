"""What the look-ahead thread computes about distinct rows: answers written out, then against the slow twins.

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
from support.variants import both

from adaptive.config import TableConfig
from adaptive.counters import Counter
from adaptive.embeddings.planning import books as books_module
from adaptive.embeddings.planning.books import SlotTable, Tracker
from adaptive.embeddings.planning.layout import make_groups
from adaptive.kernels.planning import books
from adaptive.kernels.planning.lookups import Distinct

Choose = Callable[[Any], Callable[..., Any]]
Int64s = NDArray[np.int64]

INITIAL, ON_HOST = books.INITIAL, books.ON_HOST
DIRTY, CHANGED = int(books.DIRTY), int(books.CHANGED)


def ints(*values: int) -> Int64s:
    return np.array(values, np.int64)


def i32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def new_tally(tables: int = 2) -> Int64s:
    return np.zeros((tables, len(Counter)), np.int64)


def counted(tally: Int64s) -> dict[str, list[int]]:
    """Counter name -> counts per table, of what was counted."""
    return {counter.name: tally[:, counter].tolist() for counter in Counter if tally[:, counter].any()}


def blank(size: int) -> books.Entered:
    """Memory for what is found about so many rows, none of which is hot or written yet."""
    locations, missing = np.full((2, size), 9)
    undo, row_entries, entries = np.full((3, size), 9, np.int32)
    return books.Entered(locations, missing, undo, row_entries, np.full(size, 9, np.uint32), entries)


def cold(size: int) -> books.Entered:
    return blank(size)._replace(row_entries=i32(), seen=np.zeros(0, np.uint32), entries=i32())


def columns(books_of: dict[str, Any]) -> tuple[Any, ...]:
    """`SlotColumns`; those that a test does not name are empty."""
    empty = {"rows": ints(), "used": i32(), "counted": np.zeros(0, np.uint32), "flags": np.zeros(0, np.uint8)}
    return tuple((empty | {"free": i32()} | books_of)[name] for name in (*empty, "free"))


# --- where rows lie --------------------------------------------------------------------------------------------------


def enter(choose: Choose, books_of: dict[str, Any], batch: int, rows: Any, counts: Any, ends: Any) -> Any:
    """(locations, missing, before, tally) of a batch that enters; `books_of` change."""
    entered, tally = blank(len(rows)), new_tally(len(ends))
    row_entries = np.arange(len(books_of["codes"]), dtype=np.int32) % 5
    expected = np.minimum(books_of["accesses"][ints(*rows)] + ints(*counts), 2**32 - 1)
    entered = entered._replace(row_entries=row_entries)
    records, distinct = (books_of["codes"], books_of["accesses"]), (ints(*rows), i32(*counts), i32(), ints(*ends))
    count = choose(books.enter_batch)(0, len(ends), distinct, batch, records, columns(books_of), tuple(entered), tally)
    assert entered.seen.tolist() == expected.tolist()
    assert entered.entries.tolist() == row_entries[ints(*rows)].tolist()
    return entered.locations, entered.missing[:count], entered.undo, tally


def leave(choose: Choose, books_of: dict[str, Any], rows: Any, counts: Any, locations: Any, before: Any) -> None:
    entered = blank(len(rows))._replace(locations=locations, undo=before)
    distinct = ints(*rows), i32(*counts), i32(), ints(len(rows))
    choose(books.leave_batch)(distinct, tuple(entered), books_of["accesses"], columns(books_of))


@both
def test_flags_are_set_for_slots_used_since_a_batch(choose: Choose) -> None:
    """Slot 1 is free. The batches so far end before 9; the next time, only later ones are looked for."""
    flags = np.array([DIRTY, 0, CHANGED, 0], np.uint8)
    assert choose(books.mark_used)(i32(4, books.FREE, 8, 7), 7, np.uint8(DIRTY), flags) == 9
    assert flags.tolist() == [DIRTY, 0, DIRTY | CHANGED, DIRTY]


@both
@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_entering_equals_the_twin_and_leaving_undoes_it(choose: Choose, sizes: list[int], seed: int) -> None:
    rng, num_rows, batch = np.random.default_rng(seed), 200, 50
    slots = rng.permutation(num_rows)[: num_rows // 2]  # the row in each
    arrays = {
        "codes": -rng.integers(0, 2 * batch, num_rows).astype(np.int32),
        "accesses": rng.integers(0, 9, num_rows).astype(np.uint32),
        "used": rng.integers(-1, batch, len(slots)).astype(np.int32),
    }
    arrays["codes"][slots] = np.arange(len(slots)) + 1
    arrays["counted"] = arrays["accesses"][slots]
    rows, ends = rng.permutation(num_rows)[: sum(sizes)].tolist(), list(itertools.accumulate(sizes))
    counts = rng.integers(1, 9, len(rows)).tolist()
    start = {name: array.copy() for name, array in arrays.items()}
    locations, missing, before, tally = enter(choose, arrays, batch, rows, counts, ends)
    expected = {name: array.tolist() for name, array in start.items()}
    assert tally.tolist() == reference.enter_batch(expected, rows, counts, ends, batch).tolist()
    assert {name: array.tolist() for name, array in arrays.items()} == expected
    assert locations.tolist() == [max(int(start["codes"][row]) - 1, -1) for row in rows]
    assert missing.tolist() == [u for u, row in enumerate(rows) if start["codes"][row] <= 0]
    leave(choose, arrays, rows, counts, locations, before)
    assert all(np.array_equal(arrays[name], array) for name, array in start.items())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), marks=st.booleans())
def test_slots_of_all_rows_know_the_same(seed: int, marks: bool) -> None:
    """As those of a table with one more row, which is never used.

    Of seven batches one leaves again; flags are read twice, some slots are cleaned and some rows evicted.
    """
    rng, num_rows, mark = np.random.default_rng(seed), 60, DIRTY * marks
    trackers = Tracker(num_rows), Tracker(num_rows + 1)
    tables = [SlotTable(num_rows, ints(0, len(tracker.codes)), tracker) for tracker in trackers]
    assert [slots.all_fit for slots in tables] == [True, False]
    for batch in range(7):
        rows, done = rng.permutation(num_rows)[:15], []
        distinct = Distinct(rows, i32(*[2] * 15), i32(), ints(15))
        evicted = np.sort(rng.permutation(num_rows)[:5])
        for slots in tables:
            entered = cold(15)
            locations, missing = entered.locations, entered.missing
            count = slots.enter(distinct, batch, mark, entered, new_tally(1))
            if batch == 4:
                slots.leave(distinct, entered)
            else:
                _, _, *facts = slots.take(missing[:count], distinct, locations, batch, batch - 2, new_tally(1))
                done.append([missing[:count].tolist(), *(fact.tolist() for fact in facts)])
            if batch in (3, 5):
                dirty = slots.rows[slots.dirty()]
                slots.clean(slots.slots_of(np.sort(dirty)[::2]))
                in_slots = slots.slots_of(evicted)
                _, back = slots.release(in_slots[in_slots >= 0], new_tally(1))
                done.append([np.sort(dirty).tolist(), back.tolist()])
        assert done[: len(done) // 2] == done[len(done) // 2 :]
    everything, states = np.arange(num_rows), []
    for slots, tracker in zip(tables, trackers, strict=True):
        places, records = slots.slots_of(everything), slots.gather(everything)
        there = everything[places >= 0]
        states.append(
            [
                slots.num_free, there.tolist(), slots.flags[places[there]].tolist(), slots.used[places[there]].tolist(),
                slots.last_access(everything).tolist(), records.accesses.tolist(), records.last_access.tolist(),
                tracker.has_values(everything).tolist(),
            ]
        )  # fmt: skip
    assert states[0] == states[1]


def test_a_batch_that_enters_again_marks_its_slots() -> None:
    """Flags are read while the batch is in the books, and its slot is cleaned after it has left them."""
    slots, distinct = SlotTable(2, ints(0, 3), Tracker(3)), Distinct(ints(1), i32(1), i32(), ints(1))
    entered = cold(1)
    locations = entered.locations
    slots.enter(distinct, 0, DIRTY, entered, new_tally(1))
    slots.take(ints(0), distinct, locations, 0, 0, new_tally(1))
    slots.enter(distinct, 1, DIRTY, entered, new_tally(1))
    assert slots.dirty().tolist() == locations.tolist() == [0]
    slots.leave(distinct, entered)
    slots.clean(slots.dirty())
    assert slots.dirty().tolist() == []
    slots.enter(distinct, 1, DIRTY, entered, new_tally(1))
    assert slots.dirty().tolist() == [0]


@both
def test_count_host_vectors(choose: Choose) -> None:
    """Bags: (slot, host), (host, host), (), (slot): two need the host, both of table 1; each counts once."""
    vectors = ints(0, 10)
    choose(books.count_host_vectors)(i32(1, 1, 0, 0), ints(0, 2, 4, 4, 5), i32(1, 0, 0, 2, 1), ints(-1, 1, -3), vectors)
    assert vectors.tolist() == [0, 12]


# --- slots -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_slots=st.sampled_from([0, 1, 7, 100, 2500, 9000]),
    order=st.sampled_from(books_module.ORDERS),
    threads=st.integers(1, 3),
    sample=st.sampled_from([1, 30, 4096]),
)
def test_windows_and_lowest_slots_equal_the_twin(
    seed: int, num_slots: int, order: tuple[str, ...], threads: int, sample: int
) -> None:
    """Three searches, each from the end of the one before, in a table with few distinct keys and some free slots."""
    rng = np.random.default_rng(seed)
    tracker = Tracker(num_slots + 1)
    tracker.threads = threads
    slots = SlotTable(num_slots, ints(0, num_slots + 1), tracker, by_accesses="accesses" in order)
    of_slots = slots.columns
    of_slots.rows[:] = np.where(rng.random(num_slots) < 0.9, rng.permutation(num_slots), -1)
    of_slots.used[:] = np.where(slots.rows >= 0, rng.integers(0, 12, num_slots), books.FREE)
    of_slots.accesses[:] = rng.choice([1, 2, 3, 2**32 - 1], len(of_slots.accesses))
    columns = {"last_access": of_slots.used.tolist(), "accesses": of_slots.accesses.tolist()}
    start = 0
    for _ in range(3):
        oldest, limit = int(rng.integers(0, 14)), int(rng.integers(1, num_slots + 2))
        expected, start = reference.idle_slots(slots.rows.tolist(), columns["last_access"], oldest, start, limit)
        idle_window = slots.idle_window(oldest, limit)
        assert (idle_window.count, idle_window.last) == (len(expected), start)
        assert slots.idle(idle_window).tolist() == expected
        count = int(rng.integers(0, limit + 1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(books_module, "SAMPLE", sample)
            lowest = slots.lowest(idle_window, order, count).tolist()
        assert lowest == reference.lowest_slots(expected, columns, order, count)


def test_a_bound_that_is_too_low_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = SlotTable(9, ints(0, 10), Tracker(10))
    slots.columns.rows[:], slots.columns.used[:], slots.columns.accesses[:] = np.arange(9), 0, np.arange(9)
    monkeypatch.setattr(SlotTable, "_bound", lambda *_: np.uint64(2 << 32))
    assert slots.lowest(slots.idle_window(5, 9), ("accesses",), 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("start", [0, 700, 900])
def test_the_bound_follows_the_window_alone(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a window of 200 slots, which may go round, all keys are lower."""
    slots, inside = SlotTable(1000, ints(0, 1001), Tracker(1001)), (start + np.arange(200)) % 1000
    slots.columns.rows[:], slots.columns.used[:] = np.arange(1000), 0
    slots.columns.accesses[inside] = 1000 + np.arange(200)
    slots._search_from = start
    monkeypatch.setattr(books_module, "SAMPLE", 25)
    idle_window = slots.idle_window(5, 200)
    assert 1004 < slots._bound(idle_window, ("accesses",), 5) >> np.uint64(32) < 1199
    assert slots.lowest(idle_window, ("accesses",), 5).tolist() == inside[:5].tolist()


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
    choose(books.mark_next_access)(ints(0, 1, 2, 3), codes, 8, following)
    choose(books.mark_next_access)(ints(0), codes, 7, following)
    assert following.tolist() == [8, 7]


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("num_slots", [60, 100])
def test_threads_that_share_a_batch_plan_the_same(
    threads: int, num_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven batches of four tables, one of which is not looked up; after each, some rows are evicted."""
    monkeypatch.setattr(books_module, "SHARED_ROWS", 1)
    rng, starts, order, tables = np.random.default_rng(threads), ints(0, 30, 30, 70, 100), ("last_access",), []
    batches = [np.unique(rng.integers(0, 100, 50)) for _ in range(7)]
    for number in (1, threads):
        tracker = Tracker(100, keeps_norms=True)
        slots, results = SlotTable(num_slots, starts, tracker), []
        tracker.threads = number
        for batch, rows in enumerate(batches):
            counts = np.arange(1, len(rows) + 1, dtype=np.int32)
            distinct = Distinct(rows, counts, np.zeros(0, np.int32), np.searchsorted(rows, starts[1:]))
            entered, tally = cold(len(rows)), new_tally(4)
            locations, missing = entered.locations, entered.missing
            count = slots.enter(distinct, batch, DIRTY, entered, tally)
            taken = missing[: min(count, slots.num_free)]
            taken_slots = slots.take(taken, distinct, locations, batch, batch, tally)
            evicted = slots.taken()[:0] if slots.all_fit else slots.lowest(slots.idle_window(batch, 50), order, 15)
            results += [column.tolist() for column in (*taken_slots, evicted, *slots.release(evicted, tally))]
            norms = np.linspace(1e-3, 1, len(rows), dtype=np.float32)
            tracker.add_norms(rows, norms)
            results += [locations.tolist(), missing[:count].tolist(), tally.tolist()]
        assert tracker.update_norm is not None
        records = tracker.records.tolist(), tracker.update_norm.tolist()
        tables.append((results, records, slots.used.tolist(), slots.flags.tolist()))
    assert tables[0] == tables[1]


# --- records ---------------------------------------------------------------------------------------------------------


@both
def test_update_norms_add_up(choose: Choose) -> None:
    totals = np.array([0.5, 1, 2], np.float32)
    choose(books.add_norms)(ints(2, 0), np.array([1, 2], np.float32), totals)
    assert totals.tolist() == [2.5, 1, 3]


@both
def test_gather_gives_batch_numbers_and_wide_counts(choose: Choose) -> None:
    """Row 0 is in slot 1, row 1 on the host since batch 3, row 2 as far in the future as can be told."""
    codes, accesses = i32(2, -9, -(2**31) + 1), np.array([5, 0, 2**32 - 1], np.uint32)
    out = tuple(np.empty((3, 3), np.int64))
    choose(books.gather_records)(ints(2, 1, 0), (codes, accesses), i32(9, 7), out)
    assert [array.tolist() for array in out] == [[2**32 - 1, 0, 5], [books.MOST_BATCHES, 3, 7], [-1, -1, 1]]
