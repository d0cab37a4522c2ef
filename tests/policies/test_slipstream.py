"""`slipstream`: popularity placement with a skip rule of its own, chosen by its mode."""

from typing import Any

import numpy as np
import pytest
from contract import row_stats
from numpy.typing import NDArray
from support.builders import FEW_ROWS, WATCH_EARLY, skewed_batches

from adaptive import Adagrad, Counter, Policy, SkipConfig, SkipRule, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.plugins import make_policy
from adaptive.policies.lfu import LFU
from adaptive.policies.rules.defer import Defer
from adaptive.policies.rules.inputs import Inputs
from adaptive.policies.rules.updates import Updates
from adaptive.policies.slipstream import Slipstream


def train(
    policy: Policy, depth: int = 2, rows: str = "60%", skip: SkipConfig | SkipRule | None = WATCH_EARLY
) -> tuple[TieredEmbeddingBag, NDArray[np.float32]]:
    table = TableConfig(name="t", num_embeddings=FEW_ROWS, embedding_dim=5)
    tier = TierConfig(device_rows=rows, device="cpu", poison=True)
    embeddings = TieredEmbeddingBag([table], tier, policy=policy, optimizer=Adagrad(lr=0.1), skip=skip)
    for planned in embeddings.look_ahead(skewed_batches(), depth=depth):
        (embeddings(planned)["t"].sum(1) - planned.labels).square().mean().backward()
        embeddings.step()
    return embeddings, embeddings.rows.table_weights("t")


def test_scores_by_popularity() -> None:
    assert Slipstream().score(row_stats(3, accesses=[5, 1, 9])).tolist() == [5, 1, 9]


@pytest.mark.parametrize(
    ("mode", "options", "rule"),
    [
        ("defer", {"every": 3, "at_most": 5, "by": "visits"}, Defer(every=3, at_most=5, by="visits", warmup=7)),
        ("updates", {"threshold": 0.1, "hysteresis": 2.0}, Updates(threshold=0.1, hysteresis=2.0, warmup=7)),
        ("inputs", {"target_drop": 0.4, "hot_only": False}, Inputs(target_drop=0.4, hot_only=False, warmup=7)),
    ],
)
def test_a_mode_is_a_skip_rule_with_its_parameters(mode: str, options: dict[str, Any], rule: SkipRule) -> None:
    policy = make_policy("slipstream", {"skip": mode, "warmup": 7, **options})
    assert type(policy.rule) is type(rule)
    plain = {name: value for name, value in vars(rule).items() if isinstance(value, bool | int | float | str | tuple)}
    assert {name: getattr(policy.rule, name) for name in plain} == plain


def test_a_mode_trains_as_its_rule_does() -> None:
    for mode, rule in (("defer", Defer(warmup=3)), ("updates", Updates(warmup=3)), ("inputs", Inputs(warmup=3))):
        own = train(make_policy("slipstream", {"skip": mode, "warmup": 3}))[1]
        np.testing.assert_array_equal(own, train(LFU(), skip=rule_with(rule))[1])


def rule_with(rule: SkipRule) -> SkipConfig:
    """The settings above with the rule of this name at the parameters of the test above."""
    return WATCH_EARLY.model_copy(update={"rule": f"{type(rule).__name__.lower()}+warmup=3"})


def test_off_is_a_plain_run_bit_for_bit() -> None:
    np.testing.assert_array_equal(train(Slipstream(skip="off"))[1], train(LFU())[1])


def test_without_skipping_switched_on_it_is_a_plain_run() -> None:
    for mode in ("defer", "updates", "inputs"):
        embeddings, weights = train(make_policy("slipstream", {"skip": mode, "warmup": 0}), skip=None)
        np.testing.assert_array_equal(weights, train(LFU())[1])
        assert not embeddings.defers and not embeddings.drops_updates


def test_by_visits_keeps_sums_and_no_snapshots() -> None:
    policy = Slipstream(by="visits", every=2, at_most=5, warmup=3)
    embeddings, weights = train(policy)
    counts = embeddings.statistics.take().counts.sum(axis=0)
    assert counts[Counter.DEFERRED_UPDATES] == counts[Counter.SKIPPED_UPDATES] > 100
    assert not embeddings.runtime.pipeline.policy_caller.watches_movement
    assert (weights != train(LFU())[1]).any()
    again = Slipstream(by="visits", every=2, at_most=5, warmup=3)
    np.testing.assert_array_equal(train(again, depth=0, rows="100%")[1], weights)


def test_deferring_at_most_one_visit_is_a_plain_run_bit_for_bit() -> None:
    np.testing.assert_array_equal(train(Slipstream(every=1, at_most=1, warmup=0))[1], train(LFU())[1])


def test_every_parameter_reaches_some_mode() -> None:
    from adaptive.plugins import policy_parameters
    from adaptive.policies.slipstream import _RULES

    of_modes = {name for rule in _RULES.values() for name in policy_parameters(rule)}
    assert of_modes == set(policy_parameters(Slipstream)) - {"skip"}
