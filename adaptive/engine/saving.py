"""Rows as flat arrays, for checkpoints: only rows that ever changed, wherever they lie, with state and records.

Arrays of group g are named `rows<g>.<what>`. Rows that never changed are not stored; their initial values follow
from the tables' names and the seed, which is stored and compared. Waiting gradients are applied to the values, so they
can be used as they are.

What is known of watched rows is saved, too: verdicts, snapshots, visits, and gradients that wait. Tables that watch and
defer as the saved ones did restore all of it, and training goes on as it would have. Other tables ignore it: they know
nothing of movement. Names, after the group's prefix:

    watched.interval (1,) of `SkipConfig`              watched.<column> (n,) of the hot set's entries, in order
    watched.snapshots (n, D) if movement is watched

    if updates are deferred, m rows with a sum that waits:
    watched.visits, watched.waiting (n,)               watched.summed (m,) entries
    watched.sums (m, D), watched.squares (m, S)        watched.raw_values (m, D), watched.raw_states (m, T): before
                                                       the sum is applied
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.engine.pipeline import Lane, Pipeline
from adaptive.errors import CheckpointError, ConfigError
from adaptive.kernels.planning.books import ON_HOST
from adaptive.planning.hot_set import COLUMNS, ENTRY, LATER_COLUMNS
from adaptive.planning.skipping import Skipper
from adaptive.tiers.device import WatchedValues

Arrays = dict[str, NDArray[Any]]
WATCHED = "watched."
RECORDS = ("accesses", "last_access", "update_norm")
MOST_SUMMED = 255  # gradients: the largest `at_most` of `Deferral` and of skip rules


def save_rows(pipeline: Pipeline) -> Arrays:
    """The arrays of all groups. Call it between two batches of a look-ahead, or with none running.

    While one is running, watched rows are left out: their books are ahead of training.
    """
    arrays: Arrays = {
        "next_batch": np.array([pipeline.trained + 1], np.int64),
        "rate": np.array([pipeline.rate], np.float64),
    }
    with pipeline.lock:
        for number, lane in enumerate(pipeline.lanes):
            arrays.update(_save_lane(pipeline, lane, f"rows{number}."))
            if not pipeline.running:
                arrays.update(_save_watched(pipeline, lane, f"rows{number}."))
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


def load_rows(pipeline: Pipeline, arrays: Mapping[str, NDArray[Any]], *, grow: bool = False) -> None:
    """Restore what `save_rows` gave; see `TieredEmbeddingBag.load_state_arrays`."""
    if grow:
        arrays = _grown(pipeline, arrays)
    if pipeline.running:
        raise ConfigError("rows cannot be loaded while a look-ahead is running; exhaust or close its iterator first")
    parts = [_parts(arrays, f"rows{number}.") for number in range(len(pipeline.lanes))]
    watched = [_watched_part(lane, arrays, f"rows{n}.") for n, lane in enumerate(pipeline.lanes)]
    for lane, part, kept in zip(pipeline.lanes, parts, watched, strict=True):
        _check(lane, part)
        _check_watched(lane, kept)
    with pipeline.lock:
        for lane, part, kept in zip(pipeline.lanes, parts, watched, strict=True):
            _load_lane(lane, part)
            _load_watched(lane, kept)
        pipeline.restart(int(arrays["next_batch"][0]))
        if "rate" in arrays:  # what waits is applied by it, until there is another step
            pipeline.use_rate(float(arrays["rate"][0]))


def _grown(pipeline: Pipeline, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays of smaller tables as those of these: rows keep their ids."""
    found = dict(arrays)
    for number, lane in enumerate(pipeline.lanes):
        prefix, new = f"rows{number}.", lane.group.table_starts
        old = found.get(prefix + "table_starts")
        if old is None or old.shape != new.shape or (np.diff(old) > np.diff(new)).any():
            continue  # what is wrong is told where arrays are checked
        moved = new[:-1] - old[:-1]
        for name in (prefix + "changed", prefix + "seen", prefix + WATCHED + "row"):
            if name in found:
                rows = found[name]
                found[name] = rows + moved[np.searchsorted(old, rows, side="right") - 1]
        found[prefix + "table_starts"] = new
    return found


