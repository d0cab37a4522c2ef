"""`Counter`: the columns of every table of counts, in one place, so that kernels, tiers and reports agree."""

from enum import IntEnum


class Counter(IntEnum):
    """Columns of a counter array: int64 (tables, len(Counter)), one row per table.

    A batch is counted when it is planned, and reported once it is trained; evaluation is not counted.
    """

    LOOKUPS = 0
    """Ids looked up."""
    UNIQUE_ROWS = 1
    """Distinct rows of a batch, summed over batches."""
    LOOKUP_HITS = 2
    """Look-ups whose row was on the device when the batch was planned."""
    ROW_HITS = 3
    """Distinct rows that were on the device when the batch was planned."""
    FETCHED = 4
    """Rows copied from the host to the device (rows still at their initial value count too)."""
    WRITTEN_BACK = 5
    """Changed rows copied from the device to the host because they left the device."""
    PROMOTED = 6
    """Rows that came onto the device."""
    DEMOTED = 7
    """Rows that left the device, changed or not."""
    SKIPPED_UPDATES = 8
    """Row updates not written: dropped because the row was saturated, or deferred."""
    SKIPPED_LOOKUPS = 9
    """Look-ups of rows whose update was not written."""
    BYTES_H2D = 10
    """Bytes from host to device: fetched rows with their state, vectors pooled (in part) on the host, and plans that
    are sent to a device."""
    BYTES_D2H = 11
    """Bytes from device to host: rows written back, and gradients of vectors pooled on the host."""
    DEFERRED_UPDATES = 12
    """Of the skipped updates, those whose gradient was kept, to be applied with a later one."""
