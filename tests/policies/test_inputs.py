"""The skip rule `inputs`: which inputs are dropped, and the threshold that is found."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from contract import row_stats
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.builders import FEW_ROWS, WATCH_EARLY, View, batch_of, skewed_batches

from adaptive import Adagrad, SkipRule, TableConfig, TierConfig, TieredEmbeddingBag, TierView
from adaptive.batch import Batch
from adaptive.errors import PolicyError
from adaptive.policies.rules.inputs import Inputs


def numbered(samples: Sequence[Sequence[int]]) -> Batch:
    """The label is the number of the sample."""
    return batch_of(samples, np.arange(len(samples)))


def dropping(**options: Any) -> Inputs:
    return Inputs(**{"threshold": 0.1, "warmup": 0, "probe_every": 0, **options})


def ask(rule: Inputs, moved: dict[int, float], step: int = 64) -> None:
    """Rows with a movement are watched; over four visits a random walk covers twice the movement of one."""
    drift = [2 * value for value in moved.values()]
    stats = row_stats(len(moved), step=step, drift=drift, drift_visits=[4] * len(moved))
    object.__setattr__(stats, "rows", np.array(list(moved)))
    assert (rule.visits(stats) == 1).all(), "updates of inputs that are trained are never skipped"


def kept(rule: Inputs, *batches: Sequence[Sequence[int]]) -> list[list[int]]:
    """Rows of the first feature of what is trained."""
    arranged = rule.arrange((numbered(samples) for samples in batches), View())
    return [batch.ids[: batch.num_samples].tolist() for batch in arranged]


# Rows 1 and 2 stand still, 3 and 4 move; of 5 nothing is known; all others are not watched.
MOVED = {1: 0.01, 2: 0.05, 3: 0.5, 4: 0.9, 5: float("nan")}
SAMPLES = [(1, 2), (1, 50), (2, 3), (3, 4), (50, 3), (60, 70), (2, 5)]


def test_an_input_is_dropped_only_if_all_its_rows_rest() -> None:
    rule = dropping()
    ask(rule, MOVED)
    assert kept(rule, SAMPLES) == [[1, 2, 3, 50, 60, 2]]
    assert (rule.seen_inputs, rule.hot_inputs, rule.dropped_inputs) == (7, 3, 1)
    assert rule.saturated_rows == 2


def test_kept_inputs_fill_whole_batches() -> None:
    rule = dropping()
    ask(rule, MOVED)
    assert kept(rule, [(3,), (1,), (4,)], [(1,), (50,), (51,)], [(53,), (52,), (2,)]) == [[3, 4, 50], [51, 53, 52]]


def test_a_batch_is_never_dropped_as_a_whole() -> None:
    """Training would stand still, and with it the questions that could change a verdict."""
    rule = dropping()
    ask(rule, MOVED)
    endless = (numbered([[1]] * 20) for _ in itertools.repeat(None))
    assert next(rule.arrange(endless, View())).num_samples == 20
    assert rule.dropped_inputs / rule.seen_inputs == 0.9


def test_nothing_is_dropped_before_the_warm_up_ends() -> None:
    rule = dropping(warmup=100)
    assert kept(rule, [(1,), (2,)]) == [[1, 2]]
    ask(rule, MOVED, step=99)
    assert kept(rule, [(1,), (2,)]) == [[1, 2]]
    ask(rule, MOVED, step=100)
    assert kept(rule, [(1,), (60,)]) == [[60]]


def test_one_input_in_so_many_is_trained_all_the_same() -> None:
    rule = dropping(probe_every=4)
    ask(rule, {1: 0.01})
    left = sum(len(batch) for batch in kept(rule, *[[(1,)] * 8 + [(60,)] * 2 for _ in range(200)]))
    assert rule.dropped_inputs + left == 2000
    assert 0.7 < rule.dropped_inputs / 1600 < 0.8


# --- the Sampling Block ------------------------------------------------------------------------------------------


def found(rule: Inputs, moved: dict[int, float], samples: Sequence[Sequence[int]]) -> float:
    ask(rule, moved)
    kept(rule, samples)
    return rule.found_threshold


def test_the_threshold_is_found_again_after_each_call() -> None:
    rule = dropping(threshold=None, target_drop=0.5)
    ask(rule, {row: moved for row, moved in MOVED.items() if row < 5})
    assert kept(rule, [(1,), (2,), (3,), (4,)]) == [[3, 4]]
    ask(rule, {1: 0.9, 2: 0.8, 3: 0.01, 4: 0.02})
    assert kept(rule, [(1,), (2,), (3,), (4,)]) == [[1, 2]]


@given(st.floats(0, 1), st.integers(0, 10**6))
def test_the_share_is_the_largest_up_to_the_target(target: float, seed: int) -> None:
    """Against trying every movement as the threshold."""
    random = np.random.default_rng(seed)
    moved = dict(zip(range(20), (random.integers(1, 9, 20) / 8).tolist(), strict=True))
    samples = random.integers(0, 22, (30, 3)).tolist()
    could = [s for s in samples if all(row in moved for row in s)]
    most = [max(moved[row] for row in sample) for sample in could]
    shares = {-1.0: 0.0} | {limit: sum(m <= limit for m in most) / len(most) for limit in sorted(set(most))}
    best = max(share for share in shares.values() if share <= target)
    threshold = found(dropping(threshold=None, target_drop=target), moved, samples)
    assert shares[max(value for value in shares if value <= threshold + 1e-6)] == best


def test_a_run_goes_on_from_its_state() -> None:
    rule = dropping(threshold=None, target_drop=0.4)
    ask(rule, MOVED)
    kept(rule, [(1,), (50,)])
    restored = dropping(threshold=None, target_drop=0.4)
    restored.load_state_dict(rule.state_dict())
    assert kept(restored, SAMPLES) == kept(rule, SAMPLES)
    assert (restored.seen_inputs, restored.dropped_inputs) == (rule.seen_inputs, rule.dropped_inputs)


# --- whole runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["lru", "fae", "hotline", "scratchpipe"])
@pytest.mark.parametrize("rule", ["inputs+warmup=8+threshold=0.1", "inputs+warmup=8+target_drop=0.4"])
def test_dropped_inputs_depend_neither_on_depth_nor_on_size(policy: str, rule: str) -> None:
    runs = []
    for depth, rows in [(0, "100%"), (2, "60%"), (4, "100%")]:
        table = TableConfig(name="t", num_embeddings=FEW_ROWS, embedding_dim=5)
        tier = TierConfig(device_rows=rows, device="cpu", poison=True)
        skip = WATCH_EARLY.model_copy(update={"rule": rule})
        embeddings = TieredEmbeddingBag([table], tier, policy=policy, optimizer=Adagrad(lr=0.1), skip=skip)
        embeddings.calibrate(list(itertools.islice(skewed_batches(), 8)))
        for planned in embeddings.look_ahead(skewed_batches(), depth=depth):
            (embeddings(planned)["t"].sum(1) - planned.labels).square().mean().backward()
            embeddings.step()
        dropping = embeddings.policy.rule
        assert isinstance(dropping, Inputs) and dropping.seen_inputs == 60 * 16
        assert 0.02 < dropping.dropped_inputs / dropping.seen_inputs < 0.6
        assert not embeddings.defers and not embeddings.drops_updates and not embeddings.runtime.may_end_early
        runs.append(
            (dropping.dropped_inputs, embeddings.rows.table_weights("t") if policy != "fae" or rows == "60%" else 0)
        )
    if policy in ("lru", "scratchpipe"):  # the others regroup by what fits on the device
        for dropped, weights in runs[1:]:
            assert dropped == runs[0][0]
            np.testing.assert_array_equal(weights, runs[0][1])


def test_a_rule_that_fails_over_inputs_is_named() -> None:
    class Fails(SkipRule):
        drops_inputs = True

        def visits(self, rows: Any) -> NDArray[np.int64]:
            return np.ones(len(rows), np.int64)

        def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
            raise RuntimeError("out of order")

    table = TableConfig(name="t", num_embeddings=FEW_ROWS, embedding_dim=5)
    embeddings = TieredEmbeddingBag([table], skip=Fails())
    with pytest.raises(PolicyError, match=r"skip rule Fails\.arrange raised RuntimeError: out of order"):
        list(embeddings.look_ahead(skewed_batches(), depth=2))
