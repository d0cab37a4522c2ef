"""`Exchange`: the interface by which a look-ahead exchanges its batches with other ranks.

`LocalExchange` is for a single process and exchanges nothing; `RankExchange` (`rank_exchange`) is for several. The
pipeline and the look-ahead use only the interface.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from adaptive.batch import Batch
from adaptive.counters import Stopwatch
from adaptive.embeddings.planning.hot_set import HotSet
from adaptive.embeddings.planning.key_tables import GroupKeys, KeyChanges, LastAccess
from adaptive.embeddings.planning.lookups import Lookups, LookupsAhead
from adaptive.embeddings.planning.plan import GroupPlan
from adaptive.embeddings.ranks import ALONE, Ranks
from adaptive.embeddings.ranks.traffic import RankTraffic

LookedUp = tuple[Batch, Callable[[], list[Lookups]]]
"""A batch, and a function that waits for the lookups of all ranks in the rows that this rank owns, for each group.

Those of groups with keys are of all ranks' keys, until `give_rows`.
"""


class Exchange(ABC):
    """Exchanges batches between ranks; methods that are not abstract do nothing.

    The look-ahead thread calls all methods except `traffic` and `leave`, which the training thread calls.

    Attributes:
        ranks: this process and the others.
    """

    ranks: Ranks = ALONE

    def begin(self, number: int) -> None:
        """Start a look-ahead with batch `number`."""
        return

    @abstractmethod
    def batches(
        self, source: Iterator[Batch], check: Callable[[Any], Batch], lookups_ahead: LookupsAhead, stopwatch: Stopwatch
    ) -> Iterator[LookedUp]:
        """Yield this rank's batches and their lookups, until some rank has no more batches.

        Raises:
            AdaptiveError: also if another rank's batches end with an error.
        """

    def give_rows(
        self, number: int, group: int, keys: GroupKeys, lookups: Lookups, batch: Batch, last_access: LastAccess
    ) -> tuple[Lookups, KeyChanges]:
        """Give the keys of the next batch, `number`, rows; see `GroupKeys.prepare`.

        Returns the lookups of all ranks in rows that this rank owns.

        Raises:
            InputError: for wrong timestamps, on all ranks.
        """
        return keys.prepare(lookups, batch, number, last_access)

    def any_rank(self, number: int, fact: bool) -> bool:
        """Before planning a batch, return whether a fact is true on any rank.

        Raises:
            AdaptiveError: as `batches`.
        """
        return fact

    def blocks(self, number: int, batch: Batch) -> Sequence[Batch | None]:
        """Return this rank's blocks of a batch that is looked up and not trained yet."""
        return (batch,)

    def answer(self, number: int, plans: Sequence[GroupPlan], watched: Sequence[HotSet]) -> None:
        """After planning a batch, exchange which vectors and gradients need not be sent.

        `plans` and the hot sets `watched` are those of each group.

        Raises:
            AdaptiveError: as `batches`.
        """
        return

    def forget_cached(self) -> None:
        """Forget which ranks have cached this owner's rows. No batch is in flight."""
        return

    def report_failure(self, error: Exception) -> None:
        """Report to the other ranks, in place of the next exchange, that planning failed."""
        return

    def traffic(self) -> tuple[RankTraffic, ...]:
        """Return the traffic of this rank since its start; empty for a single process."""
        return ()

    def leave(self, error: BaseException | None, next_number: int) -> int:
        """End the look-ahead of this rank, and report it to the other ranks.

        Reports nothing if all ranks know that the batches have ended; `error` is the one that ended the loop, if known.
        Ranks may have planned different numbers of batches ahead: returns the next number, on which all agree.
        """
        return next_number


class LocalExchange(Exchange):
    """The exchange of a single process, which passes batches through without copies."""

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
