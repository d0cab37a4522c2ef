"""Rows as flat arrays, for checkpoints: only rows that ever changed, wherever they lie, with state and records.

Arrays of group g are named `rows<g>.<what>`; `adaptive.embeddings.engine.saved_arrays` says what each must be. Rows
that never changed are not stored: their initial values follow from the tables' names, the seed, the bounds of initial
values and the first optimizer state, which are stored and compared. Waiting gradients are applied to the values, so
they can be used as they are.

Values and state may take more than there is memory: they are saved as `Blocks`, if asked for, and loaded from files
(`Stored`) or an array, block by block.

What is known of watched rows is saved, too: `adaptive.embeddings.engine.saving.watched`. Of several ranks each saves a
shard, `adaptive.embeddings.engine.saving.shards`; whoever loads shards is given the arrays of one process.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.pipeline import Lane, Pipeline
from adaptive.embeddings.engine.saved_arrays import (
    check_arrays,
    check_tables,
    expected_progress,
    expected_rows,
    expected_tables,
    table_arrays,
)
from adaptive.embeddings.engine.saving.gathering import Gatherer, select_owned
from adaptive.embeddings.engine.saving.shards import save_shard_lane, save_shard_watched
from adaptive.embeddings.engine.saving.shared import gatherer_of, own_watched, save_shared_lane, save_shared_watched
from adaptive.embeddings.engine.saving.watched import load_watched, save_watched, watched_part
from adaptive.embeddings.planning.layout import Group
from adaptive.errors import ConfigError
from adaptive.kernels.planning.books import ON_HOST
from adaptive.kernels.rows.cpu import initial
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
    changed = tracker.changed_rows()
    values = read(lane, changed)
    seen = tracker.seen_rows()
    records = {prefix + name: tracker.records[name][seen] for name in RECORDS}
    return {
        **{prefix + name: value for name, value in table_arrays(lane).items()},
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
    """Restore what `save_rows` or `save_blocks` gave; see `RowStore.load_state_arrays`.

    last: table -> how many of its last rows stay the last ones of a table that has grown.
    """
    if pipeline.running:
        raise ConfigError("rows cannot be loaded while a look-ahead is running; exhaust or close its iterator first")
    parts = _checked_parts(pipeline, arrays, grow=grow)
    watched = [watched_part(lane, arrays, f"rows{n}.") for n, lane in enumerate(pipeline.lanes)]
    if grow:
        for lane, part, kept in zip(pipeline.lanes, parts, watched, strict=True):
            part["has_changed"] = _has_changed(lane, part)
            _renumber(lane.group.undivided, part, kept, last or {})
    watched = [own_watched(lane.group, kept) for lane, kept in zip(pipeline.lanes, watched, strict=True)]
    with pipeline.lock:  # nothing was changed so far, and nothing below is refused
        pipeline.follower.restart()
        for lane, part, kept in zip(pipeline.lanes, parts, watched, strict=True):
            _load_lane(lane, part)
            load_watched(lane, kept)
        pipeline.restart(int(whole(arrays["next_batch"])[0]))
        if "rate" in arrays:  # what waits is applied by it, until there is another step
            pipeline.use_rate(float(whole(arrays["rate"])[0]))


def _has_changed(lane: Lane, part: Part) -> NDArray[np.bool_]:
    """(n,) of the saved rows those that differ from what they were at first in the saved tables. The others were
    on the device, or were to be trained, when they were saved; which depends on placement and look-ahead."""
    found = [np.zeros(0, np.bool_)]
    for rows, weights, state in _saved_blocks(lane, part):
        first, first_state, places = np.empty_like(weights), np.empty_like(state), np.arange(len(rows))
        tables = (part["table_starts"], part["table_keys"], part["table_bounds"])
        initial.initial_rows(first, first_state, places, rows, *tables, lane.host.first_state)
        found.append((first != weights).any(axis=1) | (first_state != state).any(axis=1))
    return np.concatenate(found)


def _renumber(group: Group, part: Part, watched: Arrays, last: Mapping[str, int]) -> None:
    """Give the rows of smaller tables their numbers in these: they keep their ids, but for those that `last` says."""
    old, new = part["table_starts"], group.table_starts
    moved, more = new[:-1] - old[:-1], np.diff(new) - np.diff(old)
    tail = old[1:] - np.array([last.get(table.name, 0) for table in group.tables])
    for arrays, name in ((part, "changed"), (part, "seen"), (watched, "row")):
        if name in arrays:
            tables = np.searchsorted(old, arrays[name], side="right") - 1
            arrays[name] = arrays[name] + moved[tables] + np.where(arrays[name] >= tail[tables], more[tables], 0)


def overwrite_rows(pipeline: Pipeline, arrays: Mapping[str, NDArray[Any] | Stored]) -> None:
    """Give rows other values; see `RowStore.overwrite`. For the training thread, between two steps."""
    parts = _checked_parts(pipeline, arrays)
    with pipeline.lock:
        pipeline.mover.catch_up()  # steps asked for so far come first
        pipeline.finish_copies()
        for lane, part in zip(pipeline.lanes, parts, strict=True):
            part["has_changed"] = _has_changed(lane, part)
            _overwrite_lane(pipeline, lane, part)
        pipeline.finish_copies()


def _overwrite_lane(pipeline: Pipeline, lane: Lane, part: Part) -> None:
    for rows, weights, state in _saved_blocks(lane, part):
        pipeline.put(lane, *select_owned(lane.group, rows, weights, state))
    lane.device.forget_watched()  # what waits is in the new values; snapshots are of the old ones


def _checked_parts(
    pipeline: Pipeline, arrays: Mapping[str, NDArray[Any] | Stored], *, grow: bool = False
) -> list[Part]:
    """The arrays of each group without watched rows, if all arrays are what they must be.

    Raises:
        CheckpointError: if one is not.
    """
    progress = expected_progress()
    check_arrays(arrays, {name: progress[name] for name in progress if name == "next_batch" or name in arrays})
    parts = []
    for number, lane in enumerate(pipeline.lanes):
        prefix = f"rows{number}."
        part = {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
        tables = expected_tables(lane.group.undivided)
        check_arrays(part, tables, prefix)
        part |= {name: whole(part[name]) for name in tables}
        rows = expected_rows(lane, part)
        check_arrays(part, rows, prefix)
        check_tables(lane.group.undivided, part, lane.host.first_state, grow=grow)
        parts.append({n: _for_kernels(part[n], in_file=n in ("weights", "state")) for n in (*tables, *rows)})
    return parts


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
        kept = part.get("has_changed")
        which = slice(None) if kept is None else kept[first:last]
        yield changed[first:last][which], weights[which], state[which]


def _load_lane(lane: Lane, part: Part) -> None:
    planner = lane.planner
    planner.slots.empty()
    if planner.skipper is not None:
        planner.skipper.forget()
    lane.device.forget_watched()
    planner.tracker.forget()
    for rows, weights, state in _saved_blocks(lane, part):
        rows, weights, state = select_owned(lane.group, rows, weights, state)
        lane.host.write(rows, weights, state)
        planner.tracker.codes[rows] = ON_HOST
    seen, *records = select_owned(lane.group, part["seen"], *(part[name] for name in RECORDS))
    for name, values in zip(RECORDS, records, strict=True):
        planner.tracker.records[name][seen] = values
