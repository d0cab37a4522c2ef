"""Other numbers of slots, between two batches: when the device's memory runs out, or a group has too few.

*Out of memory* (`give_back`), even with batches in flight: every changed row is written to the host first. Then rows
leave that no batch in flight needs, least recently used first; the policy is not asked, since it may remember what it
was asked. The rows that stay move into fewer slots, and plans that are not trained yet get the new slots. So a batch
can be run again afterwards, with the same result.

*Rebalancing* (`rebalance_slots`): what batches ask of each group is not known when tables are made: there is no batch
yet. So every group begins with the same share of its rows, and the first batch that does not fit shows more. Training
catches up with planning first: with no batch in flight, rows keep their values wherever they lie, and numbers do not
change. With `device_rows = "auto"` in ordinary memory there are then as many slots as are wanted. Otherwise their rows,
or bytes, together stay what they are. Which batch does not fit follows from batches and policy alone, so the same run
shares in the same way, whatever its look-ahead thread does when.
"""

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.lane import Lane
from adaptive.embeddings.engine.pipeline import Pipeline, QueuedBatch, ReadyBatch
from adaptive.embeddings.planning.plan import GroupPlan, Int64s
from adaptive.embeddings.planning.planner import largest_table
from adaptive.embeddings.planning.sizing import Need, least_slots, shared_by_need
from adaptive.errors import DeviceMemoryError
from adaptive.system import running_out

logger = logging.getLogger("adaptive.embeddings.engine")


def give_back(pipeline: Pipeline, share: float, held_rows: int) -> NDArray[np.int64]:
    """Give back a share of every group's slots; returns (tables,) the rows that left the device.

    Args:
        pipeline: with batches in flight or without.
        share: of the slots.
        held_rows: that the look-ahead must hold, as far as known; so many slots are kept.

    Raises:
        DeviceMemoryError: if the batches in flight need all of them, or the policy does. Nothing has changed then.
    """
    with pipeline.lock:
        before = _slots(pipeline)
        chosen = [_fewer(pipeline, lane, share, held_rows) for lane in pipeline.lanes]
        after = [num_slots for num_slots, _ in chosen]
        if after == before:
            raise _cannot(pipeline, pipeline.lanes[0], sum(before), 0)
        with running_out("while the device tier got smaller"):
            pipeline.write_all_back()
            in_flight = pipeline.in_flight()
            left = [_refit(pipeline, number, *slots, in_flight) for number, slots in enumerate(chosen)]
            pipeline.finish_copies()
    logger.warning(
        "out of device memory at batch %d: %s instead of %s device rows from now on",
        pipeline.trained + 1,
        f"{sum(after):,}",
        f"{sum(before):,}",
    )
    return np.concatenate(left)


def _fewer(pipeline: Pipeline, lane: Lane, share: float, held_rows: int) -> tuple[int, Int64s]:
    """How many slots a group keeps, and the slots whose rows leave."""
    have, taken = lane.device.num_slots, len(lane.taken_slots())
    num_slots = max(int((1 - share) * have), min(have, least_slots(lane.group, held_rows)))
    shortage, idle = max(0, taken - num_slots), lane.taken_slots(pipeline.trained)
    if len(idle) < shortage or pipeline.policy_caller.policy.device_rows is not None:
        raise _cannot(pipeline, lane, have, taken - len(idle))
    return num_slots, lane.oldest(idle, shortage)


def _cannot(pipeline: Pipeline, lane: Lane, have: int, needed: int) -> DeviceMemoryError:
    return DeviceMemoryError(
        f"batch {pipeline.trained + 1}: out of GPU memory, and the device tier cannot give enough back: {have:,} rows "
        f"of width {lane.group.embedding_dim} are there, the batches in flight hold {needed:,}: lower batch_size or "
        f"depth, or choose another policy or GPU"
    )


def _refit(
    pipeline: Pipeline, number: int, num_slots: int, victims: Int64s, in_flight: Sequence[ReadyBatch] = ()
) -> NDArray[np.int64]:
    """Give group `number` another number of slots, see `Lane.resize`; returns (tables of the group,) the rows that
    left. The caller holds the lock, and finishes the copies."""
    lane = pipeline.lanes[number]
    pipeline.notifier.leave(number, lane.rows_in(victims))
    new_slots, left = lane.resize(num_slots, victims)
    for ready in in_flight:
        plan = ready.plans[number]
        for locations in _locations(ready, plan, number):
            on_device = locations >= 0
            locations[on_device] = new_slots[locations[on_device]]
        pipeline.send_again(number, plan)
    return left


