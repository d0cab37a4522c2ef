"""`DeferralBook`: whose gradient waits, and when the sum is applied. One popular row, one visit a batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive import SGD, Adagrad, Deferral
from adaptive.embeddings.planning.deferral import DeferralBook
from adaptive.embeddings.planning.hot_set import WatchedRows
from adaptive.kernels.planning.books import DUE, NOW, SKIPPED, WAITS


def visits(book: DeferralBook, count: int, *, first: int = 0, accesses: int = 1, rule: int = 0) -> str:
    """What happens at each visit: `.` a plain update, `w` the gradient waits, `A` the sum is applied.

    `rule`: its answer, 0: there is none.
    """
    story = ""
    for number in range(first, first + count):
        fates = np.zeros(1, np.uint8)
        summed = book.decide(
            number,
            WatchedRows(np.zeros(1, np.int32), np.zeros(1, np.int32)),
            np.array([3]),
            np.ones(1, np.int32),
            np.array([0, 0, 0, accesses], np.uint32),
            fates,
            rule_waits=np.full(1, rule - 1, np.uint8) if rule else None,
        )
        story += {NOW: ".", WAITS: "w", DUE: "A"}[int(fates[0])]
        assert summed.entries.tolist() == [0] * (story[-1] != ".")
        assert summed.due.tolist() == summed.due_at.tolist() == [0] * (story[-1] == "A")
    return story


def book(every: int = 4, at_most: int | None = 3, warmup: int = 0) -> DeferralBook:
    return DeferralBook(1, Deferral(every=every, at_most=at_most, warmup=warmup), Adagrad())


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
    mine = DeferralBook(3, Deferral(every=4, at_most=3, warmup=0), Adagrad())
    fates = np.array([NOW, NOW, SKIPPED], np.uint8)
    watched = WatchedRows(np.array([1, 2], np.int32), np.array([1, 0], np.int32))
    summed = mine.decide(5, watched, np.arange(3), np.ones(3, np.int32), np.full(3, 99, np.uint32), fates)
    assert fates.tolist() == [NOW, WAITS, SKIPPED]
    assert (summed.entries.tolist(), summed.due.tolist()) == ([1], [])
    assert mine.visits.tolist() == [0, 99, 0]


def test_due_rows_are_told_by_their_place_among_the_rows_and_among_the_sums() -> None:
    mine = DeferralBook(4, Deferral(every=1, at_most=2, warmup=0), Adagrad())
    mine.visits[:] = 50
    mine.waiting[:] = [0, 1, 0, 1]
    fates = np.zeros(6, np.uint8)
    watched = WatchedRows(np.array([0, 2, 3, 5], np.int32), np.array([2, 1, 0, 3], np.int32))
    summed = mine.decide(0, watched, np.arange(6), np.ones(6, np.int32), np.zeros(6, np.uint32), fates)
    assert fates.tolist() == [WAITS, NOW, DUE, WAITS, NOW, DUE]
    assert summed.entries.tolist() == [2, 1, 0, 3]
    assert (summed.due.tolist(), summed.due_at.tolist()) == ([2, 5], [1, 3])
    assert mine.waiting.tolist() == [1, 0, 1, 0]


def test_the_limit_is_8_and_4_under_sgd() -> None:
    assert DeferralBook(1, Deferral(), Adagrad()).at_most == 8
    assert DeferralBook(1, Deferral(), SGD()).at_most == 4
    assert DeferralBook(1, Deferral(at_most=6), SGD()).at_most == 6


@pytest.mark.parametrize("bad", [{"every": 0}, {"at_most": 0}, {"at_most": 256}, {"warmup": -1}])
def test_impossible_settings_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="needed every >= 1, at_most from 1 to 255 or none, warmup >= 0"):
        Deferral(**bad)


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
    """k = clamp(visits / every, 1, at_most), as `Deferral` has it."""
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
    one = book(every=1, at_most=255)
    assert visits(one, 1, rule=1) == "."
    assert visits(one, 5, first=1, rule=3) == "wwAww"
    assert visits(one, 3, first=6, rule=1) == "A.."


def test_a_rule_cannot_make_a_row_wait_in_the_warm_up() -> None:
    assert visits(book(every=1, at_most=255, warmup=5), 8, rule=4) == "....." + "www"
