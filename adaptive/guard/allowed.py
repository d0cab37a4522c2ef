"""What a policy may skip after the budget was broken, and from which allowance on it skips anything at all."""

from adaptive.embedding import TieredEmbeddingBag
from adaptive.guard.judge import Outlook, lower
from adaptive.guard.standing import Standing
from adaptive.guard.timing import Timing
from adaptive.optim import RowOptimizer
from adaptive.planning.deferral import longest


def least_allowance(embeddings: TieredEmbeddingBag, optimizer: RowOptimizer) -> float | None:
    """0 if any allowance skips something, None if none does.

    A share of rows or inputs may be as small as one likes. Of deferral an allowance leaves so much of k beyond 1, in
    whole numbers: below 1 / (longest - 1) every update is the plain one.
    """
    policy = embeddings.policy
    if embeddings.drops_updates or policy.drops_inputs:
        return 0.0
    if not embeddings.defers or policy.deferral is None or (beyond := longest(policy.deferral, optimizer) - 1) < 1:
        return None
    return 1 / beyond


class Allowed:
    """Of one policy under one optimizer; `least` as in `least_allowance`."""

    def __init__(self, embeddings: TieredEmbeddingBag, optimizer: RowOptimizer, timing: Timing, budget: float) -> None:
        self.least = least_allowance(embeddings, optimizer)
        self.drops = embeddings.drops_updates or embeddings.policy.drops_inputs
        self._timing, self._budget = timing, budget

    def after(self, now: Standing, outlook: Outlook) -> tuple[float, str]:
        """The allowance once a check has found that the budget is broken, and what is to be said of it, if anything."""
        if self.drops and now.passed is not None:
            return 0.0, ""  # it was harmless once: the data have changed, and what was dropped is what is needed now
        if self._timing.too_late(now.place + self._timing.margin):
            return 0.0, ""
        allowance = lower(now.allowance, outlook, self._budget)
        if 0 < allowance < (self.least or 0.0):
            return (
                0.0,
                f"; at {allowance:.1%} of what it asks for the policy defers nothing: nothing is skipped any more",
            )
        return allowance, ""
