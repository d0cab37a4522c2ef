"""`Pipeline`: plans batches, writes rows back and fetches rows, for all groups.

Its caller owns the planners: the look-ahead thread while there is one, otherwise the training thread. The caller holds
`lock` while it plans and moves a batch's rows. Evaluation and saving take the lock, so no row moves while they read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from numba import get_num_threads
from torch import Tensor

from adaptive.arrays import Floats, Int64s, Rows
from adaptive.batch import Batch, in_order
from adaptive.config import SkipConfig, TierConfig
from adaptive.counters import Stopwatch
from adaptive.embeddings.engine.feedback import FeedbackQueue
from adaptive.embeddings.engine.integrity import TableLock
from adaptive.embeddings.engine.tiered_group import LateFetches, TieredGroup, table_names
from adaptive.embeddings.planning.access_events import AccessNotifier
from adaptive.embeddings.planning.key_tables import KeyChanges
from adaptive.embeddings.planning.lookups import Lookups, LookupsAhead, check_batch, plan_threads
from adaptive.embeddings.planning.plan import GroupPart, GroupPlan, describe_parts
from adaptive.embeddings.planning.planner import SlotChanges
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.embeddings.planning.sizing import out_of_memory
from adaptive.embeddings.tiers.device import DevicePlan, InFlight, Send
from adaptive.embeddings.tiers.mover import Mover
from adaptive.errors import ConfigError, InputError
from adaptive.kernels.planning.books import MOST_BATCHES
from adaptive.kernels.planning.lookups import Distinct
from adaptive.optim import RowOptimizer
from adaptive.policy import InputPolicy, Policy
from adaptive.system import is_out_of_memory


class QueuedBatch(NamedTuple):
    """A batch to be planned."""

    batch: Batch
    lookups: list[Lookups]  # of each group
    windows: list[list[Distinct]]  # for each group, the distinct rows of the batches that follow it, nearest first
    key_changes: Mapping[int, KeyChanges] = {}  # group with keys -> keys that came and left


@dataclass(frozen=True)
class ReadyBatch:
    """A planned batch for the training thread; its rows are in place or in flight."""

    batch: Batch
    plans: list[GroupPlan]  # one for each group
    device_plans: list[DevicePlan | None]  # what the device has of each plan; None: it reads the plan itself
    parts: list[tuple[GroupPart, ...]]  # one entry for each group; empty if the batch is run in one pass
    reported: Mapping[str, float]  # numbers that the policy reports, as of this batch
    arrived: Future[None] | None
    """Done once all rows are in place, or moving them failed; None: training gets the batch only after that."""

    @property
    def number(self) -> int:
        return self.plans[0].number

    @property
    def is_late(self) -> bool:
        """True if the training thread must fetch late rows before it trains the batch."""
        return any(plan.is_late for plan in self.plans)

    @property
    def may_start(self) -> bool:
        """True if the first part can already be trained: none of its rows is in flight or late."""
        return bool(self.parts) and not self.is_late and not any(parts[0].waits for parts in self.parts)


def thread_needed(tier: TierConfig, policy: Policy, *, on_cpu: bool) -> str:
    """Return why a look-ahead needs a planning thread; empty if training may plan between steps."""
    if not on_cpu or tier.device == "cpu-torch":
        return "a device that computes while the host plans"
    if tier.host != "memory":
        return "rows in files, which are read while others are trained"
    if isinstance(policy, InputPolicy):
        return f"policy {type(policy).__name__}, which arranges batches by what it knows of rows"
    return ""


class Pass(Protocol):
    """A running look-ahead."""

    @property
    def is_abandoned(self) -> bool:
        """True if its iterator has ended, but an exception kept the look-ahead from ending with it."""

    def end(self) -> None:
        """End the look-ahead; may be called again if an exception has ended this method."""

    def close(self) -> None:
        """Close the iterator, which ends the look-ahead."""


class Pipeline:
    """Plans one batch after another for all groups and moves their rows.

    Attributes:
        lock: held while rows are planned or moved; see `TableLock`.
        has_keys: True if any table has keys.
        takes_flags: True if a number on the device may decide whether rows are updated: all of them are there then.
        next_number: number of the next batch to be planned.
        trained: number of the latest batch that is trained or passed over; only the training thread sets it.
        updated: number of the latest batch whose rows are updated, which the loop may still have.
        rate: learning rate of the latest step.
        current: the running look-ahead.
        plans_in_turn: True if the training thread plans each batch right before it is trained, with all its threads.
        ending: True if the look-ahead shall plan no more batches; the training thread sets it.
        convert_read: changes the rows of batches that are only read; see `RowStore.read_as`.
    """

    def __init__(
        self,
        tiered_groups: Sequence[TieredGroup],
        policy_caller: PolicyCaller,
        tier: TierConfig,
        skip: SkipConfig | None,
        mover: Mover,
        optimizer: RowOptimizer,
    ) -> None:
        self.tiered_groups = tuple(tiered_groups)
        self.policy_caller = policy_caller
        self.mover = mover
        self.groups = tuple(tiered.group for tiered in self.tiered_groups)
        self.has_keys = any(group.has_keys for group in self.groups)
        self.takes_flags = policy_caller.policy.misses != "host" and all(
            tiered.device.takes_flags for tiered in self.tiered_groups
        )
        slots = sorted((feature for group in self.groups for feature in group.features), key=lambda f: f.position)
        self.features = tuple(feature.name for feature in slots)
        on_cpu = mover.device.type == "cpu"
        in_turn = not thread_needed(tier, policy_caller.policy, on_cpu=on_cpu)
        threads = plan_threads(tier, on_cpu=on_cpu, training_threads=get_num_threads() if in_turn else 1)
        self.plans_in_turn = threads == 0
        shared = get_num_threads() if self.plans_in_turn else 1
        for tiered in self.tiered_groups:
            tiered.planner.tracker.threads = tiered.host.threads = shared
        searchers, helpers = [tiered.device.searcher for tiered in self.tiered_groups], max(threads - 1, 0)
        self.lookups_ahead = LookupsAhead(self.groups, helpers, searchers, mover.enter_thread, shared)
        self.lock = TableLock(lambda: table_names(self.tiered_groups))
        self.stopwatch = Stopwatch()
        self.next_number = 0
        self.trained = self.updated = -1
        self.tier = tier
        self._depth = 0
        self._optimizer = optimizer
        self.rate = optimizer.lr
        self.current: Pass | None = None
        self.ending = False
        self._planned: list[ReadyBatch] = []  # the latest batches, including all that are in flight
        planners = [tiered.planner for tiered in self.tiered_groups]
        self.notifier = AccessNotifier(planners, policy_caller, [tiered.keys for tiered in self.tiered_groups])
        self.feedback = FeedbackQueue(planners, policy_caller, skip)
        self._late_fetches = LateFetches([tiered.device for tiered in self.tiered_groups], self.stopwatch)
        self.convert_read: Callable[[Rows], Rows] | None = None

    @property
    def running(self) -> bool:
        """True during a look-ahead."""
        return self.current is not None

    def begin(self, depth: int, new: Pass) -> None:
        """Start a look-ahead: every batch so far counts as trained.

        Raises:
            ConfigError: if another look-ahead is running, or in a forked child.
            AdaptiveError: if an exception has left rows without their values.
        """
        self.lock.refuse_in_child()
        self.lock.refuse_broken()
        self.refuse_while_running("look_ahead()")
        self.current, self.ending = new, False
        self._depth = depth
        self.trained = self.next_number - 1
        self.mover.begin(self.trained)
        self.lookups_ahead.begin()

    def is_current(self, number: int) -> bool:
        """True if a batch of the running look-ahead has not ended: its rows keep their slots."""
        return self.running and number > self.trained

    def refuse_while_running(self, method: str) -> None:
        """Raise ConfigError, in the name of a method, if a look-ahead is running."""
        self._end_abandoned()
        if self.running:
            raise ConfigError(
                f"{method}: expected no running look-ahead, got one after {self.trained + 1} trained batches. Exhaust "
                "its iterator or close() it first. If a traceback keeps it, as after an interrupt in a notebook, call "
                "embeddings.end_look_ahead()."
            )

    def _end_abandoned(self) -> None:
        """End a look-ahead that an exception kept from ending with its iterator."""
        if self.current is not None and self.current.is_abandoned:
            self.current.end()

    def refuse_keys_in_flight(self, method: str) -> None:
        """Raise ConfigError, in the name of a method, if keys may have come or left for batches not trained yet."""
        self._end_abandoned()
        if self.running and self._depth and self.has_keys:
            raise ConfigError(
                f"{method}: expected no batches in flight with tables that have keys, got a look-ahead of depth "
                f"{self._depth}, which has given rows to keys of batches that are not trained yet. Exhaust its "
                "iterator or close() it first, or use depth=0."
            )

    def end(self) -> None:
        """End a look-ahead whose thread is joined: no batch is in flight any more.

        May be called again if an exception has ended it: `current` is cleared last.
        """
        self.trained = self.next_number - 1
        try:
            self.feedback.take_in_all(self.next_number)
        finally:  # also if the policy fails
            with self.lock.held:
                self.finish_copies()
                self._late_fetches.clear()
            self.current = None

    @property
    def next_to_update(self) -> int:
        """Number of the batch with which a training continues that loads these rows."""
        return max(self.trained, self.updated) + 1

    def restart(self, number: int) -> None:
        """Count batches from `number` on, after rows have been loaded."""
        assert not self.running
        self.next_number = number
        self.trained = self.updated = number - 1
        self.feedback.restart(number)

    def use_rate(self, lr: float) -> None:
        """Set the learning rate; each table multiplies it by `lr_scale`. For the training thread."""
        self.rate = lr
        for tiered in self.tiered_groups:
            tiered.device.use(tiered.host.optimizer.at(lr * tiered.group.lr_scale))

    def start_training(self, ready: ReadyBatch) -> None:
        """Called by the training thread before a batch, when all earlier ones are trained."""
        if ready.is_late:
            with self.lock:
                self._late_fetches.fetch(ready.number)
                self.mover.end_moves(ready.number)  # again, because the late rows moved after the others
        if not ready.may_start:
            self.mover.start_training(ready.number)

    def end_training(self, ready: ReadyBatch) -> None:
        """Called by the training thread after it has submitted all work of a batch to the device."""
        self.mover.end_training(ready.number)
        self.trained = ready.number

    # --- batches ---------------------------------------------------------------------------------------------

    def check(self, batch: object) -> Batch:
        """Return the batch with features in the tables' order. Raises as `check_batch`."""
        return check_batch(in_order(batch, self.features), self.groups)

    def take_over(self, batch: Any) -> Any:
        """Return the batch with features in order, in arrays that no loader can overwrite.

        Raises InputError; see `in_order`.
        """
        batch = in_order(batch, self.features)
        return batch.unshared() if isinstance(batch, Batch) else batch

    def learn(self) -> None:
        """Take in the feedback that is old enough; once for each batch, before it is planned."""
        with self.stopwatch.stage("learn"), self.lock:
            self.feedback.take_in(self.next_number, self._depth)

    def plan_and_move(
        self, queued: QueuedBatch, depth: int, start_early: Callable[[ReadyBatch], None] | None = None
    ) -> tuple[ReadyBatch, bool]:
        """Plan the next batch in every group and move its rows.

        If it or the policy fails while it decides, nothing has changed. From then on books and rows change together:
        an exception that comes between would leave rows in slots without their values, so `TableLock.changing` lets
        none through that it can defer, and marks the tables for any other.

        Args:
            queued: the batch.
            depth: number of earlier batches whose rows keep their slots.
            start_early: receives a batch whose first part may be trained while rows for the others are in flight.

        Returns:
            The batch, and True if it was passed to `start_early`.
        """
        with self.lock:
            slot_changes = self._decide(queued, depth)
            with self.lock.changing(f"batch {self.next_number} was planned and its rows moved"):
                ready = self._commit(queued, slot_changes, depth)
                has_started = start_early is not None and ready.may_start
                if start_early is not None and has_started:
                    start_early(ready)
                self._move(ready)
        return ready, has_started

    def _decide(self, queued: QueuedBatch, depth: int) -> list[SlotChanges]:
        """Decide which rows come and leave; undone if it fails."""
        with self.stopwatch.stage("plan"):
            number = self.next_number
            if number > MOST_BATCHES:
                raise InputError(
                    f"batch {number}: expected at most {MOST_BATCHES + 1:,} batches, whose numbers fit the records of "
                    "rows, got more. Save the tables, and start another run from them (--init-from)."
                )
            return self.notifier.prepare(
                [lookups.distinct for lookups in queued.lookups], number, depth, queued.windows
            )

    def _commit(self, queued: QueuedBatch, slot_changes: Sequence[SlotChanges], depth: int) -> ReadyBatch:
        """Enter the decisions into the books, and send the plan to the device."""
        batch, all_lookups, _, key_changes = queued
        number = self.next_number
        with self.stopwatch.stage("plan"):
            plans = [
                tiered.planner.commit(lookups, changes)
                for tiered, lookups, changes in zip(self.tiered_groups, all_lookups, slot_changes, strict=True)
            ]
            for group_number, changes in key_changes.items():
                plans[group_number].tally[:] += changes.tally
            parts = self._describe_parts(batch, plans, slot_changes)
            # First a buffer, which is free once the batch that used it is trained; the plan is sent through it. The
            # samples go with the plan of the first group: one copy less.
            buffer = self.mover.start_moves(number, after=number - depth - 1)
            arrays = [batch.dense, batch.labels, *batch.extras.values()]
            inputs = [arrays, *[()] * (len(plans) - 1)]
            device_plans = [
                tiered.device.upload_plan(plan, buffer, along)
                for tiered, plan, along in zip(self.tiered_groups, plans, inputs, strict=True)
            ]
            arrived = Future[None]() if parts else None
            ready = ReadyBatch(batch, plans, device_plans, parts, self.feedback.reported, arrived)
            self.next_number = number + 1
            # Trained batches are dropped here, by the only thread that writes the list; the other one sets a number.
            self._planned = [*self.in_flight(), ready]
            self._late_fetches.expect(plans)
        return ready

    def to_host(self, tensor: Tensor) -> InFlight:
        """Start to copy float32 numbers from the device. Requires `takes_flags`."""
        return self.tiered_groups[0].device.to_host(tensor)

    def inputs(self, ready: ReadyBatch) -> Send:
        """Return the function that makes device tensors from a batch's arrays."""
        return self.tiered_groups[0].device.inputs(ready.device_plans[0])

    def _move(self, ready: ReadyBatch) -> None:
        """Write back, then fetch. Errors also go to `arrived`."""
        try:
            # Each group writes back before it fetches: rows are fetched to the slots of evicted ones.
            for number, (tiered, plan, device_plan) in enumerate(
                zip(self.tiered_groups, ready.plans, ready.device_plans, strict=True)
            ):
                tiered.move(plan, device_plan, self.stopwatch)
                self._late_fetches.poison_host(number, plan)
            if not ready.may_start:
                self.mover.end_moves(ready.number)
        except BaseException as error:
            if ready.arrived is not None:
                ready.arrived.set_exception(error)
            raise
        if ready.arrived is not None:
            ready.arrived.set_result(None)

    def wait_for(self, ready: ReadyBatch) -> bool:
        """Wait until all rows are in place; return True if they were not."""
        if ready.arrived is None:
            return False
        if ready.arrived.done():
            ready.arrived.result()
            return False
        with self.stopwatch.stage("wait"):
            ready.arrived.result()
        return True

    def _describe_parts(
        self, batch: Batch, plans: Sequence[GroupPlan], slot_changes: Sequence[SlotChanges]
    ) -> list[tuple[GroupPart, ...]]:
        """Return the parts of a batch for each group; an empty list if it is run in one pass.

        It is run in one pass if no part could start before all rows have arrived. Only the kind of tier decides that,
        never the depth or which rows are missing, because a sum over parts rounds differently.
        """
        pools_parts = all(tiered.device.pools_parts for tiered in self.tiered_groups)
        if not batch.part_sizes or not pools_parts:
            return []
        return [
            describe_parts(tiered.group, batch, plan, changes.admitted)
            for tiered, plan, changes in zip(self.tiered_groups, plans, slot_changes, strict=True)
        ]

    @contextmanager
    def running_out(self, when: str) -> Iterator[None]:
        """Turn running out of GPU memory inside into a `DeviceMemoryError` that names a smaller `device_rows`."""
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            slots = [tiered.device.num_slots for tiered in self.tiered_groups]
            raise out_of_memory(error, when, self.groups, slots, self._optimizer) from error

    # --- rows between moves ----------------------------------------------------------------------------------

    def in_flight(self) -> list[ReadyBatch]:
        """Return the batches of the running look-ahead that are planned and not trained yet."""
        return [ready for ready in self._planned if ready.number > self.trained]

    def finish_copies(self) -> None:
        """Finish all moves of rows. For the training thread, which holds the lock."""
        self._late_fetches.copy_current()
        self.mover.finish_copies()
        for tiered in self.tiered_groups:
            tiered.device.finish_host_writes()

    def values(self, tiered: TieredGroup, rows: Int64s, *, with_deferred: bool = True) -> tuple[Rows, Floats]:
        """Finish all moves, then return `TieredGroup.values`. The caller holds the lock."""
        self.finish_copies()
        return tiered.values(rows, with_deferred=with_deferred)

    def flush(self) -> None:
        """Write changed rows back to the host tier, and that to its files."""
        with self.lock:
            self.write_all_back()
            for tiered in self.tiered_groups:
                tiered.host.flush()

    def write_all_back(self) -> None:
        """Write changed rows back; they keep their slots. The caller holds the lock."""
        self._late_fetches.copy_current()
        self.mover.catch_up()
        for tiered in self.tiered_groups:
            tiered.write_back_changed(self.trained)
        self.finish_copies()
