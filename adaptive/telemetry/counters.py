"""What planning and training count per table, and how the counts become a record."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive.counters import Counter
from adaptive.telemetry.record import TableCounts


def table_counts(
    names: Sequence[str],
    counts: NDArray[np.int64],
    *,
    resident_rows: NDArray[np.int64],
    saturated_rows: NDArray[np.int64],
) -> dict[str, TableCounts]:
    """The counts of an interval by table name.

    Args:
        names: the tables, T of them.
        counts: (T, len(Counter)) of the interval.
        resident_rows: (T,) rows on the device now.
        saturated_rows: (T,) saturated rows now.
    """
    assert counts.shape == (len(names), len(Counter)), (counts.shape, len(names))
    assert len(resident_rows) == len(saturated_rows) == len(names)
    columns = zip(names, counts.tolist(), strict=True)
    return {
        name: TableCounts(
            **{counter.name.lower(): values[counter] for counter in Counter},
            resident_rows=int(resident_rows[table]),
            saturated_rows=int(saturated_rows[table]),
        )
        for table, (name, values) in enumerate(columns)
    }
