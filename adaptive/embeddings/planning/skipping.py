"""`Skipper`: decides which row updates are skipped or deferred.

Everything lossy in planning is here.

A distinct row of a batch has one *fate* (`kernels.planning.books`): its gradient updates the row now; is added to a sum
that is then applied; is added to a sum that waits; is skipped. The skipper owns everything behind this decision: the
hot set with measured movement, the books of sums, and the skip rule's answers.
Without a skipper every row is updated now.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.config import SkipConfig
from adaptive.embeddings.planning.books import Tracker
from adaptive.embeddings.planning.hot_set import (
    AT_REST,
    JUDGED,
    SAMPLED_BATCHES,
    SATURATED,
    WAITING,
    WATCHED,
    Candidates,
    HotSet,
    WatchedRows,
)
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import Distinct
from adaptive.embeddings.planning.plan import Deferred, Feedback, Int32s, Int64s, Snapshots, WatchedCounts, no_rows
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.embeddings.planning.row_stats import StatsSource
from adaptive.kernels.planning import watched
from adaptive.kernels.planning.books import NOW
from adaptive.kernels.scratch import ScratchPool
from adaptive.policy import SkipRule

DROP_EVERY: Final = 16  # calls of the rule between two searches for inactive rows
PATIENCE: Final = 8  # a row is inactive after so many times its usual distance between lookups
FEW: Final = 16  # fewer inactive rows than this fraction of the set are not worth a pause of training
_NO_WAITS: NDArray[np.uint8] = np.zeros(2, [("waits", np.uint8), ("unused", np.uint8)])[
    "waits"
]  # strided as in hot sets
SUM_RECORD = np.dtype([("visits", np.uint32), ("waiting", np.uint32)])


class DeferralBook:
    """Counts of visits and accumulated gradients of watched rows."""

    def __init__(self, capacity: int, rule: SkipRule) -> None:
        self._rule = rule
        self._records = np.zeros(capacity, SUM_RECORD)
        self.visits: NDArray[np.uint32] = self._records["visits"]
        self.waiting: NDArray[np.uint32] = self._records["waiting"]

    def decide(
        self,
        number: int,
        watched_rows: WatchedRows,
        distinct: Distinct,
        seen: NDArray[np.uint32],
        outputs: tuple[NDArray[np.uint8], Int32s, Int32s, Int32s],
        waits: NDArray[np.uint8],
    ) -> tuple[int, int]:
        """Decide which watched rows accumulate their gradients, and which sums are due.

        Visits are counted from the first batch, but nothing is deferred during the rule's warm-up.

        Args:
            number: of the batch.
            watched_rows: of the batch.
            distinct: rows of the batch (U,).
            seen: (U,) lookups of each row so far.
            outputs: fates (U,), read and updated; `summed`, `entries` and `due` of `Deferred`, with room for all
                watched rows.
            waits: (entries,) the rule's answers - 1, if the rule is called.

        Returns:
            The numbers of `summed` and `due`.
        """
        rule, answers = self._rule, (waits if self._rule.asks else _NO_WAITS, self._rule.asks)
        rows = watched_rows.places, watched_rows.entries, distinct.counts, seen
        k = rule.every, self._at_most(number)
        num_summed, num_due = watched.defer_visits(*rows, *k, *answers, self.visits, self.waiting, *outputs)
        return int(num_summed), int(num_due)

    def _at_most(self, number: int) -> int:
        """Upper limit for k in batch `number`: `at_most` of the rule, 1 during its warm-up."""
        return self._rule.at_most if number >= self._rule.warmup else 1

    def waiting_entries(self, number: int, waits: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """(n,) True for entries whose gradients are accumulated in batch `number`: k > 1.

        waits: (n,) the rule's answers - 1, if the rule is called.
        """
        if self._at_most(number) < 2:
            return np.zeros(len(waits), np.bool_)
        is_often: NDArray[np.bool_] = self.visits[: len(waits)] >= 2 * self._rule.every
        return is_often & (waits > 0) if self._rule.asks else is_often

    def retain(self, entries: NDArray[np.int64]) -> None:
        """Drop all entries but these (n,), ascending, which are renumbered from 0."""
        records = self._records[entries]
        self._records[:] = 0
        self._records[: len(records)] = records

    def restore(self, visits: NDArray[np.uint32], waiting: NDArray[np.uint32]) -> None:
        """Restore the books of the first n entries."""
        self.visits[: len(visits)], self.waiting[: len(waiting)] = visits, waiting

    @property
    def num_bytes(self) -> int:
        return self._records.nbytes


@dataclass(frozen=True)
class Decision:
    """The fates of the gradients of a batch's distinct rows, and the snapshots that are due."""

    written: Int32s  # (n,) distinct rows that the batch updates
    deferred: Deferred | None  # None: no gradient is accumulated
    snapshots: Snapshots | None


