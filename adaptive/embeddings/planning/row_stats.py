"""`StatsSource`: puts together what a policy is told about rows, from records, slots and the hot set."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.planning.books import SlotTable, Tracker
from adaptive.embeddings.planning.hot_set import HotSet
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import Distinct
from adaptive.kernels.planning import books
from adaptive.policy import NEVER, RowStats

Int64s = NDArray[np.int64]


class StatsSource:
    """Makes `RowStats` of rows of one group of tables."""

    def __init__(self, group: Group, tracker: Tracker, slots: SlotTable) -> None:
        self._group, self._tracker, self._slots = group, tracker, slots
        self._unknown = _Unknown()

    def of(
        self,
        rows: Int64s,
        number: int,
        window: Sequence[Distinct] = (),
        *,
        hot: HotSet | None = None,
        entries: Int64s | None = None,
        visits: NDArray[np.uint32] | None = None,
    ) -> RowStats:
        """What a policy is told about local rows (n,) when batch `number` is planned.

        Args:
            window: the batches that follow, nearest first.
            hot: the hot set, if the policy asks about movement; `entries` (n,) of the rows in it, if known.
            visits: (entries of the hot set,) counted so far, where updates are deferred; `entries` are given then.
        """
        group, records = self._group, self._tracker.gather(rows)
        if hot is not None and entries is None:
            entries = hot.entries_of(rows)
        drift, drift_accesses, drift_visits, saturated = self._movement(len(rows), hot, entries)
        return RowStats(
            step=number,
            rows=group.to_global(rows),
            table=group.tables_of(rows) + np.int32(group.first_table),
            accesses=records.accesses,
            last_access=records.last_access,
            next_access=self._next_access(rows, records.codes, number, window),
            update_norm=records.update_norm,
            drift=drift,
            drift_accesses=drift_accesses,
            drift_visits=drift_visits,
            visits=self._unknown.visits(len(rows)) if visits is None else visits[entries].astype(np.int64),
            saturated=saturated,
            resident=records.codes > 0,
        )

    def _movement(
        self, size: int, hot: HotSet | None, entries: Int64s | None
    ) -> tuple[NDArray[np.float32], Int64s, Int64s, NDArray[np.bool_]]:
        if hot is None or entries is None:
            return self._unknown.movement(size)
        drift = np.full(size, np.nan, np.float32)
        accesses, visits, saturated = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.bool_)
        known = entries >= 0
        mine = entries[known]
        drift[known], accesses[known], visits[known] = hot.drift[mine], hot.drift_accesses[mine], hot.drift_visits[mine]
        saturated[known] = hot.saturated[mine] | (hot.waits[mine] > 0)
        return drift, accesses, visits, saturated

    def _next_access(self, rows: Int64s, codes: NDArray[np.int32], number: int, window: Sequence[Distinct]) -> Int64s:
        if not window:
            return self._unknown.next_access(len(rows))
        following = np.full(len(rows), NEVER, np.int64)
        slot_next = np.full(len(self._slots), NEVER, np.int64)
        on_device, away = codes > 0, np.flatnonzero(codes <= 0)
        for ahead in range(len(window), 0, -1):
            books.mark_next_access(window[ahead - 1].rows, self._tracker.codes, number + ahead, slot_next)
            if len(away):  # rows on the host that may come in
                following[away[np.isin(rows[away], window[ahead - 1].rows)]] = number + ahead
        following[on_device] = slot_next[codes[on_device] - 1]
        return following


class _Unknown:
    """Columns that tell a policy nothing, made once and handed out again and again: they are read-only."""

    def __init__(self) -> None:
        self._make(0)

    def _make(self, size: int) -> None:
        self._drift = np.full(size, np.nan, np.float32)
        self._accesses, self._saturated = np.zeros(size, np.int64), np.zeros(size, np.bool_)
        self._next_access = np.full(size, NEVER, np.int64)
        for column in (self._drift, self._accesses, self._saturated, self._next_access):
            column.flags.writeable = False

    def movement(self, size: int) -> tuple[NDArray[np.float32], Int64s, Int64s, NDArray[np.bool_]]:
        self._reach(size)
        return self._drift[:size], self._accesses[:size], self._accesses[:size], self._saturated[:size]

    def visits(self, size: int) -> Int64s:
        self._reach(size)
        return self._accesses[:size]

    def next_access(self, size: int) -> Int64s:
        self._reach(size)
        return self._next_access[:size]

    def _reach(self, size: int) -> None:
        if size > len(self._drift):
            self._make(size)


def read_only(stats: RowStats) -> RowStats:
    """The same, its arrays not writable: it is handed to a policy."""
    for item in fields(stats):
        value = getattr(stats, item.name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return stats
