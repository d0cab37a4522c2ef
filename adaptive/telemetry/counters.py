"""What planning and training count per table, and how the counts become a record."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from adaptive.telemetry.record import TableCounts


class Counter(IntEnum):
    """Columns of a counter array: int64 (num_tables, len(Counter)), one row per table.

    A batch is counted when it is planned; a row that a batch uses more than once is one unique row. Only batches
    that are trained count: evaluation leaves the counters alone.

    * LOOKUPS: ids of the batches.
    * UNIQUE_ROWS: distinct rows, summed over batches. Each is one row update, done or skipped.
    * LOOKUP_HITS: look-ups whose row was on the device when its batch was planned, before any row moved for it.
    * ROW_HITS: unique rows that were on the device when their batch was planned.
    * FETCHED: rows whose values (and optimizer state) were copied from host to device.
    * WRITTEN_BACK: rows copied from device to host: those of DEMOTED that had changed.
    * PROMOTED: rows that came onto the device.
    * DEMOTED: rows that left the device, changed or not.
    * SKIPPED_UPDATES: of UNIQUE_ROWS, those not updated because the row is saturated.
    * SKIPPED_LOOKUPS: of LOOKUPS, those whose gradient was not used because the row is saturated.
    """

    LOOKUPS = 0
    UNIQUE_ROWS = 1
    LOOKUP_HITS = 2
    ROW_HITS = 3
    FETCHED = 4
    WRITTEN_BACK = 5
    PROMOTED = 6
    DEMOTED = 7
    SKIPPED_UPDATES = 8
    SKIPPED_LOOKUPS = 9


def new_counts(num_tables: int) -> NDArray[np.int64]:
    """A counter array of zeros, (num_tables, len(Counter))."""
    return np.zeros((num_tables, len(Counter)), np.int64)


def table_counts(
    names: Sequence[str],
    counts: NDArray[np.int64],
    *,
    row_bytes: NDArray[np.int64],
    resident_rows: NDArray[np.int64],
    saturated_rows: NDArray[np.int64],
) -> dict[str, TableCounts]:
    """The counts of an interval by table name.

    Args:
        names: the tables, T of them.
        counts: (T, len(Counter)) of the interval.
        row_bytes: (T,) bytes of one row with its optimizer state.
        resident_rows: (T,) rows on the device now.
        saturated_rows: (T,) saturated rows now.
    """
    assert counts.shape == (len(names), len(Counter)), (counts.shape, len(names))
    assert len(row_bytes) == len(resident_rows) == len(saturated_rows) == len(names)
    columns = zip(names, counts.tolist(), row_bytes.tolist(), strict=True)
    return {
        name: TableCounts(
            **{counter.name.lower(): values[counter] for counter in Counter},
            fetched_bytes=values[Counter.FETCHED] * size,
            written_back_bytes=values[Counter.WRITTEN_BACK] * size,
            resident_rows=int(resident_rows[table]),
            saturated_rows=int(saturated_rows[table]),
        )
        for table, (name, values, size) in enumerate(columns)
    }
