"""Arrays of a checkpoint: type and shape of those of rows, and those of keys and hot rows.

All arrays are checked before any use: a load changes nothing unless those of all groups pass. Numbers of rows are
checked, too, because kernels write there. Names are those of group g without their prefix `rows<g>.`.

Keys: `keyed`, `keys` and `key_access`, and of table t `keys<t>.<name>`. The index is not saved: it is built again. Of
the sketch, blocks that are not zero are saved.

Hot rows: update sizes, answers of the skip rule, and accumulated updates (deferred). Tables with the same `skip`
settings restore all of it, and training continues as it would have. Other tables ignore these arrays:

    hot.interval (1,) of `SkipConfig`                  hot.row (w,), hot.<column> (w,) of the hot set's entries
                                                       hot.order (w,) their order in the hot set

    if updates are deferred, of the s rows with an accumulated sum:
    hot.summed (s,) these rows, ascending              hot.raw_values (s, D), hot.raw_states (s, T): without
    hot.sums (s, D), hot.squares (s, S)                the sum

Letters: D width, S state width, n rows with values, m rows with records, w hot rows, s sums of deferred updates. Of
keys: n rows with keys, f freed rows, s sweeps that are remembered, b blocks of the sketch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.tiered_group import NORMS, TieredGroup
from adaptive.embeddings.planning.key_tables import CELL_BLOCK
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.skipping import COLUMNS, ENTRY, Skipper
from adaptive.embeddings.tiers.device import HotSums
from adaptive.errors import CheckpointError
from adaptive.storage.arrays import Stored, whole

Array = NDArray[Any]
HINT: Final = "Another version saved it, or it was changed: load another checkpoint."


@dataclass(frozen=True)
class Expected:
    """Specification of one array.

    Attributes:
        last_row: of an array of ascending row numbers, the largest that is possible.
        hint: last sentence of messages, which says how to fix it.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    last_row: int | None = None
    hint: str = HINT


EXPECTED_PROGRESS: Final = {
    "next_batch": Expected(np.dtype(np.int64), (1,)),
    "rate": Expected(np.dtype(np.float64), (1,)),
}


def expected_tables(group: Group) -> dict[str, Expected]:
    """Return the arrays that identify the tables and initial values of a group."""
    tables = len(group.tables)
    return {
        "table_starts": Expected(np.dtype(np.int64), (tables + 1,)),
        "table_keys": Expected(np.dtype(np.uint64), (tables,)),
        "table_bounds": Expected(np.dtype(np.float32), (tables,)),
        "first_state": Expected(np.dtype(np.float32), (1,)),
    }


def copy_table_arrays(tiered: TieredGroup) -> dict[str, Array]:
    """Return the saved form of `expected_tables`, as copies."""
    group = tiered.group
    return {
        "table_starts": group.table_starts.copy(),
        "table_keys": group.table_keys.copy(),
        "table_bounds": group.table_bounds.copy(),
        "first_state": np.array([tiered.host.first_state], np.float32),
    }


def expected_rows(tiered: TieredGroup, part: Mapping[str, Any]) -> dict[str, Expected]:
    """Return the arrays of a group's rows; `table_starts` of `part` must be checked."""
    floats, last = np.dtype(np.float32), int(part["table_starts"][-1]) - 1
    n, m = _length(part["changed"]), _length(part["seen"])
    expected = {
        "changed": Expected(np.dtype(np.int64), (n,), last),
        "weights": _expected_values(tiered, n),
        "state": _expected_state(tiered, n),
        "seen": Expected(np.dtype(np.int64), (m,), last),
        "accesses": Expected(np.dtype(np.uint32), (m,)),
        "last_access": Expected(np.dtype(np.int32), (m,)),
    }
    return expected | ({NORMS: Expected(floats, (m,))} if NORMS in part else {})


