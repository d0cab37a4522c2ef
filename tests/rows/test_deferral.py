"""`DeferralBook`: whose gradient waits, and when the sum is applied. One popular row, one visit a batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive import SGD, Adagrad, Deferral
from adaptive.rows.deferral import DeferralBook


def visits(book: DeferralBook, count: int, *, first: int = 0, accesses: int = 1) -> str:
    """What happens at each visit: `.` a plain update, `w` the gradient waits, `A` the sum is applied."""
    story = ""
    for number in range(first, first + count):
        summed, due = book.decide(
            number,
            np.array([3]),
            np.zeros(1, np.int32),
            np.ones(1, np.int32),
            np.array([0, 0, 0, accesses], np.uint32),
            np.zeros(1, np.bool_),
        )
        story += "A" if due[0] else "w" if summed[0] else "."
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


def test_saturated_rows_and_rows_without_an_entry_do_not_visit() -> None:
    mine = book()
    for entries, skipped in (([-1], [False]), ([0], [True])):
        summed, due = mine.decide(
            5,
            np.zeros(1, np.int64),
            np.array(entries, np.int32),
            np.ones(1, np.int32),
            np.full(1, 99, np.uint32),
            np.array(skipped),
        )
        assert not summed[0]
        assert not due[0]
    assert mine.visits[0] == 0


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
