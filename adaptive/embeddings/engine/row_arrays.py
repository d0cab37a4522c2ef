"""Rows as flat arrays for checkpoints: all rows that ever changed, from both tiers.

Arrays of group g are named `rows<g>.<name>`; `adaptive.embeddings.engine.saved_arrays` specifies each of them.
Rows that never changed are not stored. Their initial values follow from the tables' names, the seed, the bounds of
initial values and the first optimizer state, which are stored and compared. Accumulated updates (deferred) are applied
to the saved values, so the values can be used as they are.

Values and state may be larger than memory: `save_blocks` leaves them to be read block by block while a checkpoint is
written, and they are loaded block by block. `save_rows` has them in memory. Hot rows are saved by
`adaptive.embeddings.engine.saved_arrays`.
"""

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Bools, Int64s, Rows
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.saved_arrays import (
    EXPECTED_PROGRESS,
    by_entry,
    check_arrays,
    check_hot_rows,
    check_keys,
    check_tables,
    copy_table_arrays,
    expected_rows,
    expected_tables,
    load_hot_rows,
    load_keys,
    save_hot_rows,
    save_keys,
)
from adaptive.embeddings.engine.tiered_group import NORMS, TieredGroup
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.sizing import row_bytes
from adaptive.kernels.rows.cpu import initial
from adaptive.storage.arrays import Blocks, Stored, whole

logger = logging.getLogger("adaptive.embeddings.engine")

Arrays = dict[str, NDArray[Any]]
GroupArrays = dict[str, Any]  # of one group: arrays; values and state may be `Stored`
BLOCK_BYTES: Final = 8 << 20  # of values and state that are in memory at once


def save_rows(pipeline: Pipeline) -> Arrays:
    """Return the arrays of all groups.

    Call it between two batches of a look-ahead, or without one. During a look-ahead, the arrays do not contain the
    hot rows, because their records are ahead of training.
    """
    return {name: a.whole() if isinstance(a, Blocks) else a for name, a in save_blocks(pipeline).items()}


def save_blocks(pipeline: Pipeline) -> dict[str, NDArray[Any] | Blocks]:
    """Return the arrays for a checkpoint.

    Values and state are `Blocks`, which are read once, 8 MiB at a time, when they are written. Train nothing before.
    """
    saved: dict[str, NDArray[Any] | Blocks] = {
        "next_batch": np.array([pipeline.next_to_update], np.int64),
        "rate": np.array([pipeline.rate], np.float64),
    }
    pipeline.refuse_keys_in_flight("state_arrays()")
    with pipeline.lock:
        for number, tiered in enumerate(pipeline.tiered_groups):
            saved |= _save_group(pipeline, tiered, f"rows{number}.")
            if not pipeline.running:
                saved |= save_hot_rows(pipeline, tiered, f"rows{number}.")
    return saved


def _save_group(pipeline: Pipeline, tiered: TieredGroup, prefix: str) -> dict[str, NDArray[Any] | Blocks]:
    """The caller holds the lock."""
    changed, (seen, records) = tiered.changed_rows(), tiered.records()
    rows: dict[str, NDArray[Any] | Blocks] = {"changed": changed, "seen": seen}
    rows |= copy_table_arrays(tiered) | _make_blocks(pipeline, tiered, changed) | records
    return {prefix + name: value for name, value in rows.items()} | save_keys(tiered, prefix, pipeline.trained + 1)


def _make_blocks(pipeline: Pipeline, tiered: TieredGroup, rows: Int64s) -> dict[str, Blocks]:
    """Return values and state of rows (n,), to be read later."""
    host, read = tiered.host, partial(_read_blocks, pipeline, tiered, rows)
    return {
        "weights": Blocks(host.dtype, (len(rows), host.weights.shape[1]), partial(read, 0)),
        "state": Blocks(np.dtype(np.float32), (len(rows), host.state.shape[1]), partial(read, 1)),
    }


def _read_blocks(pipeline: Pipeline, tiered: TieredGroup, rows: Int64s, column: int) -> Iterator[Rows]:
    """Yield the weights (column 0) or the state (column 1) of rows (n,) in blocks."""
    length = _count_block_rows(tiered)
    for first in range(0, len(rows), length):
        with pipeline.lock:
            block = pipeline.values(tiered, rows[first : first + length])[column]
        yield block


