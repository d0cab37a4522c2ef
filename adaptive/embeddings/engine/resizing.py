"""Rebalances slots among groups if one has too few.

When tables are created, the demand of batches for each group is unknown, so every group begins with the same share of
its rows. The first batch that does not fit shows the demand. Training catches up with planning first: with no batch in
flight, moving rows changes no number. With `device_rows = "auto"` in ordinary memory, groups then get as many slots as
they need. Otherwise the total number of rows, or bytes, stays the same. The batch that does not fit follows from
batches and policy alone, so equal runs rebalance equally, regardless of the timing of threads.
"""

import logging
from collections.abc import Sequence

from adaptive.arrays import Int64s
from adaptive.embeddings.engine.pipeline import Pipeline, QueuedBatch
from adaptive.embeddings.planning.planner import largest_table
from adaptive.embeddings.planning.sizing import Need, shared_by_need
from adaptive.errors import DeviceMemoryError

logger = logging.getLogger("adaptive.embeddings.engine")


def _resize_group(pipeline: Pipeline, number: int, num_slots: int, evicted: Int64s) -> Int64s:
    """Change a group's number of slots; return its evicted rows (tables,). Under the lock, with no batch in flight."""
    tiered = pipeline.tiered_groups[number]
    pipeline.notifier.leave(number, tiered.rows_in(evicted))
    return tiered.resize(num_slots, evicted)


def find_slots(pipeline: Pipeline, queued: QueuedBatch, depth: int) -> list[int] | None:
    """Return slots with which the next batch and `depth` earlier ones fit; None: no way."""
    now, needed = _count_slots(pipeline), _count_needed_slots(pipeline, queued, depth)
    if pipeline.policy_caller.policy.device_rows is not None or _is_enough(needed, now):
        return None
    counts = [len(lookups.distinct.rows) * (depth + 1) for lookups in queued.lookups]
    pipeline.peak_slots = [max(most, count) for most, count in zip(pipeline.peak_slots, counts, strict=True)]
    needs = [Need(least, most) for least, most in zip(needed, pipeline.peak_slots, strict=True)]
    may_grow = pipeline.tier.device_rows == "auto" and pipeline.mover.device.type == "cpu"
    return shared_by_need(pipeline.groups, now, needs, _slot_costs(pipeline), may_grow=may_grow)


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
                taken = tiered.taken_slots()  # all idle
                evicted = tiered.oldest(taken, len(taken) - slots[n])
                pipeline.evicted_between_batches.append((n, _resize_group(pipeline, n, slots[n], evicted)))
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


def _slot_costs(pipeline: Pipeline) -> list[int]:
    """Return the cost of a slot of each group: 1, or its bytes if `device_rows` is in bytes."""
    if pipeline.tier.device_rows.endswith("%") or pipeline.tier.device_rows.isdigit():
        return [1] * len(pipeline.tiered_groups)
    return [sum(tiered.host.num_bytes) // tiered.group.num_rows for tiered in pipeline.tiered_groups]


def _is_enough(needed: Sequence[int], have: Sequence[int]) -> bool:
    return all(need <= slots for need, slots in zip(needed, have, strict=True))
