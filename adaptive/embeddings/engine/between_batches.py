"""What changes between two batches, before the next one is planned: keys, hot sets, and numbers of slots.

Nothing of it may happen to a row that a batch in flight uses. If one may, training catches up with planning first, so
no number depends on the look-ahead.

`give_rows`, in tables with keys: a key that expires or is evicted loses its row. The slot is released without writing
back, the host row counts as initial again, and its records and sums are dropped. Rarely a batch in flight uses such a
row, after a short expiry or in a small table; or the row is hot.

`rebalance_slots`, among groups, if one has too few: when tables are created, the demand of batches for each group is
unknown, so every group begins with the same share of its rows. The first batch that does not fit shows the demand. With
`device_rows = "auto"` in ordinary memory, groups then get as many slots as they need. Otherwise the total number of
rows, or bytes, stays the same. The batch that does not fit follows from batches and policy alone, so equal runs
rebalance equally, regardless of the timing of threads.
"""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from adaptive.arrays import Int64s
from adaptive.embeddings.engine.pipeline import Pipeline, QueuedBatch
from adaptive.embeddings.engine.tiered_group import TieredGroup
from adaptive.embeddings.planning.key_tables import KeyChanges
from adaptive.embeddings.planning.planner import largest_table
from adaptive.embeddings.planning.sizing import Need, shared_by_need
from adaptive.errors import AdaptiveError, DeviceMemoryError


def give_rows(
    pipeline: Pipeline, queued: QueuedBatch, depth: int, wait_until_trained: Callable[[int], None]
) -> QueuedBatch:
    """Return the batch that is planned next with rows instead of keys.

    Raises:
        InputError: for missing or wrong timestamps, or a full table with `when_full="error"`.
    """
    if not pipeline.has_keys:
        return queued
    number, all_lookups, of_groups = pipeline.next_number, list(queued.lookups), dict[int, KeyChanges]()
    for place, tiered in enumerate(pipeline.tiered_groups):
        if tiered.keys is None:
            continue
        # A row may change its key: until `_commit` has emptied it, it has the values of the key that lost it.
        with pipeline.lock.changing(f"keys of batch {number} were given rows") as change:
            with pipeline.stopwatch.stage("plan"), pipeline.lock.held:
                of_batch = queued.lookups[place], queued.batch, number, tiered.planner.slots.last_access
                try:
                    lookups, changes = tiered.keys.prepare(*of_batch)
                except AdaptiveError:  # refused before anything has changed
                    change.complete()
                    raise
            try:
                _release(pipeline, tiered, changes, depth, change.outside(wait_until_trained))
            finally:  # even if the look-ahead ends while it waits: these keys are gone from the index
                with pipeline.lock.held:
                    _commit(pipeline, place, changes)
                change.complete()
        if changes.failure is not None:
            raise changes.failure
        all_lookups[place], of_groups[place] = lookups, changes
    return queued._replace(lookups=all_lookups, key_changes=of_groups)


def _release(
    pipeline: Pipeline, tiered: TieredGroup, changes: KeyChanges, depth: int, wait_until_trained: Callable[[int], None]
) -> None:
    """Let training catch up if rows that lost their keys are hot, or feedback about them is to come."""
    if changes.latest_use is None:
        return
    number, skipper, entries = pipeline.next_number, tiered.skipper, np.zeros(0, np.int64)
    # The lag, not the depth: with a delay above the depth, feedback about these rows may come when no batch in flight
    # uses them any more, and by then their numbers belong to other keys.
    catches_up = changes.latest_use + pipeline.feedback.lag(depth) >= number
    if skipper is not None:
        entries = skipper.hot.entries_of(changes.freed)
        entries = np.sort(entries[entries >= 0])
        catches_up |= len(entries) > 0
    if catches_up:
        drop_hot_rows(pipeline, [(tiered, entries)], wait_until_trained)


def _commit(pipeline: Pipeline, place: int, changes: KeyChanges) -> None:
    if len(changes.freed) or len(changes.admitted):
        pipeline.notifier.expire(place, changes.freed)
        pipeline.tiered_groups[place].commit(changes, pipeline.next_number)


def drop_hot_rows(
    pipeline: Pipeline, leaving: Sequence[tuple[TieredGroup, Int64s]], wait_until_trained: Callable[[int], None]
) -> None:
    """Drop entries of the hot sets, once training has caught up with planning.

    Nothing is lost: accumulated updates (deferred) of these rows are applied. That requires their sums, and renumbering
    entries requires that no batch is in flight.
    """
    number = pipeline.next_number
    wait_until_trained(number - 1)
    pipeline.feedback.take_in_until(number)  # feedback in the queue refers to entries by their old numbers
    with pipeline.lock.held, pipeline.lock.changing(f"hot rows left before batch {number}"):
        pipeline.mover.rest(number - 1)
        pipeline.finish_copies()
        for tiered, entries in leaving:
            if len(entries):
                tiered.drop_hot_rows(entries)
        pipeline.finish_copies()


