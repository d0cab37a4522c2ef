"""Specification of every saved array of rows, which is checked before any use.

A load changes nothing unless all arrays of all groups pass, so the code that uses them afterwards
(`adaptive.embeddings.engine.saving`) checks nothing.

Letters: D width, S state width, n rows with values, m rows with records, w watched rows, s sums of deferred updates.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.lane import NORMS, Lane
from adaptive.embeddings.planning.hot_set import ENTRY
from adaptive.embeddings.planning.layout import Group
from adaptive.errors import CheckpointError
from adaptive.kernels.planning.books import MOST_BATCHES
from adaptive.kernels.vector.bfloat16 import as_float32
from adaptive.storage.arrays import Stored, whole

Array = NDArray[Any]
MOST_SUMMED: Final = 255  # gradients: the largest `at_most` of a skip rule
BLOCK_BYTES: Final = 8 << 20  # of an array in a file that are in memory at once
HINT: Final = "The checkpoint was changed or damaged, or another version saved it: load another checkpoint."


@dataclass(frozen=True)
class Expected:
    """Specification of one array.

    Attributes:
        least, most: bounds of its values, possibly one for each column (columns,); None for no bound.
        nan: True if floats need not be finite.
        whole: number of last columns that contain whole numbers.
        order: of the values of a vector.
        as_float32: converts blocks that are stored in another form than float32; None for all others.
        hint: last sentence of messages, which says how to fix it.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    least: float | Array | None = None
    most: float | Array | None = None
    nan: bool = False
    whole: int = 0
    order: Literal["any", "ascending"] = "any"
    hint: str = HINT
    as_float32: Callable[[Array], Array] | None = None


EXPECTED_PROGRESS: Final = {
    "next_batch": Expected(np.dtype(np.int64), (1,), 0, MOST_BATCHES),
    "rate": Expected(np.dtype(np.float64), (1,), 0),
}


def expected_tables(group: Group) -> dict[str, Expected]:
    """Return the arrays that identify the tables and initial values of a group."""
    tables = len(group.tables)
    return {
        "table_starts": Expected(np.dtype(np.int64), (tables + 1,), 0, order="ascending"),
        "table_keys": Expected(np.dtype(np.uint64), (tables,)),
        "table_bounds": Expected(np.dtype(np.float32), (tables,), 0),
        "first_state": Expected(np.dtype(np.float32), (1,)),
    }


def copy_table_arrays(lane: Lane) -> dict[str, Array]:
    """Return the saved form of `expected_tables`, as copies."""
    group = lane.group.undivided
    return {
        "table_starts": group.table_starts.copy(),
        "table_keys": group.table_keys.copy(),
        "table_bounds": group.table_bounds.copy(),
        "first_state": np.array([lane.host.first_state], np.float32),
    }


def expected_rows(lane: Lane, part: Mapping[str, Any]) -> dict[str, Expected]:
    """Return the arrays of a group's rows; `table_starts` of `part` must be checked."""
    floats, last = np.dtype(np.float32), int(part["table_starts"][-1]) - 1
    n, m = _length(part["changed"]), _length(part["seen"])
    rows = Expected(np.dtype(np.int64), (n,), 0, last, order="ascending")
    expected = {
        "changed": rows,
        "weights": _expected_values(lane, n),
        "state": _expected_state(lane, n),
        "seen": Expected(np.dtype(np.int64), (m,), 0, last, order="ascending"),
        "accesses": Expected(np.dtype(np.uint32), (m,), 1),
        "last_access": Expected(np.dtype(np.int32), (m,), 0, MOST_BATCHES),
    }
    return expected | ({NORMS: Expected(floats, (m,), 0)} if NORMS in part else {})


def expected_watched(lane: Lane, part: Mapping[str, Any], last_row: int) -> dict[str, Expected]:
    """Return the arrays of a group's watched rows that `part` contains."""
    floats, w = np.dtype(np.float32), _length(part["row"])
    width = lane.host.weights.shape[1]
    expected = {name: Expected(ENTRY[name], (w,)) for name in ENTRY.names or ()}
    expected["interval"] = Expected(np.dtype(np.int64), (1,), 1)
    expected["row"] = Expected(np.dtype(np.int64), (w,), 0, last_row, order="ascending")
    expected["entry"] = Expected(np.dtype(np.int32), (w,), 0)
    expected["epoch"] = Expected(ENTRY["epoch"], (w,), -1)
    expected["drift"] = Expected(floats, (w,), 0, nan=True)
    expected["counted"] = Expected(ENTRY["counted"], (w,), 0, 31)
    expected["snapshots"] = expected["sample"] = Expected(floats, (w, width), nan=True)
    if "summed" in part:
        s = _length(part["summed"])
        expected |= {name: Expected(np.dtype(np.uint32), (w,)) for name in ("visits", "waiting")}
        expected["summed"] = Expected(np.dtype(np.int64), (s,), 0, last_row, order="ascending")
        expected["sums"], expected["raw_values"] = Expected(floats, (s, width)), _expected_values(lane, s)
        expected["squares"] = _expected_squares(lane, s)
        expected["raw_states"] = _expected_state(lane, s)
    return {name: array for name, array in expected.items() if name in part}


