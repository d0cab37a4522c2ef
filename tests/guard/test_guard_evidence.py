"""The paired difference of AUC and log loss, and its error, against their definitions."""

import math

import numpy as np
import pytest
from guarded import Floats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from adaptive.guard.judge import REACH, Evidence, compare, interval
from adaptive.quality import exact_auc


def order(positive: float, negative: float) -> float:
    return 1.0 if positive > negative else 0.5 if positive == negative else 0.0


def twin(run: Floats, fork: Floats, labels: Floats) -> tuple[float, float]:
    """DeLong's difference of two AUCs and its error, from all pairs."""
    gained = np.array(
        [
            [order(run[p], run[n]) - order(fork[p], fork[n]) for n in np.flatnonzero(labels == 0)]
            for p in np.flatnonzero(labels == 1)
        ]
    )
    by_positive, by_negative = gained.mean(axis=1), gained.mean(axis=0)
    variance = by_positive.var(ddof=1) / len(by_positive) + by_negative.var(ddof=1) / len(by_negative)
    return gained.mean(), math.sqrt(variance)


def test_by_hand() -> None:
    """Positives score 2 and 1, negatives 0 and 1.5; the fork swaps the two in the middle, and wins one pair of four."""
    labels = np.array([1, 1, 0, 0], np.float32)
    run, fork = np.array([2, 1, 0, 1.5], np.float32), np.array([2, 1.5, 0, 1], np.float32)
    found = compare(run, fork, labels)
    assert found is not None and found.samples == 4
    assert found.auc == -0.25
    # of the positives one wins half its pairs, of the negatives one: variances of (0, -1/2), twice
    assert found.auc_error == pytest.approx(math.sqrt(0.125 / 2 + 0.125 / 2))
    expected = [math.log1p(math.exp(z)) for z in (-1, -1.5, 1.5, 1)]  # losses of the two that were swapped
    assert found.log_loss == pytest.approx((expected[0] - expected[1] + expected[2] - expected[3]) / 4)
    reach = 1.959964 * found.auc_error
    assert found.auc_interval == pytest.approx((-0.25 - reach, -0.25 + reach))


scores = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 3.0])


@given(st.integers(4, 25).flatmap(lambda n: st.tuples(*[arrays.arrays(np.float32, n, elements=scores)] * 2)), st.data())
def test_against_all_pairs(models: tuple[Floats, Floats], data: st.DataObject) -> None:
    run, fork = models
    labels = data.draw(arrays.arrays(np.float32, len(run), elements=st.sampled_from([0.0, 1.0])))
    found = compare(run, fork, labels)
    if min(labels.sum(), len(labels) - labels.sum()) < 2:
        assert found is None
        return
    assert found is not None
    assert (found.auc, found.auc_error) == pytest.approx(twin(run, fork, labels), abs=1e-9)
    auc = exact_auc(run, labels), exact_auc(fork, labels)
    assert auc[0] is not None and auc[1] is not None
    assert found.auc == pytest.approx(auc[0] - auc[1])


def test_the_interval_covers_what_other_samples_would_have_shown() -> None:
    """Of 400 draws of held-back samples about 95 % have the true difference in their interval."""
    rng = np.random.default_rng(0)

    def draw(n: int) -> Evidence:
        labels = (rng.random(n) < 0.3).astype(np.float32)
        common = labels + rng.normal(size=n)
        run, fork = common + 0.4 * rng.normal(size=n), common + 0.3 * rng.normal(size=n)
        found = compare(run, fork, labels)
        assert found is not None
        return found

    truth = draw(200_000)
    draws = [draw(500) for _ in range(400)]
    for value, name in ((truth.auc, "auc_interval"), (truth.log_loss, "log_loss_interval")):
        inside = [getattr(one, name)[0] <= value <= getattr(one, name)[1] for one in draws]
        assert 0.91 < np.mean(inside) < 0.985, name


def test_equal_models_are_told_from_models_that_happen_to_be_as_good() -> None:
    labels = np.array([1, 0, 1, 0], np.float32)
    run = np.array([2, 1, 0, 3], np.float32)
    same, other = compare(run, run, labels), compare(run, run + 1, labels)
    assert same is not None and same.equal and same.auc_interval == (0, 0)
    assert other is not None and not other.equal and other.auc == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_no_evidence(bad: float) -> None:
    labels = np.array([1, 0, 1, 0], np.float32)
    logits = np.zeros(4, np.float32)
    assert compare(np.array([0, bad, 0, 0], np.float32), logits, labels) is None
    assert compare(logits, np.array([0, bad, 0, 0], np.float32), labels) is None


def test_an_interval_is_symmetric() -> None:
    assert interval(1.0, 0.5) == (1 - 0.5 * REACH, 1 + 0.5 * REACH)
