"""From two models' predictions of the same samples to what the policy may skip from then on.

Letters: n samples, P of them positive, N negative. How the harm grows is a model that errs on the high side:

dropping   Leaving a row alone, or an input out, does more harm the longer it goes on. Each later stretch of `steps`
           batches is taken to cost as much again: factor (steps + left) / steps. What skipping that passed earlier
           checks cost (`spent`) is added.
deferral   Nothing is lost, only late; the difference does not grow. Factor 1.

Harm is taken to be proportional to the allowance, which chooses among rows and inputs by a hash.
"""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.planning.deferral import longest
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import RowOptimizer
from adaptive.policy import drops_inputs
from adaptive.training.guard.account import GuardState
from adaptive.training.guard.schedule import Timing
from adaptive.training.quality import paired_difference

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
    found = paired_difference([(run, fork)], labels == 1)
    return None if found is None else Evidence(len(labels), *found)


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


def least_allowance(embeddings: TieredEmbeddingBag, optimizer: RowOptimizer) -> float | None:
    """The smallest allowance that skips something: 0 if any does, None if none does.

    A share of rows or inputs may be arbitrarily small. Under deferral an allowance scales k - 1, in whole numbers:
    below 1 / (longest - 1) every update is the plain one.
    """
    policy, rule = embeddings.policy, embeddings.policy.rule
    if embeddings.drops_updates or drops_inputs(policy):
        return 0.0
    if not embeddings.defers:
        return None
    most = rule.at_most if rule is not None else longest(policy.deferral, optimizer) if policy.deferral else 1
    if (beyond := most - 1) < 1:
        return None
    return 1 / beyond


class Allowance:
    """Lowers how much one policy may skip under one optimizer; `least` is its `least_allowance`."""

    def __init__(self, embeddings: TieredEmbeddingBag, optimizer: RowOptimizer, timing: Timing, budget: float) -> None:
        self.least = least_allowance(embeddings, optimizer)
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