def overwrite_rows(pipeline: Pipeline, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Give rows other values; see `TieredEmbeddingBag.overwrite_rows`. For the training thread, between two steps."""
    parts = [_parts(arrays, f"rows{number}.") for number in range(len(pipeline.lanes))]
    for lane, part in zip(pipeline.lanes, parts, strict=True):
        _check(lane, part)
    with pipeline.lock:
        pipeline.mover.catch_up()  # steps asked for so far come first
        pipeline.finish_copies()
        for lane, part in zip(pipeline.lanes, parts, strict=True):
            _overwrite_lane(pipeline, lane, part)
        pipeline.finish_copies()


def _overwrite_lane(pipeline: Pipeline, lane: Lane, part: Arrays) -> None:
    pipeline.put(lane, part["changed"], part["weights"], part["state"])
    lane.device.forget_watched()  # what waits is in the new values; snapshots are of the old ones


def _parts(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    names = ("table_starts", "table_keys", "changed", "weights", "state", "seen", *RECORDS)
    missing = [prefix + name for name in names if prefix + name not in arrays]
    if missing or "next_batch" not in arrays:
        raise CheckpointError(f"checkpoint lacks {', '.join(missing or ['next_batch'])}; it is not of these tables")
    return {name: np.ascontiguousarray(arrays[prefix + name]) for name in names}  # as kernels need them


def _check(lane: Lane, part: Arrays) -> None:
    group = lane.group
    if not np.array_equal(part["table_starts"], group.table_starts):
        sizes = np.diff(part["table_starts"]).tolist()
        raise CheckpointError(
            f"tables of {group.table_sizes.tolist()} rows are wanted, the checkpoint has {sizes}; larger ones take "
            f"it by load_state_arrays(arrays, grow=True)"
        )
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
    if planner.skipper is not None:
        planner.skipper.forget()
    lane.device.forget_watched()
    planner.tracker.records[:] = np.zeros((), planner.tracker.records.dtype)
    changed = part["changed"]
    lane.host.write(changed, part["weights"], part["state"])
    planner.tracker.codes[changed] = ON_HOST
    for name in RECORDS:
        planner.tracker.records[name][part["seen"]] = part[name]


def _save_watched(pipeline: Pipeline, lane: Lane, prefix: str) -> Arrays:
    """Copies of what is known of a lane's watched rows; nothing where none are watched. The caller holds the lock."""
    skipper = lane.planner.skipper
    if skipper is None:
        return {}
    hot, book = skipper.hot, skipper.deferral
    columns, kept = hot.columns(), lane.device.kept(hot.num_entries)
    found = {"interval": np.array([hot.config.interval], np.int64), **columns}
    if skipper.watches_movement:
        found["snapshots"] = kept.snapshots
    if book is not None:
        weights, state = pipeline.values(lane, columns["row"][kept.waiting], with_waiting=False)
        visits, waiting = book.visits[: hot.num_entries].copy(), book.waiting[: hot.num_entries].copy()
        found |= {"visits": visits, "waiting": waiting, "summed": kept.waiting, "sums": kept.sums}
        found |= {"squares": kept.squares, "raw_values": weights, "raw_states": state}
    return {prefix + WATCHED + name: value for name, value in found.items()}


def _watched_part(lane: Lane, arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    """The arrays of a lane's watched rows, or none if the saved tables did not watch and defer as this lane does."""
    prefix += WATCHED
    found = {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
    if "row" in found:
        found = {**{name: np.zeros(len(found["row"]), ENTRY[name]) for name in LATER_COLUMNS}, **found}
    skipper = lane.planner.skipper
    if skipper is None or set(found) != _names(skipper):
        return {}
    if found["interval"].tolist() != [skipper.hot.config.interval]:
        return {}
    return {name: np.ascontiguousarray(value) for name, value in found.items()}


def _names(skipper: Skipper) -> set[str]:
    names = {"interval", *COLUMNS}
    if skipper.watches_movement:
        names |= {"snapshots"}
    if skipper.deferral is not None:
        names |= {"visits", "waiting", "summed", "sums", "squares", "raw_values", "raw_states"}
    return names


def _check_watched(lane: Lane, part: Arrays) -> None:
    """Check the arrays of a lane's watched rows.

    Raises:
        CheckpointError: if they are not what `_save_watched` makes for these tables.
    """
    if not part:
        return
    assert lane.planner.skipper is not None
    rows, most = part["row"], lane.planner.skipper.hot.capacity
    if len(rows) > most:
        raise CheckpointError(
            f"the checkpoint watches {len(rows)} rows of width {lane.group.embedding_dim}, there is room for {most}: "
            "raise skip.hot_rows to what it was"
        )
    _check_squares(lane, part)
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


def _check_squares(lane: Lane, part: Arrays) -> None:
    """Check what lies beside Adam's deferred sums: squares, and how many gradients a sum is of.

    Raises:
        CheckpointError: if nothing does, as where a sum was still applied as one update; if a number cannot be.
    """
    width, needed = lane.host.weights.shape[1], lane.device.squares_width
    squares = part.get("squares")
    if squares is None or needed != width + 1 or squares.ndim != 2:
        return
    if squares.shape[1] == 0:
        raise CheckpointError(
            f"checkpoint array {WATCHED}squares: {needed} numbers beside each of Adam's deferred sums are needed, "
            "squares and a number of gradients; found none: an earlier version saved it, which kept none. Its rows are "
            "whole, with what waits applied: evaluate them, load them into tables that skip nothing (skip=None), or go "
            "on training with the version that saved them"
        )
    numbers = squares[:, -1]
    wrong = numbers[~((numbers >= 1) & (numbers <= MOST_SUMMED) & (numbers % 1 == 0))]
    if squares.shape[1] == needed and len(wrong):
        raise CheckpointError(
            f"checkpoint array {WATCHED}squares: the last column tells of how many gradients a sum is, whole numbers "
            f"from 1 to {MOST_SUMMED} are needed, found {wrong[0]}"
        )


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


def _load_watched(lane: Lane, part: Arrays) -> None:
    """Restore watched rows in a lane whose rows have just been loaded and which watches none yet."""
    if not part:
        return
    planner, none = lane.planner, np.zeros((0, lane.host.weights.shape[1]), np.float32)
    assert planner.skipper is not None
    planner.skipper.restore(part)
    book = planner.skipper.deferral
    no_squares = np.zeros((0, lane.device.squares_width), np.float32)
    kept = WatchedValues(part.get("snapshots", none), np.zeros(0, np.int64), none, no_squares)
    if book is not None:
        book.restore(part["visits"], part["waiting"])
        rows = part["row"][part["summed"]]
        lane.host.write(rows, part["raw_values"], part["raw_states"])
        planner.tracker.codes[rows] = ON_HOST
        kept = WatchedValues(kept.snapshots, part["summed"], part["sums"], part["squares"])
    lane.device.keep(kept)
