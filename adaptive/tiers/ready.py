"""`Ready`: what the look-ahead hands to training."""

from concurrent.futures import Future
from dataclasses import dataclass, field

from adaptive.batch import Batch
from adaptive.planning.parts import GroupPart
from adaptive.planning.plan import GroupPlan
from adaptive.tiers.statistics import Stopwatch


@dataclass(frozen=True)
class Ready:
    """A planned batch whose rows are in place, or on their way."""

    batch: Batch
    plans: list[GroupPlan]  # one for each group
    parts: list[tuple[GroupPart, ...]]  # one entry for each group; empty if the batch is not in parts
    watch: Stopwatch
    arrived: Future[None] = field(default_factory=Future)
    """Done once all rows are in place; raises what fetching them raised."""

    @property
    def number(self) -> int:
        return self.plans[0].number

    @property
    def may_start(self) -> bool:
        """The first part needs no row that is on its way."""
        return bool(self.parts) and not any(parts[0].waits for parts in self.parts)

    def wait(self) -> bool:
        """Return when all rows are in place; whether they were not yet. Raises what fetching them raised."""
        if self.arrived.done():
            self.arrived.result()
            return False
        with self.watch.stage("wait"):
            self.arrived.result()
        return True
