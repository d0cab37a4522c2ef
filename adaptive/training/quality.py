"""Quality of predictions: AUC, GAUC, accuracy, log loss, calibration.

The streaming classes use constant memory and do not depend on the order of samples. Letters: B samples of a batch, n
samples in total.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

NUM_BINS: Final = 4096
UNIT: Final = 1024  # count of a sample of weight 1: counts of weights are integers, so their order does not matter
# Half of the logit range of the bins. Beyond it 1 - p is 0 in float32 (2^-24 is logit -16.6).
LOGIT_RANGE: Final = 16.0
# scikit-learn's clip for float64: probabilities are in [2^-52, 1 - 2^-52], so a sample costs at most 36.04.
MAX_LOGIT: Final = 52 * float(np.log(2.0))


class StreamingAUC:
    """AUC and accuracy of a stream, from counts in 4,096 bins of logits.

    Click-through rates are near 0, where bins of equal width in probabilities would put nearly all samples into one.
    Samples in the same bin count as tied (one half), so the AUC is within 1e-4 of the exact one for typical models (bin
    width 1/128 logit; logits beyond +-16 share the outer bins). A bin begins at logit 0, so the accuracy is exact (to
    the rounding of a logit below 2e-15).

    `counts`, int64 (2, 4096), is the whole state: weights of negatives and positives per bin, in units of 1 / 1024.
    Pass it to continue a stream.
    """

    def __init__(self, counts: NDArray[np.int64] | None = None) -> None:
        self.counts: NDArray[np.int64] = np.zeros((2, NUM_BINS), np.int64)
        if counts is not None:
            if counts.shape != self.counts.shape or counts.dtype != np.int64:
                raise ValueError(f"expected AUC counts int64 (2, {NUM_BINS}), got {counts.dtype} {counts.shape}")
            self.counts += counts

    def update(self, logits: ArrayLike, labels: ArrayLike, weights: NDArray[np.floating] | None = None) -> None:
        """Count a batch.

        Args:
            logits: (B,) float32 or float64.
            labels: (B,) 0 or 1 of any type.
            weights: (B,) of the samples, at least 0; all are 1 by default.

        Raises:
            ValueError: for logits that are NaN, labels other than 0 and 1, negative weights, or lengths that differ.
        """
        values, positive = _clipped(logits, labels)
        bins = ((values + LOGIT_RANGE) * (NUM_BINS / (2 * LOGIT_RANGE))).clip(0, NUM_BINS - 1).astype(np.int64)
        bins += NUM_BINS * positive
        if weights is None:
            counts = UNIT * np.bincount(bins, minlength=2 * NUM_BINS)
        elif (weights < 0).any():
            raise ValueError(f"expected weights of samples of at least 0, got {weights.min():g}")
        else:  # sums of integers are exact in float64
            counts = np.bincount(bins, np.rint(weights * float(UNIT)), 2 * NUM_BINS).astype(np.int64)
        self.counts += counts.reshape(2, NUM_BINS)

    def value(self) -> float | None:
        """Return the AUC so far, or None while there are samples of one class only."""
        return _area(negatives=self.counts[0], positives=self.counts[1])

    def accuracy(self) -> float | None:
        """Return the share of predictions on the correct side of 0.5; None without samples."""
        total, half = int(self.counts.sum()), NUM_BINS // 2
        right = int(self.counts[0, :half].sum()) + int(self.counts[1, half:].sum())
        return right / total if total else None


@dataclass
class StreamingLogLoss:
    """Log loss (nats), normalized entropy and calibration of a stream, perhaps weighted, in float64.

    Logits are clipped to +-36.04 (probabilities to [2^-52, 1 - 2^-52], as in scikit-learn for float64), so a certain
    and wrong prediction costs 36.04 instead of infinity.

    Attributes:
        num_samples: counted so far.
        weight, positive_weight: sums of the weights of all samples and of those with label 1.
    """

    num_samples: int = 0
    weight: float = 0.0
    positive_weight: float = 0.0
    loss_sum: float = 0.0
    probability_sum: float = 0.0

    def update(self, logits: ArrayLike, labels: ArrayLike, weights: NDArray[np.floating] | None = None) -> None:
        """Count a batch; arguments and errors as in `StreamingAUC.update`."""
        values, positive = _clipped(logits, labels)
        # log(1 + exp(z)) - y z, written so that nothing overflows
        losses = np.maximum(values, 0.0) - np.where(positive, values, 0.0) + np.log1p(np.exp(-np.abs(values)))
        each = np.ones(len(values)) if weights is None else weights.astype(np.float64)
        self.num_samples += len(values)
        self.weight += float(each.sum())
        self.positive_weight += float(each[positive].sum())
        self.loss_sum += float((each * losses).sum())
        self.probability_sum += float((each / (1.0 + np.exp(-values))).sum())

    def value(self) -> float | None:
        """Return the weighted mean log loss in nats, or None without samples."""
        return self.loss_sum / self.weight if self.weight else None

    def normalised_entropy(self) -> float | None:
        """Return log loss over that of predicting the mean label; None for one class.

        Below 1 is better than the mean (He et al., https://doi.org/10.1145/2648584.2648589).
        """
        if not 0 < self.positive_weight < self.weight:
            return None
        rate = self.positive_weight / self.weight
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
        return float(self.loss_sum / self.weight / entropy)

    def calibration(self) -> float | None:
        """Return the sum of predictions over the number of positives; None without any."""
        return self.probability_sum / self.positive_weight if self.positive_weight else None


def exact_auc(scores: ArrayLike, labels: ArrayLike, weights: NDArray[np.floating] | None = None) -> float | None:
    """Return the AUC by sorting, ties one half; None for one class only.

    Args:
        scores: (n,) floats; logits have fewer ties than float32 probabilities.
        labels: (n,) 0 or 1 of any type.
        weights: (n,) of the samples, at least 0; all are 1 by default.

    Raises:
        ValueError: for scores that are NaN, labels other than 0 and 1, or lengths that differ.
    """
    values, positive = _checked(np.asarray(scores), np.asarray(labels))
    if not len(values):
        return None
    order = np.argsort(values)
    values, positive = values[order], positive[order]
    each = np.ones(len(values)) if weights is None else weights[order].astype(np.float64)
    starts = np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))
    positives = np.add.reduceat(each * positive, starts)
    sizes = np.add.reduceat(each, starts)
    return _area(negatives=sizes - positives, positives=positives)


def grouped_auc(scores: ArrayLike, labels: ArrayLike, groups: ArrayLike) -> tuple[float | None, int]:
    """Return GAUC (mean AUC within groups, weighted by size) and the number of groups.

    Groups are usually users (Zhou et al. 2018, arXiv 1706.06978). Ties count one half. Groups with one class are left
    out; GAUC is None if all are.

    Args:
        scores, labels: as in `exact_auc`.
        groups: (n,) integers, the group of each sample.

    Raises:
        ValueError: as in `exact_auc`.
    """
    values, positive = _checked(np.asarray(scores), np.asarray(labels))
    members = np.asarray(groups)
    if members.shape != values.shape:
        raise ValueError(f"expected groups (n,) for scores {values.shape}, got {members.shape}")
    if not len(values):
        return None, 0
    order = np.lexsort((values, members))
    values, positive, members = values[order], positive[order].astype(np.int64), members[order]
    begins = np.append(True, members[1:] != members[:-1])  # first samples of groups
    ties = np.flatnonzero(np.append(True, values[1:] != values[:-1]) | begins)  # runs of equal group and score
    positives = np.add.reduceat(positive, ties)
    negatives = np.diff(ties, append=len(values)) - positives
    firsts = np.flatnonzero(begins[ties])  # first run of each group
    sizes = np.diff(firsts, append=len(ties))
    below = np.cumsum(negatives) - negatives
    below -= np.repeat(below[firsts], sizes)  # negatives below, within the group
    pairs = np.add.reduceat(positives * (below + 0.5 * negatives), firsts)
    num_positives, num_negatives = np.add.reduceat(positives, firsts), np.add.reduceat(negatives, firsts)
    both = np.flatnonzero(num_positives * num_negatives)
    if not len(both):
        return None, 0
    weights = (num_positives + num_negatives)[both].astype(np.float64)
    areas = pairs[both] / (num_positives[both] * num_negatives[both])
    return float(np.dot(areas, weights) / weights.sum()), len(both)


def _area(*, negatives: NDArray[Any], positives: NDArray[Any]) -> float | None:
    """Share of ordered (positive, negative) pairs, ties half, from counts or weights by score."""
    num_negatives, num_positives = float(negatives.sum()), float(positives.sum())
    if not num_negatives or not num_positives:
        return None
    below = np.cumsum(negatives) - negatives
    pairs = float(np.dot(positives.astype(np.float64), below + 0.5 * negatives))
    return pairs / num_negatives / num_positives


def _clipped(logits: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, positive = _checked(np.asarray(logits), np.asarray(labels))
    return values.astype(np.float64, copy=False).clip(-MAX_LOGIT, MAX_LOGIT), positive


def _checked(
    scores: NDArray[np.floating], labels: NDArray[np.generic]
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    if scores.ndim != 1 or scores.shape != labels.shape:
        raise ValueError(f"expected scores and labels (n,) of one length, got {scores.shape} and {labels.shape}")
    if len(scores) and not np.issubdtype(scores.dtype, np.floating):
        raise ValueError(f"expected floats, got {scores.dtype} (scores)")
    missing = np.flatnonzero(np.isnan(scores))
    if len(missing):
        raise ValueError(
            f"expected scores, got NaN for {len(missing)} of {len(scores)}, first at position {missing[0]}"
        )
    positive = labels == 1
    bad = np.flatnonzero(~positive & (labels != 0))
    if len(bad):
        raise ValueError(f"expected labels 0 or 1, got {labels[bad[0]]} (position {bad[0]})")
    return scores, positive
