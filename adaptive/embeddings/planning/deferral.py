"""`DeferralBook`: which popular rows' gradients wait, and when their sum is due. Owned by the look-ahead thread.

Decisions count visits, one for each batch that looks a row up, and follow from batch numbers alone; so they are equal
for any look-ahead, any thread count and any placement. The sums themselves, and the squares beside them, belong
to the training thread (`adaptive.embeddings.tiers.device`) and are keyed by the row's entry in the hot set: a row that
leaves the device leaves its sum behind, so nothing need be applied then, and it stays clean if nothing was written.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.planning.hot_set import WatchedRows
from adaptive.embeddings.planning.lookups import Distinct
from adaptive.kernels.planning import watched
from adaptive.policy import SkipRule

_NO_WAITS: NDArray[np.uint8] = np.zeros(2, [("waits", np.uint8), ("unused", np.uint8)])["waits"]  # laid out as others
RECORD = np.dtype([("visits", np.uint32), ("waiting", np.uint32)])


@dataclass(frozen=True)
class SummedRows:
    """The distinct rows of a batch whose gradient goes to a sum, in order."""

    entries: NDArray[np.int64]  # (n,)
    due: NDArray[np.int64]  # (m,) distinct rows whose sum is applied after the batch
    due_at: NDArray[np.int64]  # (m,) which of the n they are


class DeferralBook:
    """Visits and waiting gradients of the rows of a hot set, under a rule by which gradients may wait."""

    def __init__(self, capacity: int, rule: SkipRule) -> None:
        self._rule = rule
        self._records = np.zeros(capacity, RECORD)
        self.visits: NDArray[np.uint32] = self._records["visits"]
        self.waiting: NDArray[np.uint32] = self._records["waiting"]

    def decide(
        self,
        number: int,
        mine: WatchedRows,
        distinct: Distinct,
        accesses: NDArray[np.uint32],
        fates: NDArray[np.uint8],
        waits: NDArray[np.uint8],
    ) -> SummedRows:
        """Decide for the watched rows among the distinct ones (U,) of batch `number`: whose gradient goes to a sum, and
        whose sum is due then. Reads and updates `fates` (U,).

        A row counts its visits during the warm-up too; nothing waits until it is over. A guard's allowance is the share
        of `at_most` - 1 that counts. accesses (all rows,): look-ups so far. waits (entries,): visits that a gradient
        may wait for another by the rule's answer, if the rule is asked.
        """
        rule, size = self._rule, len(mine.places)
        summed = SummedRows(np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64))
        at_most = 1 + int(rule.allowance * (rule.at_most - 1)) if number >= rule.warmup else 1
        count, num_due = watched.defer_visits(
            distinct.rows,
            mine.places,
            mine.entries,
            distinct.counts,
            accesses,
            rule.every,
            at_most,
            waits if rule.asks else _NO_WAITS,
            rule.asks,
            self.visits,
            self.waiting,
            fates,
            summed.entries,
            summed.due,
            summed.due_at,
        )
        return SummedRows(summed.entries[:count], summed.due[:num_due], summed.due_at[:num_due])

    def may_wait(self, num_entries: int) -> NDArray[np.bool_]:
        """Of the first entries: whether their gradients wait by their visits alone."""
        often: NDArray[np.bool_] = self.visits[:num_entries] >= 2 * self._rule.every
        return often

    def keep(self, entries: NDArray[np.int64]) -> None:
        """Go on with the books of these entries (n,), ascending, which are numbered anew from 0; no other waits."""
        kept = self._records[entries]
        self._records[:] = 0
        self._records[: len(kept)] = kept

    def restore(self, visits: NDArray[np.uint32], waiting: NDArray[np.uint32]) -> None:
        """Restore the books of the first n entries."""
        self.visits[: len(visits)], self.waiting[: len(waiting)] = visits, waiting

    @property
    def num_bytes(self) -> int:
        return self._records.nbytes
