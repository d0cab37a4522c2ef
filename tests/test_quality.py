"""Streaming and exact metrics against scikit-learn, and what must hold for any stream."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from adaptive.training.quality import StreamingAUC, StreamingLogLoss, exact_auc, grouped_auc

# positive rate of click logs, raw to sampled, and the mean logit that gives it when the standard deviation is 1
MEAN_LOGITS = {0.0025: -6.4847, 0.04: -3.6183, 0.26: -1.2531}


def click_model(rate: float, *, num_samples: int = 400_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """float32 logits of a calibrated model, and labels drawn from them."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(MEAN_LOGITS[rate], 1.0, num_samples).astype(np.float32)
    return logits, (rng.random(num_samples) < 1 / (1 + np.exp(-logits))).astype(np.float32)


def in_batches(metric, logits, labels, size=2048):
    for start in range(0, len(logits), size):
        metric.update(logits[start : start + size], labels[start : start + size])
    return metric


@pytest.fixture(params=MEAN_LOGITS, ids="{:.2%}".format, scope="module")
def clicks(request) -> tuple[np.ndarray, np.ndarray]:
    logits, labels = click_model(request.param)
    assert labels.mean() == pytest.approx(request.param, rel=0.05)
    return logits, labels


def test_numbers_of_a_click_model_are_those_of_scikit_learn(clicks):
    logits, labels = clicks
    auc, losses = in_batches(StreamingAUC(), logits, labels), in_batches(StreamingLogLoss(), logits, labels)
    expected = roc_auc_score(labels, logits)
    assert auc.value() == pytest.approx(expected, abs=1e-4)
    assert exact_auc(logits, labels) == pytest.approx(expected, abs=1e-12)
    assert auc.accuracy() == accuracy_score(labels, logits > 0) and 0.7 < auc.accuracy() < 1
    assert losses.value() == pytest.approx(log_loss(labels, 1 / (1 + np.exp(-logits.astype(np.float64)))), rel=1e-12)
    assert losses.calibration() == pytest.approx(1, abs=0.1) and losses.normalised_entropy() < 1


def test_weighted_numbers_are_those_of_scikit_learn(clicks):
    logits, labels = clicks
    weights = np.random.default_rng(1).integers(1, 41, len(labels)) / np.float32(4)
    auc, losses = StreamingAUC(), StreamingLogLoss()
    auc.update(logits, labels, weights)
    losses.update(logits, labels, weights)
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert auc.value() == pytest.approx(roc_auc_score(labels, logits, sample_weight=weights), abs=1e-4)
    assert auc.accuracy() == pytest.approx(accuracy_score(labels, logits > 0, sample_weight=weights), rel=1e-12)
    assert losses.value() == pytest.approx(log_loss(labels, probabilities, sample_weight=weights), rel=1e-12)
    assert losses.calibration() == pytest.approx(weights @ probabilities / (weights @ labels), rel=1e-12)
    assert losses.num_samples == len(labels)


@pytest.mark.parametrize("labels", [[], [1, 1], [0, 0, 0]])
def test_one_class_has_no_auc(labels):
    scores = np.arange(len(labels), dtype=np.float32)
    metric, loss = StreamingAUC(), StreamingLogLoss()
    metric.update(scores, np.array(labels))
    loss.update(scores, np.array(labels))
    assert metric.value() is None
    assert exact_auc(scores, np.array(labels)) is None
    assert loss.normalised_entropy() is None
    assert (loss.value() is None) == (not labels)
    assert (loss.calibration() is None) == (1 not in labels)


def test_certain_and_wrong_costs_what_scikit_learn_says():
    metric = StreamingLogLoss()
    metric.update(np.array([np.inf, -np.inf]), np.array([0, 0]))
    assert metric.value() == pytest.approx(log_loss([0, 0], [1.0, 0.0], labels=[0, 1]))