def expected_hot_rows(tiered: TieredGroup, part: Mapping[str, Any], last_row: int) -> dict[str, Expected]:
    """Return the arrays of a group's hot rows that `part` contains."""
    w = _length(part["row"])
    width = tiered.host.weights.shape[1]
    expected = {name: Expected(ENTRY[name], (w,)) for name in ENTRY.names or ()}
    expected["interval"] = Expected(np.dtype(np.int64), (1,))
    expected["row"] = Expected(np.dtype(np.int64), (w,), last_row)
    expected["order"] = Expected(np.dtype(np.int32), (w,))
    if "summed" in part:
        s, floats = _length(part["summed"]), np.dtype(np.float32)
        expected["summed"] = Expected(np.dtype(np.int64), (s,), last_row)
        expected["sums"], expected["raw_values"] = Expected(floats, (s, width)), _expected_values(tiered, s)
        expected["squares"] = Expected(floats, (s, tiered.device.squares_width))
        expected["raw_states"] = _expected_state(tiered, s)
    return {name: array for name, array in expected.items() if name in part}


def _expected_values(tiered: TieredGroup, rows: int) -> Expected:
    hint = "Use the dtype of the tables that were saved (TableConfig.dtype, model.row_dtype)."
    return Expected(tiered.host.dtype, (rows, tiered.group.embedding_dim), hint=hint)


def _expected_state(tiered: TieredGroup, rows: int) -> Expected:
    hint = "Use the row optimizer that trained these tables."
    return Expected(np.dtype(np.float32), (rows, tiered.host.state.shape[1]), hint=hint)


def _length(array: Array | Stored) -> int:
    """Return the length of an array that should be a vector."""
    return array.shape[0] if array.shape else 0


def check_tables(group: Group, part: Mapping[str, Any], first_state: np.float32, *, grow: bool) -> None:
    """Compare a group's tables with saved ones; with `grow`, they may be larger.

    Raises:
        CheckpointError: for other tables, or if rows that were never trained would have other initial values.
    """
    needed, got = group.table_sizes, np.diff(part["table_starts"])
    if (got > needed).any() or (not grow and (got != needed).any()):
        raise CheckpointError(
            f"expected tables of {needed.tolist()} rows, got a checkpoint of {got.tolist()}. For tables that have "
            "grown, call load_state_arrays(arrays, grow=True)."
        )
    if not np.array_equal(part["table_keys"], group.table_keys):
        raise CheckpointError(
            "expected rows of these tables and this seed, got a checkpoint of another seed or other table names. Use "
            "the same seed and names, because initial values follow from them."
        )
    for table, bound, saved in zip(group.tables, group.table_bounds, part["table_bounds"], strict=True):
        place = group.tables.index(table)
        by_size = got[place] < needed[place] and (saved, bound) == tuple(
            np.float32(size**-0.5) for size in (int(got[place]), int(needed[place]))
        )
        if bound != saved and not by_size:
            raise CheckpointError(
                f"table {table.name!r}: expected initial values within {bound!s}, got a checkpoint with initial values "
                f"within {saved!s}. Set init_bound={saved!s}, or rows that were never trained would change."
            )
    if part["first_state"][0] != first_state:
        raise CheckpointError(
            f"expected initial optimizer state {first_state!s}, got a checkpoint with {part['first_state'][0]!s}. Set "
            "initial_accumulator to that value, or rows that were never trained would change."
        )


def check_arrays(arrays: Mapping[str, Any], expected: Mapping[str, Expected], prefix: str = "") -> None:
    """Compare arrays with their specification.

    Raises:
        CheckpointError: if an array is missing or does not conform.
    """
    for name, specification in expected.items():
        if name not in arrays:
            raise CheckpointError(f"checkpoint array {prefix}{name}: expected one, got none. {specification.hint}")
        _check(prefix + name, arrays[name], specification)


def _check(name: str, array: Any, expected: Expected) -> None:
    if not isinstance(array, np.ndarray | Stored):
        raise CheckpointError(
            f"checkpoint array {name}: expected a numpy array, got {type(array).__name__}. Pass the arrays that "
            "state_arrays() returned."
        )
    limits, got = "", f"{array.dtype} {tuple(array.shape)}"
    fits = array.dtype == expected.dtype and tuple(array.shape) == expected.shape
    if fits and expected.last_row is not None:
        rows, limits = whole(array), f" of ascending rows up to {expected.last_row:,}"
        fits = not len(rows) or bool(rows[0] >= 0 and rows[-1] <= expected.last_row and (rows[1:] > rows[:-1]).all())
        got = "other numbers"
    if not fits:
        raise CheckpointError(
            f"checkpoint array {name}: expected {expected.dtype} {expected.shape}{limits}, got {got}. {expected.hint}"
        )


