"""Quality of predictions: AUC, also by groups, accuracy, log loss, normalised entropy, calibration; over a stream or
exactly.

The streaming classes use constant memory, are the same for any order of the samples, and merge: what two workers
counted adds up to what one would have counted. Letters: B samples of a batch, n samples in all.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

NUM_BINS: Final = 4096
MOST_COUNTED: Final = 2**49  # samples in a bin: sums of all bins fit into int64
# Half of a logit's range covered by bins. Beyond it float32 probabilities of 1 - p are 0 anyway (2^-24 is logit -16.6).
LOGIT_RANGE: Final = 16.0
# scikit-learn's clip for float64: a probability lies within [2^-52, 1 - 2^-52], so one sample costs 36.04 at most.
MAX_LOGIT: Final = 52 * float(np.log(2.0))


class StreamingAUC:
    """Area under the ROC curve and accuracy of a stream, from two rows of 4,096 int64 counts over bins of equal width
    in logits.

    Bins are spaced in logits because click-through rates live near 0, where bins spaced in probabilities put nearly
    all samples into one. Samples that share a bin count as tied, that is one half, so the value is within 1e-4 of
    the exact one for scores as models give them (bin width 1/128 logit; logits beyond +-16 share the outer bins).

    A bin begins at logit 0, so the accuracy is exact (to the rounding of a logit below 2e-15).

    `counts` is the whole state, int64 (2, 4096): negatives and positives per bin. Pass it to continue a stream.
    """

    def __init__(self, counts: NDArray[np.int64] | None = None) -> None:
        self.counts: NDArray[np.int64] = np.zeros((2, NUM_BINS), np.int64)
        if counts is not None:
            if counts.shape != self.counts.shape or counts.dtype != np.int64:
                raise ValueError(f"AUC counts must be int64 (2, {NUM_BINS}), found {counts.dtype} {counts.shape}")
            if counts.min() < 0 or counts.max() > MOST_COUNTED:
                raise ValueError(f"AUC counts must be from 0 to {MOST_COUNTED:,}")
            self.counts += counts

    def update(self, scores: ArrayLike, labels: ArrayLike, *, probabilities: bool = False) -> None:
        """Count a batch.

        Args:
            scores: (B,) float32 or float64, logits (or probabilities, if said so).
            labels: (B,) 0 or 1 of any type.
            probabilities: the scores are probabilities in [0, 1].

        Raises:
            ValueError: for scores that are NaN, probabilities outside [0, 1], labels other than 0 and 1, or lengths
                that differ.
        """
        logits, positive = _as_logits(scores, labels, probabilities)
        bins = ((logits + LOGIT_RANGE) * (NUM_BINS / (2 * LOGIT_RANGE))).clip(0, NUM_BINS - 1).astype(np.int64)
        bins += NUM_BINS * positive
        self.counts += np.bincount(bins, minlength=2 * NUM_BINS).reshape(2, NUM_BINS)

    def merge(self, other: "StreamingAUC") -> None:
        """Add what another stream counted."""
        self.counts += other.counts

    def value(self) -> float | None:
        """The AUC so far, or None while only one class (or nothing) was seen."""
        return _area(negatives=self.counts[0], positives=self.counts[1])

    def accuracy(self) -> float | None:
        """Share of samples so far whose prediction is on its label's side of 0.5 (which itself says 1); None before
        the first."""
        num_samples, half = int(self.counts.sum()), NUM_BINS // 2
        right = int(self.counts[0, :half].sum()) + int(self.counts[1, half:].sum())
        return right / num_samples if num_samples else None


class StreamingLogLoss:
    """Mean binary cross-entropy in nats, normalised entropy and calibration of a stream, summed in float64.

    Logits are clipped to +-36.04 (probabilities to [2^-52, 1 - 2^-52], as scikit-learn does for float64), so that one
    certain and wrong sample costs 36.04 and not infinity.
    """

    def __init__(self) -> None:
        self.num_samples = 0
        self.num_positives = 0
        self.loss_sum = 0.0
        self.probability_sum = 0.0

    def update(self, scores: ArrayLike, labels: ArrayLike, *, probabilities: bool = False) -> None:
        """Count a batch; arguments and errors as in `StreamingAUC.update`."""
        logits, positive = _as_logits(scores, labels, probabilities)
        # log(1 + exp(z)) - y z, written so that nothing overflows
        losses = np.maximum(logits, 0.0) - np.where(positive, logits, 0.0) + np.log1p(np.exp(-np.abs(logits)))
        self.num_samples += len(logits)
        self.num_positives += int(np.count_nonzero(positive))
        self.loss_sum += float(losses.sum())
        self.probability_sum += float((1.0 / (1.0 + np.exp(-logits))).sum())

    def merge(self, other: "StreamingLogLoss") -> None:
        """Add what another stream counted."""
        self.num_samples += other.num_samples
        self.num_positives += other.num_positives
        self.loss_sum += other.loss_sum
        self.probability_sum += other.probability_sum

    def value(self) -> float | None:
        """Mean log loss per sample in nats, or None before the first sample."""
        return self.loss_sum / self.num_samples if self.num_samples else None

    def normalised_entropy(self) -> float | None:
        """Log loss over the loss of always saying the mean label (He et al., https://doi.org/10.1145/2648584.2648589).

        Below 1 is better than the mean; None while only one class (or nothing) was seen.
        """
        if not 0 < self.num_positives < self.num_samples:
            return None
        rate = self.num_positives / self.num_samples
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
        return float(self.loss_sum / self.num_samples / entropy)

    def calibration(self) -> float | None:
        """Sum of predicted probabilities over number of positives (1 is calibrated), or None without positives."""
        return self.probability_sum / self.num_positives if self.num_positives else None


def exact_auc(scores: ArrayLike, labels: ArrayLike) -> float | None:
    """Area under the ROC curve by sorting; tied scores count one half. None if there is only one class.

    Args:
        scores: (n,) any floats that order the samples; logits tie less than float32 probabilities do.
        labels: (n,) 0 or 1 of any type.

    Raises:
        ValueError: for scores that are NaN, labels other than 0 and 1, or lengths that differ.
    """
    values, positive = _checked(np.asarray(scores), np.asarray(labels))
    if not len(values):
        return None
    order = np.argsort(values)
    values, positive = values[order], positive[order]
    starts = np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))
    positives = np.add.reduceat(positive.astype(np.int64), starts)
    sizes = np.diff(starts, append=len(values))
    return _area(negatives=sizes - positives, positives=positives)


def grouped_auc(scores: ArrayLike, labels: ArrayLike, groups: ArrayLike) -> tuple[float | None, int]:
    """The mean of the AUC within each group, weighted by its samples, and of how many groups it is: GAUC, where groups
    are users (as in Zhou et al. 2018, arXiv 1706.06978). Ties count one half; groups of one class are left out, and
    None means that all are.

    Args:
        scores, labels: as in `exact_auc`.
        groups: (n,) the group of each sample, whole numbers.

    Raises:
        ValueError: as in `exact_auc`.
    """
    values, positive = _checked(np.asarray(scores), np.asarray(labels))
    members = np.asarray(groups)
    if members.shape != values.shape:
        raise ValueError(f"scores and groups must be (n,) of one length, found {values.shape} and {members.shape}")
    if not len(values):
        return None, 0
    order = np.lexsort((values, members))
    values, positive, members = values[order], positive[order].astype(np.int64), members[order]
    begins = np.append(True, members[1:] != members[:-1])  # a group
    ties = np.flatnonzero(np.append(True, values[1:] != values[:-1]) | begins)  # samples of one group and score
    positives = np.add.reduceat(positive, ties)
    negatives = np.diff(ties, append=len(values)) - positives
    firsts = np.flatnonzero(begins[ties])  # of a group's ties
    sizes = np.diff(firsts, append=len(ties))
    below = np.cumsum(negatives) - negatives
    below -= np.repeat(below[firsts], sizes)  # in the group
    pairs = np.add.reduceat(positives * (below + 0.5 * negatives), firsts)
    num_positives, num_negatives = np.add.reduceat(positives, firsts), np.add.reduceat(negatives, firsts)
    both = np.flatnonzero(num_positives * num_negatives)
    if not len(both):
        return None, 0
    weights = (num_positives + num_negatives)[both].astype(np.float64)
    areas = pairs[both] / (num_positives[both] * num_negatives[both])
    return float(np.dot(areas, weights) / weights.sum()), len(both)


class PairedDifference(NamedTuple):
    """Means over the same samples of what one model has more than another, and their standard errors."""

    auc: float
    auc_error: float
    log_loss: float  # nats
    log_loss_error: float


def paired_difference(models: Sequence[tuple[ArrayLike, ArrayLike]], labels: ArrayLike) -> PairedDifference | None:
    """What the first of two models has more than the second, mean of all pairs of models, and how far other samples of
    the same kind would have moved that; not what another course of training would.

    The error of the AUC is that of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988) for correlated curves, from
    ranks as in Sun and Xu (IEEE Signal Processing Letters 21, 2014). As every pair predicts the same samples, what a
    sample contributes is averaged over the pairs first.

    Args:
        models: pairs of finite logits (n,), one at least.
        labels: (n,) 0 or 1 of any type, of all pairs.

    Returns:
        None for fewer than two samples of a class.

    Raises:
        ValueError: as in `exact_auc`.
    """
    _, positive = _checked(np.asarray(models[0][0]), np.asarray(labels))
    num_positives = np.count_nonzero(positive)
    if min(num_positives, len(positive) - num_positives) < 2:
        return None
    gained, lost = np.zeros(num_positives), np.zeros(len(positive) - num_positives)
    losses = np.zeros(len(positive))
    for first, second in models:
        (of_positives, of_negatives), (before_positives, before_negatives) = (
            _placements(np.asarray(scores), positive) for scores in (first, second)
        )
        gained += of_positives - before_positives
        lost += of_negatives - before_negatives
        losses += _sample_losses(np.asarray(first), positive) - _sample_losses(np.asarray(second), positive)
    for sums in (gained, lost, losses):
        sums /= len(models)
    return PairedDifference(
        auc=float(gained.mean()),
        auc_error=math.sqrt(gained.var(ddof=1) / len(gained) + lost.var(ddof=1) / len(lost)),
        log_loss=float(losses.mean()),
        log_loss_error=math.sqrt(losses.var(ddof=1) / len(losses)),
    )


def _placements(
    scores: NDArray[np.floating], positive: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each positive (P,) the share of negatives below it, of each negative (N,) of positives above; ties half."""
    from scipy.stats import rankdata  # late: 0.3 s that only a comparison pays for

    _checked(scores, positive)
    ranks, num_positives = rankdata(scores), np.count_nonzero(positive)
    below = ranks[positive] - rankdata(scores[positive])
    above = num_positives - (ranks[~positive] - rankdata(scores[~positive]))
    return below / (len(scores) - num_positives), above / num_positives


