"""`DeviceTier`: slots for rows, and the work that is done on them. `CpuDevice` is a compact block of memory.

The device tier pools bags, applies updates and measures drift; both tiers' arrays are at hand, so that rows which a
plan leaves on the host (`misses = "host"`) take part at their place in the sum.
"""

from abc import ABC, abstractmethod

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.kernels import cpu
from adaptive.rows.optim import RowOptimizer
from adaptive.tiers.host import HostTier
from adaptive.tiers.plan import Grouping, Moves, Pooling, Snapshots

Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]


class DeviceTier(ABC):
    """What every device offers. Slots are only touched as plans say; the caller keeps the order."""

    num_slots: int
    poison: bool = False

    @abstractmethod
    def write_back(self, moves: Moves) -> None:
        """Copy the rows `moves.back_rows` with their state from their slots to the host."""

    @abstractmethod
    def fetch(self, moves: Moves) -> None:
        """Copy, or make, the rows `moves.fetch_rows` into their slots; give `moves.fresh_rows` their initial values."""

    @abstractmethod
    def pool(self, pooling: Pooling, rows: Floats | None = None) -> Tensor:
        """(V, D) the vectors of one batch, from slots and host, or from `rows` (U, D) that were read out."""

    @abstractmethod
    def update(self, grouping: Grouping, gradients: Tensor) -> Floats:
        """Update rows from the gradients of the vectors (V, D); returns the L2 norm of each update (U,)."""

    @abstractmethod
    def drift(self, snapshots: Snapshots) -> Floats:
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
    def watch(self, capacity: int) -> None:
        """Make room for the snapshots of `capacity` rows."""

    @property
    @abstractmethod
    def num_bytes(self) -> tuple[int, int, int]:
        """Bytes of (weights, state, snapshots)."""


class CpuDevice(DeviceTier):
    """Slots in ordinary memory; every operation is one numba kernel."""

    def __init__(self, host: HostTier, num_slots: int, optimizer: RowOptimizer, *, poison: bool = False) -> None:
        self.num_slots = num_slots
        self._host = host
        self._kind, self._settings, self._corrections = optimizer.kind, optimizer.settings(), optimizer.corrections()
        width = host.weights.shape[1]
        fill = np.nan if poison else 0.0
        self.weights = np.full((num_slots, width), fill, np.float32)
        self.state = np.full((num_slots, host.state.shape[1]), fill, np.float32)
        self._snapshots = np.zeros((0, width), np.float32)
        self.poison = poison
        self._scratch = np.zeros((max(numba.get_num_threads(), 1), 2 * width), np.float32)

    def write_back(self, moves: Moves) -> None:
        host = self._host
        cpu.copy_rows(host.weights, host.state, moves.back_rows, self.weights, self.state, moves.back_slots)

    def fetch(self, moves: Moves) -> None:
        host = self._host
        initial = moves.fetch_initial
        slots, rows = moves.fetch_slots[~initial], moves.fetch_rows[~initial]
        cpu.copy_rows(self.weights, self.state, slots, host.weights, host.state, rows)
        host.initial(self.weights, self.state, moves.fetch_slots[initial], moves.fetch_rows[initial])
        host.initial(host.weights, host.state, moves.fresh_rows, moves.fresh_rows)

    def poison_slots(self, slots: Int64s) -> None:
        self.weights[slots] = np.nan
        self.state[slots] = np.nan

    def poison_host(self, rows: Int64s) -> None:
        self._host.weights[rows] = np.nan
        self._host.state[rows] = np.nan

    def pool(self, pooling: Pooling, rows: Floats | None = None) -> Tensor:
        out = np.empty((pooling.num_vectors, self.weights.shape[1]), np.float32)
        cpu.pool(
            out,
            pooling.bag_vectors,
            pooling.bag_starts,
            pooling.locations,
            pooling.scales,
            self.weights if rows is None else rows,
            self._host.weights,
            len(self._scratch),
        )
        return torch.from_numpy(out)

    def update(self, grouping: Grouping, gradients: Tensor) -> Floats:
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
        return norms

    def drift(self, snapshots: Snapshots) -> Floats:
        drifts = np.empty(len(snapshots.entries), np.float32)
        width = self.weights.shape[1]
        cpu.drift(
            snapshots.locations,
            snapshots.entries,
            snapshots.known,
            self.weights,
            self._host.weights,
            self._snapshots,
            drifts,
            np.empty((1, width), np.float32),
        )
        return drifts

    def read(self, slots: Int64s) -> tuple[Floats, Floats]:
        return self.weights[slots], self.state[slots]

    def watch(self, capacity: int) -> None:
        self._snapshots = np.zeros((capacity, self.weights.shape[1]), np.float32)

    @property
    def num_bytes(self) -> tuple[int, int, int]:
        return self.weights.nbytes, self.state.nbytes, self._snapshots.nbytes