@pytest.mark.parametrize("metric", [StreamingAUC(), StreamingLogLoss()])
@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.0, np.nan, np.nan], [0, 1, 1], "got NaN for 2 of 3, first at position 1"),
        ([0.0, 1.0], [0, 2], r"labels 0 or 1, got 2 \(position 1\)"),
        ([0.0, 1.0], [0, -1], r"labels 0 or 1, got -1 \(position 1\)"),
        ([0.0, 1.0], [0.0, np.nan], r"labels 0 or 1, got nan \(position 1\)"),
        ([0.0], [0, 1], r"one length, got \(1,\) and \(2,\)"),
        ([[0.0]], [[1]], r"one length, got \(1, 1\) and \(1, 1\)"),
        ([0, 1], [0, 1], "expected floats, got int64"),
    ],
)
def test_bad_input_is_refused(metric, scores, labels, message):
    with pytest.raises(ValueError, match=message):
        metric.update(np.array(scores), np.array(labels))
    with pytest.raises(ValueError, match=message):
        exact_auc(np.array(scores), np.array(labels))


streams = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.float32, n, elements=st.floats(-40, 40, width=32)),
        hnp.arrays(np.int64, n, elements=st.integers(0, 1)),
    )
)


@settings(deadline=None)
@given(streams, st.randoms(use_true_random=False), st.integers(0, 60))
def test_order_and_partition_do_not_matter(stream, random, cut):
    scores, labels = stream
    order = np.array(random.sample(range(len(scores)), len(scores)))
    for kind in (StreamingAUC, StreamingLogLoss):
        whole, first = kind(), kind()
        whole.update(scores, labels)
        first.update(scores[order[:cut]], labels[order[:cut]])
        first.update(scores[order[cut:]], labels[order[cut:]])
        if kind is StreamingAUC:
            assert np.array_equal(first.counts, whole.counts) and first.value() == whole.value()
        else:
            assert first.value() == pytest.approx(whole.value())
            assert first.normalised_entropy() == pytest.approx(whole.normalised_entropy())
            assert first.calibration() == pytest.approx(whole.calibration())
    assert exact_auc(scores[order], labels[order]) == exact_auc(scores, labels)


@settings(deadline=None)
@given(streams)
def test_exact_auc_counts_pairs(stream):
    scores, labels = stream
    positives, negatives = scores[labels == 1], scores[labels == 0]
    above = positives[:, None] > negatives
    tied = positives[:, None] == negatives
    expected = (above + 0.5 * tied).mean() if above.size else None
    assert exact_auc(scores, labels) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(streams)
def test_bins_never_turn_a_pair_around(stream):
    """A bin may tie what is not tied, never more: the value is within half of the pairs that share a bin."""
    scores, labels = stream
    metric = StreamingAUC()
    metric.update(scores, labels)
    exact = exact_auc(scores, labels)
    if exact is None:
        assert metric.value() is None
    else:
        shared = float(np.dot(metric.counts[0], metric.counts[1]))
        pairs = float(metric.counts[0].sum() * metric.counts[1].sum())
        assert abs(metric.value() - exact) <= 0.5 * shared / pairs + 1e-12


# -- AUC by groups -------------------------------------------------------------------------------------------------


def slow_gauc(scores, labels, groups):
    """Group by group."""
    found = [(exact_auc(scores[groups == one], labels[groups == one]), (groups == one).sum()) for one in set(groups)]
    known = [(auc, size) for auc, size in found if auc is not None]
    if not known:
        return None, 0
    return sum(auc * size for auc, size in known) / sum(size for _, size in known), len(known)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans(), st.integers(-2, 4)), max_size=60))
def test_gauc_is_that_of_each_group_alone(samples: list[tuple[int, bool, int]]) -> None:
    table = np.array(samples, float).reshape(-1, 3)
    scores, labels, groups = table[:, 0], table[:, 1], table[:, 2].astype(int)
    found, expected = grouped_auc(scores, labels, groups), slow_gauc(scores, labels, groups)
    assert found[1] == expected[1] and found[0] == (expected[0] if expected[0] is None else pytest.approx(expected[0]))