def _expected_values(lane: Lane, rows: int) -> Expected:
    dtype, shape = lane.host.dtype, (rows, lane.group.embedding_dim)
    hint = "Use the dtype of the tables that were saved (TableConfig.dtype, model.row_dtype)."
    return Expected(dtype, shape, hint=hint, as_float32=as_float32)


def _expected_state(lane: Lane, rows: int) -> Expected:
    hint = "Use the row optimizer that trained these tables, and its state_dtype."
    optimizer, shape = lane.host.optimizer, (rows, lane.host.state.shape[1])
    least = optimizer.least_state(lane.group.embedding_dim)
    return Expected(
        lane.host.state_dtype, shape, least, whole=optimizer.counts, hint=hint, as_float32=optimizer.as_float32
    )


def _expected_squares(lane: Lane, sums: int) -> Expected:
    """Return the squares of sums; with counting optimizers, the last column counts them."""
    width, counts = lane.device.squares_width, lane.host.optimizer.counts
    least, most = np.zeros(width, np.float32), np.full(width, np.inf, np.float32)
    if counts:
        least[-counts:], most[-counts:] = 1, MOST_SUMMED
    return Expected(np.dtype(np.float32), (sums, width), least, most, whole=counts)


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
    """Compare arrays with their specification; arrays in files are read block by block.

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
    if array.dtype != expected.dtype or tuple(array.shape) != expected.shape:
        raise _wrong_array_error(name, expected, f"{array.dtype} {tuple(array.shape)}")
    last_value = None
    for block in _read_blocks(array):
        if (wrong := _find_wrong_value(block, expected)) is not None:
            raise _wrong_array_error(name, expected, wrong)
        if expected.order == "ascending" and len(block):
            if not (np.diff(block) > 0).all() or (last_value is not None and block[0] <= last_value):
                raise _wrong_array_error(name, expected, "values that are not in ascending order")
            last_value = block[-1]


def _read_blocks(array: Array | Stored) -> Iterator[Array]:
    """Yield the array in blocks of at most 8 MiB."""
    if not array.shape:
        yield whole(array).reshape(1)
        return
    row = max(1, int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize)
    length = max(1, BLOCK_BYTES // row)
    for first in range(0, array.shape[0], length):
        last = min(first + length, array.shape[0])
        yield array.read(first, last) if isinstance(array, Stored) else array[first:last]


def _find_wrong_value(block: Array, expected: Expected) -> str | None:
    """Return the first invalid value as text; None if there is none."""
    if block.dtype == np.bool_:
        bad = np.ascontiguousarray(block).view(np.uint8) > 1  # a damaged file may contain any byte
        return "a byte that is neither 0 nor 1" if bad.any() else None
    block = block if expected.as_float32 is None else expected.as_float32(block)
    is_float = block.dtype.kind == "f"
    if is_float and not expected.nan and not np.isfinite(block).all():
        return str(block[~np.isfinite(block)][0])
    outside = np.zeros(block.shape, np.bool_)
    if expected.least is not None:
        outside |= block < expected.least
    if expected.most is not None:
        outside |= block > expected.most
    if expected.whole:
        outside[:, -expected.whole :] |= block[:, -expected.whole :] % 1 != 0
    return str(block[outside][0]) if outside.any() else None


def _wrong_array_error(name: str, expected: Expected, got: str) -> CheckpointError:
    limits = "" if expected.order == "any" else f", {expected.order}"
    bounds = [("from", expected.least), ("to", expected.most)]
    if texts := [f"{word} {bound:,}" for word, bound in bounds if isinstance(bound, int | float)]:
        limits += f", {' '.join(texts)}"
    if expected.dtype.kind == "f" and not expected.nan:
        limits += ", finite"
    return CheckpointError(
        f"checkpoint array {name}: expected {expected.dtype} {expected.shape}{limits}, got {got}. {expected.hint}"
    )
