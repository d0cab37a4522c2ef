"""`TorchDevice`: slots in the memory of any torch device, worked on with plain torch operations.

Rows that a plan leaves on the host cross the link one by one and are summed on the device, in look-up order; their
summed gradients return and are applied by the host's kernel. That is slower than pooling on the host, and exact.
All work goes to the current stream, so copies and training are in order without events.
"""

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.kernels import cpu, cuda
from adaptive.rows.optim import RowOptimizer
from adaptive.tiers.device import DeviceTier, Floats, Int64s, one_each, waiting_rows
from adaptive.tiers.host import HostTier
from adaptive.tiers.plan import Deferred, Grouping, Moves, Pooling, Snapshots


class TorchDevice(DeviceTier):
    """See the module."""

    def __init__(
        self, host: HostTier, num_slots: int, optimizer: RowOptimizer, device: torch.device, *, poison: bool = False
    ) -> None:
        self.num_slots = num_slots
        self.poison = poison
        self.device = device
        self._host = host
        self._kind = optimizer.kind
        self._settings = optimizer.settings()
        self._corrections = optimizer.corrections()
        self._numbers = [float(value) for value in self._settings]
        self._device_corrections = self._tensor(self._corrections)
        fill = float("nan") if poison else 0.0
        self.weights = torch.full((num_slots, host.weights.shape[1]), fill, device=device)
        self.state = torch.full((num_slots, host.state.shape[1]), fill, device=device)
        self.watch(0, snapshots=False, sums=False)

    def write_back(self, moves: Moves) -> None:
        self._host.write(moves.back_rows, *self.read(moves.back_slots))

    def fetch(self, moves: Moves) -> None:
        host = self._host
        host.store_initial(moves.fresh_rows)
        weights = np.empty((len(moves.fetch_rows), host.weights.shape[1]), np.float32)
        state = np.empty((len(moves.fetch_rows), host.state.shape[1]), np.float32)
        initial, stored = np.flatnonzero(moves.fetch_initial), np.flatnonzero(~moves.fetch_initial)
        host.copy_out(moves.fetch_rows[stored], weights, state, stored)
        host.initial(weights, state, initial, moves.fetch_rows[initial])
        slots = self._index(moves.fetch_slots)
        self.weights[slots] = self._tensor(weights)
        self.state[slots] = self._tensor(state)

    def poison_slots(self, slots: Int64s) -> None:
        self.weights[self._index(slots)] = torch.nan
        self.state[self._index(slots)] = torch.nan

    def poison_host(self, rows: Int64s) -> None:
        self._host.poison(rows)

    def pool(self, pooling: Pooling, rows: Floats | None = None) -> Tensor:
        weights = self.weights if rows is None else self._tensor(rows)
        return cuda.pool(
            self._values(weights, pooling.locations),
            self._index(pooling.bag_vectors),
            self._index(pooling.bag_starts),
            self._tensor(pooling.scales),
            pooling.num_vectors,
        )

    def _values(self, weights: Tensor, locations: Int64s) -> Tensor:
        """(n, D) the rows at `locations`, from both tiers."""
        on_host = np.flatnonzero(locations < 0)
        if not len(on_host):
            return weights[self._index(locations)]
        values = torch.empty((len(locations), self._host.weights.shape[1]), device=self.device)
        on_device = np.flatnonzero(locations >= 0)
        values[self._index(on_device)] = weights[self._index(locations[on_device])]
        values[self._index(on_host)] = self._tensor(self._host.weights[~locations[on_host]])
        return values

    def update(self, grouping: Grouping, gradients: Tensor) -> Floats:
        summed = self._summed(grouping, gradients)
        norms = np.empty(len(grouping.rows), np.float32)
        on_device, on_host = np.flatnonzero(grouping.locations >= 0), np.flatnonzero(grouping.locations < 0)
        if len(on_device):
            norms[on_device] = self._update_slots(grouping.locations[on_device], summed[self._index(on_device)])
        if len(on_host):
            norms[on_host] = self._update_host(grouping.locations[on_host], summed[self._index(on_host)])
        return norms

    def _summed(self, grouping: Grouping, gradients: Tensor) -> Tensor:
        """(U, D) the gradient of each row."""
        return cuda.sum_gradients(
            gradients, self._index(grouping.vectors), self._index(grouping.segments), self._tensor(grouping.scales)
        )

    def _steps(self, state: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """(changes to subtract, new state) of one optimizer step."""
        return cuda.steps(self._kind, state, gradients, self._numbers, self._device_corrections)

    def _update_slots(self, locations: Int64s, gradients: Tensor) -> Floats:
        slots = self._index(locations)
        delta, state = self._steps(self.state[slots], gradients)
        self.weights[slots] = self.weights[slots] - delta
        self.state[slots] = state
        norms: Floats = cuda.square_root(cuda.square_sum(delta)).cpu().numpy()
        return norms

    def _update_host(self, locations: Int64s, gradients: Tensor) -> Floats:
        num_rows, width = gradients.shape
        norms = np.empty(num_rows, np.float32)
        cpu.update(
            locations,
            np.arange(num_rows + 1),
            np.arange(num_rows, dtype=np.int32),
            np.zeros(0, np.float32),
            gradients.cpu().numpy(),
            np.zeros((0, width), np.float32),
            np.zeros((0, self._host.state.shape[1]), np.float32),
            self._host.weights,
            self._host.state,
            self._kind,
            self._settings,
            self._corrections,
            norms,
            np.zeros((max(numba.get_num_threads(), 1), 2 * width), np.float32),
        )
        return norms

    def defer(self, deferred: Deferred, gradients: Tensor) -> Floats:
        grouping, entries = deferred.grouping, deferred.grouping.locations
        summed = self._summed(grouping, gradients)
        going_on = self._tensor(self._pending[entries])[:, None]
        index = self._index(entries)
        self._sums[index] = torch.where(going_on, self._sums[index] + summed, summed)
        self._pending[entries] = True
        due = deferred.due_entries
        self._pending[due] = False
        return self.update(one_each(deferred.due_rows, deferred.due_locations, due), self._sums)

    def settled(self, entries: Int64s, weights: Floats, state: Floats) -> None:
        waiting = waiting_rows(entries, self._pending)
        delta, after = self._steps(self._tensor(state[waiting]), self._sums[self._index(entries[waiting])])
        weights[waiting] = (self._tensor(weights[waiting]) - delta).cpu().numpy()
        state[waiting] = after.cpu().numpy()

    def drift(self, snapshots: Snapshots) -> Floats:
        rows, entries = self._values(self.weights, snapshots.locations), self._index(snapshots.entries)
        drifts: Floats = cuda.drift(rows, self._snapshots[entries], self._tensor(snapshots.known)).cpu().numpy()
        self._snapshots[entries] = rows
        return drifts

    def read(self, slots: Int64s) -> tuple[Floats, Floats]:
        index = self._index(slots)
        return self.weights[index].cpu().numpy(), self.state[index].cpu().numpy()

    def watch(self, capacity: int, *, snapshots: bool, sums: bool) -> None:
        width = self.weights.shape[1]
        self._snapshots = torch.full((capacity if snapshots else 0, width), torch.nan, device=self.device)
        self._sums = torch.full((capacity if sums else 0, width), torch.nan, device=self.device)
        self._pending = np.zeros(len(self._sums), np.bool_)

    def forget_watched(self) -> None:
        self._snapshots.fill_(torch.nan)
        self._pending.fill(False)

    @property
    def num_bytes(self) -> tuple[int, int, int]:
        return self.weights.nbytes, self.state.nbytes, self._snapshots.nbytes + self._sums.nbytes

    def _index(self, array: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self.device)

    def _tensor(self, array: NDArray[np.float32] | NDArray[np.bool_]) -> Tensor:
        return torch.from_numpy(array).to(self.device)
