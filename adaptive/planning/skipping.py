"""Which rows a batch updates, and from which look-ups: without those that are skipped, and with sums apart."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels import planning
from adaptive.planning.lookups import Outline
from adaptive.planning.plan import Grouping

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Updates:
    """The rows of a batch to update, in two groups; `now` and `later` are places among its distinct rows."""

    grouping: Grouping  # of the rows `now`
    now: Int64s
    later: Int64s
    segments: Int64s  # of the rows `later`, as in `Grouping`
    vectors: NDArray[np.int32]
    scales: NDArray[np.float32]


def group_updates(outline: Outline, locations: Int64s, fates: NDArray[np.uint8]) -> Updates:
    """The update of one group; rows at `locations` (U,).

    Args:
        fates: (U,), or empty: every row is updated now. See `kernels.planning`.
    """
    rows, segments, vectors, scales = outline.distinct.rows, outline.segments, outline.vectors, outline.scales
    num_rows = len(rows)
    if not fates.any():
        grouping = Grouping(rows, locations, segments, vectors, scales)
        return Updates(grouping, np.arange(num_rows), rows[:0], segments[-1:] * 0, vectors[:0], scales[:0])
    updated, chosen_segments = np.empty(num_rows, np.int64), np.empty(num_rows + 1, np.int64)
    chosen_vectors, chosen_scales = np.empty_like(vectors), np.empty_like(scales)
    kept, first = planning.choose_segments(
        segments, vectors, scales, fates, updated, chosen_segments, chosen_vectors, chosen_scales
    )
    now, middle, end = updated[:first], int(chosen_segments[first]), int(chosen_segments[kept])
    chosen_scales = chosen_scales[:end] if len(scales) else scales
    grouping = Grouping(
        rows[now], locations[now], chosen_segments[: first + 1], chosen_vectors[:middle], chosen_scales[:middle]
    )
    return Updates(
        grouping,
        now,
        updated[first:kept],
        chosen_segments[first : kept + 1] - middle,
        chosen_vectors[middle:end],
        chosen_scales[middle:],
    )
