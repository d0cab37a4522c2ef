"""Hotline's learners of popular rows: exact counters or the paper's logger."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptive import ByRow, TierView

if TYPE_CHECKING:
    from adaptive import AccessLog

LOGGER_BYTES = 4 * 2**20
_ENTRY_BYTES = 2  # of a logger
_NO_LOG: NDArray[np.uint16] = np.zeros(0, np.uint16)

Rows = NDArray[np.int64]
State = dict[str, NDArray[Any]]


class Counters:
    """An exact counter per row: a bitmap and, while it learns, 4 bytes per row."""

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self.popular_rows = 0
        self._popular = ByRow(np.bool_)
        self._counts = ByRow(np.uint32)

    def count(self, rows: Rows, view: TierView) -> None:
        """Count the rows of a mini-batch's lookups (N,)."""
        distinct, counts = np.unique(rows, return_counts=True)
        self._counts.reserve(view.num_rows)
        self._counts[distinct] = self._counts[distinct] + counts.astype(np.uint32)

    def decide(self, view: TierView) -> None:
        """Select the popular rows at the end of the learning phase: the most looked up, as many as there is room for.

        The paper motivates popularity by 1 in 100,000 lookups of all data. Of the few of the phase, this share is five:
        it selected 10 times fewer inputs than what fits. The paper's logger has no such bound, either.
        """
        rows = self._counts.rows()
        room = int(self._capacity * view.device_rows)
        most = np.argsort(-self._counts[rows].astype(np.int64), kind="stable")[:room]
        self._adopt(np.sort(rows[most]))
        self._counts = ByRow(np.uint32)

    def popular(self, rows: Rows) -> NDArray[np.bool_]:
        """(n,) True for popular rows."""
        return self._popular[rows]

    def forget(self, rows: Rows) -> None:
        """Forget what is known about rows (n,), which are other keys' rows from now on."""
        self.popular_rows -= int(self._popular[rows].sum())
        self._popular.forget(rows)
        self._counts.forget(rows)

    def _adopt(self, popular: Rows) -> None:
        self._popular = ByRow(np.bool_)
        self._popular[popular] = True
        self.popular_rows = len(popular)

    def state(self) -> State:
        counted = self._counts.rows()
        return {"popular": self._popular.rows(), "counted": counted, "counts": self._counts[counted]}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._adopt(state["popular"])
        self._counts = ByRow(np.uint32)
        self._counts[state["counted"]] = state["counts"]


class Logger:
    """The paper's access logger, with an entry per row that may stay on the device."""

    def __init__(self, num_bytes: int, capacity: float) -> None:
        self._num_bytes, self._capacity = num_bytes, capacity
        self._learning: AccessLog | None = None
        self._learnt: AccessLog | None = None
        self.popular_rows = 0

    def count(self, rows: Rows, view: TierView) -> None:
        if self._learning is None:
            from adaptive import AccessLog  # compiles kernels, which would slow down `policies list`

            self._learning = AccessLog(min(self._num_bytes // _ENTRY_BYTES, int(self._capacity * view.device_rows)))
        self._learning.add(rows)

    def decide(self, view: TierView) -> None:
        self._learnt, self._learning = self._learning, None
        self.popular_rows = 0 if self._learnt is None else self._learnt.num_held

    def forget(self, rows: Rows) -> None:
        """Do nothing: an entry has no row, only some bits of its hash."""

    def popular(self, rows: Rows) -> NDArray[np.bool_]:
        return np.zeros(len(rows), np.bool_) if self._learnt is None else self._learnt.holds(rows)

    def state(self) -> State:
        logs = {"learning": self._learning, "learnt": self._learnt}
        return {name: _NO_LOG if log is None else log.entries() for name, log in logs.items()}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._learning, self._learnt = _log(state["learning"]), _log(state["learnt"])
        self.popular_rows = 0 if self._learnt is None else self._learnt.num_held


def _log(entries: NDArray[np.uint16]) -> "AccessLog | None":
    from adaptive import AccessLog  # as above

    return None if entries.ndim == 1 and not len(entries) else AccessLog.restored(entries)


Learner = Counters | Logger
"""Counts lookups, and selects the popular rows at the end of the phase."""


def make_learner(logger: str, num_bytes: int, capacity: float) -> Learner:
    """Create a learner.

    Raises:
        ValueError: for options that do not go together.
    """
    if logger == "exact":
        if num_bytes != LOGGER_BYTES:
            raise ValueError(f"logger_bytes={num_bytes}: expected logger=srrip with it, got exact")
        return Counters(capacity)
    if logger != "srrip":
        raise ValueError(f"logger={logger}: expected exact or srrip")
    if num_bytes < 4 * _ENTRY_BYTES:
        raise ValueError(f"logger_bytes={num_bytes}: expected at least {4 * _ENTRY_BYTES}, a set of four entries")
    return Logger(num_bytes, capacity)
