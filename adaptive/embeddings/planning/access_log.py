"""`AccessLog`: which rows are looked up again and again, in bounded memory whatever the number of rows."""

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.planning import access_log

WAYS = 4
ENTRY_BYTES = 2


class AccessLog:
    """A 4-way set-associative log of look-ups with 2-bit SRRIP and 14-bit tags, two bytes an entry.

    After Hotline's access logger (https://arxiv.org/abs/2204.05436, version 1, 4.2.2), which is hardware. Where more
    rows are looked up than there are entries, those that are looked up again soon stay. It keeps hashes, no row
    numbers: it cannot list its rows, and takes about one other row in 4,000 for one of its own.

    Args:
        num_entries: rounded down to whole sets of four. A log of none forgets everything.
    """

    def __init__(self, num_entries: int) -> None:
        if num_entries < 0:
            raise ValueError(f"num_entries={num_entries}: needed 0 or more")
        self._sets = np.zeros((num_entries // WAYS, WAYS), np.uint16)

    def add(self, rows: NDArray[np.int64]) -> None:
        """Enter the look-ups of rows (n,), in order; a row counts as often as it is there."""
        access_log.log_rows(np.ascontiguousarray(rows), self._sets)

    def holds(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) whether each row is in the log."""
        found = np.empty(len(rows), np.bool_)
        access_log.find_rows(np.ascontiguousarray(rows), self._sets, found)
        return found

    @property
    def num_held(self) -> int:
        """Rows in the log."""
        return int(np.count_nonzero(self._sets))

    @property
    def num_bytes(self) -> int:
        return self._sets.nbytes

    def entries(self) -> NDArray[np.uint16]:
        """A copy of all entries, (sets, 4): what `restored` needs."""
        return self._sets.copy()

    @classmethod
    def restored(cls, entries: NDArray[np.uint16]) -> "AccessLog":
        """The log with these entries.

        Raises:
            ValueError: if they are no log's.
        """
        if entries.ndim != 2 or entries.shape[1] != WAYS or entries.dtype != np.uint16:
            raise ValueError(f"AccessLog: needed entries (sets, {WAYS}) uint16, found {entries.shape} {entries.dtype}")
        log = cls(0)
        log._sets = np.ascontiguousarray(entries).copy()
        return log
