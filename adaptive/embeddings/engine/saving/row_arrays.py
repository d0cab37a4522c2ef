"""Rows as flat arrays, for checkpoints: only rows that ever changed, wherever they lie, with state and records.

Arrays of group g are named `rows<g>.<what>`; `adaptive.embeddings.engine.saving.saved_arrays` says what each must be.
Rows that never changed are not stored: their initial values follow from the tables' names, the seed, the bounds of
initial values and the first optimizer state, which are stored and compared. Waiting gradients are applied to the
values, so they can be used as they are.

There is one way to save: `save_parts` gives the rows that this rank owns, which for a process alone are all rows. A
checkpoint writes them as a shard; `save_rows` puts those of all ranks together in memory. Both are read alike. Values
and state may take more than there is memory, so they are read and loaded block by block.

What is known of watched rows is saved, too: `adaptive.embeddings.engine.saving.watched`.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.lane import RECORDS, Lane
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.saving.gathering import RowOrder, gatherer_of, in_memory, select_owned
from adaptive.embeddings.engine.saving.saved_arrays import (
    check_arrays,
    check_tables,
    expected_progress,
    expected_rows,
    expected_tables,
    table_arrays,
)
from adaptive.embeddings.engine.saving.watched import load_watched, own_watched, save_watched, watched_part
from adaptive.embeddings.planning.layout import Group
from adaptive.errors import ConfigError
from adaptive.kernels.rows.cpu import initial
from adaptive.storage.arrays import Blocks, Stored, whole
from adaptive.storage.shards import Part

Arrays = dict[str, NDArray[Any]]
GroupArrays = dict[str, Any]  # of one group: arrays; values and state may be `Stored`
Floats = NDArray[np.float32]
Int64s = NDArray[np.int64]
BLOCK_BYTES: Final = 8 << 20  # of values and state that are in memory at once


def save_rows(pipeline: Pipeline) -> Arrays:
    """The arrays of all groups, of the rows of all ranks. Call it between two batches of a look-ahead, or with none
    running.

    While one is running, watched rows are left out: their books are ahead of training.
    """
    return in_memory(save_parts(pipeline), gatherer_of(pipeline))


def save_parts(pipeline: Pipeline) -> dict[str, NDArray[Any] | Part]:
    """What a checkpoint is given of rows: those that this rank owns. Values and state are `Blocks`, which are read when
    they are written, once each: train nothing in between. Of rows 8 MiB are in memory at once."""
    saved: dict[str, NDArray[Any] | Part] = {
        "next_batch": np.array([pipeline.trained + 1], np.int64),
        "rate": np.array([pipeline.rate], np.float64),
    }
    with pipeline.lock:
        for number, lane in enumerate(pipeline.lanes):
            saved |= _save_lane(pipeline, lane, f"rows{number}.")
            if not pipeline.running:
                saved |= save_watched(pipeline, lane, f"rows{number}.")
    return saved


def _save_lane(pipeline: Pipeline, lane: Lane, prefix: str) -> dict[str, NDArray[Any] | Part]:
    """The caller holds the lock."""
    group, changed = lane.group, lane.changed_rows()
    seen, records = lane.records()
    order = RowOrder(group, group.group_rows(changed))
    values = _in_blocks(pipeline, lane, changed[order.order])
    return {
        **{prefix + name: value for name, value in table_arrays(lane).items()},
        **order.parts(prefix, "changed", {}),
        **{prefix + name: order.part(blocks, prefix + "changed") for name, blocks in values.items()},
        **RowOrder(group, group.group_rows(seen)).parts(prefix, "seen", records),
    }


def _in_blocks(pipeline: Pipeline, lane: Lane, rows: Int64s) -> dict[str, Blocks]:
    """Values and state of owned rows (n,)."""
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


def load_rows(
    pipeline: Pipeline,
    arrays: Mapping[str, NDArray[Any] | Stored],
    *,
    grow: bool = False,
    last: Mapping[str, int] | None = None,
) -> None:
    """Restore what `save_rows` gave, or a checkpoint of `save_parts`; see `RowStore.load_state_arrays`.

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
        pipeline.notifier.restart()
        for lane, part, kept in zip(pipeline.lanes, parts, watched, strict=True):
            _load_lane(lane, part)
            load_watched(lane, kept)
        pipeline.restart(int(whole(arrays["next_batch"])[0]))
        if "rate" in arrays:  # what waits is applied by it, until there is another step
            pipeline.use_rate(float(whole(arrays["rate"])[0]))


def _has_changed(lane: Lane, part: GroupArrays) -> NDArray[np.bool_]:
    """(n,) of the saved rows those that differ from what they were at first in the saved tables. The others were
    on the device, or were to be trained, when they were saved; which depends on placement and look-ahead."""
    differs = [np.zeros(0, np.bool_)]
    for rows, weights, state in _saved_blocks(lane, part):
        first, first_state, places = np.empty_like(weights), np.empty_like(state), np.arange(len(rows))
        tables = (part["table_starts"], part["table_keys"], part["table_bounds"])
        initial.initial_rows(first, first_state, places, rows, *tables, lane.host.first_state)
        differs.append((first != weights).any(axis=1) | (first_state != state).any(axis=1))
    return np.concatenate(differs)


def _renumber(group: Group, part: GroupArrays, watched: Arrays, last: Mapping[str, int]) -> None:
    """Give the rows of smaller tables their numbers in these: they keep their ids, but for those that `last` says."""
    old, new = part["table_starts"], group.table_starts
    moved, more = new[:-1] - old[:-1], np.diff(new) - np.diff(old)
    tail = old[1:] - np.array([last.get(table.name, 0) for table in group.tables])
    for arrays, name in ((part, "changed"), (part, "seen"), (watched, "row"), (watched, "summed")):
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
            _overwrite_lane(lane, part)
        pipeline.finish_copies()


def _overwrite_lane(lane: Lane, part: GroupArrays) -> None:
    for rows, weights, state in _saved_blocks(lane, part):
        lane.put(*select_owned(lane.group, rows, weights, state))
    lane.device.forget_watched()  # what waits is in the new values; snapshots are of the old ones


def _checked_parts(
    pipeline: Pipeline, arrays: Mapping[str, NDArray[Any] | Stored], *, grow: bool = False
) -> list[GroupArrays]:
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


def _saved_blocks(lane: Lane, part: GroupArrays) -> Iterator[tuple[Int64s, Floats, Floats]]:
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


def _load_lane(lane: Lane, part: GroupArrays) -> None:
    lane.clear()
    for rows, weights, state in _saved_blocks(lane, part):
        rows, weights, state = select_owned(lane.group, rows, weights, state)
        lane.put_on_host(rows, weights, state)
    seen, *records = select_owned(lane.group, part["seen"], *(part[name] for name in RECORDS))
    lane.restore_records(seen, dict(zip(RECORDS, records, strict=True)))
