"""`Planner`: decides, batch by batch, which rows lie where. It keeps the books of one group and copies nothing.

It runs in the look-ahead thread and is the only writer of records, slots and the hot set. What it decides depends
on the batches, the policy and feedback of a fixed age, never on clocks; so the same run plans the same way.

Hold rule: when batch k is planned with look-ahead d, rows of batches k - d ... k keep their slots. All batches up to
k - d - 1 are trained before k's rows move, so a row in a slot that is not held can be written back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TierConfig
from adaptive.counters import Counter
from adaptive.errors import DeviceMemoryError
from adaptive.kernels import planning, watched
from adaptive.policy import NEVER, RowStats
from adaptive.rows.deferral import DeferralBook, Summed
from adaptive.rows.optim import RowOptimizer
from adaptive.rows.saturation import HotSet
from adaptive.rows.tracker import Tracker
from adaptive.tiers import shared_loops
from adaptive.tiers.crew import ALONE
from adaptive.tiers.distinct import Distinct
from adaptive.tiers.grouping import Updates, describe_bags, group_updates
from adaptive.tiers.layout import Group
from adaptive.tiers.plan import Deferred, Feedback, Grouping, GroupPlan, Moves, Pooling, Snapshots, no_rows
from adaptive.tiers.referee import Referee, lowest
from adaptive.tiers.slots import SlotTable

Int64s = NDArray[np.int64]
Number = TypeVar("Number", bound=np.integer)

# Idle rows looked at for each slot that is short. Looking at all of them costs as much as the rest of planning and, on
# the built-in stream at 10 %, gains no hit in a thousand.
CANDIDATES_PER_SLOT = 8


class Planner:
    """Plans for one group of tables."""

    def __init__(self, group: Group, num_slots: int, tier: TierConfig, referee: Referee, row_bytes: int) -> None:
        self.group = group
        self.crew = ALONE  # may help; whoever runs the planner lends its own
        self.tracker = Tracker(group.num_rows)
        self.slots = SlotTable(num_slots, group.table_starts, self.tracker)
        self.hot: HotSet | None = None
        self.deferral: DeferralBook | None = None
        self._unknown = _Unknown()
        self._watched: tuple[int, SkipConfig, RowOptimizer] | None = None
        self._tier = tier
        self._referee = referee
        self._row_bytes = row_bytes
        self._saturated_per_table = np.zeros(len(group.tables), np.int64)
        self._allowance = referee.policy.allowance  # to which the verdicts have been cut

    def watch(self, capacity: int, skip: SkipConfig, optimizer: RowOptimizer) -> None:
        """Watch the hottest rows for saturation, and defer their updates if the policy says so, from now on."""
        self._watched = capacity, skip, optimizer
        self.hot = HotSet(capacity, skip)
        deferral = self._referee.policy.deferral
        if deferral is not None:
            self.deferral = DeferralBook(capacity, deferral, optimizer)

    def forget_watched(self) -> None:
        """Other rows have been loaded: what was known of movement and waiting gradients is void."""
        if self._watched is not None:
            self.watch(*self._watched)
            self._saturated_per_table[:] = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of records, slots and the hot set."""
        parts = (self.tracker, self.slots, self.hot, self.deferral)
        return sum(part.num_bytes for part in parts if part is not None)

    def resident_per_table(self) -> Int64s:
        """(tables of the group,) rows in slots now."""
        rows = self.slots.rows[self.slots.rows >= 0]
        return np.bincount(self.group.tables_of(rows), minlength=len(self.group.tables))

    def saturated_per_table(self) -> Int64s:
        """(tables of the group,) rows whose updates are skipped now."""
        return self._saturated_per_table

    # --- one batch -------------------------------------------------------------------------------------------

    def prepare(self, distinct: Distinct, number: int, depth: int, window: Sequence[Distinct] = ()) -> "Arrival":
        """Decide which rows come and which leave for batch `number`; `window`: the batches that follow, nearest first.

        Raises:
            DeviceMemoryError: if the rows that must be held do not fit.
            PolicyError: if the policy fails. Rows and slots are as they were in both cases.
        """
        rows = distinct.rows
        locations, missing = shared_loops.locate(self.crew, rows, self.tracker.codes, number, self.slots.used)
        question = _Question(number, depth, window, rows, missing)
        staged = self._referee.policy.misses == "stage"
        takers, victims = self._stage(question) if staged else self._promote(question)
        return Arrival(number, distinct, locations, takers, victims)

    def let_go(self, distinct: Distinct) -> None:
        """A prepared batch is given up: its slots are held by those batches only that were planned."""
        codes = self.tracker.codes[distinct.rows]
        here = codes > 0
        self.slots.used[codes[here] - 1] = self.tracker.last_access[distinct.rows[here]] - 1

    def commit(self, batch: Batch, arrival: "Arrival") -> GroupPlan:
        """Make it so in the books, and describe the batch to the kernels."""
        distinct, locations, number = arrival.distinct, arrival.locations, arrival.number
        rows, counts = distinct.rows, distinct.counts
        tally = np.zeros((len(self.group.tables), len(Counter)), np.int64)
        planning.count_tables(distinct.table_ends, counts, locations, tally)
        moves = self._exchange(arrival, tally)
        shared_loops.touch(self.crew, rows, counts, locations, number, self.tracker, self.slots.used)
        left_out = self._left_out(number, distinct, locations, tally)
        inverse, crew = distinct.inverse, self.crew
        pooling = describe_bags(self.group, batch, inverse, locations, crew)
        updates = group_updates(rows, counts, locations, inverse, left_out.fates, pooling, crew)
        planning.mark_dirty(updates.now, locations, self.slots.flags)
        deferred = self._defer(rows, locations, left_out, updates)
        self._count_bytes(pooling, tally)
        return GroupPlan(number, pooling, updates.grouping, moves, tally, left_out.snapshots, deferred)

    def _defer(self, rows: Int64s, locations: Int64s, left_out: "_LeftOut", updates: Updates) -> Deferred | None:
        summed = left_out.summed
        if summed is None or not len(summed.entries):
            return None
        grouping = Grouping(rows[updates.later], summed.entries, updates.segments, updates.vectors, updates.scales)
        planning.mark_dirty(summed.due, locations, self.slots.flags)
        entries = summed.entries[summed.due_at]
        return Deferred(grouping, summed.due_at, rows[summed.due], locations[summed.due], entries)

    def _count_bytes(self, pooling: Pooling, tally: Int64s) -> None:
        tally[:, Counter.BYTES_H2D] += tally[:, Counter.FETCHED] * self._row_bytes
        tally[:, Counter.BYTES_D2H] += tally[:, Counter.WRITTEN_BACK] * self._row_bytes
        if self._referee.policy.misses == "host":
            vectors = np.zeros(len(self.group.tables), np.int64)
            planning.count_host_vectors(pooling.bag_tables, pooling.bag_starts, pooling.locations, vectors)
            tally[:, [Counter.BYTES_H2D, Counter.BYTES_D2H]] += 4 * self.group.embedding_dim * vectors[:, None]

    def _exchange(self, arrival: "Arrival", tally: Int64s) -> Moves:
        rows, locations = arrival.distinct.rows, arrival.locations
        back_slots, back_rows = self.slots.release(arrival.victims, tally)
        slots, initial = self.slots.take(arrival.takers, rows, locations, tally)
        fresh = np.empty(len(rows), np.int64)
        num_fresh = planning.use_rows_on_host(rows, self.tracker.codes, locations, fresh)
        return Moves(back_slots, back_rows, slots, rows[arrival.takers], initial, fresh[:num_fresh])

    def _left_out(self, number: int, distinct: Distinct, locations: Int64s, tally: Int64s) -> "_LeftOut":
        """Which distinct rows this batch does not update in the plain way."""
        if self.hot is None:
            return _LeftOut()
        self._obey_guard()
        rows, counts = distinct.rows, distinct.counts
        mine = self.hot.admit(rows, self.tracker.accesses)
        fates, snapshots, summed = np.zeros(len(rows), np.uint8), None, None
        if self._referee.watches_saturation:
            snapshots = self.hot.visit(number, mine, counts, locations, fates)
        if self.deferral is not None:
            accesses = self.tracker.accesses
            summed = self.deferral.decide(number, mine, rows, counts, accesses, fates, self._allowance)
        watched.count_skipped(distinct.table_ends, counts, fates, tally)
        return _LeftOut(fates, snapshots, summed)

    # --- rows that are not on the device ---------------------------------------------------------------------

    def _stage(self, question: "_Question") -> tuple[Int64s, Int64s]:
        """Every missing row comes in; the policy's lowest idle rows make room. Returns (takers, victims)."""
        shortage = len(question.missing) - self.slots.num_free
        if shortage <= 0:
            return question.missing, no_rows()
        idle = self.slots.idle(question.oldest_held, max(self._tier.max_candidates, CANDIDATES_PER_SLOT * shortage))
        if len(idle) < shortage:
            raise self._does_not_fit(question, shortage - len(idle))
        count = min(len(idle), max(shortage, int(self._tier.release_share * len(self.slots))))
        stats = self.stats(self.slots.rows[idle], question.number, question.window)
        return question.missing, idle[lowest(self._referee.score(stats), count)]

    def _does_not_fit(self, question: "_Question", lacking: int) -> DeviceMemoryError:
        have, depth = len(self.slots), question.depth
        advice = f"raise device_rows to at least {have + lacking}, or lower the batch size"
        if depth > 0:
            advice += f", or lower depth (now {depth}), or set tier.when_full=shallower"
        policy, width = type(self._referee.policy).__name__, self.group.embedding_dim
        return DeviceMemoryError(
            f"batch {question.number}: {have + lacking} device rows of width {width} are needed to "
            f"hold the rows of the {depth + 1} batches in flight, {have} are there: {advice} (policy {policy})."
        )

    def _promote(self, question: "_Question") -> tuple[Int64s, Int64s]:
        """Missing rows stay on the host, except for free slots and those scored above the lowest idle rows."""
        movable = self._movable(question)
        if not len(movable) or not len(self.slots):
            return no_rows(), no_rows()
        full = len(movable) > self.slots.num_free
        idle = self.slots.idle(question.oldest_held, self._tier.max_candidates) if full else no_rows()
        candidates = np.concatenate([question.rows[movable], self.slots.rows[idle]])
        scores = self._referee.score(self.stats(candidates, question.number, question.window))
        return _swaps(movable, idle, scores, self.slots.num_free)

    def _movable(self, question: "_Question") -> Int64s:
        """Missing rows that no batch in flight updates on the host."""
        last = self.tracker.last_access[question.rows[question.missing]].astype(np.int64) - 1
        return question.missing[last < question.oldest_held]

    # --- policies --------------------------------------------------------------------------------------------

    def ask_saturated(self, number: int) -> None:
        """Ask the policy anew which watched rows are saturated."""
        if self.hot is None or self.hot.num_entries == 0 or not self._referee.watches_saturation:
            return
        entries = slice(0, self.hot.num_entries)
        stats = self.stats(self.hot.rows[entries].copy(), number, entries=np.arange(self.hot.num_entries))
        self._adopt(self.hot, self._referee.saturated(stats))

    def _obey_guard(self) -> None:
        """Verdicts stand until the policy is asked again; what a guard has forbidden since then does not."""
        policy = self._referee.policy
        if self.hot is not None and policy.allowance != self._allowance:
            self._allowance = policy.allowance
            rows = self.hot.rows[: self.hot.num_entries] + self.group.first_row
            self._adopt(self.hot, self.hot.saturated[: self.hot.num_entries] & policy.allows(rows))

    def _adopt(self, hot: HotSet, verdicts: NDArray[np.bool_]) -> None:
        hot.saturated[: hot.num_entries] = verdicts
        tables = self.group.tables_of(hot.rows[: hot.num_entries][verdicts])
        self._saturated_per_table = np.bincount(tables, minlength=len(self.group.tables))

    def learn(self, feedback: Feedback) -> None:
        """Take in what training a batch told."""
        self.tracker.add_norms(feedback.rows, feedback.norms)
        if self.hot is not None:
            self.hot.learn(feedback)

    def stats(
        self, rows: Int64s, number: int, window: Sequence[Distinct] = (), entries: Int64s | None = None
    ) -> RowStats:
        """What a policy is told about local rows (n,)."""
        records = shared_loops.gather(self.crew, rows, self.tracker)
        drift, drift_accesses, saturated = self._movement(rows, entries)
        return RowStats(
            step=number,
            rows=_moved(rows, self.group.first_row),
            table=_moved(self.group.tables_of(rows), self.group.first_table),
            accesses=records.accesses,
            last_access=records.last_access,
            next_access=self._next_access(rows, records.codes, number, window),
            update_norm=records.update_norm,
            drift=drift,
            drift_accesses=drift_accesses,
            saturated=saturated,
            resident=records.codes > 0,
        )

    def _movement(self, rows: Int64s, entries: Int64s | None) -> tuple[NDArray[np.float32], Int64s, NDArray[np.bool_]]:
        size = len(rows)
        if self.hot is None or not self._referee.watches_saturation:
            return self._unknown.movement(size)
        drift = np.full(size, np.nan, np.float32)
        accesses, saturated = np.zeros(size, np.int64), np.zeros(size, np.bool_)
        if entries is None:
            entries = self.hot.entries_of(rows)
        known = entries >= 0
        drift[known] = self.hot.drift[entries[known]]
        accesses[known] = self.hot.drift_accesses[entries[known]]
        saturated[known] = self.hot.saturated[entries[known]]
        return drift, accesses, saturated

    def _next_access(self, rows: Int64s, codes: NDArray[np.int32], number: int, window: Sequence[Distinct]) -> Int64s:
        if not window:
            return self._unknown.next_access(len(rows))
        following = np.full(len(rows), NEVER, np.int64)
        slot_next = np.full(len(self.slots), NEVER, np.int64)
        on_device, away = codes > 0, np.flatnonzero(codes <= 0)
        for ahead in range(len(window), 0, -1):
            planning.mark_next_access(window[ahead - 1].rows, self.tracker.codes, number + ahead, slot_next)
            if len(away):  # rows on the host that may come in
                following[away[np.isin(rows[away], window[ahead - 1].rows)]] = number + ahead
        following[on_device] = slot_next[codes[on_device] - 1]
        return following


