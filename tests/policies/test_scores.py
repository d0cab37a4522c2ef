"""What each built-in keeps and what it lets go, on rows written out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from builders import View, batch_of
from contract import row_stats

from adaptive.batch import Batch
from adaptive.config import TierConfig
from adaptive.errors import PolicyError
from adaptive.plugins import make_policy
from adaptive.policies.device import Device
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lfu import LFU
from adaptive.policies.lru import LRU
from adaptive.policies.scratchpipe import ScratchPipe
from adaptive.policies.static import Static
from adaptive.policy import NEVER, Policy, RowStats


def leaving(policy: Policy, rows: RowStats) -> list[int]:
    """Rows in the order in which they leave; of equal scores the one given first."""
    order = np.argsort(policy.score(rows), kind="stable")
    return [int(row) for row in rows.rows[order]]


def sample(*batches: Sequence[int]) -> list[Batch]:
    return [batch_of(ids) for ids in batches]


def test_lru_lets_the_least_recent_go_first() -> None:
    assert leaving(LRU(), row_stats(4, step=9, last_access=[7, 2, 8, -1])) == [3, 1, 0, 2]


def test_lfu_lets_the_least_frequent_go_first_and_of_those_the_least_recent() -> None:
    rows = row_stats(5, step=9, accesses=[5, 1, 9, 1, 0], last_access=[1, 8, 0, 3, -1])
    assert leaving(LFU(), rows) == [4, 3, 1, 0, 2]


def test_lfu_never_lets_recency_outweigh_a_look_up() -> None:
    rows = row_stats(2, step=1_000_000, accesses=[1, 2], last_access=[1_000_000, -1])
    assert leaving(LFU(), rows) == [0, 1]


def test_lfu_with_a_half_life_forgets_what_was_popular() -> None:
    rows = row_stats(3, step=100, accesses=[1000, 4, 1], last_access=[0, 98, 100])
    assert leaving(LFU(), rows) == [2, 1, 0]
    assert leaving(LFU(half_life=10), rows) == [0, 2, 1]  # 1000 / 2^10 < 1 / 2^0 < 4 / 2^0.2
    scores = LFU(half_life=10).score(rows)
    np.testing.assert_allclose(2.0**scores, [1000 / 2**10, 4 / 2**0.2, 1])


def test_lfu_with_a_half_life_still_tells_rows_apart_after_thousands_of_half_lives() -> None:
    rows = row_stats(2, step=100_000, accesses=[8, 8], last_access=[10, 20])
    assert leaving(LFU(half_life=1), rows) == [0, 1]


def test_static_keeps_what_was_frequent_in_the_sample() -> None:
    policy = Static()
    policy.calibrate(sample([3, 3, 5], [5, 5, 2]), View())
    rows = row_stats(7, accesses=np.arange(7) * 100)
    assert policy.score(rows).tolist() == [0, 0, 1, 2, 0, 3, 0]


def test_static_without_a_sample_scores_all_rows_alike() -> None:
    assert Static().score(row_stats(3)).tolist() == [0, 0, 0]


def test_static_is_restored_from_its_state() -> None:
    policy, restored = Static(), Static()
    policy.calibrate(sample([3, 3, 5]), View())
    restored.load_state_dict(policy.state_dict())
    assert restored.score(row_stats(7)).tolist() == [0, 0, 0, 2, 0, 1, 0]


def test_static_names_what_is_wrong_with_a_state() -> None:
    with pytest.raises(ValueError, match=r"needed rows and counts of one length, found \['rows'\]"):
        Static().load_state_dict({"rows": np.arange(3)})


def test_scratchpipe_lets_unneeded_rows_go_first_then_the_farthest() -> None:
    next_access = [51, 60, NEVER, NEVER, 52, NEVER]
    rows = row_stats(6, step=50, last_access=[40, 49, 3, 50, 48, -1], next_access=next_access)
    assert leaving(ScratchPipe(), rows) == [5, 2, 3, 1, 4, 0]


def test_scratchpipe_without_a_window_is_lru() -> None:
    policy = ScratchPipe(window=0)
    rows = row_stats(50, step=9, last_access=np.arange(50) * 7 % 10)
    assert policy.window == 0
    assert leaving(policy, rows) == leaving(LRU(), rows)


def test_baselines_fix_their_tiers() -> None:
    assert (Hybrid.misses, Hybrid.device_rows) == ("host", "0")
    assert (Device.misses, Device.device_rows) == ("prefetch", "100%")
    for cls in (Hybrid, Device):
        assert TierConfig(device_rows=str(cls.device_rows))
        assert cls().score(row_stats(2)).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lfu", {"half_life": 0}, "half_life=0.0: needed more than 0 batches"),
        ("lfu", {"half_life": "soon"}, "half_life='soon'"),
        ("adaptive.policies.scratchpipe:ScratchPipe", {"window": -1}, "window=-1: needed 0 batches or more"),
        ("slipstream", {"skip": "updates", "hysteresis": 0.5}, "hysteresis=0.5: needed at least 1"),
        ("slipstream", {"skip": "inputs", "threshold": float("nan")}, "threshold=nan: needed at least 0"),
        ("slipstream", {"every": 0}, "every=0: needed at least 1"),
        ("slipstream", {"warmup": -1}, "warmup=-1: needed at least 0"),
        ("slipstream", {"skip": "updates", "probe_every": -1}, "probe_every=-1: needed at least 0"),
        ("lru", {"window": 3}, "policy LRU has no parameter window; it has: none"),
    ],
)
def test_bad_parameters_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy(name, options)
    assert message in str(error.value)
