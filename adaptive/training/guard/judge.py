"""Judge skipping from two models' predictions, and decide when to check.

Letters: n samples, P of them positive, N negative. The cost of skipping is extrapolated conservatively:

dropping   The harm of dropped updates or inputs grows with their number. Each later stretch of `steps` batches is
           assumed to cost as much again: factor (steps + left) / steps, plus the cost of skipping that passed earlier
           checks (`spent`).
deferral   Updates come late but are not lost, so the difference does not grow: factor 1.

The harm is assumed to be proportional to the allowance, which chooses among rows and inputs by a hash.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.config import GuardConfig, TrainConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.policy import Policy, drops_inputs
from adaptive.training.guard.account import GuardState, SkipCounts
from adaptive.training.quality import paired_difference

READ_PER_TRAINED: Final = 10  # batches that a policy which drops inputs reads per trained one, usually at most


@dataclass(frozen=True)
class Timing:
    """Lengths of a guard's stages in batches, from settings only."""

    warmup: int  # before anything is skipped
    steps: int  # of a check
    held_back: int  # predicted at the end of a check
    margin: int  # until a decision takes effect: the look-ahead may have read this many
    total: int | None  # of the run, or None if unknown

    @classmethod
    def of(cls, settings: GuardConfig, config: TrainConfig, policy: Policy, total: int | None) -> "Timing":
        """The timing of a run."""
        planned = max(config.depth, config.skip.feedback_delay if config.skip is not None else 0) + 2
        return cls(
            warmup=max(settings.warmup, 0 if policy.rule is None else policy.rule.warmup),
            steps=settings.steps,
            held_back=-(-settings.holdout // config.batch_size),
            margin=planned * READ_PER_TRAINED if drops_inputs(policy) else planned + policy.window,
            total=total,
        )

    def left(self, place: int) -> int | None:
        """Batches from `place` to the end of the run."""
        return None if self.total is None else max(self.total - place, 0)

    @property
    def check(self) -> int:
        """Minimum number of batches of a check, with half of the holdout."""
        return self.steps + self.held_back // 2

    def is_too_late(self, place: int) -> bool:
        """True if the run ends before a check that begins at batch `place`."""
        left = self.left(place)
        return left is not None and left < self.check


EARLIER: Final = 400  # maximum number of batches that the latest ones are compared with
LEAST_EARLIER: Final = 100
LATEST: Final = 25
ERRORS: Final = 5.0  # standard errors of a rise; one false alarm per 10^6 batches if they were independent


class Alarm:
    """Detects a rise of the loss in the latest 25 batches against the 400 before them."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, float]] = deque(maxlen=EARLIER + LATEST)

    def hear(self, loss: float, positive: float) -> None:
        """Add a batch: mean log loss before its training, share of positive labels."""
        self._heard.append((loss, positive))

    def forget(self) -> None:
        """Start again without batches."""
        self._heard.clear()

    def rings(self) -> bool:
        """True if the loss has risen by more than chance and the share of positives explain."""
        if len(self._heard) < LEAST_EARLIER + LATEST:
            return False
        losses, positives = np.array(self._heard).T
        share, latest_share = positives[:-LATEST].mean(), positives[-LATEST:].mean()
        if not (0 < share < 1 and 0 < latest_share < 1):
            return False  # nothing to compare with
        part = losses[:-LATEST].mean() / _uninformed(share, share)
        rise = losses[-LATEST:].mean() - part * _uninformed(latest_share, latest_share)
        unexplained = losses[:-LATEST] - part * _uninformed(positives[:-LATEST], share)
        return bool(rise > ERRORS * unexplained.std(ddof=1) * math.sqrt(1 / len(unexplained) + 1 / LATEST))


def _uninformed(positives: Any, share: float) -> NDArray[np.float64]:
    """Mean log loss of predicting `share` for all samples of each batch."""
    losses: NDArray[np.float64] = -(positives * np.log(share) + (1 - positives) * np.log1p(-share))
    return losses


LOOK: Final = 50  # batches between two looks at the skipped share
MORE: Final = 1.5  # a check at a share s counts for shares up to MORE * s + SOME
SOME: Final = 0.01


class Triggers:
    """Decides when the next check is due."""

    def __init__(self) -> None:
        self._alarm = Alarm()
        self._at = 0  # batch of the latest look
        self._counts = SkipCounts()  # at that batch

    def hear(self, loss: float, positive: float) -> None:
        """Add a batch; see `Alarm.hear`."""
        self._alarm.hear(loss, positive)

    def opened(self) -> None:
        """Forget earlier losses at the start of a check, which judges them."""
        self._alarm.forget()

    def passed(self, place: int, skip_counts: SkipCounts) -> None:
        """Record a passed check at batch `place`."""
        self._at, self._counts = place, skip_counts

    def due(self, standing: GuardState, skip_counts: SkipCounts) -> str:
        """Return the reason for a check, or an empty text if none is due."""
        if standing.passed is None:
            return "the warm-up is over" if standing.place >= standing.due else ""
        if standing.place >= standing.due:
            return "the scheduled check is due"
        if self._alarm.rings():
            return "predictions became worse"
        if standing.place < self._at + LOOK:
            return ""
        share = skip_counts.share_since(self._counts)
        self._at, self._counts = standing.place, skip_counts
        more = share > MORE * standing.passed + SOME
        return f"{share:.1%} is skipped, more than the {standing.passed:.1%} of the last check" if more else ""


CONFIDENCE: Final = 0.95
REACH: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)  # standard errors to either side

Floats = NDArray[np.floating[Any]]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Evidence:
    """Differences of AUC and log loss (run minus fork) with their standard errors."""

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
        """True if both predict the same, so nothing was skipped."""
        return self.auc == self.auc_error == self.log_loss == self.log_loss_error == 0


def interval(value: float, error: float) -> Interval:
    """Return (low, high) at `CONFIDENCE`."""
    return value - REACH * error, value + REACH * error


def compare(run: Floats, fork: Floats, labels: Floats) -> Evidence | None:
    """Compare two models by `paired_difference`; logits (n,), labels (n,) 0 or 1.

    Returns None for fewer than two samples of a class, or logits that are not finite.
    """
    if not (np.isfinite(run).all() and np.isfinite(fork).all()):
        return None
    difference = paired_difference([(run, fork)], labels == 1)
    return None if difference is None else Evidence(len(labels), *difference)


LEAST: Final = 1 / 16  # a lower allowance saves less than its forks cost


@dataclass(frozen=True)
class Outlook:
    """Expected change of AUC by the end of the run."""

    change: float
    interval: Interval

    def within(self, budget: float) -> bool:
        return self.interval[0] >= -budget


def extrapolate(evidence: Evidence, *, steps: int, left: int | None, spent: float) -> Outlook:
    """Extrapolate the evidence of a fork of `steps` batches to the end of the run.

    Args:
        left: number of remaining batches, or None if the harm does not grow.
        spent: estimated cost in AUC of skipping that passed earlier checks.
    """
    factor = 1.0 if left is None else (steps + left) / steps
    low, high = evidence.auc_interval
    return Outlook(factor * evidence.auc - spent, (factor * low - spent, factor * high - spent))


def lower(allowance: float, outlook: Outlook, budget: float) -> float:
    """The next allowance after one over budget: at most half of it, or 0."""
    remaining = allowance * min(0.5, budget / -outlook.interval[0])
    return remaining if remaining >= LEAST else 0.0


def explain(outlook: Outlook, budget: float) -> str:
    """Compare the outlook with the budget in one sentence."""
    low, high = outlook.interval
    about = f"expected change of AUC by the end: {outlook.change:+.5f} ({CONFIDENCE:.0%}: {low:+.5f} to {high:+.5f})"
    if outlook.within(budget):
        return f"{about}, within the budget of {budget:g}"
    if high < -budget:
        return f"{about}, over the budget of {budget:g}"
    return f"{about}, not shown to be within the budget of {budget:g}"


def least_allowance(embeddings: TieredEmbeddingBag) -> float | None:
    """The smallest allowance that skips something: 0: any positive one, None: none.

    A share of dropped rows or inputs may be arbitrarily small. For deferral an allowance scales k - 1 in whole numbers:
    below 1 / (at_most - 1) no update is deferred.
    """
    rule = embeddings.policy.rule
    if rule is None:
        return None
    if embeddings.drops_updates or rule.drops_inputs:
        return 0.0
    return 1 / (rule.at_most - 1) if embeddings.defers else None


class Allowance:
    """Lowers the allowance of a skip rule; `least` is its `least_allowance`."""

    def __init__(self, embeddings: TieredEmbeddingBag, timing: Timing, budget: float) -> None:
        self.least = least_allowance(embeddings)
        self.drops = embeddings.drops_updates or drops_inputs(embeddings.policy)
        self._timing, self._budget = timing, budget

    def after(self, now: GuardState, outlook: Outlook) -> tuple[float, str]:
        """Return the allowance after a check over budget, and a note for the reason."""
        if self.drops and now.passed is not None:
            return 0.0, ""  # it passed before, so the data have changed and need the dropped updates now
        if self._timing.is_too_late(now.place + self._timing.margin):
            return 0.0, ""
        allowance = lower(now.allowance, outlook, self._budget)
        if 0 < allowance < (self.least or 0.0):
            return (
                0.0,
                f"; at {allowance:.1%} of its skipping the policy would defer nothing, so skipping stops",
            )
        return allowance, ""
