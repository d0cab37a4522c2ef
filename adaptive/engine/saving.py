"""Rows as flat arrays, for checkpoints: only rows that ever changed, wherever they lie, with state and records.

Arrays of group g are named `rows<g>.<what>`. Rows that never changed are not stored; their initial values follow
from the tables' names and the seed, which is stored and compared. Waiting gradients are applied to the values, so they
can be used as they are.

Values and state may take more than there is memory: they are saved as `Blocks`, if asked for, and loaded from files
(`Stored`) or an array, block by block.

What is known of watched rows is saved, too: `adaptive.engine.saving_watched`. Of several ranks each saves a shard,
`adaptive.engine.exchange.shards`; whoever loads shards is given the arrays of one process.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.engine.exchange.gathering import Gatherer, own_rows
from adaptive.engine.exchange.shards import save_shard_lane, save_shard_watched
from adaptive.engine.pipeline import Lane, Pipeline
from adaptive.engine.saving_shared import gatherer_of, own_watched, save_shared_lane, save_shared_watched
from adaptive.engine.saving_watched import (
    SUMMED_ROWS,
    WATCHED,
    check_watched,
    load_watched,
    save_watched,
    watched_part,
)
from adaptive.errors import CheckpointError, ConfigError
from adaptive.kernels.planning.books import ON_HOST
from adaptive.storage.arrays import Blocks, Stored, whole
from adaptive.storage.shards import Part as ShardPart

Arrays = dict[str, NDArray[Any]]
Part = dict[str, Any]  # of one group: arrays; values and state may be `Stored` when loaded, `Blocks` when saved
Floats = NDArray[np.float32]
Int64s = NDArray[np.int64]
BLOCK_BYTES: Final = 8 << 20  # of values and state that are in memory at once
RECORDS = ("accesses", "last_access", "update_norm")


def save_rows(pipeline: Pipeline) -> Arrays:
    """The arrays of all groups. Call it between two batches of a look-ahead, or with none running.

    While one is running, watched rows are left out: their books are ahead of training.
    """
    if (gatherer := gatherer_of(pipeline)) is not None:
        found = _save_shared(pipeline, gatherer)
        return {name: _in_memory(value) for name, value in found.items()}

    def read(lane: Lane, changed: Int64s) -> Part:
        weights, state = pipeline.values(lane, changed)
        return {"weights": weights, "state": state}

    with pipeline.lock:
        return _save_lanes(pipeline, read)


def save_blocks(pipeline: Pipeline) -> dict[str, NDArray[Any] | Blocks | ShardPart]:
    """`save_rows` with values and state as `Blocks`, which are read when they are written, once each: train nothing in
    between. Of rows 8 MiB are in memory at once. With other ranks, the rows that this one owns, as parts of a shard."""
    if gatherer_of(pipeline) is not None:
        return _save_shard(pipeline)

    with pipeline.lock:
        return _save_lanes(pipeline, partial(_in_blocks, pipeline))


def _in_blocks(pipeline: Pipeline, lane: Lane, rows: Int64s) -> dict[str, Blocks]:
    """Values and state of rows (n,)."""
    widths = {"weights": lane.host.weights.shape[1], "state": lane.host.state.shape[1]}
    return {
        name: Blocks(np.dtype(np.float32), (len(rows), width), partial(_blocks, pipeline, lane, rows, column))
        for column, (name, width) in enumerate(widths.items())
    }


def _blocks(pipeline: Pipeline, lane: Lane, rows: Int64s, column: int) -> Iterator[Floats]:
    """The weights (column 0) or the state (1) of rows (n,), by blocks."""
    length = _block_rows(lane)
    for first in range(0, len(rows), length):
        with pipeline.lock:
            block = pipeline.values(lane, rows[first : first + length])[column]
        yield block


def _block_rows(lane: Lane) -> int:
    """Rows of a block."""
    width: int = lane.host.weights.shape[1] + lane.host.state.shape[1]
    return max(1, BLOCK_BYTES // (4 * width))


def _save_shard(pipeline: Pipeline) -> dict[str, NDArray[Any] | Blocks | ShardPart]:
    found: dict[str, NDArray[Any] | Blocks | ShardPart] = {**_progress(pipeline)}
    for number, lane in enumerate(pipeline.lanes):
        prefix = f"rows{number}."
        found |= save_shard_lane(pipeline, lane, prefix, RECORDS, _in_blocks)
        if not pipeline.running:
            found |= save_shard_watched(pipeline, lane, prefix)
    return found


def _save_shared(pipeline: Pipeline, gatherer: Gatherer) -> dict[str, NDArray[Any] | Blocks]:
    """Of the rows of all ranks. Nobody holds the lock."""
    arrays: dict[str, NDArray[Any] | Blocks] = {**_progress(pipeline)}
    for number, lane in enumerate(pipeline.lanes):
        prefix = f"rows{number}."
        arrays |= save_shared_lane(pipeline, lane, prefix, RECORDS, _block_rows(lane), gatherer)
        if not pipeline.running:
            arrays |= save_shared_watched(pipeline, lane, prefix, gatherer)
    return arrays


def _in_memory(value: NDArray[Any] | Blocks) -> NDArray[Any]:
    if not isinstance(value, Blocks):
        return value
    return np.concatenate([np.zeros((0, *value.shape[1:]), value.dtype), *value.make()])


def _progress(pipeline: Pipeline) -> Arrays:
    """How far training is."""
    return {
        "next_batch": np.array([pipeline.trained + 1], np.int64),
        "rate": np.array([pipeline.rate], np.float64),
    }


def _save_lanes(pipeline: Pipeline, read: Callable[[Lane, Int64s], Part]) -> Part:
    """The caller holds the lock."""
    arrays: Part = {**_progress(pipeline)}
    for number, lane in enumerate(pipeline.lanes):
        arrays.update(_save_lane(lane, f"rows{number}.", read))
        if not pipeline.running:
            arrays.update(save_watched(pipeline, lane, f"rows{number}."))
    return arrays


def _save_lane(lane: Lane, prefix: str, read: Callable[[Lane, Int64s], Part]) -> Part:
    tracker = lane.planner.tracker
    changed = np.flatnonzero(tracker.codes).astype(np.int64)
    values = read(lane, changed)
    seen = np.flatnonzero(tracker.accesses).astype(np.int64)
    records = {prefix + name: tracker.records[name][seen] for name in RECORDS}
    return {
        prefix + "table_starts": lane.group.table_starts,
        prefix + "table_keys": lane.group.table_keys,
        prefix + "changed": changed,
        **{prefix + name: value for name, value in values.items()},
        prefix + "seen": seen,
        **records,
    }


def load_rows(
    pipeline: Pipeline,
    arrays: Mapping[str, NDArray[Any] | Stored],
    *,
    grow: bool = False,
    last: Mapping[str, int] | None = None,
) -> None:
    """Restore what `save_rows` or `save_blocks` gave; see `TieredEmbeddingBag.load_state_arrays`.

    last: table -> how many of its last rows stay the last ones of a table that has grown.
    """
    if grow:
        arrays = _grown(pipeline, arrays, last or {})
    if pipeline.running:
        raise ConfigError("rows cannot be loaded while a look-ahead is running; exhaust or close its iterator first")
    parts = [_parts(arrays, f"rows{number}.") for number in range(len(pipeline.lanes))]
    watched = [watched_part(lane, arrays, f"rows{n}.") for n, lane in enumerate(pipeline.lanes)]
    for lane, part in zip(pipeline.lanes, parts, strict=True):
        _check(lane, part)
    watched = [own_watched(lane.group, part) for lane, part in zip(pipeline.lanes, watched, strict=True)]
    for lane, kept in zip(pipeline.lanes, watched, strict=True):
        check_watched(lane, kept)
    with pipeline.lock:
        pipeline.follower.restart()
        for lane, part, kept in zip(pipeline.lanes, parts, watched, strict=True):
            _load_lane(lane, part)
            load_watched(lane, kept)
        pipeline.restart(int(whole(arrays["next_batch"])[0]))
        if "rate" in arrays:  # what waits is applied by it, until there is another step
            pipeline.use_rate(float(whole(arrays["rate"])[0]))


def _grown(
    pipeline: Pipeline, arrays: Mapping[str, NDArray[Any] | Stored], last: Mapping[str, int]
) -> dict[str, NDArray[Any] | Stored]:
    """The arrays of smaller tables as those of these: rows keep their ids, but for those that `last` says."""
    found = dict(arrays)
    for number, lane in enumerate(pipeline.lanes):
        prefix, new = f"rows{number}.", lane.group.whole.table_starts
        if prefix + "table_starts" not in found:
            continue
        old = whole(found[prefix + "table_starts"])
        if old.shape != new.shape or (np.diff(old) > np.diff(new)).any():
            continue  # what is wrong is told where arrays are checked
        moved, more = new[:-1] - old[:-1], np.diff(new) - np.diff(old)
        tail = old[1:] - np.array([last.get(table.name, 0) for table in lane.group.tables])
        for name in (prefix + "changed", prefix + "seen", prefix + WATCHED + "row", prefix + WATCHED + SUMMED_ROWS):
            if name in found:
                rows = whole(found[name])
                tables = np.searchsorted(old, rows, side="right") - 1
                found[name] = rows + moved[tables] + np.where(rows >= tail[tables], more[tables], 0)
        found[prefix + "table_starts"] = new
    return found


def overwrite_rows(pipeline: Pipeline, arrays: Mapping[str, NDArray[Any] | Stored]) -> None:
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


def _overwrite_lane(pipeline: Pipeline, lane: Lane, part: Part) -> None:
    for rows, weights, state in _saved_blocks(lane, part):
        pipeline.put(lane, *own_rows(lane.group, rows, weights, state))
    lane.device.forget_watched()  # what waits is in the new values; snapshots are of the old ones


def _parts(arrays: Mapping[str, NDArray[Any] | Stored], prefix: str) -> Part:
    names = ("table_starts", "table_keys", "changed", "weights", "state", "seen", *RECORDS)
    missing = [prefix + name for name in names if prefix + name not in arrays]
    if missing or "next_batch" not in arrays:
        raise CheckpointError(f"checkpoint lacks {', '.join(missing or ['next_batch'])}; it is not of these tables")
    return {name: _for_kernels(arrays[prefix + name], in_file=name in ("weights", "state")) for name in names}


def _for_kernels(array: NDArray[Any] | Stored, *, in_file: bool = False) -> NDArray[Any] | Stored:
    """The array in memory, contiguous; `in_file`: one in a file stays there."""
    return array if in_file and isinstance(array, Stored) else np.ascontiguousarray(whole(array))


def _saved_blocks(lane: Lane, part: Part) -> Iterator[tuple[Int64s, Floats, Floats]]:
    """Rows, values and state, by blocks."""
    length, changed = _block_rows(lane), part["changed"]
    for first in range(0, len(changed), length):
        last = min(first + length, len(changed))
        weights, state = (
            array.read(first, last) if isinstance(array, Stored) else array[first:last]
            for array in (part["weights"], part["state"])
        )
        yield changed[first:last], weights, state


def _check(lane: Lane, part: Part) -> None:
    group = lane.group.whole
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


def _load_lane(lane: Lane, part: Part) -> None:
    planner = lane.planner
    planner.slots.empty()
    if planner.skipper is not None:
        planner.skipper.forget()
    lane.device.forget_watched()
    _forget_records(planner.tracker.records)
    for rows, weights, state in _saved_blocks(lane, part):
        rows, weights, state = own_rows(lane.group, rows, weights, state)
        lane.host.write(rows, weights, state)
        planner.tracker.codes[rows] = ON_HOST
    seen, *records = own_rows(lane.group, part["seen"], *(part[name] for name in RECORDS))
    for name, values in zip(RECORDS, records, strict=True):
        planner.tracker.records[name][seen] = values


def _forget_records(records: NDArray[Any]) -> None:
    """Zero, written only where something else stands: pages that nobody has written take no memory, and stay so."""
    for first in range(0, len(records), 1 << 18):
        part = records[first : first + (1 << 18)]
        if part.view(np.int64).any():
            part[:] = np.zeros((), records.dtype)
