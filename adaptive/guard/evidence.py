"""Two models on the same samples: how much their AUC and log loss differ, and how sure that is.

Letters: n samples, P of them positive, N negative.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

CONFIDENCE: Final = 0.95
REACH: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)  # standard errors to either side

Floats = NDArray[np.floating[Any]]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Evidence:
    """Differences run minus fork, with their standard errors."""

    samples: int
    auc: float
    auc_error: float
    log_loss: float  # nats
    log_loss_error: float

    @property
    def auc_interval(self) -> Interval:
        return interval(self.auc, self.auc_error)

    @property
    def log_loss_interval(self) -> Interval:
        return interval(self.log_loss, self.log_loss_error)

    @property
    def equal(self) -> bool:
        """Both predict the same: nothing was left out."""
        return self.auc == self.auc_error == self.log_loss == self.log_loss_error == 0


def interval(value: float, error: float) -> Interval:
    """(low, high) at `CONFIDENCE`."""
    return value - REACH * error, value + REACH * error


def compare(run: Floats, fork: Floats, labels: Floats) -> Evidence | None:
    """The paired differences of two models' logits (n,), labels (n,) 0 or 1.

    The error of the AUC is that of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988) for correlated curves, from
    ranks as in Sun and Xu (IEEE Signal Processing Letters 21, 2014). It says what other samples would have changed,
    not what another course of training would.

    None where there is nothing to compare: fewer than two samples of a class, or logits that are not finite.
    """
    positive = labels == 1
    if min(positive.sum(), (~positive).sum()) < 2 or not (np.isfinite(run).all() and np.isfinite(fork).all()):
        return None
    of_positives, of_negatives = zip(_placements(run, positive), _placements(fork, positive), strict=True)
    gained, lost = of_positives[0] - of_positives[1], of_negatives[0] - of_negatives[1]
    losses = _losses(run, positive) - _losses(fork, positive)
    return Evidence(
        samples=len(labels),
        auc=float(gained.mean()),
        auc_error=math.sqrt(gained.var(ddof=1) / len(gained) + lost.var(ddof=1) / len(lost)),
        log_loss=float(losses.mean()),
        log_loss_error=math.sqrt(losses.var(ddof=1) / len(losses)),
    )


def _placements(scores: Floats, positive: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Of each positive (P,) the share of negatives below it, of each negative (N,) of positives above; ties half."""
    from scipy.stats import rankdata  # late: 0.3 s that only a guarded run pays for

    ranks = rankdata(scores)
    below = ranks[positive] - rankdata(scores[positive])
    above = positive.sum() - (ranks[~positive] - rankdata(scores[~positive]))
    return below / (~positive).sum(), above / positive.sum()


def _losses(logits: Floats, positive: NDArray[np.bool_]) -> Floats:
    """(n,) log loss of each sample."""
    logits = logits.astype(np.float64)
    losses: Floats = np.logaddexp(0.0, logits) - np.where(positive, logits, 0.0)
    return losses
