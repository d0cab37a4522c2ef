"""`Standing`: what a guard knows, apart from a fork under way. Plain values; a checkpoint keeps them."""

from dataclasses import dataclass, field


@dataclass
class Standing:
    """Batches are those of the data, numbered from 0 over all passes."""

    active: bool = True  # there is something to skip, and it has not been stopped
    place: int = 0  # batches trained
    due: int = 0  # batch of the next check
    begun: bool = False  # the warm-up is over
    allowance: float = 1.0
    passed: float | None = None  # share skipped when this allowance was judged to be within the budget
    passed_at: int = 0
    rate: float = 0.0  # AUC that a batch is held to cost
    spent: float = 0.0  # AUC that all up to `passed_at` is held to have cost
    fork_batches: int = 0  # trained by forks
    judged_batches: int = 0  # predicted by run and fork
    undone_batches: int = 0  # whose skipping was undone
    left_out: dict[str, int] = field(default_factory=dict)  # fields of `share.LeftOut`: all, also what was undone
    undone: dict[str, int] = field(default_factory=dict)  # of these what was undone

    def keep(self, share: float, *, since: int, cost: float) -> None:
        """A check that began at batch `since` was passed: skipping such a share has cost so much AUC meanwhile."""
        self.spent = self.cost_until(since) + cost
        self.rate = cost / (self.place - since)
        self.passed, self.passed_at = share, self.place

    def cost_until(self, place: int) -> float:
        """AUC that all up to a batch is held to cost."""
        return self.spent + (self.rate * (place - self.passed_at) if self.passed is not None else 0.0)
