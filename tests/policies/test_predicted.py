"""The skip rule `predicted`: its prediction, the inputs that are kept, and their weights."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from reference import learn_clicks
from support.builders import batch_of, kept_batches
from support.helpers import LFUOnHost

from adaptive import (
    SGD,
    Adagrad,
    Batch,
    ClickPredictor,
    InputRule,
    Policy,
    SkipConfig,
    TableConfig,
    TierConfig,
    TieredEmbeddingBag,
)
from adaptive.kernels import predictor
from adaptive.models.loss import log_loss
from adaptive.policies.rules.predicted import Predicted
from adaptive.policies.samples import uniform
from adaptive.training.trainer import Trainer

ROWS = 100


def easy_batches(count: int, size: int = 64, seed: int = 0) -> Iterator[Batch]:
    """Rows below 90 are never clicked; the others are, in three samples of four."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        ids = random.integers(0, ROWS, size)
        yield batch_of(ids, (ids >= 90) & (random.random(size) < 0.75))


@pytest.mark.parametrize("compiled", [True, False])
def test_the_kernel_is_its_slow_twin(compiled: bool) -> None:
    """Batches of up to 200 samples: several blocks, the last one smaller, bags of any length, or of one lookup."""
    learn = predictor.learn if compiled else predictor.learn.py_func  # type: ignore[attr-defined]
    random = np.random.default_rng(3)
    weights = [random.standard_normal((n, 2)).astype(np.float32) ** 2 for n in (9, 2, 1)]
    twins = [pairs.copy() for pairs in weights]
    for num_samples, one_each in product((3, predictor.BLOCK, 200), (False, True)):
        sizes = random.integers(0, 4, 2 * num_samples)
        offsets = np.concatenate([[0], np.cumsum(np.ones_like(sizes) if one_each else sizes)])
        lookups = random.integers(0, 9, offsets[-1])
        dense = random.standard_normal((num_samples, 2)).astype(np.float32)
        labels = (random.random(num_samples) < 0.3).astype(np.float32)
        got = np.empty(num_samples, np.float32)
        expected = learn_clicks(lookups, offsets, dense, labels, 0.1, predictor.BLOCK, *twins)
        learn(lookups, offsets, dense, labels, 0.1, *weights, got, one_each)
        np.testing.assert_array_equal(got, expected)
        for pairs, twin in zip(weights, twins, strict=True):
            np.testing.assert_array_equal(pairs, twin)


def test_a_predictor_learns_and_is_restored() -> None:
    model, batches = ClickPredictor(), [*easy_batches(60)]
    losses = [np.abs(model.residuals(batch, batch.ids, ROWS)).mean() for batch in batches]
    assert losses[0] == 0.5 and np.mean(losses[-10:]) < 0.15
    other = ClickPredictor()
    other.load_state_dict(model.state_dict())
    again = [one.residuals(batches[0], batches[0].ids, ROWS) for one in (model, other)]
    np.testing.assert_array_equal(*again)
    for name, array in (("rows", np.array([-1])), ("bias", np.zeros((1, 3)))):
        with pytest.raises(ValueError, match="expected"):
            other.load_state_dict({**model.state_dict(), name: array})


def rule_with(residuals: ArrayLike, factor: float, **options: Any) -> Predicted:
    """A rule whose prediction leaves these residuals, in use from the first batch on."""
    rule = Predicted(factor=factor, **options)
    rule.current_factor = factor
    rule._predictor.residuals = lambda *args: np.array(residuals, np.float32)  # type: ignore[method-assign]
    return rule


def test_weights_are_inverse_probabilities() -> None:
    """Written out: three samples at known residuals, one of which is drawn out."""
    rule = rule_with([0.05, 0.25, 0.9], factor=2, min_keep=0.2)
    rule.seen_inputs, rule._size, rule._kept_share = 3, 6, 0.25
    chosen = uniform(3 + np.arange(3), 0) < [0.2, 0.5, 1]
    assert chosen.any() and not chosen.all()
    weights = rule.keep(batch_of([0, 1, 2]), np.arange(3))
    np.testing.assert_allclose(weights, np.where(chosen, [2.5, 1, 0.5], 0), rtol=1e-6)
    assert rule.batch_share == 0.5


def test_the_expected_sum_is_that_of_all_inputs() -> None:
    """Over 3,000 seeds the weighted sum of a value of each input has the mean of the sum over all of them."""
    random = np.random.default_rng(0)
    values, residuals = random.standard_normal(40), random.random(40).astype(np.float32)
    sums = []
    for seed in range(3_000):
        rule = rule_with(residuals, factor=1.5, min_keep=0.25, seed=seed)
        sums.append((values * rule.keep(batch_of(np.arange(40)), np.arange(40))).sum())
    error = (np.mean(sums) - values.sum()) / (np.std(sums) / math.sqrt(len(sums)))
    assert abs(error) < 4 and np.std(sums) > 0.5


