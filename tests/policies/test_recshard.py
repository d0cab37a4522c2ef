"""RecShard's cost: look-ups per sample, smoothed by steps, times what a byte saves; and rows nobody has seen."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from builders import View, batch_of
from contract import row_stats

from adaptive.errors import PolicyError
from adaptive.plugins import make_policy
from adaptive.policies.recshard import RecShard

VIEW = View(sizes=(10, 1000))


def scores(policy: RecShard, rows: Sequence[int]) -> list[float]:
    stats = row_stats(len(rows), table=(np.array(rows) >= 10).astype(np.int32))
    object.__setattr__(stats, "rows", np.array(rows))
    return [float(score) for score in policy.score(stats)]


def calibrated(first: Sequence[int], second: Sequence[int], **options: Any) -> RecShard:
    policy = RecShard(**options)
    policy.calibrate([batch_of(np.stack([first, second], axis=1))], VIEW)
    return policy


def test_a_row_saves_its_look_ups_per_sample_times_the_difference_of_a_bytes_cost() -> None:
    """Host 0.5 GB/s, device 1 GB/s: 2 ns against 1 ns. Nobody was seen once, so nothing is expected of the unseen."""
    policy = calibrated([0, 0, 0, 1, 1, 0], [5, 5, 5, 5, 5, 5], host_bandwidth=0.5, device_bandwidth=1)
    assert scores(policy, [0, 1, 2, 15, 16]) == pytest.approx([4 / 6e9, 2 / 6e9, 0, 1e-9, 0])


def test_rows_that_were_never_seen_share_the_look_ups_of_rows_seen_once() -> None:
    """Of 8 samples: row 0 three times, 1 twice, 2, 3 and 4 once. So 3 of 8 look-ups go to the 5 unseen rows."""
    policy = calibrated([0, 0, 0, 1, 1, 2, 3, 4], [5] * 8, host_bandwidth=0.5, device_bandwidth=1)
    unseen = 3 / 8 / 5 * 1e-9
    expected = [5 / 8 * 3 / 8e9, 5 / 8 * 2 / 8e9, 5 / 8 * 1 / 8e9, unseen]
    assert scores(policy, [0, 1, 2, 9]) == pytest.approx(expected)


def test_an_unseen_row_of_a_small_table_is_worth_more_than_one_of_a_large_table() -> None:
    policy = calibrated([0, 0, 1, 2], [0, 0, 1, 2])
    small, large = scores(policy, [9, 1009])
    assert small > large > 0


def test_rows_within_a_step_count_alike() -> None:
    """One step: all rows of a table are worth their mean."""
    policy = calibrated([0, 0, 0, 0, 1, 1, 2, 2], [0] * 8, steps=1)
    assert len({round(score * 1e18) for score in scores(policy, [0, 1, 2])}) == 1
    fine = calibrated([0, 0, 0, 0, 1, 1, 2, 2], [0] * 8, steps=100)
    first, second, third = scores(fine, [0, 1, 2])
    assert first == pytest.approx(2 * second) and second == pytest.approx(third)


def test_having_been_seen_makes_no_row_less_likely() -> None:
    policy = calibrated(list(range(9)), [0] * 9)
    assert min(scores(policy, list(range(9)))) >= scores(policy, [9])[0]


def test_without_a_sample_all_rows_are_alike() -> None:
    policy = RecShard()
    policy.calibrate([], VIEW)
    assert scores(policy, [0, 500]) == [0, 0]


def test_it_is_restored_from_its_state() -> None:
    policy, restored = calibrated([0, 0, 1, 2], [0, 0, 1, 2]), RecShard()
    restored.load_state_dict(policy.state_dict())
    assert scores(restored, [0, 1, 9, 900]) == scores(policy, [0, 1, 9, 900])
    with pytest.raises(ValueError, match="RecShard: needed unseen"):
        restored.load_state_dict({})


@pytest.mark.parametrize("options", [{"steps": 0}, {"host_bandwidth": 0}, {"host_bandwidth": 3000}])
def test_bad_values_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy(RecShard, options)
    assert str(next(iter(options))) in str(error.value)
