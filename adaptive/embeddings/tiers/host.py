"""`HostTier`: a place for every row of a group, in memory or in a file (`host_file`).

Construction writes nothing. A row that never changed has no stored value: `initial` computes it. So a table of a
billion rows costs address space, and memory or disk only for rows that were trained.
"""

import contextlib
import mmap
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Int64s, Rows, UInt64s
from adaptive.embeddings.planning.books import NO_RESERVE, shares
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.plan import GroupPlan
from adaptive.kernels.rows.cpu import initial, move, rounding, steps
from adaptive.kernels.scratch import empty_rows
from adaptive.kernels.vector.bfloat16 import NO_KEYS, number_as_stored
from adaptive.optim import RowOptimizer


@dataclass
class HostIO:
    """Counts of reads and writes between a host tier and its file."""

    reads: int = 0
    bytes_read: int = 0
    writes: int = 0
    bytes_written: int = 0


class HostTier(ABC):
    """Rows with their optimizer state, moved by copying. Row numbers are local to the group.

    Kernels may use `weights` (rows, D) of `dtype` and `state` (rows, S) float32 in place; these have no rows
    in a tier that only copies.
    """

    weights: Rows
    state: Rows

    threads: int = 1
    """Number of threads that move many rows together; more than 1 if the training thread moves them."""

    row_keys: Int64s | None = None
    """(rows,) key on which a row's initial value depends; None if that is its number."""

    def __init__(self, group: Group, optimizer: RowOptimizer) -> None:
        self.group = group
        self.optimizer = optimizer
        self.io = HostIO()
        self._width, self.dtype = group.embedding_dim, group.dtype
        self._state_width = optimizer.state_width(self._width)
        self.first_state = optimizer.settings()[steps.FIRST]
        self.rounds_by_key = group.rounds_stochastically

    # --- moving rows -----------------------------------------------------------------------------------------

    @abstractmethod
    def copy_out(self, rows: Int64s, weights: Rows, state: Rows, to_rows: Int64s) -> None:
        """Copy `rows` (n,) to rows `to_rows` (n,) of other arrays, in any order, targets distinct."""

    @abstractmethod
    def copy_in(self, rows: Int64s, weights: Rows, state: Rows, from_rows: Int64s) -> None:
        """Store rows `from_rows` of other arrays as `rows` (n,), in any order, targets distinct."""

    def read(self, rows: Int64s) -> tuple[Rows, Rows]:
        """Return copies (weights (n, D), state (n, S)) of `rows`."""
        weights, state = self._empty(len(rows))
        self.copy_out(rows, weights, state, np.arange(len(rows)))
        return weights, state

    def write(self, rows: Int64s, weights: Rows, state: Rows) -> None:
        """Store weights (n, D) and state (n, S) as `rows`."""
        self.copy_in(rows, weights, state, np.arange(len(rows)))

    def store_initial(self, rows: Int64s) -> None:
        """Store the initial values of distinct `rows`, which will be used in place."""
        if len(rows):
            weights, state = self._empty(len(rows))
            self.initial(weights, state, np.arange(len(rows)), rows)
            self.write(rows, weights, state)

    def poison(self, rows: Int64s) -> None:
        """Debug: store NaN."""
        weights, state = self._empty(len(rows))
        weights.fill(number_as_stored(np.nan, self.dtype))
        state.fill(np.nan)
        self.write(rows, weights, state)

    @abstractmethod
    def expect(self, plan: GroupPlan) -> None:
        """Announce that a batch will soon update rows in place, for tiers that can prefetch them."""

    def rounding_keys(self, rows: Int64s, number: int) -> UInt64s:
        """Return the keys (n,) that round rows (n,) in batch `number`; empty: to nearest, or nothing to round."""
        if not self.rounds_by_key:
            return NO_KEYS
        group, keys = self.group, np.empty(len(rows), np.uint64)
        rounding.rounding_keys(group.seed_rows(rows), group.seed_starts, group.table_keys, number, keys)
        return keys

    def initial(self, weights: Rows, state: Rows, to_rows: Int64s, rows: Int64s) -> None:
        """Write the initial values of rows to rows `to_rows` of other arrays."""
        group = self.group
        tables = group.seed_starts, group.table_keys, group.table_bounds
        values, seed_rows = (weights, state, to_rows), group.seed_rows(rows)
        if self.row_keys is None:
            bounds, inputs = shares(len(rows), self.threads), (*values, seed_rows, *tables, self.first_state)
            if len(bounds) == 2:
                initial.initial_rows(*inputs)
            else:
                initial.initial_shares(bounds, *inputs)
        else:
            keys = self.row_keys[seed_rows]
            initial.initial_rows_by_key(*values, seed_rows, keys, *tables, self.first_state)

    def _empty(self, num_rows: int) -> tuple[Rows, Rows]:
        state = empty_rows(num_rows, self._state_width, np.dtype(np.float32))
        return empty_rows(num_rows, self._width, self.dtype), state

    # --- the tier as a whole ---------------------------------------------------------------------------------

    @abstractmethod
    def flush(self) -> None:
        """Write all stored rows to the disk, if there is one."""

    @abstractmethod
    def close(self) -> None:
        """Release memory or disk; rows can no longer be moved. Closing twice is fine."""

    @property
    @abstractmethod
    def disk_bytes(self) -> int:
        """Bytes of disk that stored rows take."""

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Bytes of (weights, state) if every row were stored."""
        num_rows = self.group.num_rows
        return num_rows * self.group.vector_bytes, num_rows * self.optimizer.state_bytes(self._width)


class MemoryHost(HostTier):
    """A host tier in memory: two arrays, between which numba kernels copy rows."""

    def __init__(self, group: Group, optimizer: RowOptimizer, *, own_pages: bool = False) -> None:
        """own_pages: start the arrays at pages, so that they can be pinned."""
        super().__init__(group, optimizer)
        # Pages are taken when a row is first written.
        if own_pages or group.has_keys:
            self.weights = whole_pages(group.num_rows, self._width, self.dtype, is_capacity=group.has_keys)
            self.state = whole_pages(
                group.num_rows, self._state_width, np.dtype(np.float32), is_capacity=group.has_keys
            )
        else:
            self.weights, self.state = self._empty(group.num_rows)

    def copy_out(self, rows: Int64s, weights: Rows, state: Rows, to_rows: Int64s) -> None:
        self._copy(weights, state, to_rows, self.weights, self.state, rows)

    def copy_in(self, rows: Int64s, weights: Rows, state: Rows, from_rows: Int64s) -> None:
        self._copy(self.weights, self.state, rows, weights, state, from_rows)

    def _copy(
        self, to_weights: Rows, to_state: Rows, to_rows: Int64s, weights: Rows, state: Rows, rows: Int64s
    ) -> None:
        bounds = shares(len(rows), self.threads)
        if len(bounds) == 2:
            move.copy_rows(to_weights, to_state, to_rows, weights, state, rows)
        else:
            move.copy_shares(bounds, to_weights, to_state, to_rows, weights, state, rows)

    def expect(self, plan: GroupPlan) -> None:
        pass

    def store_initial(self, rows: Int64s) -> None:
        self.initial(self.weights, self.state, rows, rows)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def disk_bytes(self) -> int:
        return 0


def whole_pages(num_rows: int, width: int, dtype: Any = np.float32, *, is_capacity: bool = False) -> NDArray[Any]:
    """Return (num_rows, width) on separate pages, taken when first written or pinned.

    is_capacity: few of the rows may ever be written, so the system need not have memory for all of them.
    """
    size = np.dtype(dtype).itemsize * num_rows * width
    if not size:
        return np.empty((num_rows, width), dtype)
    return np.frombuffer(_pages(size, is_capacity), dtype).reshape(num_rows, width)


def _pages(size: int, is_capacity: bool) -> mmap.mmap:
    """Return private memory: shared memory, Python's default, never gets huge pages.

    A forked process does not inherit it: on older systems the first write of either process would move the parent's
    page away from where the GPU reads and writes.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    reserve = NO_RESERVE if is_capacity else 0
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | reserve)
    advise(pages, mmap.MADV_DONTFORK)
    if is_capacity:
        advise(pages, mmap.MADV_HUGEPAGE)  # as numpy's memory; rows get keys in order, so they are next to each other
    return pages


def advise(pages: mmap.mmap, advice: int) -> None:
    """Tell the system how the pages will be used."""
    with contextlib.suppress(OSError):  # not every system has it
        pages.madvise(advice)
