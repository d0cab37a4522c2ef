"""Slipstream's other modes: which inputs are dropped, the threshold that is found, and what `defer` and `off` leave."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from builders import View, batch_of
from contract import row_stats
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from adaptive import Adagrad, Counter, Deferral, Policy, SkipConfig, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.batch import Batch
from adaptive.errors import PolicyError
from adaptive.policy_loading import make_policy
from policies.lfu import LFU
from policies.random_drop import RandomDrop
from policies.slipstream import Slipstream

NUM_ROWS = 100


def numbered(samples: Sequence[Sequence[int]]) -> Batch:
    """The label is the number of the sample."""
    return batch_of(samples, np.arange(len(samples)))


def dropping(**options: Any) -> Slipstream:
    defaults: dict[str, Any] = {"skip": "inputs", "threshold": 0.1, "warmup": 0, "min_accesses": 1, "probe_every": 0}
    return Slipstream(**defaults | options)


def ask(policy: Slipstream, drift: dict[int, float], step: int = 64) -> None:
    """Rows with a drift are watched."""
    stats = row_stats(len(drift), step=step, drift=list(drift.values()), drift_accesses=[99] * len(drift))
    object.__setattr__(stats, "rows", np.array(list(drift)))
    assert not policy.saturated(stats).any(), "updates of inputs that are trained are never skipped"


def kept(policy: Slipstream, *batches: Sequence[Sequence[int]]) -> list[list[int]]:
    """Rows of the first feature of what is trained."""
    arranged = policy.arrange((numbered(samples) for samples in batches), View())
    return [batch.ids[: batch.num_samples].tolist() for batch in arranged]


# Rows 1 and 2 stand still, 3 and 4 move; all others are not watched.
DRIFT = {1: 0.01, 2: 0.05, 3: 0.5, 4: 0.9}


@pytest.mark.parametrize(
    ("drop_at", "expected"),
    [
        (1.0, [[2, 3, 50, 60]]),  # all watched rows saturated: (1, 2), (1, 50) go
        (0.5, [[3, 50, 60]]),  # half of them: (2, 3) goes, too
        (0.0, [[3, 50, 60]]),
    ],
)
def test_inputs_go_when_enough_of_their_watched_rows_are_saturated(drop_at: float, expected: list[list[int]]) -> None:
    policy = dropping(drop_at=drop_at)
    ask(policy, DRIFT)
    assert kept(policy, [(1, 2), (1, 50), (2, 3), (3, 4), (50, 3), (60, 70)]) == expected
    assert (policy.seen_inputs, policy.dropped_inputs) == (6, 6 - len(expected[0]))


def test_any_saturated_row_is_less_than_half_of_three() -> None:
    some, half = dropping(drop_at=0), dropping(drop_at=0.5)
    for policy in (some, half):
        ask(policy, DRIFT)
    assert kept(some, [(1, 3, 4), (60, 3, 4)]) == [[60]]
    assert kept(half, [(1, 3, 4), (60, 3, 4)]) == [[1, 60]]


def test_kept_inputs_fill_whole_batches() -> None:
    policy = dropping()
    ask(policy, DRIFT)
    assert kept(policy, [(3,), (1,), (4,)], [(1,), (50,), (51,)], [(53,), (52,), (2,)]) == [[3, 4, 50], [51, 53, 52]]


def test_what_fills_no_batch_at_the_end_is_dropped_too() -> None:
    policy = dropping()
    ask(policy, DRIFT)
    assert kept(policy, [(3,), (1,), (4,)], [(50,), (51,), (2,)]) == [[3, 4, 50]]
    assert (policy.seen_inputs, policy.dropped_inputs) == (6, 3)


def test_a_batch_is_never_dropped_as_a_whole() -> None:
    """Training would stand still, and with it the questions that could change a verdict."""
    policy = dropping()
    ask(policy, DRIFT)
    endless = (numbered([[1]] * 20) for _ in itertools.repeat(None))
    assert next(policy.arrange(endless, View())).num_samples == 20
    assert policy.dropped_inputs / policy.seen_inputs == 0.9


def test_nothing_is_dropped_during_the_warm_up_or_before_a_question() -> None:
    policy = dropping(warmup=100)
    assert kept(policy, [(1,), (2,)]) == [[1, 2]]
    ask(policy, DRIFT, step=99)
    assert kept(policy, [(1,), (2,)]) == [[1, 2]]
    ask(policy, DRIFT, step=100)
    assert kept(policy, [(1,), (60,)]) == [[60]]


def test_a_verdict_stands_until_the_row_moves_beyond_the_hysteresis() -> None:
    policy = dropping(hysteresis=2)
    for drift, expected in [(0.05, [60]), (0.15, [60]), (float("nan"), [60]), (0.3, [1, 60]), (0.15, [1, 60])]:
        ask(policy, {1: drift})
        assert kept(policy, [(1,), (60,)]) == [expected], drift


def test_a_probed_row_lets_its_inputs_through() -> None:
    policy = dropping(probe_every=2)
    dropped = []
    for step in range(0, 64 * 200, 64):
        ask(policy, {1: 0.01}, step=step)
        dropped.append(kept(policy, [(1,), (60,)]) == [[60]])
    assert 70 < sum(dropped) < 130


# --- the Sampling Block ------------------------------------------------------------------------------------------


def found(policy: Slipstream, drift: dict[int, float], samples: Sequence[Sequence[int]]) -> float:
    ask(policy, drift)
    kept(policy, samples)
    return policy.found_threshold


def test_the_threshold_drops_no_more_than_the_target() -> None:
    """Ten inputs of one watched row each, which moved by 0.1 ... 1.0; inputs without watched rows do not count."""
    drift = {row: row / 10 for row in range(1, 11)}
    samples = [[row] for row in range(1, 11)] + [[50]] * 7
    for target, threshold in [(0.0, 0.0), (0.3, 0.3), (0.39, 0.3), (1.0, 1.0)]:
        assert found(dropping(target_drop=target), drift, samples) == pytest.approx(threshold)


def test_equal_movements_go_together_or_stay() -> None:
    drift = {1: 0.1, 2: 0.2, 3: 0.3}
    samples = [[1], [2], [2], [2], [3]]
    assert found(dropping(target_drop=0.6), drift, samples) == pytest.approx(0.1)
    assert found(dropping(target_drop=0.8), drift, samples) == pytest.approx(0.2)


def test_the_threshold_is_the_drifts_for_which_the_rule_drops_that_many() -> None:
    """Under `all` an input goes at its largest movement, under `any` at its smallest."""
    drift = {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    samples = [[1, 4], [2, 3]]
    assert found(dropping(target_drop=0.5, drop_at=1), drift, samples) == pytest.approx(0.3)
    assert found(dropping(target_drop=0.5, drop_at=0), drift, samples) == pytest.approx(0.1)


def test_the_found_threshold_is_used_at_once_and_found_anew_after_each_question() -> None:
    policy = dropping(target_drop=0.5)
    ask(policy, DRIFT)
    assert kept(policy, [(1,), (2,), (3,), (4,)]) == [[3, 4]]
    ask(policy, {1: 0.9, 2: 0.8, 3: 0.01, 4: 0.02})
    assert kept(policy, [(1,), (2,), (3,), (4,)]) == [[1, 2]]


@given(st.floats(0, 1), st.sampled_from([0.0, 0.3, 0.5, 0.75, 1.0]), st.integers(0, 10**6))
def test_on_its_own_sample_the_share_is_the_largest_up_to_the_target(target: float, drop_at: float, seed: int) -> None:
    """Against trying every movement as the threshold."""
    random = np.random.default_rng(seed)
    drift = dict(zip(range(20), (random.integers(1, 9, 20) / 8).tolist(), strict=True))
    samples = random.integers(0, 24, (30, 4))
    shares = {0.0: 0.0}
    for threshold in sorted(set(drift.values())):
        dropped = hot = 0
        for sample in samples.tolist():
            moved = [drift[row] for row in sample if row in drift]
            hot += bool(moved)
            standing = sum(one <= threshold for one in moved)
            dropped += bool(moved) and standing >= max(drop_at * len(moved), 1)
        shares[threshold] = dropped / hot
    best = max(share for share in shares.values() if share <= target)
    threshold = found(dropping(target_drop=target, drop_at=drop_at), drift, samples.tolist())
    assert shares[max(value for value in shares if value <= threshold + 1e-6)] == best


def test_a_run_goes_on_from_its_state() -> None:
    policy = dropping(drop_at=0.5)
    ask(policy, DRIFT)
    kept(policy, [(1,), (50,)])
    restored = dropping(drop_at=0.5)
    restored.load_state_dict(policy.state_dict())
    samples = [(1, 2), (1, 50), (2, 3), (3, 4), (60, 3)]
    assert kept(restored, samples) == kept(policy, samples)
    assert (restored.seen_inputs, restored.dropped_inputs) == (policy.seen_inputs, policy.dropped_inputs)
    with pytest.raises(ValueError, match=r"Slipstream: needed .*, found \['rows'\]"):
        restored.load_state_dict({"rows": np.arange(2)})


# --- movement ----------------------------------------------------------------------------------------------------


def test_movement_is_the_share_of_the_path_since_the_last_question() -> None:
    """Row 0 went 1 of 10 since, row 1 went 5 of 10; row 2 went nowhere; row 3 was looked up too seldom."""
    policy = Slipstream(skip="updates", metric="movement", threshold=0.2, warmup=0, min_accesses=10, probe_every=0)
    first = row_stats(4, step=64, update_norm=[9, 5, 10, 9], accesses=[100] * 4)
    assert not policy.saturated(first).any(), "no one knows which part of the path is new"
    second = row_stats(4, step=128, update_norm=[10, 10, 10, 10], accesses=[110, 110, 110, 109])
    assert policy.saturated(second).tolist() == [True, False, False, False]


def test_movement_of_a_skipped_row_says_nothing() -> None:
    policy = Slipstream(skip="updates", metric="movement", threshold=0.2, warmup=0, min_accesses=1, probe_every=0)
    policy.saturated(row_stats(2, step=64, update_norm=[5, 5], accesses=[10, 10]))
    after = row_stats(2, step=128, update_norm=[10, 10], accesses=[20, 20], saturated=[True, False])
    assert policy.saturated(after).tolist() == [True, False]


# --- whole runs --------------------------------------------------------------------------------------------------

SKIP = SkipConfig(interval=4, min_visits=1, hot_rows="50%", min_accesses=4, lag=4)


def batches() -> Iterator[Batch]:
    random = np.random.default_rng(7)
    for _ in range(60):
        ids = random.zipf(1.4, (16, 1)) % NUM_ROWS
        yield batch_of(ids, ids[:, 0] % 3 == 0)


def train(policy: Policy, depth: int = 2, rows: str = "60%") -> tuple[TieredEmbeddingBag, NDArray[np.float32]]:
    table = TableConfig(name="t", num_embeddings=NUM_ROWS, embedding_dim=5)
    tier = TierConfig(device_rows=rows, device="cpu", poison=True)
    embeddings = TieredEmbeddingBag([table], tier, policy=policy, optimizer=Adagrad(lr=0.1), skip=SKIP)
    for planned in embeddings.look_ahead(batches(), depth=depth):
        (embeddings(planned)["t"].sum(1) - planned.labels).square().mean().backward()
        embeddings.step()
    return embeddings, embeddings.table_weights("t")


def test_off_is_a_plain_run_bit_for_bit() -> None:
    np.testing.assert_array_equal(train(Slipstream(skip="off"))[1], train(LFU())[1])


def test_defer_keeps_sums_and_no_snapshots_and_asks_nothing() -> None:
    policy = Slipstream(every=2, at_most=5, warmup=3)
    assert policy.deferral == Deferral(every=2, at_most=5, warmup=3)
    embeddings, weights = train(policy)
    counts = embeddings.take_statistics().counts.sum(axis=0)
    assert counts[Counter.DEFERRED_UPDATES] == counts[Counter.SKIPPED_UPDATES] > 100
    assert not embeddings._pipeline.policy_caller.watches_movement
    assert (weights != train(LFU())[1]).any()
    np.testing.assert_array_equal(train(policy, depth=0, rows="100%")[1], weights)


def test_deferring_at_most_one_visit_is_a_plain_run_bit_for_bit() -> None:
    np.testing.assert_array_equal(train(Slipstream(every=1, at_most=1, warmup=0))[1], train(LFU())[1])


@pytest.mark.parametrize("metric", ["drift", "movement"])
def test_updates_are_skipped_under_either_metric(metric: str) -> None:
    policy = make_policy(
        Slipstream, {"skip": "updates", "metric": metric, "threshold": 0.3, "warmup": 8, "min_accesses": 4}
    )
    counts = train(policy)[0].take_statistics().counts.sum(axis=0)
    assert counts[Counter.SKIPPED_UPDATES] > 20
    assert counts[Counter.DEFERRED_UPDATES] == 0


@pytest.mark.parametrize("options", [{"threshold": 0.3}, {"target_drop": 0.4}])
def test_dropped_inputs_do_not_depend_on_the_look_ahead_or_the_size(options: dict[str, Any]) -> None:
    runs = []
    for depth, rows in [(0, "100%"), (2, "60%"), (4, "100%")]:
        policy = Slipstream(skip="inputs", warmup=8, min_accesses=2, **options)
        weights = train(policy, depth, rows)[1]
        assert policy.seen_inputs == 60 * 16
        assert 0.02 < policy.dropped_inputs / policy.seen_inputs < 0.6
        runs.append((policy.dropped_inputs, weights))
    for dropped, weights in runs[1:]:
        assert dropped == runs[0][0]
        np.testing.assert_array_equal(weights, runs[0][1])


# --- the control -------------------------------------------------------------------------------------------------


def test_random_drop_drops_its_share_and_the_same_inputs_each_time() -> None:
    def remaining(seed: int) -> list[int]:
        policy = RandomDrop(share=0.3, seed=seed)
        arranged = list(policy.arrange((numbered([[row] for row in range(50)]) for _ in range(40)), View()))
        assert all(batch.num_samples == 50 for batch in arranged)
        assert policy.seen_inputs == 2000 and 0.26 < policy.dropped_inputs / 2000 < 0.34
        return [int(row) for batch in arranged for row in batch.ids]

    assert remaining(1) == remaining(1) != remaining(2)


def test_random_drop_goes_on_from_its_state() -> None:
    policy, restored = RandomDrop(share=0.5), RandomDrop(share=0.5)
    list(policy.arrange(iter([numbered([[1]] * 8)]), View()))
    restored.load_state_dict(policy.state_dict())
    one, other = (list(p.arrange(iter([numbered([[r] for r in range(50)])]), View())) for p in (policy, restored))
    assert np.array_equal(one[0].ids, other[0].ids)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (Slipstream, {"skip": "rows"}, "skip='rows'"),
        (Slipstream, {"target_drop": 0.2}, "target_drop=0.2: is for skip=inputs, found skip=defer"),
        (Slipstream, {"skip": "inputs", "drop_at": 1.5}, "drop_at=1.5: needed at least 0, at most 1"),
        (Slipstream, {"skip": "inputs", "target_drop": -1}, "target_drop=-1.0: needed at least 0, at most 1"),
        (Slipstream, {"every": 0}, "needed every >= 1"),
        (RandomDrop, {"share": 1}, "share=1.0: needed at least 0 and less than 1"),
        (RandomDrop, {"seed": -1}, "seed=-1: needed at least 0"),
    ],
)
def test_bad_values_are_named(cls: type[Policy], options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy(cls, options)
    assert message in str(error.value)
