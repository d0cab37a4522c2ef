"""Shares the slots among groups anew, by what batches ask, when one group has too few for the batches in flight.

What batches will ask of each group is not known when tables are made: there is no batch yet. So every group begins with
the same share of its rows, and the first batch that does not fit tells more. Training catches up with planning first:
with no batch in flight, rows keep their values wherever they lie, and numbers do not change.

With `device_rows = "auto"` in ordinary memory there are then as many slots as are wanted. Otherwise their rows, or
bytes, together stay what they are. Which batch does not fit follows from batches and policy alone, so the same run
shares in the same way, whatever its look-ahead thread does when.
"""

import logging
from collections.abc import Sequence

import numpy as np

from adaptive.embeddings.engine.pipeline import Coming, Lane, Pipeline
from adaptive.embeddings.engine.shrinking import oldest, refit
from adaptive.embeddings.planning.plan import Int64s, no_rows
from adaptive.embeddings.planning.planner import largest_table
from adaptive.embeddings.planning.sizing import Need, shared_by_need
from adaptive.errors import DeviceMemoryError
from adaptive.system import running_out

logger = logging.getLogger("adaptive.embeddings.engine")


def find_slots(pipeline: Pipeline, coming: Coming, depth: int) -> list[int] | None:
    """Slots for each group with which the next batch fits, and `depth` before it; None if all together are too few, or
    its rows do fit. For the look-ahead thread."""
    now, needed = _slots(pipeline), _needed(pipeline, coming, depth)
    if pipeline.policy_caller.policy.device_rows is not None or _fits(needed, now):
        return None
    counts = [len(lookups.distinct.rows) * (depth + 1) for lookups in coming[1]]
    pipeline.asked = [max(most, count) for most, count in zip(pipeline.asked, counts, strict=True)]
    needs = [Need(least, most) for least, most in zip(needed, pipeline.asked, strict=True)]
    may_grow = pipeline.device_rows == "auto" and pipeline.mover.device.type == "cpu"
    return shared_by_need(pipeline.groups, now, needs, _costs(pipeline), may_grow=may_grow)


def share_anew(pipeline: Pipeline, slots: Sequence[int]) -> None:
    """Give each group its slots. For the look-ahead thread; every planned batch is trained."""
    number, now = pipeline.next_number, _slots(pipeline)
    assert pipeline.trained >= number - 1
    givers_first = sorted(range(len(slots)), key=lambda n: slots[n] - now[n])
    with pipeline.lock, running_out("while slots were shared anew"):
        pipeline.mover.rest(number - 1)
        pipeline.write_all_back()
        for n in givers_first:
            if slots[n] != now[n]:
                pipeline.lost[n] += refit(pipeline, n, slots[n], _victims(pipeline.lanes[n], slots[n]), [])
        pipeline.finish_copies()
    logger.info("batch %d: slots shared anew by what batches ask: %s", number, list(slots))


def too_few(pipeline: Pipeline, coming: Coming, depth: int) -> DeviceMemoryError | None:
    """What to tell if the slots of all groups together do not hold the rows of the next batch and of `depth` before it;
    None if there is one group, whose planner tells, or if something else ran out."""
    now, needed = _slots(pipeline), _needed(pipeline, coming, depth)
    if len(now) == 1 or _fits(needed, now):
        return None
    parts = [
        f"{need:,} of width {lane.group.embedding_dim} (most for table {largest_table(lane.group, lookups.distinct)})"
        for lane, lookups, need in zip(pipeline.lanes, coming[1], needed, strict=True)
    ]
    rows = [group.num_rows for group in pipeline.groups]
    enough = sum(map(min, rows, map(max, needed, pipeline.asked)))
    advice = f"set device_rows to {enough} (at least {sum(needed)}), or lower the batch size"
    if depth > 0:
        advice += f", or lower depth (now {depth}), or set tier.when_full=reduce_lookahead"
    policy = type(pipeline.policy_caller.policy).__name__
    return DeviceMemoryError(
        f"batch {pipeline.next_number}: {sum(needed):,} device rows are needed to hold the rows of the "
        f"{depth + 1} batches in flight, {', '.join(parts)}; {sum(now):,} are there (device_rows="
        f"{pipeline.device_rows}): {advice} (policy {policy})."
    )


def _slots(pipeline: Pipeline) -> list[int]:
    return [lane.device.num_slots for lane in pipeline.lanes]


def _needed(pipeline: Pipeline, coming: Coming, depth: int) -> list[int]:
    """Slots of each group that the rows of the next batch, and of `depth` before it, take."""
    number = pipeline.next_number
    return [
        lane.planner.slots_needed(lookups.distinct, number, depth)
        for lane, lookups in zip(pipeline.lanes, coming[1], strict=True)
    ]


def _costs(pipeline: Pipeline) -> list[int]:
    """What a slot of each group costs: 1 if rows are counted, its bytes if bytes are."""
    if pipeline.device_rows.endswith("%") or pipeline.device_rows.isdigit():
        return [1] * len(pipeline.lanes)
    return [sum(lane.host.num_bytes) // lane.group.num_rows for lane in pipeline.lanes]


def _victims(lane: Lane, num_slots: int) -> Int64s:
    """Slots whose rows leave, so that the others fit: those used longest ago. All are idle."""
    taken = np.flatnonzero(lane.planner.slots.rows >= 0)
    return oldest(lane, taken, len(taken) - num_slots) if len(taken) > num_slots else no_rows()


def _fits(needed: Sequence[int], there: Sequence[int]) -> bool:
    return all(need <= have for need, have in zip(needed, there, strict=True))
