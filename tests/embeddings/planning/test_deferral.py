"""`DeferralBook`: whose gradient waits, and when the sum is applied. One popular row, one visit a batch."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from skip_rules import waits

from adaptive.embeddings.planning.hot_set import WatchedRows
from adaptive.embeddings.planning.lookups import Distinct
from adaptive.embeddings.planning.skipping import DeferralBook
from adaptive.kernels.planning.books import DUE, NOW, SKIPPED, WAITS


def distinct(rows: int) -> Distinct:
    """Row 3, or rows 0, 1, ...: each looked up once."""
    numbers = np.array([3]) if rows == 1 else np.arange(rows)
    return Distinct(numbers, np.ones(rows, np.int32), np.zeros(0, np.int32), np.array([rows]))


def visits(book: DeferralBook, count: int, *, first: int = 0, accesses: int = 1, answer: int = 0) -> str:
    """What happens at each visit: `.` a plain update, `w` the gradient waits, `A` the sum is applied.

    `answer`: of the rule, 0: it is not asked.
    """
    story = ""
    for number in range(first, first + count):
        fates = np.zeros(1, np.uint8)
        summed = book.decide(
            number,
            WatchedRows(np.zeros(1, np.int32), np.zeros(1, np.int32)),
            distinct(1),
            np.array([0, 0, 0, accesses], np.uint32),
            fates,
            np.full(1, max(answer, 1) - 1, np.uint8),
        )
        story += {NOW: ".", WAITS: "w", DUE: "A"}[int(fates[0])]
        assert summed.entries.tolist() == [0] * (story[-1] != ".")
        assert summed.due.tolist() == summed.due_at.tolist() == [0] * (story[-1] == "A")
    return story


def book(every: int = 4, at_most: int = 3, warmup: int = 0, *, asks: bool = False) -> DeferralBook:
    rule = waits(every, at_most, warmup)
    rule.asks = asks
    return DeferralBook(1, rule)


def test_the_longer_its_history_the_longer_a_row_waits() -> None:
    """k = visits / 4: 1 up to visit 7, 2 up to visit 11, then 3, its limit."""
    assert visits(book(), 20) == "......." + "wAwAw" + "wAwwAwwA"


def test_nothing_waits_during_the_warm_up_but_visits_count() -> None:
    assert visits(book(warmup=9), 14) == "........." + "wAw" + "wA"


def test_at_most_one_is_the_plain_update() -> None:
    assert visits(book(at_most=1), 50) == "." * 50


def test_a_row_admitted_late_is_taken_to_have_visited_at_its_present_rate() -> None:
    """It was looked up 40 times, once in this batch: 40 visits, so it waits at once, up to its limit."""
    assert visits(book(), 4, accesses=40) == "wwAw"


def test_saturated_rows_and_rows_that_are_not_watched_do_not_visit() -> None:
    """Of three distinct rows the first is not watched and the last is saturated: only entry 1, the second's, visits."""
    mine = DeferralBook(3, waits(every=4, at_most=3))
    fates = np.array([NOW, NOW, SKIPPED], np.uint8)
    watched = WatchedRows(np.array([1, 2], np.int32), np.array([1, 0], np.int32))
    summed = mine.decide(5, watched, distinct(3), np.full(3, 99, np.uint32), fates, np.zeros(3, np.uint8))
    assert fates.tolist() == [NOW, WAITS, SKIPPED]
    assert (summed.entries.tolist(), summed.due.tolist()) == ([1], [])
    assert mine.visits.tolist() == [0, 99, 0]


def test_due_rows_are_told_by_their_place_among_the_rows_and_among_the_sums() -> None:
    mine = DeferralBook(4, waits(every=1, at_most=2))
    mine.visits[:] = 50
    mine.waiting[:] = [0, 1, 0, 1]
    fates = np.zeros(6, np.uint8)
    watched = WatchedRows(np.array([0, 2, 3, 5], np.int32), np.array([2, 1, 0, 3], np.int32))
    summed = mine.decide(0, watched, distinct(6), np.zeros(6, np.uint32), fates, np.zeros(6, np.uint8))
    assert fates.tolist() == [WAITS, NOW, DUE, WAITS, NOW, DUE]
    assert summed.entries.tolist() == [2, 1, 0, 3]
    assert (summed.due.tolist(), summed.due_at.tolist()) == ([2, 5], [1, 3])
    assert mine.waiting.tolist() == [1, 0, 1, 0]


@given(every=st.integers(1, 9), at_most=st.integers(1, 12), warmup=st.integers(0, 30), count=st.integers(1, 120))
def test_no_gradient_waits_longer_than_the_limit(every: int, at_most: int, warmup: int, count: int) -> None:
    story = visits(book(every, at_most, warmup), count)
    runs = [len(run) for run in story.replace(".", "A").split("A")]
    assert max(runs) <= at_most - 1
    assert set(story[:warmup]) <= {"."}


@given(
    every=st.integers(1, 9), at_most=st.integers(1, 12), warmup=st.integers(0, 30), accesses=st.integers(1, 200),
    count=st.integers(1, 120),
)  # fmt: skip
def test_the_book_equals_the_formula(every: int, at_most: int, warmup: int, accesses: int, count: int) -> None:
    """k = clamp(visits / every, 1, at_most), as a rule that is not asked has it."""
    story, seen, waiting = "", accesses - 1, 0
    for number in range(count):
        seen += 1
        k = max(1, min(seen // every, at_most)) if number >= warmup else 1
        waits = waiting + 1 < k
        story += "w" if waits else "A" if waiting else "."
        waiting = waiting + 1 if waits else 0
    assert visits(book(every, at_most, warmup), count, accesses=accesses) == story


def test_a_rule_says_for_how_many_visits_a_gradient_waits() -> None:
    """Its answers count from the next visit on: a row that is found to move again waits no longer than it says now."""
    one = book(every=1, at_most=255, asks=True)
    assert visits(one, 1, answer=1) == "."
    assert visits(one, 5, first=1, answer=3) == "wwAww"
    assert visits(one, 3, first=6, answer=1) == "A.."


def test_a_rule_cannot_make_a_row_wait_in_the_warm_up() -> None:
    assert visits(book(every=1, at_most=255, warmup=5, asks=True), 8, answer=4) == "....." + "www"
