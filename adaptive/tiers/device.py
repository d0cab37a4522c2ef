"""`DeviceTier`: slots for rows, and the work that is done on them. `CpuDevice` is a compact block of memory.

The device tier pools bags, applies updates and measures drift; both tiers' arrays are at hand, so that rows which a
plan leaves on the host (`misses = "host"`) take part at their place in the sum.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.aligned import empty_rows, full_rows, update_scratch
from adaptive.kernels import cpu, drift
from adaptive.kernels.deferred import defer, update_from_sums
from adaptive.optim import RowOptimizer
from adaptive.planning.plan import Deferred, Grouping, GroupPlan, Moves, Pooling, Snapshots
from adaptive.tiers.host import HostTier
from adaptive.tiers.reused import Reused

Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]
Later = Callable[[], Floats]  # numbers that may still be on their way; asked for once, it waits for them


@dataclass(frozen=True)
class Kept:
    """What a device keeps of watched rows. Letters: n entries of the hot set, m of them with a sum that waits."""

    snapshots: Floats  # (n, D), NaN where there is none yet; or (0, D)
    waiting: Int64s  # (m,) entries, ascending
    sums: Floats  # (m, D)
    squares: Floats  # (m, S)


class DeviceTier(ABC):
    """What every device offers. Slots are only touched as plans say; the caller keeps the order."""

    num_slots: int
    squares_width: int  # float32 values beside each sum, see `RowOptimizer.squares_width`
    poison: bool = False

    def send(self, array: Floats) -> Tensor:
        """A batch's own numbers on the device; they do not change when the array does."""
        # torch refuses read-only memory; a copy keeps the promise that batches do not change.
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    def ship(self, plan: GroupPlan, buffer: int) -> GroupPlan:
        """The plan with all that training needs of it on the device. `buffer`: see `Mover.start_moves`."""
        return plan

    def ship_again(self, plan: GroupPlan) -> None:
        """A shipped plan's rows have other slots now, which its arrays tell."""
        return

    @abstractmethod
    def write_back(self, moves: Moves) -> None:
        """Copy the rows `moves.back_rows` with their state from their slots to the host."""

    @abstractmethod
    def fetch(self, moves: Moves) -> None:
        """Copy, or make, the rows `moves.fetch_rows` into their slots; give `moves.fresh_rows` their initial values."""

    def land(self) -> None:
        """All copies are done: return when the host has stored what they brought."""
        return

    def close(self) -> None:
        """Let go of the host's memory, at rest. Closing twice is fine."""
        return

    @abstractmethod
    def resize(self, num_slots: int) -> None:
        """Have another number of slots, all empty."""

    @abstractmethod
    def pool(self, pooling: Pooling, rows: Floats | None = None) -> Tensor:
        """(V, D) the vectors of one batch, from slots and host, or from `rows` (U, D) that were read out."""

    @abstractmethod
    def update(self, grouping: Grouping, gradients: Tensor) -> Later:
        """Update rows from the gradients of the vectors (V, D); returns the L2 norm of each update (U,)."""

    @abstractmethod
    def defer(self, deferred: Deferred, gradients: Tensor) -> Later:
        """Add gradients to the sums, then apply the sums that are due; returns the L2 norms of those updates (n,)."""

    @abstractmethod
    def settled(self, entries: Int64s, weights: Floats, state: Floats) -> None:
        """Apply to copies of rows (n, ...) whatever gradients wait for them; entries (n,) or -1. Changes no row."""

    @abstractmethod
    def drift(self, snapshots: Snapshots) -> Later:
        """Movement of tracked rows since their snapshot (n,), which is then renewed."""

    @abstractmethod
    def read(self, slots: Int64s) -> tuple[Floats, Floats]:
        """Copies (weights, state) of slots; for evaluation and saving."""

    @abstractmethod
    def poison_slots(self, slots: Int64s) -> None:
        """Debug: NaN into slots whose row has left."""

    @abstractmethod
    def poison_host(self, rows: Int64s) -> None:
        """Debug: NaN into the host copies of rows that a batch will change on the device."""

    @abstractmethod
    def watch(self, capacity: int, *, snapshots: bool, sums: bool) -> None:
        """Make room for the snapshots, or the sums of deferred gradients and their squares, of `capacity` rows."""

    @abstractmethod
    def forget_watched(self) -> None:
        """Snapshots and sums belong to rows that are no longer there."""

    @abstractmethod
    def kept(self, num_entries: int) -> Kept:
        """Copies of what is kept of the first entries; for saving."""

    @abstractmethod
    def keep(self, kept: Kept) -> None:
        """Have what `kept` gave, and nothing else. There is room for it."""

    @property
    def buffer_bytes(self) -> tuple[int, int]:
        """Bytes of what rows and plans cross in: of pinned memory on the host, of device memory."""
        return 0, 0

    @property
    @abstractmethod
    def num_bytes(self) -> tuple[int, int, int]:
        """Bytes of (weights, state, snapshots and sums with their squares)."""


