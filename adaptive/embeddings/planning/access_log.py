"""Records of lookups: `AccessLog`, in bounded memory, and `Trace`, complete."""

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Bools, Int64s
from adaptive.kernels.planning import traces

WAYS = 4


class AccessLog:
    """A 4-way set-associative log of lookups: 2-bit SRRIP, 14-bit tags, two bytes an entry.

    After Hotline's access logger (https://arxiv.org/abs/2204.05436, version 1, 4.2.2), which is hardware. If more rows
    are looked up than there are entries, rows that are looked up again soon stay. It stores hashes, not row numbers: it
    cannot list its rows, and reports about one other row in 4,000 as present.

    Args:
        num_entries: rounded down to whole sets of four. With 0 the log forgets everything.
    """

    def __init__(self, num_entries: int) -> None:
        if num_entries < 0:
            raise ValueError(f"expected num_entries of at least 0, got {num_entries}")
        self._sets = np.zeros((num_entries // WAYS, WAYS), np.uint16)

    def add(self, rows: Int64s) -> None:
        """Enter the lookups of rows (n,), in order; repeated rows count each time."""
        traces.log_rows(np.ascontiguousarray(rows), self._sets)

    def holds(self, rows: Int64s) -> Bools:
        """(n,) True for rows in the log."""
        held = np.empty(len(rows), np.bool_)
        traces.find_rows(np.ascontiguousarray(rows), self._sets, held)
        return held

    @property
    def num_held(self) -> int:
        """Rows in the log."""
        return int(np.count_nonzero(self._sets))

    @property
    def num_bytes(self) -> int:
        return self._sets.nbytes

    def entries(self) -> NDArray[np.uint16]:
        """(sets, 4) copy of all entries, for `restored`."""
        return self._sets.copy()

    @classmethod
    def restored(cls, entries: NDArray[np.uint16]) -> "AccessLog":
        """Create a log from the entries of another one.

        Raises:
            ValueError: for another shape or dtype.
        """
        if entries.ndim != 2 or entries.shape[1] != WAYS or entries.dtype != np.uint16:
            raise ValueError(f"AccessLog: expected entries (sets, {WAYS}) uint16, got {entries.shape} {entries.dtype}")
        log = cls(0)
        log._sets = np.ascontiguousarray(entries).copy()
        return log


class Trace:
    """The uses of rows, batch by batch: 4 bytes per distinct row of a batch, 8 per row.

    The bound is Belady's (https://doi.org/10.1147/sj.52.0078), batch by batch: a hit is a distinct row of a batch that
    has a slot when the batch is planned, and if slots run short the row with the farthest next use is evicted.

    If misses are prefetched, all rows of a batch need slots at once, so only other rows can be evicted. If misses are
    served on the host, a row may be used without a slot, which makes the bound higher.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_uses = 0
        self._ends: list[int] = []
        self._latest = np.zeros(num_rows, np.int64)
        self._following = np.empty(1 << 12, np.int32)

    def add(self, rows: Int64s) -> None:
        """Add the next batch, which uses these distinct rows (U,)."""
        needed = self.num_uses + len(rows)
        if needed > len(self._following):
            grown = np.empty(max(needed, 2 * len(self._following)), np.int32)
            grown[: self.num_uses] = self._following[: self.num_uses]
            self._following = grown
        traces.link_uses(rows, len(self._ends), self.num_uses, self._latest, self._following)
        self.num_uses = needed
        self._ends.append(needed)

    def most_held(self, depth: int) -> int:
        """Smallest number of slots that holds the rows of any `depth` + 1 batches in a row."""
        held = np.zeros(len(self._ends), np.int64)
        traces.held_rows(np.array(self._ends, np.int64), self._following, depth, held)
        return int(held.max(initial=0))

    def best_hit_rate(self, num_slots: int, *, bypass: bool) -> float | None:
        """Belady's share of hits among uses; None without uses, or if a batch's rows do not fit.

        Args:
            num_slots: of the device.
            bypass: rows may be used without a slot (misses are served on the host).
        """
        ends = np.array(self._ends, np.int64)
        waiting, hits = np.zeros(len(ends) + 1, np.int64), np.zeros(len(ends), np.int64)
        too_large = traces.belady_hits(ends, self._following, num_slots, bypass, waiting, hits)
        return int(hits.sum()) / self.num_uses if too_large < 0 and self.num_uses else None
