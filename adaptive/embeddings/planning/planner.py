"""`Planner`: decides, batch by batch, which rows lie where. It keeps the books of one group and copies nothing.

It runs in the look-ahead thread and is the only writer of records, slots and the hot set. What it decides depends
on the batches, the policy and feedback of a fixed age, never on clocks; so the same run plans the same way.

Hold rule: when batch k is planned with look-ahead d, rows of batches k - d ... k keep their slots. All batches up to
k - d - 1 are trained before k's rows move, so a row in a slot that is not held can be written back. A row that one of
the batches k - d ... k - 1 updates on the host may get a slot, too, but is *late*: it is fetched between the training
of batches k - 1 and k.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.config import SkipConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.planning.books import SlotTable, Tracker
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import Bags, Distinct, Lookups
from adaptive.embeddings.planning.plan import Feedback, GroupPlan, Moves, Pooling, RowUpdates, WatchedCounts, no_rows
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.embeddings.planning.row_stats import StatsSource
from adaptive.embeddings.planning.skipping import Skipper, group_updates
from adaptive.errors import DeviceMemoryError
from adaptive.kernels.planning import books
from adaptive.kernels.planning.selection import lowest
from adaptive.kernels.scratch import LentMemory, carve

Int64s = NDArray[np.int64]

# Idle rows considered for each missing slot. Considering all of them costs as much as the rest of planning and, on the
# built-in stream at 10 %, gains less than one hit in a thousand.
CANDIDATES_PER_SLOT = 8


class Planner:
    """Plans for one group of tables, and keeps its books: where each row lies, and what is known of it.

    Args:
        group: the tables.
        num_slots: of the device tier.
        tier: settings.
        policy_caller: asks the policy.
        row_bytes: of a row with its optimizer state.
    """

    def __init__(
        self, group: Group, num_slots: int, tier: TierConfig, policy_caller: PolicyCaller, row_bytes: int
    ) -> None:
        self.group = group
        self.tracker = Tracker(group.num_rows)
        self.slots = SlotTable(num_slots, group.table_starts, self.tracker)
        self.skipper: Skipper | None = None
        self._stats = StatsSource(group, self.tracker, self.slots)
        self._tier = tier
        self._policy_caller = policy_caller
        self._row_bytes = row_bytes
        self._memory, self._ranked = LentMemory(), LentMemory()
        self._has_asked = False
        self._entered: tuple[Distinct, Int64s, NDArray[np.int32]] | None = None  # prepared and not committed

    def watch(self, capacity: int, skip: SkipConfig) -> None:
        """Watch the hottest rows from now on, and leave out or defer their updates as the skip rule says."""
        self.skipper = Skipper(self.group, capacity, skip, self._policy_caller, self.tracker, self._stats)

    @property
    def num_bytes(self) -> int:
        """Bytes of records, slots and what is known of watched rows."""
        return self.tracker.num_bytes + self.slots.num_bytes + (0 if self.skipper is None else self.skipper.num_bytes)

    def resident_per_table(self) -> Int64s:
        """(tables of the group,) rows in slots now."""
        rows = self.slots.rows[self.slots.rows >= 0]
        return np.bincount(self.group.tables_of(rows), minlength=len(self.group.tables))

    def watched_counts(self) -> WatchedCounts:
        """Rows watched and saturated, by table."""
        return WatchedCounts.none(len(self.group.tables)) if self.skipper is None else self.skipper.watched_counts

    # --- one batch -------------------------------------------------------------------------------------------

    def prepare(self, distinct: Distinct, number: int, depth: int, window: Sequence[Distinct] = ()) -> "Arrival":
        """Decide which rows come and which leave for batch `number`; `window`: the batches that follow, nearest first.

        Raises:
            DeviceMemoryError: if the rows that must be held do not fit.
            PolicyError: if the policy fails. Rows and slots are as they were in both cases.
        """
        rows, num_rows = distinct.rows, len(distinct.rows)
        locations, missing, before = carve(
            self._memory, (np.int64, num_rows), (np.int64, num_rows), (np.int32, num_rows)
        )
        tally = np.zeros((len(self.group.tables), len(Counter)), np.int64)
        count = self.slots.enter(distinct, number, self._mark, locations, missing, before, tally)
        self._entered = distinct, locations, before
        question = _Question(number, depth, window, rows, missing[:count])
        prefetches = self._policy_caller.policy.misses == "prefetch"
        takers, victims = self._prefetch(question) if prefetches else self._promote(question)
        return Arrival(number, question.oldest_held, distinct, locations, question.missing, takers, victims, tally)

    def slots_needed(self, distinct: Distinct, number: int, depth: int) -> int:
        """Slots that the rows of batch `number`, which is not planned, and of the `depth` batches before it take."""
        held = (self.slots.rows >= 0) & (self.slots.used >= max(number - depth, 0))
        codes = self.tracker.codes[distinct.rows].astype(np.int64)
        there = int(held[codes[codes > 0] - 1].sum())
        return int(held.sum()) + len(distinct.rows) - there

    def let_go(self) -> None:
        """Undo `prepare`, whether it failed or not, if no `commit` followed it."""
        if self._entered is not None:
            self.slots.leave(*self._entered)
            self._entered = None

    @property
    def _mark(self) -> int:
        """Flags of the slots of a batch's rows: where none is skipped, all will be changed."""
        return 0 if self.skipper is not None else int(books.DIRTY)

    def commit(self, lookups: Lookups, arrival: "Arrival") -> GroupPlan:
        """Enter what `prepare` decided into the books; returns the batch's plan for the kernels."""
        distinct, locations, number, tally = arrival.distinct, arrival.locations, arrival.number, arrival.tally
        moves = self._exchange(arrival)
        pooling = lookups.bags.pooling(distinct.inverse, locations)
        self._count_bytes(pooling, tally)
        if self.skipper is None:
            row_updates = RowUpdates(distinct.rows, locations, lookups.segments, lookups.vectors, lookups.scales)
            return GroupPlan(number, pooling, row_updates, moves, tally, found=lookups.found)
        assert lookups.found is None, "rows are chosen by their lookups, which are not here"
        fates = self.skipper.decide(number, distinct, locations, tally)
        updates = group_updates(lookups, locations, fates.fates)
        deferred = updates.deferred(fates.summed, distinct.rows, locations)
        for updated in (updates.now, *(() if fates.summed is None else (fates.summed.due,))):
            self.slots.mark_dirty(updated, locations)
        counts = self.skipper.watched_counts
        return GroupPlan(number, pooling, updates.row_updates, moves, tally, fates.snapshots, deferred, counts)

    def commit_books(self, arrival: "Arrival", bags: Bags | None) -> tuple[Int64s, Int64s]:
        """`commit` for simulation: enters a batch into the books, and makes no plan.

        `bags` are needed where rows may stay on the host. Returns the tally, and (tables of the group,) how many bags
        have a row there.
        """
        self._exchange(arrival)
        tally = arrival.tally
        if self.skipper is not None:
            fates = self.skipper.decide(arrival.number, arrival.distinct, arrival.locations, tally).fates
            self.slots.mark_dirty(np.flatnonzero(fates < books.WAITS), arrival.locations)
        pooling = None if bags is None else bags.pooling(arrival.distinct.inverse, arrival.locations)
        return tally, self._count_bytes(pooling, tally)

    def _count_bytes(self, pooling: Pooling | None, tally: Int64s) -> Int64s:
        """Count what crosses; returns (tables of the group,) bags with a row on the host, 0 if none can lie there."""
        vectors = np.zeros(len(self.group.tables), np.int64)
        tally[:, Counter.BYTES_H2D] += tally[:, Counter.FETCHED] * self._row_bytes
        tally[:, Counter.BYTES_D2H] += tally[:, Counter.WRITTEN_BACK] * self._row_bytes
        if self._policy_caller.policy.misses == "host":
            assert pooling is not None and len(pooling.inverse) == pooling.bag_starts[-1]
            books.count_host_vectors(
                pooling.bag_tables, pooling.bag_starts, pooling.inverse, pooling.row_locations, vectors
            )
            tally[:, [Counter.BYTES_H2D, Counter.BYTES_D2H]] += 4 * self.group.embedding_dim * vectors[:, None]
        return vectors

    def _exchange(self, arrival: "Arrival") -> Moves:
        """Enter the batch's moves; slots, codes and records are then as they are once its rows have moved."""
        distinct, locations, takers = arrival.distinct, arrival.locations, arrival.takers
        number, tally = arrival.number, arrival.tally
        back_slots, back_rows = self.slots.release(arrival.victims, tally)
        held = number, arrival.oldest_held
        slots, initial, late = self.slots.take(takers, distinct, locations, *held, self._mark, tally)
        all_come, fresh = len(takers) == len(arrival.missing), no_rows()
        if not all_come:
            fresh = self.slots.leave_on_host(arrival.missing, distinct, locations, number)
        self._entered = None
        coming = distinct.rows[takers]
        if not late.any():
            return Moves(back_slots, back_rows, slots, coming, initial, fresh)
        now = ~late
        return Moves(back_slots, back_rows, slots[now], coming[now], initial[now], fresh, slots[late], coming[late])

    # --- rows that are not on the device ---------------------------------------------------------------------

    def _prefetch(self, question: "_Question") -> tuple[Int64s, Int64s]:
        """Bring in every missing row; the idle rows that score lowest make room. Returns (takers, victims)."""
        shortage = len(question.missing) - self.slots.num_free
        if shortage <= 0:
            self._try_score(question)
            return question.missing, no_rows()
        idle = self.slots.idle(question.oldest_held, max(self._tier.max_candidates, CANDIDATES_PER_SLOT * shortage))
        if len(idle) < shortage:
            raise self._does_not_fit(question, shortage - len(idle))
        count = min(len(idle), max(shortage, int(self._tier.eviction_share * len(self.slots))))
        order = self._policy_caller.order
        if order is not None:
            return question.missing, idle[self.slots.lowest(idle, order, count)]
        scores = self._score(self.slots.rows[idle], question)
        return question.missing, idle[lowest(scores, count, self._ranked)]

    def _does_not_fit(self, question: "_Question", lacking: int) -> DeviceMemoryError:
        have, depth = len(self.slots), question.depth
        advice = f"raise device_rows to at least {have + lacking}, or lower the batch size"
        if depth > 0:
            advice += f", or lower depth (now {depth}), or set tier.when_full=reduce_lookahead"
        policy, width = type(self._policy_caller.policy).__name__, self.group.embedding_dim
        assert self._entered is not None
        largest = largest_table(self.group, self._entered[0])
        return DeviceMemoryError(
            f"batch {question.number}: {have + lacking} device rows of width {width} are needed to hold the rows of "
            f"the {depth + 1} batches in flight (most for table {largest}), {have} are there: {advice} "
            f"(policy {policy})."
        )

    def _promote(self, question: "_Question") -> tuple[Int64s, Int64s]:
        """Bring in missing rows for free slots, and those that score above the lowest idle rows; the others stay."""
        missing = question.missing
        if not len(missing) or not len(self.slots):
            return no_rows(), no_rows()
        full = len(missing) > self.slots.num_free
        idle = self.slots.idle(question.oldest_held, self._tier.max_candidates) if full else no_rows()
        candidates = np.concatenate([question.rows[missing], self.slots.rows[idle]])
        scores = self._score(candidates, question)
        return swaps(missing, idle, scores, self.slots.num_free, self._ranked)

    def _try_score(self, question: "_Question") -> None:
        """Ask about one row on the device while slots are free, once: a policy that fails does so in the first batches,
        and not hours later, when slots run short. (`slots.idle` would move the hand that finds idle rows.)"""
        if not self._has_asked and question.number > 0 and self._policy_caller.order is None:
            resident = np.flatnonzero(self.slots.rows >= 0)[:1]
            if len(resident):
                self._score(self.slots.rows[resident], question)

    def _score(self, rows: Int64s, question: "_Question") -> NDArray[np.float64]:
        self._has_asked = True
        skipper = self.skipper
        hot = skipper.hot if skipper is not None and skipper.watches_movement else None
        return self._policy_caller.score(self._stats.of(rows, question.number, question.window, hot=hot))

    def learn(self, feedback: Feedback) -> None:
        """Take in the feedback of a trained batch."""
        self.tracker.add_norms(feedback.rows, feedback.norms)
        if self.skipper is not None:
            self.skipper.learn(feedback)


