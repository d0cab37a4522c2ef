"""`Planner`: decides, batch by batch, which rows of one group are on the device.

It copies nothing. It runs in the planning thread and is the only writer of records, slots and the hot set. Its
decisions depend on the batches, the policy and feedback of a fixed age, never on clocks, so the same run plans the same
way.

Hold rule: when batch k is planned with look-ahead d, rows of batches k - d ... k keep their slots. All batches up to
k - d - 1 are trained before k's rows move, so a row in a slot that is not held can be written back. A row that one of
the batches k - d ... k - 1 updates on the host may get a slot, too, but is *late*: it is fetched between the training
of batches k - 1 and k.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Int64s
from adaptive.config import SkipConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.planning.books import NO_ENTRIES, SlotTable, Tracker, lowest
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import Bags, Lookups
from adaptive.embeddings.planning.plan import Feedback, GroupPlan, Moves, Pooling, RowUpdates, no_rows
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.embeddings.planning.skipping import Skipper, StatsSource
from adaptive.errors import DeviceMemoryError
from adaptive.kernels.planning import books
from adaptive.kernels.planning.books import Entered
from adaptive.kernels.planning.lookups import Distinct
from adaptive.kernels.scratch import ScratchPool, allocate

# Idle rows to consider per missing slot. Considering all of them costs as much as the rest of planning and, on the
# built-in stream at 10%, gains less than one hit in a thousand.
CANDIDATES_PER_SLOT = 8
COUNTED_AT_ONCE = 1 << 16  # rows in slots; all at once would take as much memory as the slots


class Planner:
    """Plans for one group of tables, and keeps its books.

    Args:
        group: the tables.
        num_slots: of the device tier.
        tier: settings.
        policy_caller: calls the policy.
        row_bytes: bytes of a row with its optimizer state.
    """

    def __init__(
        self, group: Group, num_slots: int, tier: TierConfig, policy_caller: PolicyCaller, row_bytes: int
    ) -> None:
        self.group = group
        self.tracker = Tracker(group.num_rows, keeps_norms=policy_caller.scores)
        self.slots = SlotTable(num_slots, group.table_starts, self.tracker, by_accesses=policy_caller.by_accesses)
        self.skipper: Skipper | None = None
        self._stats = StatsSource(group, self.tracker, self.slots)
        self._tier = tier
        self._policy_caller = policy_caller
        self._row_bytes = row_bytes
        self._memory = ScratchPool()
        self._no_hot_rows = np.zeros((2, len(group.tables)), np.int64)
        self._has_scored = False
        self._entered: tuple[Distinct, Entered] | None = None  # prepared and not committed

    def begin_hot_set(self, capacity: int, skip: SkipConfig) -> None:
        """Follow the hottest rows, and skip or defer their updates as the skip rule decides."""
        self.skipper = Skipper(self.group, capacity, skip, self._policy_caller, self.tracker, self._stats)

    @property
    def num_bytes(self) -> int:
        """Bytes of the records of rows, slots and hot rows."""
        return self.tracker.num_bytes + self.slots.num_bytes + (0 if self.skipper is None else self.skipper.num_bytes)

    def resident_per_table(self) -> Int64s:
        """(tables of the group,) number of rows in slots."""
        counts = np.zeros(len(self.group.tables), np.int64)
        for rows in self.slots.resident_rows(COUNTED_AT_ONCE):
            counts += self.group.count_by_table(rows)
        return counts

    @property
    def hot_counts(self) -> Int64s:
        """(2, tables of the group) numbers of hot rows, and of those that were saturated at the rule's latest call."""
        return self._no_hot_rows if self.skipper is None else self.skipper.hot_counts

    # --- one batch -------------------------------------------------------------------------------------------

    def prepare(self, distinct: Distinct, number: int, depth: int, window: Sequence[Distinct] = ()) -> "SlotChanges":
        """Decide which rows are admitted and evicted for batch `number`.

        Follow it with `commit`, or with `roll_back` if any error is raised.

        Args:
            distinct: the batch's rows.
            number: of the batch.
            depth: batches before it whose rows keep their slots.
            window: the batches that follow, nearest first.

        Raises:
            DeviceMemoryError: if the rows of the batches in flight do not fit.
            PolicyError: if the policy fails.
        """
        rows, num_rows = distinct.rows, len(distinct.rows)
        skipper, num_hot, row_entries = self.skipper, 0, NO_ENTRIES
        if skipper is not None and (not skipper.is_idle or skipper.measures(number)):
            num_hot, row_entries = num_rows, skipper.hot.row_entries
        of_rows = (np.int64, num_rows), (np.int64, num_rows), (np.int32, num_rows)
        of_hot = (np.uint32, num_hot), (np.int32, num_hot)
        locations, missing, undo, seen, entries = allocate(self._memory, *of_rows, *of_hot)
        entered = Entered(locations, missing, undo, row_entries, seen, entries)
        tally = np.zeros((len(self.group.tables), len(Counter)), np.int64)
        count = self.slots.enter(distinct, number, self._mark, entered, tally)
        self._entered = distinct, entered
        question = _Question(number, depth, window, rows, missing[:count])
        prefetches = self._policy_caller.policy.misses == "prefetch"
        admitted, evicted = self._prefetch(question) if prefetches else self._admit_from_host(question)
        return SlotChanges(number, question.oldest_held, distinct, entered, question.missing, admitted, evicted, tally)

    def slots_needed(self, distinct: Distinct, number: int, depth: int) -> int:
        """Slots for the rows of the unplanned batch `number` and of the `depth` batches before it."""
        held = (self.slots.used != books.FREE) & (self.slots.used >= max(number - depth, 0))
        slots = self.slots.slots_of(distinct.rows)
        shared = int(held[slots[slots >= 0]].sum())
        return int(held.sum()) + len(distinct.rows) - shared

    def roll_back(self) -> None:
        """Undo a `prepare` that no `commit` followed, even if it failed."""
        if self._entered is not None:
            self.slots.leave(*self._entered)
            self._entered = None

    @property
    def _mark(self) -> int:
        """Flags for the slots of a batch's rows: if nothing is skipped it changes all of them."""
        return int(books.DIRTY) if self.skipper is None or self.skipper.is_idle else 0

    def commit(self, lookups: Lookups, changes: "SlotChanges") -> GroupPlan:
        """Apply the decisions of `prepare` to the books, and return the batch's plan."""
        distinct, locations, number, tally = changes.distinct, changes.locations, changes.number, changes.tally
        moves = self._apply_moves(changes)
        row_updates = RowUpdates(distinct.rows, locations, lookups.segments, lookups.vectors, lookups.scales)
        pooling = lookups.bags.pooling(distinct.inverse, locations)
        self._count_bytes(pooling, tally)
        skipper, deferred, norm_lines = self.skipper, None, self._norm_lines(number)
        if skipper is not None and skipper.is_idle:
            if norm_lines > 1:
                skipper.follow(distinct, changes.entered)
        elif skipper is not None:
            assert len(lookups.vectors) == lookups.segments[-1], "skipping needs the lookups by row on the host"
            decision = skipper.decide(distinct, changes.entered, tally)
            deferred = decision.deferred
            if deferred is None:
                row_updates = row_updates.take(decision.written)
            self.slots.mark_dirty(decision.written, locations)
        of_rule = self.hot_counts, deferred, norm_lines
        return GroupPlan(number, pooling, row_updates, moves, tally, *of_rule, lookups.on_device)

    def commit_books(self, changes: "SlotChanges", bags: Bags | None) -> tuple[Int64s, Int64s]:
        """Apply the decisions of `prepare` to the books without making a plan, for simulations.

        Args:
            changes: the decisions.
            bags: required if rows may stay on the host.

        Returns:
            The tally, and (tables of the group,) the number of bags with a row on the host.
        """
        self._apply_moves(changes)
        tally = changes.tally
        assert self.skipper is None, "ids do not show what a rule skips"
        pooling = None if bags is None else bags.pooling(changes.distinct.inverse, changes.locations)
        return tally, self._count_bytes(pooling, tally)

    def _count_bytes(self, pooling: Pooling | None, tally: Int64s) -> Int64s:
        """Count the bytes moved; returns (tables,) the number of bags with a row on the host."""
        vectors = np.zeros(len(self.group.tables), np.int64)
        books.count_bytes(self._row_bytes, tally)
        if self._policy_caller.policy.misses == "host":
            assert pooling is not None and len(pooling.inverse) == pooling.bag_starts[-1]
            books.count_host_vectors(
                pooling.bag_tables, pooling.bag_starts, pooling.inverse, pooling.row_locations, vectors
            )
            tally[:, [Counter.BYTES_H2D, Counter.BYTES_D2H]] += 4 * self.group.embedding_dim * vectors[:, None]
        return vectors

    def _apply_moves(self, changes: "SlotChanges") -> Moves:
        """Update slots, codes and records as if the batch's rows had moved; returns the moves."""
        distinct, locations, admitted = changes.distinct, changes.locations, changes.admitted
        number, tally = changes.number, changes.tally
        back = self.slots.release(changes.evicted, tally)
        held = number, changes.oldest_held
        slots, rows, initial, is_late = self.slots.take(admitted, distinct, locations, *held, tally)
        fresh = no_rows()
        if len(admitted) < len(changes.missing):
            fresh = self.slots.leave_on_host(changes.missing, distinct, locations, number)
        self._entered = None
        if not np.count_nonzero(is_late):
            return Moves(*back, slots, rows, initial, fresh)
        now = ~is_late
        return Moves(*back, slots[now], rows[now], initial[now], fresh, slots[is_late], rows[is_late])

    # --- rows that are not on the device ---------------------------------------------------------------------

    def _prefetch(self, question: "_Question") -> tuple[Int64s, Int64s]:
        """Admit all missing rows, evict those that score lowest; returns (admitted, evicted)."""
        shortage = len(question.missing) - self.slots.num_free
        if shortage <= 0:
            self._try_score(question)
            return question.missing, no_rows()
        most = max(self._tier.max_candidates, CANDIDATES_PER_SLOT * shortage)
        window = self.slots.idle_window(question.oldest_held, most)
        if window.count < shortage:
            raise self._does_not_fit(question, shortage - window.count)
        count = max(shortage, int(self._tier.eviction_share * len(self.slots)))
        order = self._policy_caller.order
        if order is not None:
            return question.missing, self.slots.lowest(window, order, count)
        idle = self.slots.idle(window)
        scores = self._score(self.slots.rows[idle], question)
        return question.missing, idle[lowest(scores, count)]

    def _does_not_fit(self, question: "_Question", shortage: int) -> DeviceMemoryError:
        have, depth = len(self.slots), question.depth
        advice = f"Raise device_rows to at least {have + shortage}, or lower the batch size"
        if depth > 0:
            advice += f", or lower depth (now {depth}), or set tier.when_full=reduce_lookahead"
        policy, width = type(self._policy_caller.policy).__name__, self.group.embedding_dim
        assert self._entered is not None
        largest = largest_table(self.group, self._entered[0])
        return DeviceMemoryError(
            f"batch {question.number}: expected at least {have + shortage} device rows of width {width} for the "
            f"{depth + 1} batches in flight (most for table {largest}), got {have} (policy {policy}). {advice}."
        )

    def _admit_from_host(self, question: "_Question") -> tuple[Int64s, Int64s]:
        """Admit missing rows to free slots, then those that score above the lowest idle rows."""
        missing = question.missing
        if not len(missing) or not len(self.slots):
            return no_rows(), no_rows()
        full = len(missing) > self.slots.num_free
        idle = no_rows()
        if full:
            idle = self.slots.idle(self.slots.idle_window(question.oldest_held, self._tier.max_candidates))
        candidates = np.concatenate([question.rows[missing], self.slots.rows[idle]])
        scores = self._score(candidates, question)
        return swaps(missing, idle, scores, self.slots.num_free)

    def _try_score(self, question: "_Question") -> None:
        """Score one resident row while slots are free, once.

        So a policy that fails does so in the first batches, not hours later, when slots run short. It does not use
        `slots.idle`, which would move the start of the next search.
        """
        if not self._has_scored and question.number > 0 and self._policy_caller.order is None:
            resident = self.slots.taken()[:1]
            if len(resident):
                self._score(self.slots.rows[resident], question)

    def _score(self, rows: Int64s, question: "_Question") -> NDArray[np.float64]:
        self._has_scored = True
        hot = None if self.skipper is None else self.skipper.hot
        return self._policy_caller.score(self._stats.of(rows, question.number, question.window, hot=hot))

    def _norm_lines(self, number: int) -> int:
        """Lines of norms to read of batch `number`: 1 if the policy may ask for their sums, 2 if sizes are measured."""
        if self.skipper is not None and self.skipper.measures(number):
            return 2
        return int(self.tracker.update_norm is not None)

    def learn(self, feedback: Feedback) -> None:
        """Store the feedback of a trained batch."""
        self.tracker.add_norms(feedback.rows, feedback.norms[0])
        if self.skipper is not None:
            self.skipper.learn(feedback)