def _count_block_rows(tiered: TieredGroup) -> int:
    """Return the number of rows in a block."""
    return max(1, BLOCK_BYTES // row_bytes(tiered.group, tiered.host.optimizer))


def load_rows(
    pipeline: Pipeline,
    arrays: Mapping[str, NDArray[Any] | Stored],
    *,
    grow: bool = False,
    last: Mapping[str, int] | None = None,
) -> None:
    """Load the result of `save_rows` or `save_blocks`; see `RowStore.load_state_arrays`."""
    pipeline.refuse_while_running("load_state_arrays()")
    parts = _check_parts(pipeline, arrays, grow=grow)
    hot_rows = [check_hot_rows(tiered, arrays, f"rows{n}.") for n, tiered in enumerate(pipeline.tiered_groups)]
    if grow:
        for tiered, part, of_group in zip(pipeline.tiered_groups, parts, hot_rows, strict=True):
            part["has_changed"] = _has_changed(tiered, part)
            _renumber(tiered.group, part, of_group, last or {})
    hot_rows = list(map(by_entry, hot_rows))
    # All checks are above: nothing has changed so far, and nothing below can be refused. Every row is replaced, so this
    # repairs tables that an exception has left half changed, also those that an interrupted load has.
    with pipeline.lock.held, pipeline.lock.changing("rows were loaded"):
        pipeline.notifier.restart()
        for tiered, part, of_group in zip(pipeline.tiered_groups, parts, hot_rows, strict=True):
            _load_group(tiered, part)
            load_keys(tiered, part)
            load_hot_rows(tiered, of_group)
        pipeline.restart(int(whole(arrays["next_batch"])[0]))
        if "rate" in arrays:  # accumulated updates are applied with it before the next step
            pipeline.use_rate(float(whole(arrays["rate"])[0]))
    pipeline.lock.mark_repaired()
    wanted = [tiered.planner.tracker.update_norm is not None for tiered in pipeline.tiered_groups]
    if any(is_wanted and NORMS not in part for is_wanted, part in zip(wanted, parts, strict=True)):
        logger.warning(
            "batch %d: the checkpoint has no update norms, because its policy evicts rows without them; "
            "RowStats.update_norm is summed from here on",
            pipeline.next_number,
        )


def _has_changed(tiered: TieredGroup, part: GroupArrays) -> Bools:
    """Return which saved rows (n,) differ from their initial values in the saved tables.

    The others were saved because they were on the device or in flight, which depends on placement and look-ahead.
    """
    differs = [np.zeros(0, np.bool_)]
    tables = (part["table_starts"], part["table_keys"], part["table_bounds"])
    if tiered.keys is not None:
        row_keys = np.zeros(tiered.group.num_rows, np.int64)
        row_keys[part["keyed"]] = part["keys"]
    for rows, weights, state in _read_saved_blocks(tiered, part):
        first, first_state, places = np.empty_like(weights), np.empty_like(state), np.arange(len(rows))
        if tiered.keys is None:
            initial.initial_rows(first, first_state, places, rows, *tables, tiered.host.first_state)
        else:
            by_key = rows, row_keys[rows], *tables, tiered.host.first_state
            initial.initial_rows_by_key(first, first_state, places, *by_key)
        differs.append((first != weights).any(axis=1) | (first_state != state).any(axis=1))
    return np.concatenate(differs)


def _renumber(group: Group, part: GroupArrays, hot_rows: Arrays, last: Mapping[str, int]) -> None:
    """Renumber rows of smaller tables in place; ids stay the same, except for `last` rows."""
    old, new = part["table_starts"], group.table_starts
    moved, more = new[:-1] - old[:-1], np.diff(new) - np.diff(old)
    tail = old[1:] - np.array([last.get(table.name, 0) for table in group.tables])
    for arrays, name in ((part, "changed"), (part, "seen"), (hot_rows, "row"), (hot_rows, "summed")):
        if name in arrays:
            tables = np.searchsorted(old, arrays[name], side="right") - 1
            arrays[name] = arrays[name] + moved[tables] + np.where(arrays[name] >= tail[tables], more[tables], 0)


def _check_parts(
    pipeline: Pipeline, arrays: Mapping[str, NDArray[Any] | Stored], *, grow: bool = False
) -> list[GroupArrays]:
    """Check all arrays but those of hot rows; return them by group.

    Raises:
        CheckpointError: if an array is missing or invalid.
    """
    progress = {name: array for name, array in EXPECTED_PROGRESS.items() if name == "next_batch" or name in arrays}
    check_arrays(arrays, progress)
    parts = []
    for number, tiered in enumerate(pipeline.tiered_groups):
        prefix = f"rows{number}."
        part = {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
        tables = expected_tables(tiered.group)
        check_arrays(part, tables, prefix)
        part |= {name: whole(part[name]) for name in tables}
        rows = expected_rows(tiered, part)
        check_arrays(part, rows, prefix)
        check_tables(tiered.group, part, tiered.host.first_state, grow=grow)
        part = {n: _make_contiguous(part[n], in_file=n in ("weights", "state")) for n in (*tables, *rows)}
        part.update(check_keys(tiered, arrays, prefix))
        parts.append(part)
    return parts


def _make_contiguous(array: NDArray[Any] | Stored, *, in_file: bool = False) -> NDArray[Any] | Stored:
    """Return the array in memory, contiguous; with `in_file`, leave it in its file."""
    return array if in_file and isinstance(array, Stored) else np.ascontiguousarray(whole(array))


def _read_saved_blocks(tiered: TieredGroup, part: GroupArrays) -> Iterator[tuple[Int64s, Rows, Rows]]:
    """Yield saved rows with values and state, in blocks."""
    length, changed = _count_block_rows(tiered), part["changed"]
    for first in range(0, len(changed), length):
        last = min(first + length, len(changed))
        weights, state = (
            array.read(first, last) if isinstance(array, Stored) else array[first:last]
            for array in (part["weights"], part["state"])
        )
        has_changed = part.get("has_changed")
        selected = slice(None) if has_changed is None else has_changed[first:last]
        yield changed[first:last][selected], weights[selected], state[selected]


def _load_group(tiered: TieredGroup, part: GroupArrays) -> None:
    tiered.clear()
    for rows, weights, state in _read_saved_blocks(tiered, part):
        tiered.put_on_host(rows, weights, state)
    tiered.restore_records(
        part["seen"], {name: part[name] for name in ("accesses", "last_access", NORMS) if name in part}
    )
