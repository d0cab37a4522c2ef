"""`Exchange`: what a look-ahead gives other ranks of its batches and hears from them; `LocalExchange`: nothing.

`RankExchange` (`rank_exchange`) is the other one. The pipeline and the look-ahead know only the interface.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from adaptive.batch import Batch
from adaptive.counters import Stopwatch
from adaptive.embeddings.planning.hot_set import HotSet
from adaptive.embeddings.planning.lookups import Lookups, LookupsAhead
from adaptive.embeddings.planning.plan import GroupPlan
from adaptive.embeddings.ranks import ALONE, Ranks
from adaptive.embeddings.ranks.traffic import RankTraffic

LookedUp = tuple[Batch, Callable[[], list[Lookups]]]
"""A batch, and what waits for its look-ups in each group: those of all ranks in the rows that this one owns."""


class Exchange(ABC):
    """What happens between ranks on the way of a batch; nothing, unless a subclass says so.

    Attributes:
        ranks: this process among the others.
    """

    ranks: Ranks = ALONE

    def begin(self, number: int) -> None:
        """A look-ahead starts with this batch."""
        return

    @abstractmethod
    def batches(
        self, source: Iterator[Batch], check: Callable[[Any], Batch], lookups_ahead: LookupsAhead, stopwatch: Stopwatch
    ) -> Iterator[LookedUp]:
        """Each batch of this rank with what its planner is to plan. Ends with the first rank that has no more.

        Raises:
            AdaptiveError: also if another rank's batches end with an error.
        """

    def blocks(self, number: int, batch: Batch) -> Sequence[Batch | None]:
        """The blocks of this rank in a batch that is looked up and not trained yet."""
        return (batch,)

    def answer(self, number: int, plans: Sequence[GroupPlan], watched: Sequence[HotSet]) -> None:
        """A batch is planned: tell the requesters of its rows what need not cross, and hear the same from the owners.

        Args:
            plans: of each group.
            watched: the rows watched in each group, as the plans know them.

        Raises:
            AdaptiveError: as `batches`.
        """
        return

    def forget_cached(self) -> None:
        """As far as this owner knows, no rank has any of its rows. No batch is in flight."""
        return

    def report_failure(self, error: Exception) -> None:
        """Tell the others that reading or planning has failed, in the place of what they wait for next."""
        return

    def traffic(self) -> tuple[RankTraffic, ...]:
        """What this rank has sent since its start; nothing of a process alone."""
        return ()

    def leave(self, error: BaseException | None, next_number: int) -> int:
        """The look-ahead is over for this rank, its thread joined: tell the others, unless all know that the batches
        have ended. Returns the number of the next batch, which all ranks have agreed on.

        Args:
            error: with which the loop ended, as far as known.
            next_number: of this rank, which may have planned more or fewer batches ahead than others.
        """
        return next_number


class LocalExchange(Exchange):
    """Of a process alone: hands batches through as they are."""

    def batches(
        self, source: Iterator[Batch], check: Callable[[Any], Batch], lookups_ahead: LookupsAhead, stopwatch: Stopwatch
    ) -> Iterator[LookedUp]:
        while True:
            with stopwatch.stage("read"):
                batch = next(source, None)
            if batch is None:
                return
            batch = check(batch)
            with stopwatch.stage("plan"):
                lookups = lookups_ahead.start(batch)
            yield batch, lookups
