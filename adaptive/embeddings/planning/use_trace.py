"""`Trace`: which rows are used when, and from it the most hits that any policy could have had."""

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.planning import belady

Int64s = NDArray[np.int64]


class Trace:
    """The uses of rows, batch by batch: 4 bytes for each distinct row of each batch, and 8 bytes a row.

    The bound is Belady's (https://doi.org/10.1147/sj.52.0078), batch by batch: a hit is a distinct row of a batch that
    has a slot when the batch is planned, and when slots run short the row whose next use is farthest leaves.

    Where misses are prefetched all rows of a batch need slots at once, so only rows that the batch does not use can
    leave. Where misses are served on the host a row may be used without a slot and need not come in; the bound is
    then the higher one with this freedom.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_uses = 0
        self._ends: list[int] = []
        self._latest = np.zeros(num_rows, np.int64)
        self._following = np.empty(1 << 12, np.int32)

    def add(self, rows: Int64s) -> None:
        """The next batch uses the distinct rows (U,)."""
        needed = self.num_uses + len(rows)
        if needed > len(self._following):
            grown = np.empty(max(needed, 2 * len(self._following)), np.int32)
            grown[: self.num_uses] = self._following[: self.num_uses]
            self._following = grown
        belady.link_uses(rows, len(self._ends), self.num_uses, self._latest, self._following)
        self.num_uses = needed
        self._ends.append(needed)

    def most_held(self, depth: int) -> int:
        """The least number of slots into which every batch's rows fit beside those of the `depth` batches before."""
        held = np.zeros(len(self._ends), np.int64)
        belady.held_rows(np.array(self._ends, np.int64), self._following, depth, held)
        return int(held.max(initial=0))

    def best_hit_rate(self, num_slots: int, *, bypass: bool) -> float | None:
        """Belady's share of hits among uses; None without uses, or if a batch's rows do not fit the slots.

        Args:
            bypass: rows may be used without a slot (misses are served on the host).
        """
        ends = np.array(self._ends, np.int64)
        waiting, hits = np.zeros(len(ends) + 1, np.int64), np.zeros(len(ends), np.int64)
        unfit = belady.belady_hits(ends, self._following, num_slots, bypass, waiting, hits)
        return int(hits.sum()) / self.num_uses if unfit < 0 and self.num_uses else None