logger = logging.getLogger("adaptive.embeddings.engine")


def find_slots(pipeline: Pipeline, queued: QueuedBatch, depth: int) -> list[int] | None:
    """Return slots with which the next batch and `depth` earlier ones fit; None: no way."""
    now, needed = _count_slots(pipeline), _count_needed_slots(pipeline, queued, depth)
    if pipeline.policy_caller.policy.device_rows is not None or _is_enough(needed, now):
        return None
    counts = [len(lookups.distinct.rows) * (depth + 1) for lookups in queued.lookups]
    pipeline.peak_slots = [max(most, count) for most, count in zip(pipeline.peak_slots, counts, strict=True)]
    needs = [Need(least, most) for least, most in zip(needed, pipeline.peak_slots, strict=True)]
    may_grow = pipeline.tier.device_rows == "auto" and pipeline.mover.device.type == "cpu"
    device_rows, costs = pipeline.tier.device_rows, [1] * len(now)
    if not (device_rows.endswith("%") or device_rows.isdigit()):  # in bytes
        costs = [sum(tiered.host.num_bytes) // tiered.group.num_rows for tiered in pipeline.tiered_groups]
    return shared_by_need(pipeline.groups, now, needs, costs, may_grow=may_grow)


def rebalance_slots(pipeline: Pipeline, slots: Sequence[int]) -> None:
    """Give each group its number of slots, when every planned batch is trained."""
    number, now = pipeline.next_number, _count_slots(pipeline)
    assert pipeline.trained >= number - 1
    givers_first = sorted(range(len(slots)), key=lambda n: slots[n] - now[n])
    with (
        pipeline.lock,
        pipeline.running_out("while slots were rebalanced"),
        pipeline.lock.changing("slots were rebalanced"),
    ):
        pipeline.mover.rest(number - 1)
        pipeline.write_all_back()
        for n in givers_first:
            if slots[n] != now[n]:
                tiered = pipeline.tiered_groups[n]
                rows, counts = tiered.resize(slots[n])
                pipeline.notifier.leave(n, rows)
                pipeline.evicted_between_batches.append((n, counts))
        pipeline.finish_copies()
    logger.info("batch %d: slots rebalanced across widths: %s", number, list(slots))


def describe_shortage(pipeline: Pipeline, queued: QueuedBatch, depth: int) -> DeviceMemoryError | None:
    """Return the error if slots do not hold the next batch and `depth` earlier ones."""
    now, needed = _count_slots(pipeline), _count_needed_slots(pipeline, queued, depth)
    if len(now) == 1 or _is_enough(needed, now):  # of a single group, its planner has raised the error
        return None
    parts = [
        f"{need:,} of width {group.embedding_dim} (most for table {largest_table(group, lookups.distinct)})"
        for group, lookups, need in zip(pipeline.groups, queued.lookups, needed, strict=True)
    ]
    rows = [group.num_rows for group in pipeline.groups]
    enough = sum(map(min, rows, map(max, needed, pipeline.peak_slots)))
    advice = f"Set device_rows to {enough} (at least {sum(needed)}), or lower the batch size"
    if depth > 0:
        advice += f", or lower depth (now {depth}), or set tier.when_full=reduce_lookahead"
    policy = type(pipeline.policy_caller.policy).__name__
    return DeviceMemoryError(
        f"batch {pipeline.next_number}: expected {sum(needed):,} device rows for the {depth + 1} batches in flight "
        f"({', '.join(parts)}), got {sum(now):,} (device_rows={pipeline.tier.device_rows}, policy {policy}). {advice}."
    )


def _count_slots(pipeline: Pipeline) -> list[int]:
    return [tiered.device.num_slots for tiered in pipeline.tiered_groups]


def _count_needed_slots(pipeline: Pipeline, queued: QueuedBatch, depth: int) -> list[int]:
    """Return the slots of each group for the next batch and `depth` earlier ones."""
    number = pipeline.next_number
    return [
        tiered.planner.slots_needed(lookups.distinct, number, depth)
        for tiered, lookups in zip(pipeline.tiered_groups, queued.lookups, strict=True)
    ]


def _is_enough(needed: Sequence[int], have: Sequence[int]) -> bool:
    return all(need <= slots for need, slots in zip(needed, have, strict=True))