def _sample_losses(logits: NDArray[np.floating], positive: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(n,) log loss of each sample."""
    values = logits.astype(np.float64)
    losses: NDArray[np.float64] = np.logaddexp(0.0, values) - np.where(positive, values, 0.0)
    return losses


def _area(*, negatives: NDArray[np.int64], positives: NDArray[np.int64]) -> float | None:
    """Share of (positive, negative) pairs in order, ties half, from counts per group of rising score."""
    num_negatives, num_positives = int(negatives.sum()), int(positives.sum())
    if not num_negatives or not num_positives:
        return None
    below = np.cumsum(negatives) - negatives
    pairs = float(np.dot(positives.astype(np.float64), below + 0.5 * negatives))
    return pairs / num_negatives / num_positives


def _as_logits(
    scores: ArrayLike, labels: ArrayLike, probabilities: bool
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, positive = _checked(np.asarray(scores), np.asarray(labels))
    values = values.astype(np.float64, copy=False)
    if probabilities:
        outside = np.flatnonzero((values < 0) | (values > 1))
        if len(outside):
            raise ValueError(
                f"probabilities must lie in [0, 1], found {values[outside[0]]} at position {outside[0]}; "
                "pass logits with probabilities=False"
            )
        values = values.clip(2.0**-52, 1 - 2.0**-52)
        values = np.log(values) - np.log1p(-values)
    return values.clip(-MAX_LOGIT, MAX_LOGIT), positive


def _checked(
    scores: NDArray[np.floating], labels: NDArray[np.generic]
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    if scores.ndim != 1 or scores.shape != labels.shape:
        raise ValueError(f"scores and labels must be (n,) of one length, found {scores.shape} and {labels.shape}")
    if len(scores) and not np.issubdtype(scores.dtype, np.floating):
        raise ValueError(f"scores must be floats, found {scores.dtype}")
    missing = np.flatnonzero(np.isnan(scores))
    if len(missing):
        raise ValueError(f"{len(missing)} of {len(scores)} scores are NaN, the first at position {missing[0]}")
    positive = labels == 1
    bad = np.flatnonzero(~positive & (labels != 0))
    if len(bad):
        raise ValueError(f"labels must be 0 or 1, found {labels[bad[0]]} at position {bad[0]}")
    return scores, positive
