"""From two models' predictions of the same samples to what the policy may skip from then on.

Letters: n samples, P of them positive, N negative. How the harm grows is a model that errs on the high side:

dropping   Leaving a row alone, or an input out, does more harm the longer it goes on. Each later stretch of `steps`
           batches is taken to cost as much again: factor (steps + left) / steps. What skipping that passed earlier
           checks cost (`spent`) is added.
deferral   Nothing is lost, only late; the difference does not grow. Factor 1.

Harm is taken to be proportional to the allowance, which chooses among rows and inputs by a hash."""

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

READ_PER_TRAINED: Final = 10  # batches that a policy which drops inputs reads for each one trained, at most as a rule


@dataclass(frozen=True)
class Timing:
    """Lengths of a guard's stages, in batches. They follow from the settings alone, not from the timing of threads."""

    warmup: int  # before anything is skipped
    steps: int  # of a check
    held_back: int  # judged at the end of a check
    margin: int  # until what is decided can count: the look-ahead may have planned so many
    window: int  # read before the batch that is planned
    total: int | None  # of the run, or None if not known

    @classmethod
    def of(cls, settings: GuardConfig, config: TrainConfig, policy: Policy, total: int | None) -> "Timing":
        """The timing of a run."""
        planned = max(config.depth, config.skip.feedback_delay if config.skip is not None else 0) + 2
        return cls(
            warmup=max(settings.warmup, 0 if policy.rule is None else policy.rule.warmup),
            steps=settings.steps,
            held_back=-(-settings.holdout // config.batch_size),
            margin=planned * READ_PER_TRAINED if drops_inputs(policy) else planned,
            window=0 if drops_inputs(policy) else policy.window,
            total=total,
        )

    def left(self, place: int) -> int | None:
        """Batches from `place` to the end of the run."""
        return None if self.total is None else max(self.total - place, 0)

    @property
    def check(self) -> int:
        """The fewest batches a check can do with: it holds back half of what it wants to."""
        return self.steps + self.held_back // 2

    def too_late(self, place: int) -> bool:
        """Whether the run ends before a check that begins at batch `place` would."""
        left = self.left(place)
        return left is not None and left < self.check


BEFORE: Final = 400  # batches with which the latest are compared, at most
LEAST_BEFORE: Final = 100
LATEST: Final = 25
ERRORS: Final = 5.0  # by which the loss must rise; a false alarm in some 10^6 batches, were they independent


class Alarm:
    """Compares the latest 25 batches with the 400 before them."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, float]] = deque(maxlen=BEFORE + LATEST)

    def hear(self, loss: float, positive: float) -> None:
        """Take in a batch: its mean log loss, predicted before it was learnt, and its share of positive labels."""
        self._heard.append((loss, positive))

    def forget(self) -> None:
        """Begin anew."""
        self._heard.clear()

    def rings(self) -> bool:
        """Whether the loss has risen by more than the share of positives and chance explain."""
        if len(self._heard) < LEAST_BEFORE + LATEST:
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
    """Mean log loss of always predicting `share`, of batches with such shares of positive labels."""
    losses: NDArray[np.float64] = -(positives * np.log(share) + (1 - positives) * np.log1p(-share))
    return losses


LOOK: Final = 50  # batches between two looks at how much is skipped
MORE: Final = 1.5  # what was judged at a share s stands for shares up to MORE * s + SOME
SOME: Final = 0.01


class Triggers:
    """Decides when the next check is due. Hears of every batch; is asked while no check is under way."""

    def __init__(self) -> None:
        self._alarm = Alarm()
        self._at = 0  # batch of the latest look
        self._before = SkipCounts()

    def hear(self, loss: float, positive: float) -> None:
        """Take in a batch; see `Alarm.hear`."""
        self._alarm.hear(loss, positive)

    def opened(self) -> None:
        """A check has begun that judges what has happened so far; later changes may come too late for it."""
        self._alarm.forget()

    def passed(self, place: int, left_out: SkipCounts) -> None:
        """A check was passed at batch `place`."""
        self._at, self._before = place, left_out

    def due(self, standing: GuardState, left_out: SkipCounts) -> str:
        """Why a check is due, or nothing if none is."""
        if standing.passed is None:
            return "the warm-up is over" if standing.place >= standing.due else ""
        if standing.place >= standing.due:
            return "the time has come"
        if self._alarm.rings():
            return "predictions have become worse"
        if standing.place < self._at + LOOK:
            return ""
        share = left_out.share_since(self._before)
        self._at, self._before = standing.place, left_out
        more = share > MORE * standing.passed + SOME
        return f"{share:.1%} is skipped, {standing.passed:.1%} was when it was judged" if more else ""


CONFIDENCE: Final = 0.95
REACH: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)  # standard errors to either side

Floats = NDArray[np.floating[Any]]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Evidence:
    """Differences of AUC and log loss, run minus fork, with their standard errors."""

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
        """Whether both predict the same, that is, nothing was left out."""
        return self.auc == self.auc_error == self.log_loss == self.log_loss_error == 0


def interval(value: float, error: float) -> Interval:
    """(low, high) at `CONFIDENCE`."""
    return value - REACH * error, value + REACH * error


def compare(run: Floats, fork: Floats, labels: Floats) -> Evidence | None:
    """The paired differences (`paired_difference`) of two models' logits (n,), labels (n,) 0 or 1.

    None where there is nothing to compare: fewer than two samples of a class, or logits that are not finite.
    """
    if not (np.isfinite(run).all() and np.isfinite(fork).all()):
        return None
    difference = paired_difference([(run, fork)], labels == 1)
    return None if difference is None else Evidence(len(labels), *difference)


LEAST: Final = 1 / 16  # an allowance below this is not worth its forks


@dataclass(frozen=True)
class Outlook:
    """The change of AUC expected by the end of the run."""

    change: float
    interval: Interval

    def within(self, budget: float) -> bool:
        return self.interval[0] >= -budget


def look_out(evidence: Evidence, *, steps: int, left: int | None, spent: float) -> Outlook:
    """Carry the evidence of a fork of `steps` batches to the end of the run.

    Args:
        left: batches still to come, or None if the harm does not grow.
        spent: AUC that skipping which passed earlier checks is taken to have cost.
    """
    factor = 1.0 if left is None else (steps + left) / steps
    low, high = evidence.auc_interval
    return Outlook(factor * evidence.auc - spent, (factor * low - spent, factor * high - spent))


def lower(allowance: float, outlook: Outlook, budget: float) -> float:
    """The allowance after one that broke the budget: at most half of it and at most what would have kept it, or 0."""
    remaining = allowance * min(0.5, budget / -outlook.interval[0])
    return remaining if remaining >= LEAST else 0.0


def explain(outlook: Outlook, budget: float) -> str:
    """The outlook against the budget, in one sentence."""
    low, high = outlook.interval
    about = f"expected change of AUC by the end {outlook.change:+.5f} ({low:+.5f} to {high:+.5f} with {CONFIDENCE:.0%})"
    if outlook.within(budget):
        return f"{about}: within the budget of {budget:g}"
    if high < -budget:
        return f"{about}: breaks the budget of {budget:g}"
    return f"{about}: not shown to be within the budget of {budget:g}"


def least_allowance(embeddings: TieredEmbeddingBag) -> float | None:
    """The smallest allowance that skips something: 0 if any does, None if none does.

    A share of rows or inputs may be arbitrarily small. Where gradients wait an allowance scales k - 1, in whole
    numbers: below 1 / (at_most - 1) every update is the plain one.
    """
    rule = embeddings.policy.rule
    if rule is None:
        return None
    if embeddings.drops_updates or rule.drops_inputs:
        return 0.0
    return 1 / (rule.at_most - 1) if embeddings.defers else None


class Allowance:
    """Lowers how much a skip rule may skip; `least` is its `least_allowance`."""

    def __init__(self, embeddings: TieredEmbeddingBag, timing: Timing, budget: float) -> None:
        self.least = least_allowance(embeddings)
        self.drops = embeddings.drops_updates or drops_inputs(embeddings.policy)
        self._timing, self._budget = timing, budget

    def after(self, now: GuardState, outlook: Outlook) -> tuple[float, str]:
        """The allowance after a check found the budget broken, and an addition to the reason, or nothing."""
        if self.drops and now.passed is not None:
            return 0.0, ""  # harmless before, so the data have changed: what was dropped is needed now
        if self._timing.too_late(now.place + self._timing.margin):
            return 0.0, ""
        allowance = lower(now.allowance, outlook, self._budget)
        if 0 < allowance < (self.least or 0.0):
            return (
                0.0,
                f"; at {allowance:.1%} of what it asks for the policy defers nothing: nothing is skipped any more",
            )
        return allowance, ""