class Skipper:
    """Watches the hottest rows of one group and decides which of their updates are written.

    Only the planning thread uses it. Decisions depend on batches, the rule and feedback of a fixed age, and are keyed
    by row, so placement changes none of them.

    Args:
        group: the tables.
        capacity: number of rows that can be watched.
        skip: settings.
        policy_caller: calls the policy's skip rule.
        tracker, stats: of the group's planner.
    """

    hot: HotSet
    deferral: DeferralBook | None
    watched_counts: WatchedCounts

    def __init__(
        self,
        group: Group,
        capacity: int,
        skip: SkipConfig,
        policy_caller: PolicyCaller,
        tracker: Tracker,
        stats: StatsSource,
    ) -> None:
        self._group, self._capacity, self._skip = group, capacity, skip
        self._policy_caller, self._tracker, self._stats = policy_caller, tracker, stats
        assert policy_caller.rule is not None
        self._rule = policy_caller.rule
        self._number = 0  # of the batch being planned
        self._memory = ScratchPool()
        self.forget()

    def forget(self) -> None:
        """Start over, because other rows have been loaded."""
        self.hot = HotSet(self._capacity, self._skip, self._group.num_rows)
        self.deferral = DeferralBook(self._capacity, self._rule) if self._policy_caller.defers else None
        self.watched_counts = WatchedCounts.none(len(self._group.tables))
        self._most_visited = self._capacity if self._rule.leaves_out else self.num_snapshots  # entries
        self._visit_every = 1 if self._rule.leaves_out or self.watches_movement else SAMPLED_BATCHES

    def grow(self, capacity: int) -> None:
        """Start over, with room for more rows."""
        self._capacity = max(capacity, self._capacity)
        self.forget()

    @property
    def num_bytes(self) -> int:
        return self.hot.num_bytes + (0 if self.deferral is None else self.deferral.num_bytes)

    @property
    def watches_movement(self) -> bool:
        """True if the rule needs the movement of all watched rows."""
        return self._rule.watches

    @property
    def snapshots_name(self) -> str:
        """Name of the snapshots in checkpoints, other for a sample than for all rows; empty without snapshots."""
        return "snapshots" if self.watches_movement else "sample" if self.num_snapshots else ""

    @property
    def num_snapshots(self) -> int:
        """Number of entries, from the first, whose movement is measured."""
        return min(self._capacity, self._policy_caller.most_snapshots)

    def decide(
        self, number: int, distinct: Distinct, candidates: Candidates, locations: Int64s, tally: Int64s
    ) -> Decision:
        """Decide what happens to the gradients of a batch's distinct rows; count it in `tally`.

        locations (U,) of the rows. Uses up the candidates.
        """
        self._number = number
        rows, counts, seen, size = distinct.rows, distinct.counts, candidates.seen, len(distinct.rows)
        # Few calls: Python's own memory is not in the caches either after a step, so each takes microseconds.
        memory, num_bytes = self._memory.take(21 * size), 20 * size
        places, summed, entries, due, watched_places = memory[:num_bytes].view(np.int32).reshape(5, size)
        fates = memory[num_bytes:]
        fates.fill(NOW)
        written_rows = np.empty(size, np.int64)  # kept longer than the plan
        watched_rows = self.hot.admit(rows, candidates, watched_places)
        snapshots, num_summed, num_due = None, 0, 0
        if self._most_visited and number % self._visit_every == 0:
            visited = self._most_visited, self._visit_every, counts, locations, fates
            due_snapshots = self.hot.visit(watched_rows, *visited)
            snapshots = due_snapshots if self.num_snapshots else None
        if self.deferral is not None:
            outputs = fates, summed, entries, due
            num_summed, num_due = self.deferral.decide(number, watched_rows, distinct, seen, outputs, self.hot.waits)
        summed, entries, due = summed[:num_summed], entries[:num_summed], due[:num_due]
        batch_rows = rows, counts, distinct.table_ends
        num_now = watched.divide_rows(batch_rows, fates, (summed, due), (places, written_rows), tally)
        now, written = places[:num_now], places[: num_now + num_due]
        deferred = Deferred(now, summed, entries, due, written, written_rows[: len(written)]) if num_summed else None
        return Decision(written, deferred, snapshots)

    def ask(self, number: int) -> None:
        """Call the rule about all watched rows, before batch `number` is planned."""
        self._number = number
        if self.hot.num_entries == 0:
            return
        if not self._rule.asks:
            self.count_watched()
            return
        entries = slice(0, self.hot.num_entries)
        rows, numbers = self.hot.rows[entries].copy(), np.arange(self.hot.num_entries)
        visits = None if self.deferral is None else self.deferral.visits
        stats = self._stats.of(rows, number, hot=self.hot, entries=numbers, visits=visits)
        answer = self._policy_caller.visits(stats)
        if number < self._rule.warmup:
            answer = np.ones_like(answer)
        self._adopt(answer == 0, (np.maximum(answer, 1) - 1).astype(np.uint8))

    def inactive_entries(self, number: int) -> Int64s:
        """(n,) entries to drop before batch `number` is planned, ascending.

        If the set is full, these are rows without a lookup for many times their usual distance between lookups. None
        if there are few of them.
        """
        hot = self.hot
        if hot.num_entries < hot.capacity or number % (DROP_EVERY * self._skip.interval):
            return no_rows()
        rows = hot.rows[: hot.num_entries]
        last = self._stats.last_access(rows)
        usual = np.maximum((last + 1) / np.maximum(self._tracker.accesses[rows], 1), 1)
        away = np.maximum(number - last, 0)
        inactive = np.flatnonzero((away >= self._skip.interval) & (away > PATIENCE * usual))
        return inactive if len(inactive) >= max(1, hot.capacity // FEW) else no_rows()

    def retain(self, entries: Int64s) -> None:
        """Drop all entries but these (n,), ascending, which are renumbered from 0.

        No batch is in flight, all feedback has arrived, and the others have no sums.
        """
        self.hot.retain(entries)
        if self.deferral is not None:
            self.deferral.retain(entries)
        self.count_watched()

    def learn(self, feedback: Feedback) -> None:
        """Store the drifts that were measured with a trained batch."""
        self.hot.learn(feedback)

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Restore the watched rows of a checkpoint: `columns` of the hot set, in order of entry."""
        self.hot.restore(columns)
        self._sum_counted()

    def _adopt(self, left_out: NDArray[np.bool_], waits: NDArray[np.uint8]) -> None:
        """Store the answers for all entries: skip updates, further visits to accumulate over."""
        hot = self.hot
        hot.saturated[: hot.num_entries], hot.waits[: hot.num_entries] = left_out, waits
        self.count_watched()

    def count_watched(self) -> None:
        hot, entries = self.hot, slice(0, self.hot.num_entries)
        counted = hot.counted[entries]
        counted[:] = WATCHED
        counted[hot.saturated[entries]] |= SATURATED
        measured = slice(0, min(hot.num_entries, self.num_snapshots))
        counted[measured][hot.drift_visits[measured] > 0] |= JUDGED
        counted[measured][hot.at_rest(measured)] |= AT_REST
        if self.deferral is not None:
            counted[self.deferral.waiting_entries(self._number, hot.waits[entries])] |= WAITING
        self._sum_counted()

    def _sum_counted(self) -> None:
        hot, entries = self.hot, slice(0, self.hot.num_entries)
        tables, size = self._group.tables_of(hot.rows[entries]), len(self._group.tables)
        counted = [hot.counted[entries] & bit > 0 for bit in (WATCHED, JUDGED, SATURATED, WAITING, AT_REST)]
        self.watched_counts = WatchedCounts(*(np.bincount(tables[chosen], minlength=size) for chosen in counted))
