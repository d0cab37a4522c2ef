"""How unevenly the rows of each table are looked up, from their counts.

Letters: T tables, R rows of all tables, C rows of a table that were looked up.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.planning.layout import Group

Int64s = NDArray[np.int64]
CURVE_POINTS: Final = 60  # of a sorted curve, evenly on a log axis


def table_skew(group: Group, counts: Int64s, num_samples: int) -> list[dict[str, Any]]:
    """A line for each table, and one for all of them together if there are several; counts (R,) of look-ups."""
    names = [(table.name, slice(*group.table_starts[t : t + 2])) for t, table in enumerate(group.tables)]
    if len(names) > 1:
        names.append(("all", slice(0, group.num_rows)))
    return [{"table": name, **_skew(counts[part], num_samples)} for name, part in names]


def _skew(counts: Int64s, num_samples: int) -> dict[str, Any]:
    """Facts of one table; counts (rows,). Shares are None without look-ups."""
    falling = falling_counts(counts)
    lookups, seen = int(falling.sum()), len(falling)
    return {
        "rows": len(counts),
        "lookups": lookups,
        "lookups_per_sample": lookups / num_samples,
        "seen": seen,
        "top_share": int(falling[0]) / lookups if lookups else None,
        "rows_for_half": rows_for(falling, 0.5),
        "rows_for_90": rows_for(falling, 0.9),
        "hottest_over_median": float(falling[0] / np.median(falling)) if lookups else None,
        "seen_once_share": int((falling == 1).sum()) / seen if seen else None,
    }


def falling_counts(counts: Int64s) -> Int64s:
    """(C,) the counts above 0, largest first."""
    return np.sort(counts[counts > 0])[::-1]


def rows_for(falling: Int64s, share: float) -> int:
    """The least number of rows with at least this share of the look-ups; falling (C,) counts, largest first."""
    covered = np.cumsum(falling)
    return 0 if not len(falling) else int(np.searchsorted(covered, share * covered[-1])) + 1


def curve(falling: Int64s) -> list[tuple[int, int]]:
    """(rank from 1, count) at ranks that lie evenly on a log axis, both ends among them."""
    if not len(falling):
        return []
    ranks = np.unique(np.geomspace(1, len(falling), CURVE_POINTS).round().astype(np.int64))
    return [(int(rank), int(falling[rank - 1])) for rank in ranks]
