"""Keys of rows in checkpoints: which rows have which keys, freed rows, the sketch, and the clock.

Arrays of group g are named `rows<g>.keyed`, `rows<g>.keys` and `rows<g>.key_access`, those of its table t
`rows<g>.keys<t>.<name>`. The index is not saved: it is built again. Of the sketch, blocks that are not zero are saved.

Letters: n rows with keys, f freed rows, s sweeps that are remembered, b blocks of the sketch.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.engine.saving.saved_arrays import HINT, Expected, check_arrays
from adaptive.embeddings.engine.tiered_group import TieredGroup
from adaptive.embeddings.planning.key_tables import CELL_BLOCK
from adaptive.embeddings.planning.layout import Group
from adaptive.errors import CheckpointError
from adaptive.storage.arrays import Stored, whole

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