def test_a_user_weight_is_multiplied() -> None:
    rule = Predicted(warmup=1)
    ids = np.arange(4)
    batch = Batch.of(x=ids, labels=np.zeros(4), extras={"weight": np.array([1.0, 2, 3, 4])})
    (first,) = kept_batches(rule, iter([batch]))
    assert first.extras["weight"].tolist() == [1, 2, 3, 4]


def test_nothing_is_skipped_where_nothing_can_be_predicted() -> None:
    """Labels are coin flips."""
    random = np.random.default_rng(5)
    batches = [batch_of(random.integers(0, ROWS, 256), random.random(256) < 0.5) for _ in range(120)]
    rule = Predicted(warmup=20)
    kept = kept_batches(rule, iter(batches))
    assert rule.seen_inputs == 120 * 256 and rule.dropped_inputs == 0 and rule.current_factor == 0
    assert all(np.array_equal(batch.ids, other.ids) for batch, other in zip(kept, batches, strict=True))


def test_predictable_inputs_go_in_half_as_many_steps() -> None:
    rule = Predicted(factor=3, warmup=100)
    batches = kept_batches(rule, easy_batches(800))
    assert 0.5 < rule.dropped_inputs / rule.seen_inputs < 0.9
    assert sum(batch.num_samples for batch in batches) == rule.seen_inputs - rule.dropped_inputs
    assert 0.45 < (len(batches) - 100) / 700 < 0.55
    sizes = [batch.num_samples for batch in batches]
    assert sizes[:100] == [64] * 100 and len(set(sizes)) < 16
    weights = np.concatenate([batch.extras["weight"] for batch in batches[200:]])
    assert weights.mean() == pytest.approx(2, abs=0.12) and 0.2 < rule.effective_share < 1
    clicks = np.concatenate([batch.labels for batch in batches[200:]])
    assert (clicks * weights).mean() == pytest.approx(0.15, abs=0.02) and clicks.mean() > 0.1


def test_a_restored_rule_continues_as_the_one_that_went_through() -> None:
    batches = [*easy_batches(90)]
    whole, first, second = (Predicted(factor=1, warmup=10) for _ in range(3))
    kept_batches(whole, iter(batches[:50]))
    kept_batches(first, iter(batches[:50]))
    second.load_state_dict({name: array.copy() for name, array in first.state_dict().items()})
    second.seen_inputs, second.rest = first.seen_inputs, first.rest
    expected, got = kept_batches(whole, iter(batches[50:])), kept_batches(second, iter(batches[50:]))
    assert [batch.ids.tolist() for batch in got] == [batch.ids.tolist() for batch in expected]
    np.testing.assert_array_equal(got[-2].extras["weight"], expected[-2].extras["weight"])


@pytest.mark.parametrize("label", [2.0, -0.5, float("nan")])
def test_labels_that_are_no_probabilities_are_refused(label: float) -> None:
    with pytest.raises(ValueError, match=r"expected labels from 0 to 1"):
        Predicted().keep(batch_of([1, 2], [0, label]), np.arange(2))


# --- weights of samples in the loss -----------------------------------------------------------------------------------


def test_the_loss_of_each_sample_is_multiplied() -> None:
    logits, labels, weights = torch.randn(5), torch.tensor([0.0, 1, 1, 0, 1]), torch.tensor([0.0, 1, 2, 3, 0.5])
    each = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    got = log_loss(logits[1:], labels[1:], samples=5, weights=weights[1:])
    torch.testing.assert_close(got, (each * weights).sum() / 5)


class Sum(torch.nn.Module):
    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        return pooled.sum(dim=(1, 2))


@pytest.mark.parametrize("depth", [0, 2])
def test_the_trainer_applies_weights(depth: int) -> None:
    """SGD: a sample of weight 0 moves nothing, one of weight 3 three times as much as one of weight 1."""
    table = TableConfig(name="x", num_embeddings=3, embedding_dim=2, init_bound=0.0)
    with TieredEmbeddingBag([table], optimizer=SGD(lr=1.0)) as embeddings:
        model = Sum()
        dense_optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        weights = np.array([0, 1, 3])  # whole numbers, too
        batch = Batch.of(x=[0, 1, 2], labels=[1, 1, 1], extras={"weight": weights})
        trainer = Trainer(embeddings, model, dense_optimizer)
        trainer.train([batch], depth=depth)
        rows = embeddings.rows.table_weights("x")
    assert (trainer.recorder.log_loss.num_samples, trainer.recorder.log_loss.weight) == (3, 4.0)
    assert trainer.recorder.loss == pytest.approx(np.log(2))  # of each sample, whatever it weighs
    np.testing.assert_allclose(rows[:, 0], np.array([0, 1, 3]) * 0.5 / 3, rtol=1e-6)


