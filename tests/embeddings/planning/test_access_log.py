"""The bounded log of lookups: bit for bit its slow twin, its memory does not grow, and it goes on from its entries."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.access_log_twin import SlowLog
from support.variants import both

from adaptive.embeddings.planning.access_log import AccessLog
from adaptive.kernels.planning import traces

Choose = Callable[[Any], Callable[..., Any]]

# Few rows, so that they come again, among them some of a table of 10^9 rows and beyond.
ROWS = st.one_of(st.integers(0, 12), st.integers(0, 60), st.integers(10**9, 10**9 + 9), st.just(2**62))


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


@both
@settings(max_examples=150, deadline=None)
@given(batches=st.lists(st.lists(ROWS, max_size=60), max_size=6), num_sets=st.integers(0, 5))
def test_any_order_of_rows_gives_the_entries_of_the_slow_twin(
    choose: Choose, batches: list[list[int]], num_sets: int
) -> None:
    sets, slow = np.zeros((num_sets, 4), np.uint16), SlowLog(4 * num_sets)
    for batch in batches:
        choose(traces.log_rows)(ints(*batch), sets)
        slow.add(batch)
        assert sets.tolist() == slow.entries()
    rows = sorted({row for batch in batches for row in batch} | {10**6})
    found = np.ones(len(rows), np.bool_)
    choose(traces.find_rows)(ints(*rows), sets, found)
    assert found.tolist() == [slow.holds(row) for row in rows]


@both
def test_what_is_holds_stays_and_the_oldest_leaves(choose: Choose) -> None:
    """One set. Tags are what a row hashes to, so they are read from the entries of the first four."""
    sets = np.zeros((1, 4), np.uint16)

    def add(*rows: int) -> tuple[list[int], list[int]]:
        choose(traces.log_rows)(ints(*rows), sets)
        return (sets[0] >> 2).tolist(), (sets[0] & 3).tolist()

    (one, two, three, four), values = add(1, 2, 3, 4)
    assert values == [2, 2, 2, 2] and len({one, two, three, four}) == 4
    assert add(1, 3) == ([one, two, three, four], [0, 2, 0, 2])
    (first, five, *others), values = add(5)  # all age by one, the first at 3 leaves
    assert ([first, *others], values) == ([one, three, four], [1, 2, 1, 3])
    (*others, six), values = add(6)  # the fourth is there already
    assert (others, values) == ([one, five, three], [1, 2, 1, 2])
    (first, _, *others), values = add(7)
    assert ([first, *others], values) == ([one, three, six], [2, 2, 2, 3])


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.lists(ROWS, max_size=40), min_size=2, max_size=6), data=st.data())
def test_it_goes_on_from_its_entries(batches: list[list[int]], data: st.DataObject) -> None:
    stop = data.draw(st.integers(0, len(batches) - 1))
    log, size = AccessLog(18), 32  # four sets: two entries more would need a fifth
    for batch in batches[:stop]:
        log.add(ints(*batch))
    again = AccessLog.restored(log.entries())
    for batch in batches[stop:]:
        log.add(ints(*batch))
        again.add(ints(*batch))
        assert log.num_bytes == again.num_bytes == size
    np.testing.assert_array_equal(log.entries(), again.entries())
    rows = np.unique([row for batch in batches for row in batch]).astype(np.int64)
    np.testing.assert_array_equal(log.holds(rows), again.holds(rows))
    assert log.num_held == again.num_held <= 16


def test_repeated_rows_are_found_among_many_that_come_once() -> None:
    """Fifty rows in every of 40 batches, and 200 new ones in each: 8,000 rows through a log of 400."""
    log, hot = AccessLog(400), np.arange(50)
    for number in range(40):
        log.add(np.random.default_rng(number).permutation(np.concatenate([hot, 1000 + 200 * number + np.arange(200)])))
    assert log.holds(hot).mean() > 0.9
    assert log.num_held == 400 and log.holds(np.arange(1000, 9000)).mean() < 0.05


def test_entries_are_copies_and_bad_ones_are_refused() -> None:
    log = AccessLog(4)
    entries = log.entries()
    log.add(ints(7, 7))
    assert not entries.any() and log.num_held == 1
    with pytest.raises(ValueError, match=r"expected entries \(sets, 4\) uint16, got \(3,\) int64"):
        AccessLog.restored(np.zeros(3, np.int64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected num_entries of at least 0, got -1"):
        AccessLog(-1)
