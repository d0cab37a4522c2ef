"""`HotSet`: the hot rows, with the size of their updates and the skip rule's answers.

Only rows looked up often enough are hot_set. The set is keyed by row and separate from the tiers, so answers do not
depend on where rows are stored. Only the planning thread uses it; sums of gradients belong to the training thread
(`DeviceTier.begin_sums`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.config import SkipConfig
from adaptive.embeddings.planning.books import zero_pages
from adaptive.embeddings.planning.plan import Feedback
from adaptive.kernels.planning import hot_set
from adaptive.policy import SATURATED

ENTRY = np.dtype(
    [
        ("row", np.int64),
        ("size", np.float32),  # running mean of the row's update sizes, NaN: none is measured yet
        ("answer", np.uint8),  # the rule's: visits over which gradients are accumulated, 0: updates are skipped
        ("deferred", np.uint8),  # gradients in the row's sum
        ("saturated", np.bool_),  # as of the rule's latest call, for reports
    ],
    align=True,
)
assert ENTRY.itemsize == 16  # so that none crosses a cache line
COLUMNS: Final = ENTRY.names or ()


@dataclass(frozen=True)
class HotRows:
    """The hot rows among the distinct rows of a batch."""

    places: NDArray[np.int32]  # (n,) positions among the distinct rows, ascending
    entries: NDArray[np.int32]  # (n,)


class HotSet:
    """Hot rows of one group. Entries are numbered in order of admission.

    Rows that are no longer looked up are dropped (`retain`). Memory is taken as rows are admitted: arrays are zeros,
    which the system allocates when they are touched.

    Attributes:
        row_entries: (rows of the group,) entry + 1 of each row, 0 without one.
    """

    def __init__(self, capacity: int, config: SkipConfig, num_rows: int) -> None:
        """Make room for `capacity` of the `num_rows` rows of the group."""
        self.config = config
        self.num_entries = 0
        self._records = np.zeros(capacity, ENTRY)
        self.rows: NDArray[np.int64] = self._records["row"]
        self.sizes: NDArray[np.float32] = self._records["size"]
        self.answers: NDArray[np.uint8] = self._records["answer"]
        self.deferred: NDArray[np.uint8] = self._records["deferred"]
        self.saturated: NDArray[np.bool_] = self._records["saturated"]
        self.row_entries: NDArray[np.int32] = zero_pages(num_rows, np.int32)[0].reshape(-1)[:num_rows]

    @property
    def capacity(self) -> int:
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        """Bytes once all entries are taken."""
        return hot_set_bytes(self.capacity, len(self.row_entries))

    def admit(
        self,
        rows: NDArray[np.int64],
        seen: NDArray[np.uint32],
        entries: NDArray[np.int32],
        places: NDArray[np.int32],
    ) -> HotRows:
        """Admit rows with enough lookups; return the hot_set ones of a batch's rows (U,).

        The result takes the memory of `places` (U,) and of the candidates' entries.
        """
        old = self.num_entries
        books = self.config.min_accesses, self.row_entries, self.rows, old
        self.num_entries, count = hot_set.find_entries(rows, seen, *books, places, entries)
        new = slice(old, self.num_entries)
        self.sizes[new], self.answers[new] = np.nan, 1
        return HotRows(places[:count], entries[:count])

    def learn(self, feedback: Feedback) -> None:
        """Let the update sizes follow the updates of a trained batch."""
        if len(feedback.norms) > 1:
            hot_set.learn_sizes(feedback.rows, feedback.norms, feedback.applied_visits, self.row_entries, self.sizes)

    def is_saturated(self, entries: NDArray[np.int64] | slice) -> NDArray[np.bool_]:
        """(n,) True for rows whose updates move them by less than `SATURATED` of their length."""
        saturated: NDArray[np.bool_] = self.sizes[entries] < SATURATED  # NaN is not less
        return saturated

    def entries_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) entry of each row, or -1."""
        return self.row_entries[rows].astype(np.int64) - 1

    def columns(self) -> dict[str, NDArray[Any]]:
        """(n,) each: copies of the columns of all entries, for `restore`."""
        return {name: self._records[name][: self.num_entries].copy() for name in COLUMNS}

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Restore the entries of an empty set from `columns` of at most `capacity` rows."""
        rows = np.ascontiguousarray(columns["row"])
        self.rows[: len(rows)] = rows
        self.num_entries = len(rows)
        self.row_entries[rows] = np.arange(1, len(rows) + 1)
        for name in COLUMNS:
            self._records[name][: len(rows)] = columns[name]

    def retain(self, entries: NDArray[np.int64]) -> None:
        """Drop all entries but these (n,), ascending, which are renumbered from 0."""
        records = self._records[entries]
        self.row_entries[self.rows[: self.num_entries]] = 0
        self.row_entries[records["row"]] = np.arange(1, len(records) + 1)
        self._records[len(records) : self.num_entries] = 0
        self._records[: len(records)] = records
        self.num_entries = len(records)


def hot_set_bytes(capacity: int, num_rows: int) -> int:
    """Bytes of a set once all `capacity` entries are taken."""
    return capacity * ENTRY.itemsize + num_rows * np.dtype(np.int32).itemsize
