"""`slipstream`: popularity placement; updates of popular rows wait, and predictable inputs are dropped."""

from itertools import islice

import numpy as np
import pytest
import torch
from contract import row_stats
from numpy.typing import NDArray
from support.builders import FEW_ROWS, HOT_EARLY, kept_batches, skewed_batches
from support.skip_rules import Waits

from adaptive import Adagrad, Counter, InputRule, Policy, SkipConfig, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.policies.lfu import LFU
from adaptive.policies.rules.defer import Defer
from adaptive.policies.rules.predicted import Predicted
from adaptive.policies.slipstream import DeferAndPredict, Slipstream
from adaptive.training.trainer import Trainer


class Both(DeferAndPredict):
    """Both rules, which skip early and much."""

    def __init__(self) -> None:
        Predicted.__init__(self, factor=1, warmup=8)
        self.rows = Waits(most=5)
        self.begin("adagrad")


class Eager(Slipstream):
    def __init__(self) -> None:
        self.rule = Both()


def train(
    policy: Policy, depth: int = 2, rows: str = "60%", skip: SkipConfig | str | None = HOT_EARLY, threads: int = 1
) -> tuple[TieredEmbeddingBag, NDArray[np.float32]]:
    table = TableConfig(name="t", num_embeddings=FEW_ROWS, embedding_dim=5)
    tier = TierConfig(device_rows=rows, device="cpu", poison=True, plan_threads=threads)
    embeddings = TieredEmbeddingBag([table], tier, policy=policy, optimizer=Adagrad(lr=0.1), skip=skip)
    for planned in embeddings.look_ahead(skewed_batches(), depth=depth):
        losses = (embeddings(planned)["t"].sum(1) - planned.labels).square()
        (losses * planned.extras.get("weight", 1.0)).mean().backward()
        embeddings.step()
    return embeddings, embeddings.rows.table_weights("t")


def test_scores_by_popularity() -> None:
    assert Slipstream().score(row_stats(3, accesses=[5, 1, 9])).tolist() == [5, 1, 9]


@pytest.mark.parametrize("optimizer", ["sgd", "rowwiseadagrad", "adam"])
def test_its_rule_is_two_rules_with_their_defaults(optimizer: str) -> None:
    both, rows, inputs = DeferAndPredict(), Defer(), Predicted()
    for rule in (both, rows):
        rule.begin(optimizer)
    assert (both.most, both.warmup) == (rows.most, rows.warmup)
    assert (both.factor, both.min_keep, both.rate, both.warmup) == (
        inputs.factor, inputs.min_keep, inputs.rate, inputs.warmup,
    )  # fmt: skip
    assert both.least == 1


def test_rows_wait_and_inputs_are_dropped_wherever_rows_are() -> None:
    embeddings, weights = train(Eager())
    counts = embeddings.statistics.take().counts.sum(axis=0)
    assert counts[Counter.DEFERRED_UPDATES] == counts[Counter.SKIPPED_UPDATES] > 50
    rule = embeddings.policy.rule
    assert isinstance(rule, InputRule) and 0 < rule.dropped_inputs < rule.seen_inputs
    for depth, rows, threads in ((0, "100%", 1), (5, "85%", 1), (0, "100%", 0), (1, "60%", 0), (5, "85%", 0)):
        np.testing.assert_array_equal(train(Eager(), depth, rows, threads=threads)[1], weights)


def test_its_inputs_are_those_that_predicted_keeps() -> None:
    """Deferral does not change which inputs are kept."""
    alone = Predicted(factor=1, warmup=8)
    both = Eager().rule
    assert isinstance(both, InputRule)
    for one, other in zip(*(kept_batches(rule, skewed_batches()) for rule in (alone, both)), strict=True):
        assert np.array_equal(one.ids, other.ids) and np.array_equal(
            one.extras.get("weight"), other.extras.get("weight")
        )
    assert both.state_dict().keys() == alone.state_dict().keys()


class Resting(Slipstream):
    """Labels that nothing predicts: the rule tries once, and then rests for longer than the training."""

    def __init__(self) -> None:
        self.rule = Both()
        self.rule.factor = 1e9


@pytest.mark.parametrize(("depth", "threads"), [(0, 1), (5, 1), (5, 0)])
def test_where_too_few_inputs_would_go_no_update_waits_either(depth: int, threads: int) -> None:
    embeddings, weights = train(Resting(), depth, threads=threads)
    rule = embeddings.policy.rule
    assert isinstance(rule, InputRule) and rule.rest > 0
    (tiered,) = embeddings.runtime.pipeline.tiered_groups
    assert tiered.skipper is not None and not any(map(tiered.skipper.measures, range(64)))
    assert embeddings.statistics.take().counts.sum(axis=0)[Counter.DEFERRED_UPDATES] == 0
    np.testing.assert_array_equal(weights, train(LFU())[1])


def test_off_or_not_switched_on_it_is_a_plain_run() -> None:
    for skip in ("off", None):
        embeddings, weights = train(Slipstream(), skip=skip)
        np.testing.assert_array_equal(weights, train(LFU())[1])
        assert not embeddings.defers and not embeddings.drops_updates


def test_short_data_train_as_without_skipping() -> None:
    """16 batches, the last one smaller: before the warm-up nothing is skipped, so every bit is that of `lfu`."""
    batches = [*islice(skewed_batches(), 16)]
    batches[-1] = batches[-1].take(np.arange(5))
    weights = []
    for policy in (Slipstream(), LFU()):
        table = TableConfig(name="t", num_embeddings=FEW_ROWS, embedding_dim=5)
        tier = TierConfig(device_rows="60%", device="cpu")
        skip = SkipConfig(min_accesses=1, interval=2) if policy.rule is not None else None
        with TieredEmbeddingBag([table], tier, policy=policy, optimizer=Adagrad(lr=0.1), skip=skip) as embeddings:
            model = Linear(5)
            Trainer(embeddings, model, torch.optim.SGD(model.parameters(), lr=0.1)).train(iter(batches))
            weights.append((embeddings.rows.table_weights("t"), model.layer.weight.detach().numpy()))
    for ours, control in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, control)


class Linear(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(width, 1)

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        return self.layer(pooled[:, 0]).squeeze(1)
