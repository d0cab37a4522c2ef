"""`Skipper`: decides which row updates are skipped or deferred.

Everything lossy in planning is here.

A batch takes one *action* for each of its distinct rows (`kernels.planning.books`): the gradient updates the row now;
is added to a sum that is then applied; is added to a sum for later; is skipped. The skipper owns everything behind this
decision: the hot set with the sizes of updates, and the skip rule's answers. Without a skipper every row is updated
now.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Int32s, Int64s
from adaptive.config import SkipConfig
from adaptive.embeddings.planning.books import Tracker
from adaptive.embeddings.planning.hot_set import HotSet
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.plan import Deferred, Feedback, no_rows
from adaptive.embeddings.planning.policy_calls import PolicyCaller, StatsSource
from adaptive.kernels.planning import hot_set
from adaptive.kernels.planning.books import UPDATE, Entered
from adaptive.kernels.planning.lookups import Distinct
from adaptive.kernels.scratch import ScratchPool

DROP_EVERY: Final = 16  # calls of the rule between two searches for inactive rows
PATIENCE: Final = 8  # a row is inactive after so many times its usual distance between lookups
FEW: Final = 16  # fewer inactive rows than this fraction of the set are not worth a pause of training


@dataclass(frozen=True)
class Decision:
    """What happens to the gradients of a batch's distinct rows."""

    written: Int32s  # (n,) distinct rows that the batch updates
    deferred: Deferred | None  # None: no gradient is accumulated


class Skipper:
    """Follows the hottest rows of one group and decides which of their updates are written.

    Only the planning thread uses it. Decisions depend on batches, the rule and feedback of a fixed age, and are keyed
    by row, so placement changes none of them.

    Args:
        group: the tables.
        capacity: number of rows that can be hot_set.
        skip: settings.
        policy_caller: calls the policy's skip rule.
        tracker, stats: of the group's planner.
    """

    hot: HotSet
    hot_counts: Int64s  # see `Planner.hot_counts`

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
        self._memory = ScratchPool()
        self.forget()

    def forget(self) -> None:
        """Start over, because other rows have been loaded."""
        self.hot = HotSet(self._capacity, self._skip, self._group.num_rows)
        self.hot_counts = np.zeros((2, len(self._group.tables)), np.int64)

    @property
    def num_bytes(self) -> int:
        return self.hot.num_bytes

    @property
    def defers(self) -> bool:
        """True if gradients may be accumulated."""
        return self._policy_caller.defers

    def decide(self, distinct: Distinct, entered: Entered, tally: Int64s) -> Decision:
        """Decide what happens to the gradients of a batch's distinct rows; count it in `tally`.

        Uses up the entries of `entered`.
        """
        rows, counts, size = distinct.rows, distinct.counts, len(distinct.rows)
        # Few calls: Python's own memory is not in the caches either after a step, so each takes microseconds.
        memory, num_bytes = self._memory.take(25 * size), 24 * size
        places, summed, entries, applied, visits, hot_places = memory[:num_bytes].view(np.int32).reshape(6, size)
        actions = memory[num_bytes:]
        actions.fill(UPDATE)
        written_rows = np.empty(size, np.int64)  # kept longer than the plan
        hot_rows, hot = self.hot.admit(rows, entered.seen, entered.entries, hot_places), self.hot
        books = hot_rows.places, hot_rows.entries, hot.answers, hot.deferred
        num_summed, num_applied = hot_set.defer_visits(*books, actions, summed, entries, applied, visits)
        summed, entries, applied = summed[:num_summed], entries[:num_summed], applied[:num_applied]
        batch_rows = rows, counts, distinct.table_ends
        num_now = hot_set.divide_rows(batch_rows, actions, (summed, applied), (places, written_rows), tally)
        now, written = places[:num_now], places[: num_now + num_applied]
        if not num_summed:
            return Decision(written, None)
        written_rows = written_rows[: len(written)]
        return Decision(
            written, Deferred(now, summed, entries, applied, visits[:num_applied].copy(), written, written_rows)
        )

    def ask(self, number: int) -> None:
        """Call the rule about all hot rows, before batch `number` is planned."""
        hot, entries = self.hot, slice(0, self.hot.num_entries)
        if hot.num_entries == 0:
            return
        stats = self._stats.of(hot.rows[entries].copy(), number, hot=hot, entries=np.arange(hot.num_entries))
        answers = self._policy_caller.visits(stats)  # called in the warm-up too, so that errors do not come late
        hot.answers[entries] = answers if number >= self._rule.warmup else 1
        hot.saturated[entries] = hot.is_saturated(entries)
        self.count_hot_rows()

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
        self.count_hot_rows()

    def learn(self, feedback: Feedback) -> None:
        """Take in the sizes of a trained batch's updates."""
        self.hot.learn(feedback)

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Restore the hot rows of a checkpoint: `columns` of the hot set, in order of entry."""
        self.hot.restore(columns)
        self.count_hot_rows()

    def count_hot_rows(self) -> None:
        """Count the hot rows, and those that were saturated at the rule's latest call."""
        hot, size = self.hot, len(self._group.tables)
        rows = hot.rows[: hot.num_entries]
        tables, saturated = self._group.tables_of(rows), hot.saturated[: hot.num_entries]
        self.hot_counts = np.array([np.bincount(chosen, minlength=size) for chosen in (tables, tables[saturated])])