def trained_rows(
    policy: str | type[Policy], rows: str, depth: int, threads: int = 1, stop: int = 0
) -> NDArray[np.float32]:
    """Rows after 60 batches under the rule, half of whose inputs or so are skipped; `stop`: a look-ahead ends there."""
    torch.manual_seed(0)
    table = TableConfig(name="x", num_embeddings=ROWS, embedding_dim=4)
    tier = TierConfig(device_rows=rows, poison=True, when_full="reduce_lookahead", plan_threads=threads)
    skip = SkipConfig(rule="predicted+factor=1+warmup=8")
    batches = [replace(batch, features=("x",)) for batch in easy_batches(60, size=16)]
    with TieredEmbeddingBag([table], tier, policy=policy, skip=skip, optimizer=Adagrad(lr=0.1)) as embeddings:
        model = Linear()
        trainer = Trainer(embeddings, model, torch.optim.Adam(model.parameters()))
        for part in (batches[:stop], batches[stop:]):
            trainer.train(part, depth=depth)
        rule = embeddings.policy.rule
        assert rule is not None and 0.1 < rule.dropped_inputs / rule.seen_inputs < 0.9
        return embeddings.rows.table_weights("x")


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 1)

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(pooled[:, 0]).squeeze(1)
        return logits


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize(
    ("policy", "rows", "depth"),
    [("lfu", "20%", 0), ("lru", "40%", 1), ("scratchpipe", "30%", 4), (LFUOnHost, "1%", 4), (LFUOnHost, "10%", 8)],
)
def test_placement_and_look_ahead_change_no_bit(
    policy: str | type[Policy], rows: str, depth: int, threads: int
) -> None:
    """The same by a planning thread and in turn, while the rule runs ahead in the thread that reads."""
    np.testing.assert_array_equal(trained_rows(policy, rows, depth, threads), trained_rows("lru", "100%", 8))


@pytest.mark.parametrize("depth", [1, 8])
def test_look_aheads_in_turn_end_like_others(depth: int) -> None:
    """What fills no batch when a look-ahead ends is dropped, however far it has read."""
    in_turn = trained_rows("lfu", "60%", depth, 0, stop=21)
    np.testing.assert_array_equal(in_turn, trained_rows("lfu", "60%", 0, 1, stop=21))


def test_nothing_is_asked_before_the_end_of_the_warm_up_nor_where_too_few_would_go() -> None:
    """Of 10 batches of warm-up the rule sees the last 4; labels are coin flips: it rests for 40, 80, then 160."""
    random = np.random.default_rng(5)
    batches = [batch_of(random.integers(0, ROWS, 256), random.random(256) < 0.5) for _ in range(240)]
    rule, asked = Predicted(warmup=10), []
    keep = rule.keep

    def counted(batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        asked.append(next(n for n, one in enumerate(batches) if one is batch))
        return keep(batch, rows)

    rule.keep = counted  # type: ignore[method-assign]
    kept = kept_batches(rule, iter(batches))
    assert asked == [6, 7, 8, 9, 10, 51, 52, 53, 54, 135, 136, 137, 138]
    assert all(one is other for one, other in zip(kept, batches, strict=True))
    assert rule.seen_inputs == 240 * 256 and rule.dropped_inputs == 0 and rule.rest == 59


def test_what_fills_no_batch_is_trained_when_a_rule_goes_to_rest() -> None:
    """Every second sample of 3 batches of 4 is kept, then the rule rests for one batch: 4, 2, and the batch itself."""

    class Half(InputRule):
        batch_share = 1.0

        def keep(self, batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.float64]:
            self.rest = int(batch.ids[0] == 8)
            return np.array([2.0, 0, 2, 0])

    batches = [batch_of(np.arange(first, first + 4), np.zeros(4)) for first in (0, 4, 8, 12, 16)]
    kept = kept_batches(Half(), iter(batches), (20,))
    assert [batch.ids.tolist() for batch in kept] == [[0, 2, 4, 6], [8, 10], [12, 13, 14, 15], [16, 18]]
    assert [batch.extras.get("weight", np.ones(0)).tolist() for batch in kept] == [[2] * 4, [1] * 2, [], [1] * 2]
