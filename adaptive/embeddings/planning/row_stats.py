"""`StatsSource`: gathers `RowStats` from records, slots and the hot set."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Int64s
from adaptive.embeddings.planning.books import SlotTable, Tracker
from adaptive.embeddings.planning.hot_set import HotSet
from adaptive.embeddings.planning.layout import Group
from adaptive.kernels.planning import books
from adaptive.kernels.planning.lookups import Distinct
from adaptive.policy import NEVER, RowStats

COLD: Final[dict[str, np.generic]] = {
    "update_size": np.float32(np.nan),
    "saturated": np.bool_(False),
}
"""Column of `RowStats` -> its value for rows that are not hot."""


class StatsSource:
    """Gathers `RowStats` of rows of one group of tables."""

    def __init__(self, group: Group, tracker: Tracker, slots: SlotTable) -> None:
        self._group, self._tracker, self._slots = group, tracker, slots

    def of(
        self,
        rows: Int64s,
        number: int,
        window: Sequence[Distinct] = (),
        *,
        hot: HotSet | None = None,
        entries: Int64s | None = None,
    ) -> RowStats:
        """Gather the statistics of rows (n,) as of batch `number`.

        Args:
            rows: of the group.
            number: of the batch being planned.
            window: the batches that follow, nearest first.
            hot: the hot set, if there is one.
            entries: (n,) of the rows in the hot set; None: to be looked up.
        """
        group, records, norms = self._group, self._slots.gather(rows), self._tracker.update_norm
        if hot is not None and entries is None:
            entries = hot.entries_of(rows)
        return RowStats(
            step=number,
            rows=group.to_global(rows),
            table=group.tables_of(rows) + np.int32(group.first_table),
            accesses=records.accesses,
            last_access=records.last_access,
            next_access=self._next_access(rows, records.slots, number, window),
            update_norm=np.broadcast_to(np.float32(np.nan), len(rows)) if norms is None else norms[rows],
            resident=records.slots >= 0,
            **self._sizes(len(rows), hot, entries),
        )

    def _sizes(self, size: int, hot: HotSet | None, entries: Int64s | None) -> dict[str, NDArray[Any]]:
        """(size,) each: the columns about hot rows."""
        if hot is None or entries is None:
            return {name: np.broadcast_to(unknown, size) for name, unknown in COLD.items()}  # takes no memory
        columns = {name: np.full(size, unknown) for name, unknown in COLD.items()}
        is_hot = entries >= 0
        at = entries[is_hot]
        columns["update_size"][is_hot], columns["saturated"][is_hot] = hot.sizes[at], hot.is_saturated(at)
        return columns

    def last_access(self, rows: Int64s) -> Int64s:
        """(n,) latest batch that looked up each row, or -1."""
        return self._slots.last_access(rows).astype(np.int64) - 1

    def _next_access(self, rows: Int64s, slots: Int64s, number: int, window: Sequence[Distinct]) -> Int64s:
        if not window:
            return np.broadcast_to(np.int64(NEVER), len(rows))
        following = np.full(len(rows), NEVER, np.int64)
        slot_next = np.full(len(self._slots), NEVER, np.int64)
        on_device, away = slots >= 0, np.flatnonzero(slots < 0)
        for ahead in range(len(window), 0, -1):
            books.mark_next_access(window[ahead - 1].rows, self._tracker.codes, number + ahead, slot_next)
            if len(away):  # rows on the host that may be admitted
                following[away[np.isin(rows[away], window[ahead - 1].rows)]] = number + ahead
        following[on_device] = slot_next[slots[on_device]]
        return following


def read_only(stats: RowStats) -> RowStats:
    """Make the arrays read-only, for a policy."""
    for item in fields(stats):
        value = getattr(stats, item.name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return stats
