"""`DeviceTier`: slots for rows, and the work done on them. In ordinary memory: `cpu_device`; on a GPU: `gpu.device`.

The device tier pools bags, applies updates and measures drift; both tiers' arrays are at hand, so that rows which a
plan leaves on the host (`misses = "host"`) take part at their place in the sum.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.planning.lookups import Searcher
from adaptive.embeddings.planning.plan import Deferred, GroupPlan, Moves, Pooling, RowUpdates, Snapshots
from adaptive.optim import RowOptimizer

Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]
Send = Callable[[NDArray[Any]], Tensor]
Later = Callable[[], Floats]  # call it once for numbers that may still be on their way: it waits for them


@dataclass(frozen=True)
class WatchedValues:
    """What a device keeps of watched rows. Letters: n entries of the hot set, m of them with a sum that waits."""

    snapshots: Floats  # (n, D), NaN where there is none yet; or (0, D)
    waiting: Int64s  # (m,) entries, ascending
    sums: Floats  # (m, D)
    squares: Floats  # (m, S)


class DeviceTier(ABC):
    """Slots for rows, and the work on them. Slots are only touched as plans say; the caller keeps the order."""

    num_slots: int
    squares_width: int  # float32 values beside each sum, see `RowOptimizer.squares_width`
    poison: bool
    searcher: Searcher | None = None  # where the device itself finds what batches look up
    pools_parts: bool  # while rows for the others are on their way; if not, batches are run in one pass

    @abstractmethod
    def send(self, array: NDArray[Any]) -> Tensor:
        """A tensor on the device with a batch's own numbers; it does not change when the array does."""

    @abstractmethod
    def bring(self, tensor: Tensor) -> Later:
        """Numbers (n, D) that lie on the device, as an array of the host's."""

    @abstractmethod
    def ship(self, plan: GroupPlan, buffer: int, inputs: Sequence[NDArray[Any]] = ()) -> GroupPlan:
        """The plan with all that training needs of it on the device, and with it arrays of the batch. `buffer`: see
        `Mover.start_moves`."""

    @abstractmethod
    def inputs(self, plan: GroupPlan) -> Send:
        """From the training thread, when a batch begins: `send`, but for arrays that went with its plan (the very same
        objects), which are there. The tensors are the loop's own: it may keep them."""

    @abstractmethod
    def ship_again(self, plan: GroupPlan) -> None:
        """Send a shipped plan again, whose rows have other slots now; its arrays have been changed."""

    @abstractmethod
    def write_back(self, moves: Moves) -> None:
        """Copy the rows `moves.back_rows` with their state from their slots to the host."""

    @abstractmethod
    def fetch(self, moves: Moves) -> None:
        """Copy, or make, the rows `moves.fetch_rows` into their slots; give `moves.fresh_rows` their initial values."""

    @abstractmethod
    def land(self) -> None:
        """Return when the host has stored the rows that copies brought; the copies are done."""

    @abstractmethod
    def close(self) -> None:
        """Release the host's memory; nothing is moving. Closing twice is fine."""

    @abstractmethod
    def resize(self, num_slots: int) -> None:
        """Reallocate to `num_slots` empty slots, which are there when this returns."""

    @abstractmethod
    def pool(self, pooling: Pooling, rows: Floats | Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """(V, D) the vectors of one batch, from slots and host, or from `rows` (U, D): read out, or on the device.
        `out`: where they are written, if other vectors stand there, too."""

    @abstractmethod
    def empty_vectors(self, number: int) -> Tensor:
        """(number, D) on the device, not written, for `pool`."""

    @abstractmethod
    def use(self, optimizer: RowOptimizer) -> None:
        """Update rows by these settings from now on; the formula and the state are the same. From the training thread,
        or with no batch in flight."""

    @abstractmethod
    def update(self, row_updates: RowUpdates, gradients: Tensor) -> Later:
        """Update rows from the gradients of the vectors (V, D); returns the L2 norm of each update (U,)."""

    @abstractmethod
    def defer(self, deferred: Deferred, gradients: Tensor) -> Later:
        """Add gradients to the sums, then apply the sums that are due; returns the L2 norms of those updates (n,)."""

    @abstractmethod
    def apply_waiting(self, entries: Int64s, weights: Floats, state: Floats) -> None:
        """Apply to copies of rows (n, ...) whatever gradients wait for them; entries (n,) or -1. Changes no row."""

    @abstractmethod
    def drift(self, snapshots: Snapshots) -> Later:
        """Movement of watched rows since their snapshot (n,), which is then renewed."""

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
        """Drop all snapshots and waiting sums."""

    @abstractmethod
    def kept(self, num_entries: int) -> WatchedValues:
        """Copies of what is kept of the first entries; for saving."""

    @abstractmethod
    def keep(self, kept: WatchedValues) -> None:
        """Replace all snapshots and waiting sums by `kept`. There is room for it."""

    @property
    @abstractmethod
    def buffer_bytes(self) -> tuple[int, int]:
        """Bytes of the buffers that rows and plans cross in: pinned on the host, on the device."""

    @property
    @abstractmethod
    def num_bytes(self) -> tuple[int, int, int]:
        """Bytes of (weights, state, snapshots and sums with their squares)."""
