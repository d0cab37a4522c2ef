"""FAE: which rows are hot, which inputs, in which order they train, and how the scheduler's rate moves."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from contract import row_stats
from hypothesis import given
from hypothesis import strategies as st
from support.builders import View, batch_of

from adaptive import TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.batch import Batch
from adaptive.policies.fae import FAE, ShuffleScheduler


def tables(sizes: Sequence[int], device_rows: int) -> View:
    """Rows of 40 bytes."""
    return View(sizes, device_rows, bytes_a_row=40)


def samples(*ids: Sequence[int]) -> Batch:
    return batch_of(ids)


def hot(policy: FAE, num_rows: int) -> list[int]:
    return np.flatnonzero(policy.score(row_stats(num_rows))).tolist()


# --- the scheduler -----------------------------------------------------------------------------------------------


def test_the_rate_doubles_when_the_loss_fell_four_times_in_a_row() -> None:
    scheduler = ShuffleScheduler(10)
    assert [scheduler.observe(loss) for loss in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)] == [10, 10, 10, 10, 20, 20]


@pytest.mark.parametrize("interruption", [0.75, 0.7])
def test_an_interruption_starts_the_count_anew(interruption: float) -> None:
    scheduler = ShuffleScheduler(40)
    rates = [scheduler.observe(loss) for loss in (0.9, 0.8, 0.75, 0.7, interruption, 0.6, 0.5, 0.4)]
    assert len(set(rates[4:])) == 1
    assert scheduler.observe(0.3) == 2 * rates[-1]


def test_the_rate_stays_between_1_and_100() -> None:
    scheduler = ShuffleScheduler(2)
    assert [scheduler.observe(float(loss)) for loss in range(5)][-1] == 1
    rising = ShuffleScheduler(60)
    assert [rising.observe(-float(loss)) for loss in range(9)][-1] == 100


@given(st.integers(1, 100), st.integers(0, 400))
def test_phases_use_up_an_epoch_within_the_rate(rate: int, epoch: int) -> None:
    phases = list(ShuffleScheduler(rate).phases(epoch))
    assert sum(phases) == epoch
    assert max(phases, default=0) <= -(-epoch * rate // 100)


# --- the calibrator ----------------------------------------------------------------------------------------------


def test_top_takes_the_most_frequent_rows_of_all_tables() -> None:
    policy = FAE(select="top")
    policy.calibrate([samples([0, 5], [0, 5], [0, 6], [1, 5])], tables((10, 10), 3))
    assert hot(policy, 20) == [0, 1, 15]
    assert policy.hot_rows == 3


def test_a_threshold_is_a_share_of_the_tables_look_ups() -> None:
    """Of table 0, 60 % and 40 %; of table 1, 80 % and 20 %. What fits two rows is a threshold in (40 %, 60 %]."""
    policy = FAE(small_table_bytes=0)
    sample = samples([0, 5], [0, 5], [0, 5], [1, 5], [1, 6])
    policy.calibrate([sample], tables((10, 10), 2))
    assert hot(policy, 20) == [0, 15]
    assert 0.4 < policy.threshold <= 0.6


def test_small_tables_are_hot_without_a_count() -> None:
    policy = FAE(small_table_bytes=401)
    policy.calibrate([samples([3, 7], [3, 8])], tables((10, 50), 12))
    assert hot(policy, 60) == [*range(10), 17, 18]


def test_small_tables_that_do_not_fit_are_counted_like_others() -> None:
    policy = FAE()
    policy.calibrate([samples([3, 7], [3, 8])], tables((10, 50), 5))
    assert hot(policy, 60) == [3, 17, 18]


def test_room_that_a_threshold_leaves_is_used() -> None:
    """Of 40 rows 4 are looked up twice and 10 once; 6 fit."""
    policy = FAE(small_table_bytes=0)
    policy.calibrate([batch_of(np.concatenate([np.arange(4), np.arange(14)]))], tables((40,), 6))
    assert policy.threshold == 2 / 18
    assert policy.hot_rows == 6 and set(range(4)) <= set(hot(policy, 40)) <= set(range(14))


def test_bytes_of_rows_are_those_of_their_tables() -> None:
    """Through real tiers: tables of two widths, of which the small one is hot as a whole."""
    tables = [
        TableConfig(name="wide", num_embeddings=200, embedding_dim=16),
        TableConfig(name="narrow", num_embeddings=100, embedding_dim=2),
    ]
    policy = FAE(small_table_bytes=100 * 8 + 1)
    tier = TierConfig(device_rows="60%", device="cpu")
    with TieredEmbeddingBag(tables, tier, policy=policy) as embeddings:
        embeddings.calibrate([samples([3, 7], [3, 8])])
        view = embeddings.runtime.view
        widths = dict(zip(np.diff(view.table_starts).tolist(), view.row_bytes.tolist(), strict=True))
        assert widths == {200: 64, 100: 8}
        list(policy.arrange(iter([samples([150, 1], [3, 1])] * 2), view))
    assert policy.hot_rows == 101
    assert policy.two_home_bytes == policy.swaps * (64 + 100 * 8) > 0


# --- inputs ------------------------------------------------------------------------------------------------------


def stream(numbers: Sequence[int], size: int = 2) -> Iterator[Batch]:
    """Batches of samples that look up one row each, in order."""
    for first in range(0, len(numbers), size):
        yield samples(*[[number] for number in numbers[first : first + size]])


def calibrated(hot_below: int, **options: Any) -> tuple[FAE, View]:
    """Of 100 rows those below `hot_below` are hot."""
    view = tables((100,), hot_below)
    policy = FAE(select="top", **options)
    policy.calibrate([samples(*[[row] for row in range(hot_below)])], view)
    return policy, view


def test_hot_and_cold_inputs_train_apart_cold_first() -> None:
    policy, view = calibrated(10, rate=100)
    arranged = [batch.ids.tolist() for batch in policy.arrange(stream([1, 50, 2, 60, 70, 3, 80, 4, 5]), view)]
    assert arranged == [[50, 60], [70, 80], [5], [1, 2], [3, 4]]
    assert (policy.seen_inputs, policy.hot_inputs) == (9, 5)


def test_incomplete_batches_are_mixed_at_the_end() -> None:
    policy, view = calibrated(10)
    numbers = [1, 50, 2, 60, 3, 70, 4, 80, 5, 90, 6]
    arranged = [batch.ids.tolist() for batch in policy.arrange(stream(numbers, 4), view)]
    assert arranged == [[50, 60, 70, 80], [90, 5, 6], [1, 2, 3, 4]]


def mixed_inputs(batches: int, size: int = 4) -> list[int]:
    """A third of the inputs is hot."""
    rows = np.random.default_rng(0).integers(0, 30, batches * size)
    return rows.tolist()


@pytest.mark.parametrize(("rate", "phases"), [(50, 4), (100, 2), (10, 20)])
def test_phases_are_of_an_epoch_as_in_the_paper(rate: int, phases: int) -> None:
    policy, view = calibrated(10, rate=rate)
    policy.epoch_batches = 1000
    for epoch in (1, 2):
        numbers = mixed_inputs(1000)
        arranged = list(policy.arrange(stream(numbers, 4), view))
        assert policy.swaps == epoch * phases - 1, "each epoch begins with cold inputs"
        assert policy.two_home_bytes == policy.swaps * 10 * 40
        assert sorted(int(row) for batch in arranged for row in batch.ids) == sorted(numbers)
        kinds = np.array([bool((batch.ids < 10).all()) for batch in arranged])
        for kind in (False, True):
            places = np.flatnonzero(kinds == kind)
            runs = np.diff(np.flatnonzero(np.diff(places, prepend=-9, append=len(kinds) + 9) > 1))
            assert np.abs(runs - len(places) * rate / 100).max() <= 0.2 * runs.max() + 8, "the same per cent each time"


@pytest.mark.parametrize("expected", [10, 60, 100, 1000])
def test_a_wrong_length_of_the_epoch_costs_swaps_and_no_input(expected: int) -> None:
    policy, view = calibrated(10)
    policy.epoch_batches = expected
    numbers = mixed_inputs(100)
    arranged = list(policy.arrange(stream(numbers, 4), view))
    assert sorted(int(row) for batch in arranged for row in batch.ids) == sorted(numbers)
    assert [batch.num_samples for batch in arranged].count(4) >= len(arranged) - 1


def test_the_order_does_not_depend_on_where_hot_inputs_wait() -> None:
    orders = []
    for spool_bytes in (1, 1 << 26):
        policy, view = calibrated(10, spool_bytes=spool_bytes)
        policy.epoch_batches = 200
        orders.append([batch.ids.tolist() for batch in policy.arrange(stream(mixed_inputs(200), 4), view)])
    assert orders[0] == orders[1]
