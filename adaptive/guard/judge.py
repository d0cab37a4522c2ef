"""From the evidence of one fork to what the policy may skip from then on. Pure functions.

How the harm grows is a model, chosen so that it errs towards too much:

dropping   A row that is left alone, or an input that is left out, is missed the more the longer it goes on. What
           `steps` batches cost is taken to be paid again in each later stretch of that length: factor
           (steps + left) / steps. What was kept before (`spent`) is added.
deferral   Nothing is lost, it comes late; the difference does not grow. Factor 1.

Harm is taken to be proportional to the allowance, which chooses among rows and inputs by a hash.
"""

from dataclasses import dataclass
from typing import Final

from adaptive.guard.evidence import CONFIDENCE, Evidence, Interval

LEAST: Final = 1 / 16  # an allowance below this is not worth its forks


@dataclass(frozen=True)
class Outlook:
    """The change of AUC to be expected by the end of the run."""

    change: float
    interval: Interval

    def within(self, budget: float) -> bool:
        return self.interval[0] >= -budget


def look_out(evidence: Evidence, *, steps: int, left: int | None, spent: float) -> Outlook:
    """Carry the evidence of a fork of `steps` batches to the end of the run.

    Args:
        left: batches still to come, or None if the harm does not grow.
        spent: AUC that what was kept before is held to have cost.
    """
    factor = 1.0 if left is None else (steps + left) / steps
    low, high = evidence.auc_interval
    return Outlook(factor * evidence.auc - spent, (factor * low - spent, factor * high - spent))


def lower(allowance: float, outlook: Outlook, budget: float) -> float:
    """What remains of an allowance that broke the budget: at most half, and what would have kept it; or 0."""
    remaining = allowance * min(0.5, budget / -outlook.interval[0])
    return remaining if remaining >= LEAST else 0.0


def explain(outlook: Outlook, budget: float) -> str:
    """One sentence."""
    low, high = outlook.interval
    about = f"expected change of AUC by the end {outlook.change:+.5f} ({low:+.5f} to {high:+.5f} with {CONFIDENCE:.0%})"
    if outlook.within(budget):
        return f"{about}: within the budget of {budget:g}"
    if high < -budget:
        return f"{about}: breaks the budget of {budget:g}"
    return f"{about}: not shown to be within the budget of {budget:g}"