class CpuDevice(DeviceTier):
    """Slots in ordinary memory; every operation is one numba kernel."""

    def __init__(self, host: HostTier, num_slots: int, optimizer: RowOptimizer, *, poison: bool = False) -> None:
        self.poison = poison
        self._host = host
        self._kind, self._settings, self._corrections = optimizer.kind, optimizer.settings(), optimizer.corrections()
        width = host.weights.shape[1]
        self.squares_width = optimizer.squares_width(width)
        self.resize(num_slots)
        self.watch(0, snapshots=False, sums=False)
        self._scratch = update_scratch(max(numba.get_num_threads(), 1), width)
        self._vectors = Reused()

    def resize(self, num_slots: int) -> None:
        fill = np.nan if self.poison else 0.0
        self.num_slots = num_slots
        self.weights = full_rows(num_slots, self._host.weights.shape[1], fill)
        self.state = full_rows(num_slots, self._host.state.shape[1], fill)

    def write_back(self, moves: Moves) -> None:
        self._host.copy_in(moves.back_rows, self.weights, self.state, moves.back_slots)

    def fetch(self, moves: Moves) -> None:
        host = self._host
        initial = moves.fetch_initial
        slots, rows = moves.fetch_slots[~initial], moves.fetch_rows[~initial]
        host.copy_out(rows, self.weights, self.state, slots)
        host.initial(self.weights, self.state, moves.fetch_slots[initial], moves.fetch_rows[initial])
        host.store_initial(moves.fresh_rows)

    def poison_slots(self, slots: Int64s) -> None:
        self.weights[slots] = np.nan
        self.state[slots] = np.nan

    def poison_host(self, rows: Int64s) -> None:
        self._host.poison(rows)

    def pool(self, pooling: Pooling, rows: Floats | None = None) -> Tensor:
        out = self._vectors.take(pooling.num_vectors, self.weights.shape[1])
        cpu.pool(
            out.numpy(),
            pooling.bag_vectors,
            pooling.bag_starts,
            pooling.locations,
            pooling.scales,
            self.weights if rows is None else rows,
            self._host.weights,
            len(self._scratch),
        )
        return out

    def update(self, grouping: Grouping, gradients: Tensor) -> Later:
        norms = np.empty(len(grouping.rows), np.float32)
        cpu.update(
            grouping.locations,
            grouping.segments,
            grouping.vectors,
            grouping.scales,
            gradients.numpy(),
            self.weights,
            self.state,
            self._host.weights,
            self._host.state,
            self._kind,
            self._settings,
            self._corrections,
            norms,
            self._scratch,
        )
        return lambda: norms

    def defer(self, deferred: Deferred, gradients: Tensor) -> Later:
        grouping = deferred.grouping
        norms = np.empty(len(deferred.due_rows), np.float32)
        defer(
            grouping.locations,
            grouping.segments,
            grouping.vectors,
            grouping.scales,
            gradients.numpy(),
            self._sums,
            self._squares,
            self._pending,
            deferred.due_at,
            deferred.due_locations,
            deferred.due_entries,
            self.weights,
            self.state,
            self._host.weights,
            self._host.state,
            self._kind,
            self._settings,
            self._corrections,
            norms,
            self._scratch,
        )
        return lambda: norms

    def settled(self, entries: Int64s, weights: Floats, state: Floats) -> None:
        waiting = waiting_rows(entries, self._pending)
        update_from_sums(
            0,
            waiting,
            entries[waiting],
            self._sums,
            self._squares,
            weights,
            state,
            self._kind,
            self._settings,
            self._corrections,
            np.empty(len(waiting), np.float32),
            self._scratch,
        )

    def drift(self, snapshots: Snapshots) -> Later:
        drifts = np.empty(len(snapshots.entries), np.float32)
        drift.drift(
            snapshots.locations,
            snapshots.entries,
            snapshots.known,
            self.weights,
            self._host.weights,
            self._snapshots,
            drifts,
            self._scratch[:, 0],
        )
        return lambda: drifts

    def read(self, slots: Int64s) -> tuple[Floats, Floats]:
        return self.weights[slots], self.state[slots]

    def watch(self, capacity: int, *, snapshots: bool, sums: bool) -> None:
        width = self.weights.shape[1]
        self._snapshots = full_rows(capacity if snapshots else 0, width, np.nan)
        # Not written: only sums that wait are read, and all would take as much memory as the popular rows.
        self._sums = empty_rows(capacity if sums else 0, width)
        self._squares = empty_rows(len(self._sums), self.squares_width)
        self._pending = np.zeros(len(self._sums), np.bool_)

    def forget_watched(self) -> None:
        self._snapshots.fill(np.nan)
        self._pending.fill(False)

    def kept(self, num_entries: int) -> Kept:
        waiting = np.flatnonzero(self._pending[:num_entries])
        return Kept(self._snapshots[:num_entries].copy(), waiting, self._sums[waiting], self._squares[waiting])

    def keep(self, kept: Kept) -> None:
        self.forget_watched()
        self._snapshots[: len(kept.snapshots)] = kept.snapshots
        self._sums[kept.waiting], self._squares[kept.waiting] = kept.sums, kept.squares
        self._pending[kept.waiting] = True

    @property
    def num_bytes(self) -> tuple[int, int, int]:
        watched = self._snapshots.nbytes + self._sums.nbytes + self._squares.nbytes
        return self.weights.nbytes, self.state.nbytes, watched


def waiting_rows(entries: Int64s, pending: NDArray[np.bool_]) -> Int64s:
    """Positions of the rows whose gradient waits; entries (n,) or -1."""
    watched = np.flatnonzero(entries >= 0)
    return watched[pending[entries[watched]]]
