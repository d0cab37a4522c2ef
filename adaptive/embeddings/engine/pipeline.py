"""`Pipeline`: takes one batch after another through plan, write back and fetch, for all groups of tables.

Whoever calls it (the look-ahead thread, or the training thread when there is none) is the owner of the planners.
`lock` is held while a batch's rows are planned and moved; evaluation and saving take it to see rows at rest.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, in_order
from adaptive.config import SkipConfig, TierConfig
from adaptive.counters import Stopwatch
from adaptive.embeddings.engine.feedback import FeedbackQueue
from adaptive.embeddings.engine.lane import Lane, LateFetches
from adaptive.embeddings.exchange.exchange import Exchange
from adaptive.embeddings.planning.access_events import AccessNotifier
from adaptive.embeddings.planning.lookups import Distinct, Lookups, LookupsAhead, check_batch, plan_threads
from adaptive.embeddings.planning.parts import GroupPart, describe_parts
from adaptive.embeddings.planning.plan import GroupPlan, UpdateSizes
from adaptive.embeddings.planning.planner import Arrival
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.embeddings.tiers.device import Send
from adaptive.embeddings.tiers.mover import Mover
from adaptive.errors import ConfigError
from adaptive.optim import RowOptimizer


class QueuedBatch(NamedTuple):
    """A batch to be planned."""

    batch: Batch
    lookups: list[Lookups]  # of each lane
    windows: list[list[Distinct]]  # for each lane, the distinct rows of the batches that follow it, nearest first


@dataclass(frozen=True)
class ReadyBatch:
    """A planned batch whose rows are in place, or on their way: what the look-ahead hands to training."""

    batch: Batch
    plans: list[GroupPlan]  # one for each group
    parts: list[tuple[GroupPart, ...]]  # one entry for each group; empty if the batch is run in one pass
    reported: Mapping[str, float]  # what the policy wants shown, as of this batch
    update_sizes: UpdateSizes  # of the batches that were learnt of before this one was planned
    arrived: Future[None] = field(default_factory=Future)
    """Done once all rows are in place; raises what moving them raised."""

    @property
    def number(self) -> int:
        return self.plans[0].number

    @property
    def is_late(self) -> bool:
        """Whether rows of it are fetched when training comes to it."""
        return any(plan.is_late for plan in self.plans)

    @property
    def may_start(self) -> bool:
        """Whether the first part can be trained already: it needs no row that is on its way, and none is late."""
        return bool(self.parts) and not self.is_late and not any(parts[0].waits for parts in self.parts)


class _ChildsLock:
    """Stands in for a pipeline's lock in a forked child. The thread that held the lock, and would release it, was not
    forked, so the child would wait for ever; and rows in memory-mapped files still belong to the parent."""

    def __init__(self, refuse: Callable[[], None]) -> None:
        self._refuse = refuse

    def __enter__(self) -> None:
        self._refuse()

    def __exit__(self, *exc: object) -> None:
        return


_PIPELINES: WeakSet["Pipeline"] = WeakSet()


def _mark_forked() -> None:
    for pipeline in _PIPELINES:
        pipeline.is_forked = True
        pipeline.lock = _ChildsLock(pipeline.refuse_in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)


class Pipeline:
    """Plans one batch after another for all groups and moves their rows; hands feedback to planners and policy.

    Attributes:
        is_forked: this process is a forked child of the one that made the tables, and may not use them.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        policy_caller: PolicyCaller,
        tier: TierConfig,
        skip: SkipConfig | None,
        mover: Mover,
        optimizer: RowOptimizer,
        exchange: Exchange,
    ) -> None:
        self.lanes = tuple(lanes)
        self.exchange = exchange  # with other ranks
        self.policy_caller = policy_caller
        self.mover = mover
        self.groups = tuple(lane.group for lane in self.lanes)
        slots = sorted((feature for group in self.groups for feature in group.features), key=lambda f: f.position)
        self.features = tuple(feature.name for feature in slots)
        threads = plan_threads(tier, on_cpu=mover.device.type == "cpu")
        searchers = [lane.device.searcher for lane in self.lanes]
        self.lookups_ahead = LookupsAhead(self.groups, threads - 1, searchers, mover.enter_thread)
        self.lock: AbstractContextManager[object] = threading.Lock()
        self.is_forked = False
        _PIPELINES.add(self)
        self.stopwatch = Stopwatch()
        self.next_number = 0
        self.trained = -1  # the latest batch that was trained or passed over; set by the training thread
        self.tier = tier
        self._depth = 0
        self._optimizer = optimizer
        self.rate = optimizer.lr  # of the latest step
        self.running = False  # whether a look-ahead is
        self.ending = False  # it plans no more batches; set by the training thread
        self._planned: list[ReadyBatch] = []  # the latest ones, with all that are in flight
        planners = [lane.planner for lane in self.lanes]
        self.notifier = AccessNotifier(planners, policy_caller)
        self.feedback = FeedbackQueue(planners, policy_caller, skip)
        self._late = LateFetches([lane.device for lane in self.lanes], self.stopwatch)
        self.evicted_between_batches = [np.zeros(len(group.tables), np.int64) for group in self.groups]
        """(tables of each group,) rows that left the device outside of a batch, not counted yet."""
        self.peak_slots = [0] * len(self.lanes)  # that batches which did not fit would have each group have

    def begin(self, depth: int) -> None:
        """A look-ahead starts: every batch so far counts as trained.

        Raises:
            ConfigError: if another look-ahead is running, or in a forked child.
        """
        self.refuse_in_child()
        if self.running:
            raise ConfigError("a look-ahead is running already; exhaust or close its iterator before the next one")
        self.running, self.ending = True, False
        self._depth = depth
        self.trained = self.next_number - 1
        self.mover.begin(self.trained)
        self.lookups_ahead.begin()
        self.exchange.begin(self.next_number)

    def refuse_in_child(self) -> None:
        """To be called before rows are used.

        Raises:
            ConfigError: if this process is a fork of the one that made the tables.
        """
        if self.is_forked:
            names = [table.name for group in self.groups for table in group.tables]
            shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
            raise ConfigError(
                f"tables {shown}: expected the process that made them, got a fork of it (process {os.getpid()}). The "
                "threads that move rows stay in the parent: workers of a DataLoader may make batches (Batch.of), and "
                "the process that trains looks rows up."
            )

    def end(self) -> None:
        """A look-ahead is over, its thread joined: no batch is in flight."""
        self.running = False
        self.trained = self.next_number - 1
        self.feedback.take_in_all(self.next_number)
        with self.lock:
            self.finish_copies()
            self._late.forget()

    def restart(self, number: int) -> None:
        """Count batches from `number` on, after other rows have been loaded."""
        assert not self.running
        self.next_number = number
        self.trained = number - 1
        self.feedback.restart(number)

    def use_rate(self, lr: float) -> None:
        """Update rows with this learning rate from now on, each table's times its `lr_scale`. From the training thread,
        before it updates rows."""
        self.rate = lr
        for lane in self.lanes:
            lane.device.use(self._optimizer.at(lr * lane.group.lr_scale))

    def start_training(self, ready: ReadyBatch) -> None:
        """Called by the training thread before it asks the device to train a batch; all before it are trained."""
        if ready.is_late:
            with self.lock:
                self._late.fetch(ready.number)
                self.mover.end_moves(ready.number)  # later than when its other rows had moved
        if not ready.may_start:
            self.mover.start_training(ready.number)

    def end_training(self, ready: ReadyBatch) -> None:
        """Called by the training thread when it will ask the device for no more of a batch."""
        self.mover.end_training(ready.number)
        self.trained = ready.number

    # --- batches ---------------------------------------------------------------------------------------------

    def check(self, batch: object) -> Batch:
        """The batch, its features in the tables' order, if it fits them. Raises InputError; see `check_batch`."""
        return check_batch(self.by_name(batch), self.groups)

    def take_over(self, batch: Any) -> Any:
        """`by_name`, with arrays that the batch's maker cannot overwrite while it is in flight."""
        batch = self.by_name(batch)
        return batch.unshared() if isinstance(batch, Batch) else batch

    def by_name(self, batch: Any) -> Any:
        """A batch that names its features, with them in the tables' order. Raises InputError; see `in_order`."""
        return in_order(batch, self.features)

    def learn(self) -> None:
        """Take in what is old enough of the feedback; once for each batch, before it is planned.

        Under the lock: if memory runs out, the training thread moves rows (`resizing`), and a policy must not be asked
        in the middle of that.
        """
        with self.stopwatch.stage("learn"), self.lock:
            self.feedback.take_in(self.next_number, self._depth)

    def plan(self, queued: QueuedBatch, depth: int) -> ReadyBatch:
        """Plan the next batch in every group. If that fails, nothing has changed. The caller holds the lock.

        `depth`: batches before it whose rows keep their slots. Follow it by `move`, under the same lock.
        """
        batch, all_lookups, windows = queued
        with self.stopwatch.stage("plan"):
            number = self.next_number
            arrivals = self.notifier.prepare([lookups.distinct for lookups in all_lookups], number, depth, windows)
            plans = [
                lane.planner.commit(lookups, arrival)
                for lane, lookups, arrival in zip(self.lanes, all_lookups, arrivals, strict=True)
            ]
            parts = self._parts(batch, plans, arrivals)
            buffer = self.mover.start_moves(number, after=number - depth - 1)
            blocks = [block for block in self.exchange.blocks(number, batch) if block is not None]
            arrays = [array for block in blocks for array in (block.dense, block.labels, *block.extras.values())]
            inputs = [arrays, *[()] * (len(plans) - 1)]  # with the first group's plan
            plans = [
                lane.device.ship(plan, buffer, along)
                for lane, plan, along in zip(self.lanes, plans, inputs, strict=True)
            ]
            ready = ReadyBatch(batch, plans, parts, self.feedback.reported, self.feedback.update_sizes)
            self.next_number = number + 1
            self._planned = [*self.in_flight(), ready]
            self._late.expect(plans)
        return ready

    def inputs(self, ready: ReadyBatch) -> Send:
        """From the training thread, when a batch begins: what makes tensors on the device of its arrays."""
        return self.lanes[0].device.inputs(ready.plans[0])

    def answer(self, ready: ReadyBatch) -> None:
        """Tell other ranks what of a planned batch need not cross. Not under the lock: they may be waited for."""
        watched = [lane.skipper.hot for lane in self.lanes if lane.skipper is not None]
        if watched and not self.exchange.ranks.is_local:
            with self.stopwatch.stage("answer"):
                self.exchange.answer(ready.number, ready.plans, watched)

    def move(self, ready: ReadyBatch) -> None:
        """Carry a plan out: write back, then fetch. Errors also go to `ready.arrived`. The caller holds the lock."""
        try:
            for number, (lane, plan) in enumerate(zip(self.lanes, ready.plans, strict=True)):
                lane.move(plan, self.stopwatch)
                self._late.poison_host(number, plan)
            if not ready.may_start:
                self.mover.end_moves(ready.number)
        except BaseException as error:
            ready.arrived.set_exception(error)
            raise
        ready.arrived.set_result(None)

    def wait_for(self, ready: ReadyBatch) -> bool:
        """Wait until all rows are in place; returns True if it had to. Raises what moving them raised."""
        if ready.arrived.done():
            ready.arrived.result()
            return False
        with self.stopwatch.stage("wait"):
            ready.arrived.result()
        return True

    def _parts(
        self, batch: Batch, plans: Sequence[GroupPlan], arrivals: Sequence[Arrival]
    ) -> list[tuple[GroupPart, ...]]:
        """None, so that the batch is run in one pass, where none could start before all rows have come. That is decided
        by the kind of tier alone, never by depth or by what is lacking: a sum over parts rounds differently."""
        pools_parts = self.exchange.ranks.is_local and all(lane.device.pools_parts for lane in self.lanes)
        if not batch.part_sizes or not pools_parts:
            return []
        return [
            describe_parts(lane.group, batch, plan, arrival)
            for lane, plan, arrival in zip(self.lanes, plans, arrivals, strict=True)
        ]

    # --- rows at rest ----------------------------------------------------------------------------------------

    def in_flight(self) -> list[ReadyBatch]:
        """Batches of the running look-ahead that are planned and not trained yet."""
        return [ready for ready in self._planned if ready.number > self.trained]

    def send_again(self, number: int, plan: GroupPlan) -> None:
        """Send a plan of group `number` to the device again, whose slots have other numbers now."""
        self.lanes[number].device.ship_again(plan)
        self._late.poison_host(number, plan)

    def finish_copies(self) -> None:
        """Wait until all copies of rows are done, and late rows lie in their slots as they are now. The caller, who is
        the training thread, holds the lock."""
        self._late.look()
        self.mover.finish_copies()
        for lane in self.lanes:
            lane.device.land()

    def values(
        self, lane: Lane, rows: NDArray[np.int64], *, with_waiting: bool = True
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """`Lane.values`, once all copies are done. The caller holds the lock."""
        self.finish_copies()
        return lane.values(rows, with_waiting=with_waiting)

    def flush(self) -> None:
        """Write every changed row back to the host; rows keep their slots."""
        with self.lock:
            self.write_all_back()
            for lane in self.lanes:
                lane.host.flush()

    def write_all_back(self) -> None:
        """Write changed rows back to the host; they keep their slots. The caller holds the lock."""
        self._late.look()
        self.mover.catch_up()
        for lane in self.lanes:
            lane.write_back_changed(self.trained)
        self.finish_copies()