Arrays = dict[str, NDArray[Any]]
OF_GROUP = ("keyed", "keys", "key_access")
OF_TABLE = ("freed", "used", "clock", "cell_blocks", "cells")


def save_keys(tiered: TieredGroup, prefix: str, next_batch: int) -> Arrays:
    """Return the arrays of a group's keys; none for a group without keys. The caller holds the lock."""
    if tiered.keys is None:
        return {}
    rows = tiered.keys.live_rows()
    # Lookups of batches that were planned and then dropped count as those of the latest trained batch.
    access = np.minimum(tiered.planner.slots.last_access(rows), np.int32(max(next_batch, 1)))
    saved: Arrays = dict(zip(OF_GROUP, (rows, tiered.keys.row_keys[rows], access), strict=True))
    for t, table in enumerate(tiered.keys.tables):
        saved |= {f"keys{t}.{name}": array for name, array in table.state().items()}
    return {prefix + name: array for name, array in saved.items()}


def check_keys(tiered: TieredGroup, arrays: Mapping[str, NDArray[Any] | Stored], prefix: str) -> Arrays:
    """Return the arrays of a group's keys without prefix; none for a group without keys.

    Raises:
        CheckpointError: if the arrays do not fit the tables, of which those of all rows are checked before.
    """
    if tiered.keys is None:
        if f"{prefix}keyed" in arrays:
            tables = ", ".join(table.name for table in tiered.group.tables)
            raise CheckpointError(
                f"tables {tables}: expected a checkpoint of tables without keys, got one with keys. Set the same keys."
            )
        return {}
    _check_capacities(tiered.group, np.diff(whole(arrays[f"{prefix}table_starts"])) - 1)
    names = [*OF_GROUP, *(f"keys{t}.{name}" for t in range(len(tiered.keys.tables)) for name in OF_TABLE)]
    missing = [name for name in names if prefix + name not in arrays]
    if missing:
        raise CheckpointError(f"checkpoint array {prefix}{missing[0]}: expected one for keys, got none. {HINT}")
    part = {name: whole(arrays[prefix + name]) for name in names}
    check_arrays(part, _expected(tiered, part))
    return part


def _check_capacities(group: Group, saved: NDArray[np.int64]) -> None:
    """Refuse larger tables: the sketch that counts keys has another size for each capacity."""
    for table, capacity in zip(group.tables, saved.tolist(), strict=True):
        if capacity != table.num_embeddings:
            raise CheckpointError(
                f"table {table.name!r}: expected a checkpoint with a capacity of {table.num_embeddings} keys, got one "
                f"of {capacity}. Set num_embeddings={capacity}."
            )


def _expected(tiered: TieredGroup, part: Arrays) -> dict[str, Expected]:
    assert tiered.keys is not None
    integers, n = np.dtype(np.int64), part["keyed"].size
    expected = {
        "keyed": Expected(integers, (n,), tiered.group.num_rows - 1),
        "keys": Expected(integers, (n,)),
        "key_access": Expected(np.dtype(np.int32), (n,)),
    }
    for t in range(len(tiered.keys.tables)):
        f, s, b = (len(np.atleast_1d(part[f"keys{t}.{name}"])) for name in ("freed", "clock", "cell_blocks"))
        of_table = (
            Expected(integers, (f,)),
            Expected(integers, (2,)),
            Expected(np.dtype(np.float64), (s, 2)),
            Expected(integers, (b,)),
            Expected(np.dtype(np.uint8), (b, CELL_BLOCK)),
        )
        expected |= {f"keys{t}.{name}": array for name, array in zip(OF_TABLE, of_table, strict=True)}
    return expected


