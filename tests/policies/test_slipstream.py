"""When a row counts as saturated, when it is let through again, and that a run can be repeated."""

from typing import Any

import numpy as np
from contract import row_stats
from hypothesis import given
from hypothesis import strategies as st

from adaptive.policy import RowStats
from policies.slipstream import Slipstream


def rows_at(step: int, drift: list[float], **columns: Any) -> RowStats:
    columns.setdefault("drift_accesses", np.full(len(drift), 1000))
    return row_stats(len(drift), step=step, drift=drift, **columns)


def verdicts(policy: Slipstream, rows: RowStats) -> list[bool]:
    found = policy.saturated(rows)
    assert found.dtype == np.bool_
    return [bool(verdict) for verdict in found]


def unprobed(**options: Any) -> Slipstream:
    return Slipstream(
        **{"skip": "updates", "threshold": 0.1, "hysteresis": 2, "warmup": 100, "probe_every": 0} | options
    )


def test_scores_by_popularity() -> None:
    assert Slipstream().score(row_stats(3, accesses=[5, 1, 9])).tolist() == [5, 1, 9]


def test_rows_that_moved_at_most_the_threshold_are_saturated() -> None:
    drift = np.array([0.05, 0.1, 0.11, 3.0], np.float32)
    policy = unprobed(threshold=float(drift[1]))
    assert verdicts(policy, rows_at(100, drift.tolist())) == [True, True, False, False]


def test_nothing_is_saturated_during_the_warm_up() -> None:
    assert verdicts(unprobed(), rows_at(99, [0.01], saturated=[True])) == [False]


def test_few_look_ups_say_nothing() -> None:
    rows = rows_at(100, [0.01, 0.01], drift_accesses=[63, 64])
    assert verdicts(unprobed(min_accesses=64), rows) == [False, True]


def test_an_unknown_movement_says_nothing() -> None:
    """A row that was skipped since the snapshot has not moved at all: that must not keep it saturated for ever."""
    rows = rows_at(100, [np.nan, np.nan, 0.0, 0.0], saturated=[True, False, True, False])
    assert verdicts(unprobed(), rows) == [True, False, True, False]


def test_a_saturated_row_stays_so_up_to_the_hysteresis() -> None:
    rows = rows_at(100, [0.15, 0.15, 0.25], saturated=[True, False, True])
    assert verdicts(unprobed(), rows) == [True, False, False]


def test_without_rows_there_are_no_verdicts() -> None:
    assert verdicts(Slipstream(), rows_at(1000, [])) == []


def test_probing_lets_every_saturated_row_through_again_and_again() -> None:
    policy = unprobed(probe_every=4)
    saturated = np.array([policy.saturated(rows_at(step, [0.01] * 500)) for step in range(100, 100 + 64 * 200, 64)])
    let_through = 1 - saturated.mean(axis=0)
    assert 0.23 < let_through.mean() < 0.27
    assert let_through.min() > 0.1 and let_through.max() < 0.4  # each row, not some of them for ever


def test_the_questions_that_probe_differ_between_rows() -> None:
    policy = unprobed(probe_every=4)
    share = 1 - policy.saturated(rows_at(640, [0.01] * 2000)).mean()
    assert 0.2 < share < 0.3


def test_a_probed_row_that_moves_is_free_and_one_that_does_not_is_saturated_again() -> None:
    """The measurement of a probed interval arrives questions later: until then the row stays open."""
    policy = unprobed()
    opened = rows_at(200, [0.0, 0.0], saturated=[False, False])
    assert verdicts(policy, opened) == [False, False]
    measured = rows_at(264, [0.3, 0.02], saturated=[False, False])
    assert verdicts(policy, measured) == [False, True]


@given(st.integers(0, 10**9), st.integers(0, 300), st.integers(0, 2**31))
def test_verdicts_depend_on_the_rows_alone_and_not_on_their_neighbours(step: int, size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    columns = {
        "rows": random.choice(10**12, size, replace=False),
        "drift_accesses": random.integers(0, 128, size),
        "saturated": random.random(size) < 0.5,
    }
    drift = random.random(size) * 0.03
    whole = Slipstream(skip="updates", warmup=0).saturated(rows_at(step, drift.tolist(), **columns))
    half = rows_at(step, drift[::2].tolist(), **{name: column[::2] for name, column in columns.items()})
    assert np.array_equal(whole[::2], Slipstream(skip="updates", warmup=0).saturated(half))