def _locations(ready: ReadyBatch, plan: GroupPlan, number: int) -> list[Int64s]:
    """All arrays of a batch and a group that name slots, each once; they are changed in place."""
    arrays = [plan.pooling.row_locations, plan.row_updates.locations, plan.moves.late_slots]
    if plan.snapshots is not None:
        arrays.append(plan.snapshots.locations)
    if plan.deferred is not None:
        arrays.append(plan.deferred.due_locations)
    parts = ready.parts[number] if ready.parts else ()
    arrays += [part.pooling.row_locations for part in parts]
    return list({id(array): array for array in arrays}.values())


def find_slots(pipeline: Pipeline, queued: QueuedBatch, depth: int) -> list[int] | None:
    """Slots for each group with which the next batch fits, and `depth` before it; None if all together are too few, or
    its rows do fit. For the look-ahead thread."""
    now, needed = _slots(pipeline), _needed(pipeline, queued, depth)
    if pipeline.policy_caller.policy.device_rows is not None or _fits(needed, now):
        return None
    counts = [len(lookups.distinct.rows) * (depth + 1) for lookups in queued.lookups]
    pipeline.peak_slots = [max(most, count) for most, count in zip(pipeline.peak_slots, counts, strict=True)]
    needs = [Need(least, most) for least, most in zip(needed, pipeline.peak_slots, strict=True)]
    may_grow = pipeline.tier.device_rows == "auto" and pipeline.mover.device.type == "cpu"
    return shared_by_need(pipeline.groups, now, needs, _costs(pipeline), may_grow=may_grow)


def rebalance_slots(pipeline: Pipeline, slots: Sequence[int]) -> None:
    """Give each group its slots. For the look-ahead thread; every planned batch is trained."""
    number, now = pipeline.next_number, _slots(pipeline)
    assert pipeline.trained >= number - 1
    givers_first = sorted(range(len(slots)), key=lambda n: slots[n] - now[n])
    with pipeline.lock, running_out("while slots were shared anew"):
        pipeline.mover.rest(number - 1)
        pipeline.write_all_back()
        for n in givers_first:
            if slots[n] != now[n]:
                lane = pipeline.lanes[n]
                taken = lane.taken_slots()  # all are idle
                victims = lane.oldest(taken, len(taken) - slots[n])
                pipeline.evicted_between_batches[n] += _refit(pipeline, n, slots[n], victims)
        pipeline.finish_copies()
    logger.info("batch %d: slots shared anew by what batches ask: %s", number, list(slots))


def too_few(pipeline: Pipeline, queued: QueuedBatch, depth: int) -> DeviceMemoryError | None:
    """What to tell if the slots of all groups together do not hold the rows of the next batch and of `depth` before it;
    None if there is one group, whose planner tells, or if something else ran out."""
    now, needed = _slots(pipeline), _needed(pipeline, queued, depth)
    if len(now) == 1 or _fits(needed, now):
        return None
    parts = [
        f"{need:,} of width {lane.group.embedding_dim} (most for table {largest_table(lane.group, lookups.distinct)})"
        for lane, lookups, need in zip(pipeline.lanes, queued.lookups, needed, strict=True)
    ]
    rows = [group.num_rows for group in pipeline.groups]
    enough = sum(map(min, rows, map(max, needed, pipeline.peak_slots)))
    advice = f"set device_rows to {enough} (at least {sum(needed)}), or lower the batch size"
    if depth > 0:
        advice += f", or lower depth (now {depth}), or set tier.when_full=reduce_lookahead"
    policy = type(pipeline.policy_caller.policy).__name__
    return DeviceMemoryError(
        f"batch {pipeline.next_number}: {sum(needed):,} device rows are needed to hold the rows of the "
        f"{depth + 1} batches in flight, {', '.join(parts)}; {sum(now):,} are there (device_rows="
        f"{pipeline.tier.device_rows}): {advice} (policy {policy})."
    )


def _slots(pipeline: Pipeline) -> list[int]:
    return [lane.device.num_slots for lane in pipeline.lanes]


def _needed(pipeline: Pipeline, queued: QueuedBatch, depth: int) -> list[int]:
    """Slots of each group that the rows of the next batch, and of `depth` before it, take."""
    number = pipeline.next_number
    return [
        lane.planner.slots_needed(lookups.distinct, number, depth)
        for lane, lookups in zip(pipeline.lanes, queued.lookups, strict=True)
    ]


def _costs(pipeline: Pipeline) -> list[int]:
    """What a slot of each group costs: 1 if rows are counted, its bytes if bytes are."""
    if pipeline.tier.device_rows.endswith("%") or pipeline.tier.device_rows.isdigit():
        return [1] * len(pipeline.lanes)
    return [sum(lane.host.num_bytes) // lane.group.num_rows for lane in pipeline.lanes]


def _fits(needed: Sequence[int], have: Sequence[int]) -> bool:
    return all(need <= slots for need, slots in zip(needed, have, strict=True))