class _Unknown:
    """Columns that tell a policy nothing, made once and handed out again and again: they are read-only."""

    def __init__(self) -> None:
        self._make(0)

    def _make(self, size: int) -> None:
        self._drift = np.full(size, np.nan, np.float32)
        self._accesses, self._saturated = np.zeros(size, np.int64), np.zeros(size, np.bool_)
        self._next_access = np.full(size, NEVER, np.int64)
        for column in (self._drift, self._accesses, self._saturated, self._next_access):
            column.flags.writeable = False

    def movement(self, size: int) -> tuple[NDArray[np.float32], Int64s, NDArray[np.bool_]]:
        self._reach(size)
        return self._drift[:size], self._accesses[:size], self._saturated[:size]

    def next_access(self, size: int) -> Int64s:
        self._reach(size)
        return self._next_access[:size]

    def _reach(self, size: int) -> None:
        if size > len(self._drift):
            self._make(size)


def _moved(numbers: NDArray[Number], by: int) -> NDArray[Number]:
    return numbers + numbers.dtype.type(by) if by else numbers


@dataclass(frozen=True)
class _LeftOut:
    """Distinct rows (U,) without a plain update: saturated, or with a running sum, which may be due."""

    fates: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    snapshots: Snapshots | None = None
    summed: Summed | None = None


@dataclass(frozen=True)
class _Question:
    """What has to find a place: the distinct rows of a batch, and which of them (`missing`) have no slot."""

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
    """What has been decided: distinct rows `takers` get slots, the rows of slots `victims` leave."""

    number: int
    distinct: Distinct
    locations: Int64s  # (U,) slot, or -1
    takers: Int64s
    victims: Int64s


def _swaps(movable: Int64s, idle: Int64s, scores: NDArray[np.float64], num_free: int) -> tuple[Int64s, Int64s]:
    """Who comes in, and whose slots they take: free slots first, then pairwise while the newcomer scores higher."""
    coming, staying = scores[: len(movable)], scores[len(movable) :]
    best = np.argsort(-coming, kind="stable")
    worst = np.argsort(staying, kind="stable")
    challengers = best[num_free:]
    pairs = min(len(challengers), len(worst))
    wins = int((coming[challengers[:pairs]] > staying[worst[:pairs]]).sum())
    chosen = np.sort(best[: num_free + wins])
    return movable[chosen], idle[worst[:wins]]