def _of_table(group: Group, part: Arrays, t: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of a table that have keys, and these keys."""
    first, last = np.searchsorted(part["keyed"], group.table_starts[t : t + 2])
    return np.ascontiguousarray(part["keyed"][first:last]), np.ascontiguousarray(part["keys"][first:last])


def load_keys(tiered: TieredGroup, part: Arrays) -> None:
    """Restore the keys of a group that has just loaded its rows and records."""
    if tiered.keys is None:
        return
    tiered.keys.clear()
    for t, table in enumerate(tiered.keys.tables):
        state = {name: part[f"keys{t}.{name}"] for name in OF_TABLE}
        table.restore(*_of_table(tiered.group, part, t), state)
    tiered.planner.tracker.set_last_access(part["keyed"], part["key_access"])


HOT = "hot."
OF_SUMS = ("sums", "squares", "raw_values", "raw_states")  # columns of hot rows with an accumulated sum


def save_hot_rows(pipeline: Pipeline, tiered: TieredGroup, prefix: str) -> Arrays:
    """Return copies of the state of a group's hot rows. The caller holds the lock."""
    skipper = tiered.skipper
    if skipper is None:
        return {}
    prefix += HOT
    hot = skipper.hot
    columns, sums = hot.columns(), tiered.device.export_sums(hot.num_entries)
    rows = columns["row"]
    order = np.argsort(rows)
    columns["order"] = np.arange(len(rows), dtype=np.int32)
    saved = {name: np.array(column[order]) for name, column in columns.items()}
    saved["interval"] = np.array([hot.config.interval], np.int64)
    if skipper.defers:
        summed = rows[sums.entries]
        weights, state = pipeline.values(tiered, summed, with_deferred=False)
        order = np.argsort(summed)
        of_sums = zip(("summed", *OF_SUMS), (summed, sums.sums, sums.squares, weights, state), strict=True)
        saved |= {name: np.array(column[order]) for name, column in of_sums}
    return {prefix + name: array for name, array in saved.items()}


def check_hot_rows(tiered: TieredGroup, arrays: Mapping[str, NDArray[Any] | Stored], prefix: str) -> Arrays:
    """Return a group's arrays of hot rows; empty if they have other `skip` settings.

    Raises:
        CheckpointError: if the arrays are not valid for these tables.
    """
    prefix, skipper = prefix + HOT, tiered.skipper
    if skipper is None:
        return {}
    part = {name.removeprefix(prefix): whole(value) for name, value in arrays.items() if name.startswith(prefix)}
    if set(part) != _expected_names(skipper):
        return {}
    last_row = int(whole(arrays[prefix.removesuffix(HOT) + "table_starts"])[-1]) - 1
    check_arrays(part, expected_hot_rows(tiered, part, last_row), prefix)
    if part["interval"].tolist() != [skipper.hot.config.interval]:
        return {}
    rows, most = len(part["row"]), skipper.hot.capacity
    if rows > most:
        raise CheckpointError(
            f"skip.hot_rows: expected room for at least {rows} hot rows of width {tiered.group.embedding_dim}, got "
            f"{most}. Set it to its value in the run that saved this checkpoint."
        )
    return part


def _expected_names(skipper: Skipper) -> set[str]:
    names = {"interval", "order", *COLUMNS}
    if skipper.defers:
        names |= {"summed", *OF_SUMS}
    return names


def by_entry(part: Arrays) -> Arrays:
    """Return hot rows in the order of the hot set, `summed` by their entries in it."""
    if not part:
        return part
    order = np.lexsort((part["row"], part["order"]))
    one_each = {name: array for name, array in part.items() if name not in ("interval", "order", "summed", *OF_SUMS)}
    hot_rows = {name: column[order] for name, column in one_each.items()}
    if "summed" in part:
        by_row = np.argsort(hot_rows["row"])
        entries = by_row[np.searchsorted(hot_rows["row"], part["summed"], sorter=by_row)]
        order = np.argsort(entries)
        hot_rows |= {"summed": entries[order], **{name: part[name][order] for name in OF_SUMS}}
    return {name: np.ascontiguousarray(value) for name, value in hot_rows.items()}


def load_hot_rows(tiered: TieredGroup, part: Arrays) -> None:
    """Restore hot rows in a group that has just loaded its rows and has no hot ones."""
    if not part:
        return
    skipper = tiered.skipper
    assert skipper is not None
    skipper.restore(part)
    if skipper.defers:
        rows = part["row"][part["summed"]]
        tiered.put_on_host(rows, part["raw_values"], part["raw_states"])
        tiered.device.import_sums(HotSums(part["summed"], part["sums"], part["squares"]))