@dataclass(frozen=True)
class _Question:
    """What `prepare` decides about: the distinct rows of a batch, and which of them (`missing`) have no slot."""

    number: int
    depth: int
    window: Sequence[Distinct]
    rows: Int64s
    missing: Int64s

    @property
    def oldest_held(self) -> int:
        return max(self.number - self.depth, 0)


@dataclass(frozen=True)
class Arrival:
    """What `prepare` decided: distinct rows `takers` get slots, the rows of slots `victims` leave."""

    number: int
    oldest_held: int  # batches from this one on keep their rows where they are
    distinct: Distinct
    locations: Int64s  # (U,) slot, or -1
    missing: Int64s  # distinct rows without a slot
    takers: Int64s
    victims: Int64s
    tally: Int64s  # (tables of the group, counters)


def swaps(
    missing: Int64s, idle: Int64s, scores: NDArray[np.float64], num_free: int, memory: LentMemory
) -> tuple[Int64s, Int64s]:
    """Which rows come in, and whose slots they take: free ones first, then in pairs while the new row scores higher."""
    coming, staying = scores[: len(missing)], scores[len(missing) :]
    able = np.arange(len(coming))
    if num_free == 0:  # most rows score below all that stay, and need no place in a ranking
        able = np.flatnonzero(coming > staying.min(initial=np.inf))
    best = able[np.argsort(-coming[able], kind="stable")]
    challengers = best[num_free:]
    pairs = min(len(challengers), len(staying))
    low = lowest(staying, pairs, memory)
    worst = low[np.argsort(staying[low], kind="stable")]
    wins = int((coming[challengers[:pairs]] > staying[worst]).sum())
    chosen = np.sort(best[: num_free + wins])
    return missing[chosen], idle[worst[:wins]]


def largest_table(group: Group, distinct: Distinct) -> str:
    """The table of which a batch asks for most rows, and how many, as errors name it."""
    counts = np.diff(distinct.table_ends, prepend=0)
    most = int(counts.argmax())
    return f"{group.tables[most].name}, {counts[most]:,} a batch"
