"""What a checkpoint holds of watched rows beside their values: verdicts, snapshots, visits, and gradients that wait.

Loaded into tables that watch and defer as those did that were saved, all of it is restored, and training goes on as it
would have. Loaded into any others it is left aside: rows have the values with what waits applied, and nothing is known
of their movement.

Names, behind the group's prefix: `watched.interval` (1,) of `SkipConfig`; `watched.<column>` (n,) of the hot set's
entries, in order; `watched.snapshots` (n, D) if saturation is watched; and if updates are deferred `watched.visits` and
`watched.waiting` (n,), and of the m rows with a sum that waits `watched.summed` (m,) entries, `watched.sums` (m, D),
`watched.squares` (m, S) and, before it is applied, weights and state: `watched.raw_values` (m, D) and
`watched.raw_states` (m, T).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import CheckpointError
from adaptive.kernels.planning import ON_HOST
from adaptive.planning.hot_set import COLUMNS, ENTRY, HotSet
from adaptive.tiers.device import WatchedValues
from adaptive.tiers.pipeline import Lane, Pipeline

Arrays = dict[str, NDArray[Any]]
WATCHED = "watched."


def save_watched(pipeline: Pipeline, lane: Lane, prefix: str) -> Arrays:
    """Copies of what is known of a lane's watched rows; nothing where none are watched. The caller holds the lock."""
    hot, book = lane.planner.hot, lane.planner.deferral
    if hot is None:
        return {}
    columns, kept = hot.columns(), lane.device.kept(hot.num_entries)
    found = {"interval": np.array([hot.config.interval], np.int64), **columns}
    if pipeline.referee.watches_saturation:
        found["snapshots"] = kept.snapshots
    if book is not None:
        weights, state = pipeline.values(lane, columns["row"][kept.waiting], settled=False)
        visits, waiting = book.visits[: hot.num_entries].copy(), book.waiting[: hot.num_entries].copy()
        found |= {"visits": visits, "waiting": waiting, "summed": kept.waiting, "sums": kept.sums}
        found |= {"squares": kept.squares, "raw_values": weights, "raw_states": state}
    return {prefix + WATCHED + name: value for name, value in found.items()}


def watched_part(pipeline: Pipeline, lane: Lane, arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    """What is to be restored of a lane's watched rows: all, or nothing if others were watched, or otherwise."""
    prefix += WATCHED
    found = {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
    hot = lane.planner.hot
    if hot is None or set(found) != _names(pipeline, lane) or found["interval"].tolist() != [hot.config.interval]:
        return {}
    return {name: np.ascontiguousarray(value) for name, value in found.items()}


def _names(pipeline: Pipeline, lane: Lane) -> set[str]:
    names = {"interval", *COLUMNS}
    if pipeline.referee.watches_saturation:
        names |= {"snapshots"}
    if lane.planner.deferral is not None:
        names |= {"visits", "waiting", "summed", "sums", "squares", "raw_values", "raw_states"}
    return names


def check_watched(lane: Lane, part: Arrays) -> None:
    """
    Raises:
        CheckpointError: if the arrays are not what `save_watched` makes for these tables.
    """
    if not part:
        return
    assert lane.planner.hot is not None
    rows, most = part["row"], lane.planner.hot.capacity
    if len(rows) > most:
        raise CheckpointError(
            f"the checkpoint watches {len(rows)} rows of width {lane.group.embedding_dim}, there is room for {most}: "
            "raise skip.hot_rows to what it was"
        )
    for name, (shape, dtype) in _expected(lane, part).items():
        if part[name].shape != shape or part[name].dtype != dtype:
            raise CheckpointError(
                f"checkpoint array {WATCHED}{name}: {dtype} {shape} is needed, found {part[name].dtype} "
                f"{part[name].shape}"
            )
    if len(rows) and not (rows.min() >= 0 and rows.max() < lane.group.num_rows and len(np.unique(rows)) == len(rows)):
        raise CheckpointError("watched rows of the checkpoint are out of range or twice there")
    summed = part.get("summed", rows[:0])
    if len(summed) and not (summed.min() >= 0 and summed.max() < len(rows) and (np.diff(summed) > 0).all()):
        raise CheckpointError("rows whose gradient waits are out of range or not in order in the checkpoint")


def _expected(lane: Lane, part: Arrays) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Name -> shape and type of arrays of n entries, m of which wait."""
    floats, entries = np.dtype(np.float32), len(part["row"])
    width = lane.host.weights.shape[1]
    found: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {name: ((entries,), ENTRY[name]) for name in COLUMNS}
    if "snapshots" in part:
        found["snapshots"] = ((entries, width), floats)
    if "visits" in part:
        found |= {name: ((entries,), np.dtype(np.uint32)) for name in ("visits", "waiting")}
        found["summed"] = ((part["summed"].size,), np.dtype(np.int64))
        widths = {"sums": width, "squares": lane.device.squares_width}
        widths |= {"raw_values": width, "raw_states": lane.host.state.shape[1]}
        found |= {name: ((part["summed"].size, wide), floats) for name, wide in widths.items()}
    return found


def load_watched(lane: Lane, part: Arrays) -> None:
    """Into a lane that has just been given the values of rows, and knows nothing of watched ones."""
    if not part:
        return
    planner, none = lane.planner, np.zeros((0, lane.host.weights.shape[1]), np.float32)
    hot, book = planner.hot, planner.deferral
    assert hot is not None
    hot.restore(part, planner.tracker.accesses)
    _count_saturated(lane, hot)
    kept = WatchedValues(part.get("snapshots", none), np.zeros(0, np.int64), none, none[:, : lane.device.squares_width])
    if book is not None:
        book.restore(part["visits"], part["waiting"])
        rows = part["row"][part["summed"]]
        lane.host.write(rows, part["raw_values"], part["raw_states"])
        planner.tracker.codes[rows] = ON_HOST
        kept = WatchedValues(kept.snapshots, part["summed"], part["sums"], part["squares"])
    lane.device.keep(kept)


def _count_saturated(lane: Lane, hot: HotSet) -> None:
    tables = lane.group.tables_of(hot.rows[: hot.num_entries][hot.saturated[: hot.num_entries]])
    lane.planner.saturated_per_table()[:] = np.bincount(tables, minlength=len(lane.group.tables))
