"""Gives back a share of the slots when the device's memory runs out, even with batches in flight.

Every changed row is written to the host first. Then rows leave that no batch in flight needs, least recently used
first; the policy is not asked, since it may remember what it was asked. The rows that stay move into fewer slots, and
plans that are not trained yet get the new slots. So a batch can be run again afterwards, with the same result.
"""

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.counters import Counter
from adaptive.embeddings.engine.pipeline import Lane, Pipeline, ReadyBatch
from adaptive.embeddings.planning.plan import GroupPlan, Int64s, Moves
from adaptive.embeddings.planning.sizing import least_slots
from adaptive.errors import DeviceMemoryError
from adaptive.system import running_out

logger = logging.getLogger("adaptive.embeddings.engine")


@dataclass(frozen=True)
class _Shrinking:
    """How many slots one group keeps, and whose rows leave."""

    num_slots: int  # that it keeps
    victims: Int64s  # slots whose rows leave


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
        before = [lane.device.num_slots for lane in pipeline.lanes]
        jobs = [_plan(pipeline, lane, share, held_rows) for lane in pipeline.lanes]
        if [job.num_slots for job in jobs] == before:
            raise _cannot(pipeline, pipeline.lanes[0], sum(before), 0)
        with running_out("while the device tier got smaller"):
            pipeline.write_all_back()
            in_flight = pipeline.in_flight()
            left = [refit(pipeline, number, job.num_slots, job.victims, in_flight) for number, job in enumerate(jobs)]
            pipeline.finish_copies()
    logger.warning(
        "out of device memory at batch %d: %s instead of %s device rows from now on",
        pipeline.trained + 1,
        f"{sum(job.num_slots for job in jobs):,}",
        f"{sum(before):,}",
    )
    return np.concatenate(left)


def _plan(pipeline: Pipeline, lane: Lane, share: float, held_rows: int) -> _Shrinking:
    slots = lane.planner.slots
    num_slots = max(int((1 - share) * len(slots)), min(len(slots), least_slots(lane.group, held_rows)))
    shortage = max(0, len(slots) - slots.num_free - num_slots)
    idle = np.flatnonzero((slots.rows >= 0) & (slots.used <= pipeline.trained))
    if len(idle) < shortage or pipeline.policy_caller.policy.device_rows is not None:
        raise _cannot(pipeline, lane, len(slots), len(slots) - slots.num_free - len(idle))
    return _Shrinking(num_slots, oldest(lane, idle, shortage))


def oldest(lane: Lane, slots: Int64s, count: int) -> Int64s:
    """Of the slots (n,) the `count` that were used longest ago."""
    return slots[np.argsort(lane.planner.slots.used[slots], kind="stable")[:count]]


def _cannot(pipeline: Pipeline, lane: Lane, have: int, needed: int) -> DeviceMemoryError:
    return DeviceMemoryError(
        f"batch {pipeline.trained + 1}: out of GPU memory, and the device tier cannot give enough back: {have:,} rows "
        f"of width {lane.group.embedding_dim} are there, the batches in flight hold {needed:,}: lower batch_size or "
        f"depth, or choose another policy or GPU"
    )


def refit(
    pipeline: Pipeline, number: int, num_slots: int, victims: Int64s, in_flight: list[ReadyBatch]
) -> NDArray[np.int64]:
    """Give group `number` another number of slots; rows keep theirs, under new numbers, but for the slots `victims`.

    Every changed row has been written to the host. The caller holds the lock, and finishes the copies.
    Returns (tables of the group,) the rows that left.
    """
    lane = pipeline.lanes[number]
    slots, device = lane.planner.slots, lane.device
    tally = np.zeros((len(lane.group.tables), len(Counter)), np.int64)
    pipeline.notifier.leave(number, slots.rows[victims])
    back_slots, _ = slots.release(victims, tally)
    assert not len(back_slots), "rows that leave have been written back"
    new_slots = slots.compact(num_slots)
    device.resize(num_slots)  # waits: the new slots are made
    rows = slots.rows[slots.rows >= 0]
    here = np.arange(len(rows))
    device.fetch(Moves(fetch_slots=here, fetch_rows=rows, fetch_initial=slots.flags[here] == 0))
    for ready in in_flight:
        plan = ready.plans[number]
        for locations in _locations(ready, plan, number):
            on_device = locations >= 0
            locations[on_device] = new_slots[locations[on_device]]
        device.ship_again(plan)
        pipeline.poison_host(number, plan)
    return tally[:, Counter.DEMOTED]


def _locations(ready: ReadyBatch, plan: GroupPlan, number: int) -> list[Int64s]:
    """All arrays of a batch and a group that name slots, each once; they are changed in place."""
    found = [plan.pooling.row_locations, plan.row_updates.locations, plan.moves.late_slots]
    if plan.snapshots is not None:
        found.append(plan.snapshots.locations)
    if plan.deferred is not None:
        found.append(plan.deferred.due_locations)
    parts = ready.parts[number] if ready.parts else ()
    found += [part.pooling.row_locations for part in parts]
    return list({id(array): array for array in found}.values())
