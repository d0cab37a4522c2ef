"""`Skipper`: decides which row updates are skipped or deferred; `HotSet` and `StatsSource`: what rules see of rows.

Everything lossy in planning is here.

A batch takes one *action* for each of its distinct rows (`kernels.planning.books`): the gradient updates the row now;
is added to a sum that is then applied; is added to a sum for later; is skipped. The skipper owns everything behind this
decision: the hot set with the sizes of updates, and the skip rule's answers. Without a skipper every row is updated
now.

Only rows looked up often enough are hot. The set is keyed by row and separate from the tiers, so answers do not depend
on where rows are stored. Only the planning thread uses it; sums of gradients belong to the training thread
(`DeviceTier.begin_sums`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Int32s, Int64s
from adaptive.config import SkipConfig
from adaptive.embeddings.planning.books import SlotTable, Tracker, zero_pages
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.plan import Deferred, Feedback, no_rows
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.kernels.planning import books, hot_set
from adaptive.kernels.planning.books import UPDATE, Entered
from adaptive.kernels.planning.lookups import Distinct
from adaptive.kernels.scratch import ScratchPool
from adaptive.policy import NEVER, SATURATED, RowStats

ENTRY = np.dtype(
    [
        ("row", np.int64),
        ("size", np.float32),  # running mean of the row's update sizes, NaN: none is measured yet
        ("answer", np.uint8),  # the rule's: visits over which gradients are accumulated, 0: updates are skipped
        ("deferred", np.uint8),  # gradients in the row's sum
        ("saturated", np.bool_),  # as of the rule's latest call, for reports
    ],
    align=True,
)
assert ENTRY.itemsize == 16  # so that none crosses a cache line
COLUMNS: Final = ENTRY.names or ()


@dataclass(frozen=True)
class HotRows:
    """The hot rows among the distinct rows of a batch."""

    places: NDArray[np.int32]  # (n,) positions among the distinct rows, ascending
    entries: NDArray[np.int32]  # (n,)


class HotSet:
    """Hot rows of one group. Entries are numbered in order of admission.

    Rows that are no longer looked up are dropped (`retain`). Memory is taken as rows are admitted: arrays are zeros,
    which the system allocates when they are touched.

    Attributes:
        row_entries: (rows of the group,) entry + 1 of each row, 0 without one.
    """

    def __init__(self, capacity: int, config: SkipConfig, num_rows: int) -> None:
        """Make room for `capacity` of the `num_rows` rows of the group."""
        self.config = config
        self.num_entries = 0
        self._records = np.zeros(capacity, ENTRY)
        self.rows: NDArray[np.int64] = self._records["row"]
        self.sizes: NDArray[np.float32] = self._records["size"]
        self.answers: NDArray[np.uint8] = self._records["answer"]
        self.deferred: NDArray[np.uint8] = self._records["deferred"]
        self.saturated: NDArray[np.bool_] = self._records["saturated"]
        self.row_entries: NDArray[np.int32] = zero_pages(num_rows, np.int32)[0].reshape(-1)[:num_rows]

    @property
    def capacity(self) -> int:
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        """Bytes once all entries are taken."""
        return hot_set_bytes(self.capacity, len(self.row_entries))

    def admit(
        self,
        rows: NDArray[np.int64],
        seen: NDArray[np.uint32],
        entries: NDArray[np.int32],
        places: NDArray[np.int32],
    ) -> HotRows:
        """Admit rows with enough lookups; return the hot ones of a batch's rows (U,).

        The result takes the memory of `places` (U,) and of the candidates' entries.
        """
        old = self.num_entries
        of_set = self.config.min_accesses, self.row_entries, self.rows, old
        self.num_entries, count = hot_set.find_entries(rows, seen, *of_set, places, entries)
        new = slice(old, self.num_entries)
        self.sizes[new], self.answers[new] = np.nan, 1
        return HotRows(places[:count], entries[:count])

    def learn(self, feedback: Feedback) -> None:
        """Let the update sizes follow the updates of a trained batch."""
        if len(feedback.norms) > 1:
            hot_set.learn_sizes(feedback.rows, feedback.norms, feedback.applied_visits, self.row_entries, self.sizes)

    def is_saturated(self, entries: NDArray[np.int64] | slice) -> NDArray[np.bool_]:
        """(n,) True for rows whose updates move them by less than `SATURATED` of their length."""
        saturated: NDArray[np.bool_] = self.sizes[entries] < SATURATED  # NaN is not less
        return saturated

    def entries_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) entry of each row, or -1."""
        return self.row_entries[rows].astype(np.int64) - 1

    def columns(self) -> dict[str, NDArray[Any]]:
        """(n,) each: copies of the columns of all entries, for `restore`."""
        return {name: self._records[name][: self.num_entries].copy() for name in COLUMNS}

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Restore the entries of an empty set from `columns` of at most `capacity` rows."""
        rows = np.ascontiguousarray(columns["row"])
        self.rows[: len(rows)] = rows
        self.num_entries = len(rows)
        self.row_entries[rows] = np.arange(1, len(rows) + 1)
        for name in COLUMNS:
            self._records[name][: len(rows)] = columns[name]

    def retain(self, entries: NDArray[np.int64]) -> None:
        """Drop all entries but these (n,), ascending, which are renumbered from 0."""
        records = self._records[entries]
        self.row_entries[self.rows[: self.num_entries]] = 0
        self.row_entries[records["row"]] = np.arange(1, len(records) + 1)
        self._records[len(records) : self.num_entries] = 0
        self._records[: len(records)] = records
        self.num_entries = len(records)


def hot_set_bytes(capacity: int, num_rows: int) -> int:
    """Bytes of a set once all `capacity` entries are taken."""
    return capacity * ENTRY.itemsize + num_rows * np.dtype(np.int32).itemsize


COLD: Final[dict[str, np.generic]] = {
    "update_size": np.float32(np.nan),
    "saturated": np.bool_(False),
}
"""Column of `RowStats` -> its value for rows that are not hot."""


class StatsSource:
    """Gathers `RowStats` of rows of one group of tables."""

    def __init__(self, group: Group, tracker: Tracker, slots: SlotTable) -> None:
        self._group, self._tracker, self._slots = group, tracker, slots

    def of(
        self,
        rows: Int64s,
        number: int,
        window: Sequence[Distinct] = (),
        *,
        hot: HotSet | None = None,
        entries: Int64s | None = None,
    ) -> RowStats:
        """Gather the statistics of rows (n,) as of batch `number`.

        Args:
            rows: of the group.
            number: of the batch being planned.
            window: the batches that follow, nearest first.
            hot: the hot set, if there is one.
            entries: (n,) of the rows in the hot set; None: to be looked up.
        """
        group, records, norms = self._group, self._slots.gather(rows), self._tracker.update_norm
        if hot is not None and entries is None:
            entries = hot.entries_of(rows)
        return RowStats(
            step=number,
            rows=group.to_global(rows),
            table=group.tables_of(rows) + np.int32(group.first_table),
            accesses=records.accesses,
            last_access=records.last_access,
            next_access=self._next_access(rows, records.slots, number, window),
            update_norm=np.broadcast_to(np.float32(np.nan), len(rows)) if norms is None else norms[rows],
            resident=records.slots >= 0,
            **self._sizes(len(rows), hot, entries),
        )

    def _sizes(self, size: int, hot: HotSet | None, entries: Int64s | None) -> dict[str, NDArray[Any]]:
        """(size,) each: the columns about hot rows."""
        if hot is None or entries is None:
            return {name: np.broadcast_to(unknown, size) for name, unknown in COLD.items()}  # takes no memory
        columns = {name: np.full(size, unknown) for name, unknown in COLD.items()}
        is_hot = entries >= 0
        at = entries[is_hot]
        columns["update_size"][is_hot], columns["saturated"][is_hot] = hot.sizes[at], hot.is_saturated(at)
        return columns

    def last_access(self, rows: Int64s) -> Int64s:
        """(n,) latest batch that looked up each row, or -1."""
        return self._slots.last_access(rows).astype(np.int64) - 1

    def _next_access(self, rows: Int64s, slots: Int64s, number: int, window: Sequence[Distinct]) -> Int64s:
        if not window:
            return np.broadcast_to(np.int64(NEVER), len(rows))
        following = np.full(len(rows), NEVER, np.int64)
        slot_next = np.full(len(self._slots), NEVER, np.int64)
        on_device, away = slots >= 0, np.flatnonzero(slots < 0)
        for ahead in range(len(window), 0, -1):
            books.mark_next_access(window[ahead - 1].rows, self._tracker.codes, number + ahead, slot_next)
            if len(away):  # rows on the host that may be admitted
                following[away[np.isin(rows[away], window[ahead - 1].rows)]] = number + ahead
        following[on_device] = slot_next[slots[on_device]]
        return following


DROP_EVERY: Final = 16  # calls of the rule between two searches for inactive rows
MEASURED: Final = 16  # batches, about, whose update sizes are measured between two calls of the rule
GOLDEN_RATIO: Final = 0x9E3779B97F4A7C15  # its fraction times 2**64
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
        capacity: number of rows that can be hot.
        skip: settings.
        policy_caller: calls the policy's skip rule.
        tracker, stats: of the group's planner.
    """

    hot: HotSet
    hot_counts: Int64s  # see `Planner.hot_counts`
    is_idle: bool  # True if all answers are 1 and no sum is pending: every row is updated now

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
        self.is_idle = True

    @property
    def num_bytes(self) -> int:
        return self.hot.num_bytes

    @property
    def defers(self) -> bool:
        """True if gradients may be accumulated."""
        return self._policy_caller.defers

    def measures(self, number: int) -> bool:
        """True if the update sizes of batch `number` are measured; never while an input rule does not pay.

        The rule needs a mean of the latest few, and measuring each batch would take 5% of a small model's step. Half as
        many take 1% less and cost 0.0002 of AUC at 22% positive labels (five seeds). Batches are chosen by multiples of
        the golden ratio, which have no period: a row whose sum is applied in every k-th batch is measured as often as
        any other.
        """
        return self._policy_caller.pays and number * GOLDEN_RATIO % 2**64 * self._skip.interval < 2**64 * MEASURED

    def follow(self, distinct: Distinct, entered: Entered) -> None:
        """Admit the rows of a batch, all of which are updated now, so that their sizes are taken in."""
        self.hot.admit(distinct.rows, entered.seen, entered.entries, np.empty(len(distinct.rows), np.int32))

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
        """Call the rule about all hot rows, before batch `number` is planned.

        While an input rule does not pay it is not called, and no row waits.
        """
        hot, entries = self.hot, slice(0, self.hot.num_entries)
        if hot.num_entries == 0:
            return
        if not self._policy_caller.pays:
            hot.answers[entries] = 1
            self._note_answers()
            return
        stats = self._stats.of(hot.rows[entries].copy(), number, hot=hot, entries=np.arange(hot.num_entries))
        answers = self._policy_caller.visits(stats)  # called in the warm-up too, so that errors do not come late
        hot.answers[entries] = answers if number >= self._rule.warmup else 1
        hot.saturated[entries] = hot.is_saturated(entries)
        self._note_answers()

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
        self._note_answers()

    def learn(self, feedback: Feedback) -> None:
        """Take in the sizes of a trained batch's updates."""
        self.hot.learn(feedback)

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Restore the hot rows of a checkpoint: `columns` of the hot set, in order of entry."""
        self.hot.restore(columns)
        self._note_answers()

    def _note_answers(self) -> None:
        """Follow answers and entries that have changed."""
        hot, entries = self.hot, slice(0, self.hot.num_entries)
        self.is_idle = bool((hot.answers[entries] == 1).all()) and not hot.deferred[entries].any()
        self.count_hot_rows()

    def count_hot_rows(self) -> None:
        """Count the hot rows, and those that were saturated at the rule's latest call."""
        hot, size = self.hot, len(self._group.tables)
        rows = hot.rows[: hot.num_entries]
        tables, saturated = self._group.tables_of(rows), hot.saturated[: hot.num_entries]
        self.hot_counts = np.array([np.bincount(chosen, minlength=size) for chosen in (tables, tables[saturated])])
