"""What changes between two batches, before the next one is planned: keys and hot sets.

Nothing of it may happen to a row that a batch in flight uses. If one may, training catches up with planning first, so
no number depends on the look-ahead.

`give_rows`, in tables with keys: a key that expires or is evicted loses its row. The slot is released without writing
back, the host row counts as initial again, and its records and sums are dropped. Rarely a batch in flight uses such a
row, after a short expiry or in a small table; or the row is hot.

`drop_hot_rows`, if a hot set is full: rows that are no longer looked up leave it.
"""

from collections.abc import Callable, Sequence

import numpy as np

from adaptive.arrays import Int64s
from adaptive.embeddings.engine.pipeline import Pipeline, QueuedBatch
from adaptive.embeddings.engine.tiered_group import TieredGroup
from adaptive.embeddings.planning.key_tables import KeyChanges
from adaptive.embeddings.planning.planner import largest_table
from adaptive.embeddings.planning.sizing import least_device_rows
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


def describe_shortage(pipeline: Pipeline, queued: QueuedBatch, depth: int) -> DeviceMemoryError:
    """Return the error if slots do not hold the next batch and `depth` earlier ones."""
    number, tiered_groups = pipeline.next_number, pipeline.tiered_groups
    needed = [
        tiered.planner.slots_needed(lookups.distinct, number, depth)
        for tiered, lookups in zip(tiered_groups, queued.lookups, strict=True)
    ]
    parts = [
        f"{need:,} of width {tiered.group.embedding_dim} (got {tiered.device.num_slots:,}; most for table "
        f"{largest_table(tiered.group, lookups.distinct)})"
        for tiered, lookups, need in zip(tiered_groups, queued.lookups, needed, strict=True)
    ]
    advice = f"Raise device_rows to at least {least_device_rows(pipeline.groups, needed)}, or lower the batch size"
    if depth > 0:
        advice += f", or lower depth (now {depth}), or set tier.when_full=reduce_lookahead"
    policy = type(pipeline.policy_caller.policy).__name__
    slots = sum(tiered.device.num_slots for tiered in tiered_groups)
    return DeviceMemoryError(
        f"batch {number}: expected at least {sum(needed):,} device rows for the {depth + 1} batches in flight, got "
        f"{slots:,} (policy {policy}): {', '.join(parts)}. {advice}."
    )
