"""Rows as flat arrays, for checkpoints: only rows that ever changed, wherever they lie, with state and records.

Arrays of group g are named `rows<g>.<what>`. Rows that never changed are not stored; their initial values follow
from the tables' names and the seed, which is stored and compared. Values are those with what waits applied, so they
can be used as they are; what else there is of rows that are watched stands beside them (`saving_watched`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import CheckpointError, ConfigError
from adaptive.kernels.planning import INITIAL, ON_HOST
from adaptive.planning.plan import Moves
from adaptive.tiers.pipeline import Lane, Pipeline
from adaptive.tiers.saving_watched import Arrays, check_watched, load_watched, save_watched, watched_part

RECORDS = ("accesses", "last_access", "update_norm")


def save_rows(pipeline: Pipeline) -> Arrays:
    """Call between batches of a look-ahead, or with none running.

    While one is, the books of watched rows tell of batches that are not trained yet, and are left out.
    """
    arrays: Arrays = {"next_batch": np.array([pipeline.trained + 1], np.int64)}
    with pipeline.lock:
        for number, lane in enumerate(pipeline.lanes):
            arrays.update(_save_lane(pipeline, lane, f"rows{number}."))
            if not pipeline.running:
                arrays.update(save_watched(pipeline, lane, f"rows{number}."))
    return arrays


def _save_lane(pipeline: Pipeline, lane: Lane, prefix: str) -> Arrays:
    tracker = lane.planner.tracker
    changed = np.flatnonzero(tracker.codes).astype(np.int64)
    weights, state = pipeline.values(lane, changed)
    seen = np.flatnonzero(tracker.accesses).astype(np.int64)
    records = {prefix + name: tracker.records[name][seen] for name in RECORDS}
    return {
        prefix + "table_starts": lane.group.table_starts,
        prefix + "table_keys": lane.group.table_keys,
        prefix + "changed": changed,
        prefix + "weights": weights,
        prefix + "state": state,
        prefix + "seen": seen,
        **records,
    }


def load_rows(pipeline: Pipeline, arrays: Mapping[str, NDArray[Any]]) -> None:
    """See `TieredEmbeddingBag.load_state_arrays`."""
    if pipeline.running:
        raise ConfigError("rows cannot be loaded while a look-ahead is running; exhaust or close its iterator first")
    parts = [_parts(arrays, f"rows{number}.") for number in range(len(pipeline.lanes))]
    watched = [watched_part(pipeline, lane, arrays, f"rows{n}.") for n, lane in enumerate(pipeline.lanes)]
    for lane, part, kept in zip(pipeline.lanes, parts, watched, strict=True):
        _check(lane, part)
        check_watched(lane, kept)
    with pipeline.lock:
        for lane, part, kept in zip(pipeline.lanes, parts, watched, strict=True):
            _load_lane(lane, part)
            load_watched(lane, kept)
        pipeline.restart(int(arrays["next_batch"][0]))


def overwrite_rows(pipeline: Pipeline, arrays: Mapping[str, NDArray[Any]]) -> None:
    """See `TieredEmbeddingBag.overwrite_rows`. Called by the training thread between two steps."""
    parts = [_parts(arrays, f"rows{number}.") for number in range(len(pipeline.lanes))]
    for lane, part in zip(pipeline.lanes, parts, strict=True):
        _check(lane, part)
    with pipeline.lock:
        pipeline.mover.catch_up()  # steps asked for so far come first
        pipeline.settle()
        for lane, part in zip(pipeline.lanes, parts, strict=True):
            _overwrite_lane(lane, part)
        pipeline.settle()


def _overwrite_lane(lane: Lane, part: Arrays) -> None:
    codes, rows = lane.planner.tracker.codes, part["changed"]
    lane.host.write(rows, part["weights"], part["state"])
    codes[rows[codes[rows] == INITIAL]] = ON_HOST
    here = rows[codes[rows] > 0]
    taken = codes[here].astype(np.int64) - 1
    lane.device.fetch(Moves(fetch_slots=taken, fetch_rows=here, fetch_initial=np.zeros(len(here), np.bool_)))
    lane.device.forget_watched()  # what waits is in the new values; snapshots are of the old ones


def _parts(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    names = ("table_starts", "table_keys", "changed", "weights", "state", "seen", *RECORDS)
    missing = [prefix + name for name in names if prefix + name not in arrays]
    if missing or "next_batch" not in arrays:
        raise CheckpointError(f"checkpoint lacks {', '.join(missing or ['next_batch'])}; it is not of these tables")
    return {name: np.ascontiguousarray(arrays[prefix + name]) for name in names}  # as kernels need rows to lie


def _check(lane: Lane, part: Arrays) -> None:
    group = lane.group
    if not np.array_equal(part["table_starts"], group.table_starts):
        sizes = np.diff(part["table_starts"]).tolist()
        raise CheckpointError(f"tables of {group.table_sizes.tolist()} rows are wanted, the checkpoint has {sizes}")
    if not np.array_equal(part["table_keys"], group.table_keys):
        raise CheckpointError("the checkpoint was made with another seed or other table names")
    for name, array in (("weights", lane.host.weights), ("state", lane.host.state)):
        found, needed = part[name].shape, (len(part["changed"]), array.shape[1])
        if found != needed:
            raise CheckpointError(f"checkpoint array {name}: shape {needed} is needed, found {found}; other optimizer?")
        if part[name].dtype != np.float32:
            raise CheckpointError(f"checkpoint array {name}: float32 is needed, found {part[name].dtype}")
    if any(part[name].shape != part["seen"].shape for name in RECORDS):
        raise CheckpointError(f"checkpoint records {', '.join(RECORDS)} must be as many as rows seen")
    for rows in (part["changed"], part["seen"]):
        if len(rows) and not (rows.min() >= 0 and rows.max() < group.num_rows and (np.diff(rows) > 0).all()):
            raise CheckpointError("checkpoint rows are out of range or not in order")


def _load_lane(lane: Lane, part: Arrays) -> None:
    planner = lane.planner
    planner.slots.empty()
    planner.forget_watched()
    lane.device.forget_watched()
    planner.tracker.records[:] = np.zeros((), planner.tracker.records.dtype)
    changed = part["changed"]
    lane.host.write(changed, part["weights"], part["state"])
    planner.tracker.codes[changed] = ON_HOST
    for name in RECORDS:
        planner.tracker.records[name][part["seen"]] = part[name]
