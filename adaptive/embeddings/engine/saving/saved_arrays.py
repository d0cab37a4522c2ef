"""Type and shape of every saved array of rows, which are checked before any use.

A load changes nothing unless all arrays of all groups pass, so the code that uses them afterwards
(`adaptive.embeddings.engine.saving`) checks nothing. Numbers of rows are also checked, because kernels write there.

Letters: D width, S state width, n rows with values, m rows with records, w hot rows, s sums of deferred updates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.tiered_group import NORMS, TieredGroup
from adaptive.embeddings.planning.hot_set import ENTRY
from adaptive.embeddings.planning.layout import Group
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
    expected["entry"] = Expected(np.dtype(np.int32), (w,))
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
