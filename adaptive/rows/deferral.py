"""`DeferralBook`: which popular rows' gradients wait, and when their sum is due. Owned by the look-ahead thread.

Decisions count visits, one for each batch that looks a row up, and follow from batch numbers alone; so they are equal
for any look-ahead, any thread count and any placement. The sums themselves belong to the training thread
(`adaptive.tiers.device`) and are keyed by the row's entry in the hot set: a row that leaves the device leaves its sum
where it is, so demotion need not apply it, and stays clean if nothing was written.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels import planning
from adaptive.kernels.cpu import SGD_
from adaptive.policy import Deferral
from adaptive.rows.optim import RowOptimizer

AT_MOST, AT_MOST_SGD = 8, 4


class DeferralBook:
    """Visits and waiting gradients of the rows of a hot set."""

    def __init__(self, capacity: int, deferral: Deferral, optimizer: RowOptimizer) -> None:
        self.deferral = deferral
        default = AT_MOST_SGD if optimizer.kind == SGD_ else AT_MOST
        self.at_most = default if deferral.at_most is None else deferral.at_most
        self.visits = np.zeros(capacity, np.uint32)
        self.waiting = np.zeros(capacity, np.uint8)

    def decide(
        self,
        number: int,
        rows: NDArray[np.int64],
        entries: NDArray[np.int32],
        counts: NDArray[np.int32],
        accesses: NDArray[np.uint32],
        skipped: NDArray[np.bool_],
        allowance: float = 1.0,
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """For the distinct rows (U,) of batch `number`: whose gradient goes to a sum, and whose sum is due then.

        A row counts its visits during the warm-up too; nothing waits until it is over. `allowance`, from 0 to 1, is
        what a guard leaves of `at_most` beyond 1. accesses (all rows,): look-ups so far.
        """
        summed, due = np.empty(len(entries), np.bool_), np.empty(len(entries), np.bool_)
        at_most = 1 + int(allowance * (self.at_most - 1)) if number >= self.deferral.warmup else 1
        planning.defer_visits(
            rows,
            entries,
            counts,
            accesses,
            skipped,
            self.deferral.every,
            at_most,
            self.visits,
            self.waiting,
            summed,
            due,
        )
        return summed, due

    @property
    def num_bytes(self) -> int:
        return self.visits.nbytes + self.waiting.nbytes