@dataclass(frozen=True)
class _Question:
    """The batch that `prepare` decides about; `missing`: distinct rows without a slot."""

    number: int
    depth: int
    window: Sequence[Distinct]
    rows: Int64s
    missing: Int64s

    @property
    def oldest_held(self) -> int:
        return max(self.number - self.depth, 0)


@dataclass(frozen=True)
class SlotChanges:
    """The decisions of `prepare`."""

    number: int
    oldest_held: int  # batches from this one on keep their rows
    distinct: Distinct
    entered: Entered  # what the books say of these rows
    missing: Int64s  # distinct rows without a slot
    admitted: Int64s  # distinct rows that get a slot
    evicted: Int64s  # slots whose rows are evicted
    tally: Int64s  # (tables of the group, counters)

    @property
    def locations(self) -> Int64s:
        """(U,) slot, or -1; once the plan is made, the location."""
        return self.entered.locations


def swaps(missing: Int64s, idle: Int64s, scores: NDArray[np.float64], num_free: int) -> tuple[Int64s, Int64s]:
    """Choose rows to admit and slots to take from others.

    The best missing rows get the free slots. The next ones are paired with the worst idle rows and replace them while
    they score higher.

    Args:
        missing: (m,) distinct rows without a slot.
        idle: (n,) slots that may be taken.
        scores: (m + n,) of both, in this order.
        num_free: number of free slots.

    Returns:
        Those of `missing` to admit, ascending, and those of `idle` to evict.
    """
    new, old = scores[: len(missing)], scores[len(missing) :]
    candidates = np.arange(len(new))
    if num_free == 0:  # most rows score below all resident ones and need not be sorted
        candidates = np.flatnonzero(new > old.min(initial=np.inf))
    best = candidates[np.argsort(-new[candidates], kind="stable")]
    challengers = best[num_free:]
    pairs = min(len(challengers), len(old))
    low = lowest(old, pairs)
    worst = low[np.argsort(old[low], kind="stable")]
    wins = int((new[challengers[:pairs]] > old[worst]).sum())
    chosen = np.sort(best[: num_free + wins])
    return missing[chosen], idle[worst[:wins]]


def largest_table(group: Group, distinct: Distinct) -> str:
    """The table with most rows in a batch, and their number, for errors."""
    counts = np.diff(distinct.table_ends, prepend=0)
    most = int(counts.argmax())
    return f"{group.tables[most].name}, {counts[most]:,} a batch"
