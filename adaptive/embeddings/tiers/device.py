"""`DeviceTier`: slots for rows, and the work done on them.

`cpu_device` implements it in ordinary memory, `gpu.device` on a GPU. The device tier pools bags, applies updates and
measures them. It can reach the host tier's arrays, so that rows which a plan leaves on the host (`misses = "host"`)
are added at their place in a sum.

`DevicePlan` is what kernels need of a `GroupPlan`, as tensors on the device. Both travel side by side: the host reads
the one, the device the other. `gpu.upload` makes them; a device in ordinary memory needs none.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from adaptive.arrays import Floats, Int64s, Rows
from adaptive.embeddings.planning.lookups import Searcher
from adaptive.embeddings.planning.plan import GroupPlan, Moves, Pooling, RowUpdates
from adaptive.optim import RowOptimizer


@dataclass(frozen=True)
class DeviceBags:
    """Bags on the device: arguments of the pooling kernel."""

    num_samples: int  # as of `Pooling`
    row_locations: Tensor  # of distinct rows: slots, or ~i of the rows that cross
    inverse: Tensor
    vectors: Tensor  # empty: in the order of `num_samples`
    starts: Tensor  # empty: each bag has one lookup
    scales: Tensor


@dataclass(frozen=True)
class DevicePooling:
    """A forward pass cut in two: bags pooled on the device, and bags entirely on the host."""

    bags: DeviceBags | None  # None: no bag has a row on the device
    crossing: Int64s  # host rows that these bags need
    on_host: Pooling | None  # bags entirely on the host, their vectors numbered 0 ..., or the whole
    host_vectors: Tensor | None  # where those vectors belong; None: `on_host` is the whole


@dataclass(frozen=True)
class Segments:
    """Rows to update on the device: arguments of the update kernel."""

    locations: Tensor
    starts: Tensor
    vectors: Tensor
    scales: Tensor
    hot: Tensor  # of the rows, those with many lookups: see `kernels.planning.lookups`


@dataclass(frozen=True)
class DeviceUpdates:
    """An update cut in two: rows in slots and rows on the host, as positions in `rows`."""

    rows: Int64s  # (U,) as of `RowUpdates`
    positions: Int64s | slice
    segments: Segments
    host_positions: Int64s
    on_host: RowUpdates
    needed: Tensor | None  # vectors whose gradients the host needs, numbered 0 ... in `on_host`; None: all


@dataclass(frozen=True)
class DeviceSums:
    """Sums of deferred updates."""

    added: Segments  # of the rows whose gradients are added to sums; locations are entries
    applied: DeviceUpdates  # from sums: its vectors are entries, rows of the table of sums
    applied_entries: Tensor  # of these sums


@dataclass(frozen=True)
class Fetches:
    """Rows to fetch, as slots (n,) and rows (n,)."""

    stored: tuple[Int64s, Int64s]
    initial: tuple[Int64s, ...]  # group rows, and their keys if they have some: initial values follow from these


@dataclass(frozen=True)
class DeviceMoves:
    """The lists of slots and rows that kernels need to move rows, each (slots, rows)."""

    fetches: Fetches
    back: tuple[Tensor, ...]  # empty: rows cross in buffers
    stored: tuple[Tensor, ...]  # empty: rows cross in buffers
    initial: tuple[Tensor, ...]


@dataclass(frozen=True)
class DevicePlan:
    """The plan of one batch and one group on the device."""

    moves: DeviceMoves
    pooling: DevicePooling
    row_updates: DeviceUpdates  # with `sums`, of the rows that are updated now
    sums: DeviceSums | None
    inputs: tuple[tuple[NDArray[Any], Tensor], ...]  # arrays of the batch that were sent along, and where they are


Send = Callable[[NDArray[Any]], Tensor]
InFlight = Callable[[], Floats]  # call it once for numbers that may still be in flight: it waits for them


@dataclass(frozen=True)
class HotSums:
    """Values of hot rows: the m entries of the hot set with a deferred sum."""

    entries: Int64s  # (m,) of their rows, ascending
    sums: Floats  # (m, D)
    squares: Floats  # (m, S)


class DeviceTier(ABC):
    """Slots for rows, and the work on them.

    Slots are touched only as plans say, and the caller keeps the order. The look-ahead thread calls the methods that
    move rows and send plans, the training thread all others.
    """

    num_slots: int
    squares_width: int  # float32 values next to each sum, see `RowOptimizer.squares_width`
    poison: bool
    searcher: Searcher | None = None  # finds lookups on the device, if not None
    takes_flags = False  # `update` takes a `found_inf`, `pool` takes `out`
    pools_parts: bool  # pools parts of a batch while rows of the others are in flight; False: batches run in one pass

    @abstractmethod
    def send(self, array: NDArray[Any]) -> Tensor:
        """Return a tensor on the device with the array's values, unaffected by later changes."""

    @abstractmethod
    def upload_plan(self, plan: GroupPlan, buffer: int, inputs: Sequence[NDArray[Any]] = ()) -> DevicePlan | None:
        """Send a plan, and arrays of its batch, to the device; None if it reads the plan itself.

        buffer: see `Mover.start_moves`. What is returned belongs to the plan: methods that take both get both.
        """

    def to_host(self, tensor: Tensor) -> InFlight:
        """Start to copy float32 numbers from the device. Requires `takes_flags`."""
        raise NotImplementedError

    @abstractmethod
    def inputs(self, device_plan: DevicePlan | None) -> Send:
        """Return `send` for a batch that begins, which reuses arrays sent with its plan.

        These must be the very same objects. The tensors belong to the training loop, which may keep them.
        """

    @abstractmethod
    def write_back(self, moves: Moves, device_moves: DeviceMoves | None = None) -> None:
        """Copy the rows `moves.back_rows` with their state from their slots to the host."""

    @abstractmethod
    def fetch(self, moves: Moves, device_moves: DeviceMoves | None = None) -> None:
        """Copy or compute the rows `moves.fetch_rows` into their slots.

        `moves.fresh_rows` get their initial values on the host.
        """

    @abstractmethod
    def finish_host_writes(self) -> None:
        """Return when the host has stored the rows that copies brought; the copies are done."""

    @abstractmethod
    def close(self) -> None:
        """Release the host's memory; nothing is moving. Closing twice is fine."""

    @abstractmethod
    def pool(
        self,
        pooling: Pooling,
        device_pooling: DevicePooling | None = None,
        rows: Rows | Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return the vectors (V, D) float32 of one batch, from slots and host, or from `rows` (U, D).

        device_pooling: of the batch's plan; None: it is sent now. rows: on the host or on the device.
        out: (V, D) on the device to write to, only if `takes_flags`.
        """

    @abstractmethod
    def use(self, optimizer: RowOptimizer) -> None:
        """Update rows with these settings from now on; formula and state stay the same.

        Call it from the training thread, or with no batch in flight.
        """

    @abstractmethod
    def update(
        self, plan: GroupPlan, device_plan: DevicePlan | None, gradients: Tensor, found_inf: Tensor | None = None
    ) -> InFlight:
        """Update rows from the vectors' gradients (V, D), or add these to sums and apply sums.

        found_inf: () float32 on the device, only if `takes_flags`. If it is not 0, no row changes and norms are NaN.

        Returns:
            (1, n) L2 norms of the updates, in the order of `GroupPlan.written_rows`; (2, n) with those of the rows
            before them if the plan wants two lines. Do not call it if the plan wants none: a GPU sends nothing.
        """

    @abstractmethod
    def apply_deferred(self, entries: Int64s, weights: Rows, state: Rows) -> None:
        """Apply deferred sums to copies of rows (n, ...); entries (n,) or -1. Changes no row.

        Rows in bfloat16 are rounded to nearest, so that reading depends on no batch.
        """

    @abstractmethod
    def read(self, slots: Int64s) -> tuple[Rows, Rows]:
        """Return copies (weights, state) of slots; for evaluation and saving."""

    @abstractmethod
    def poison_slots(self, slots: Int64s) -> None:
        """Debug: write NaN to slots whose row was evicted."""

    @abstractmethod
    def poison_host(self, rows: Int64s) -> None:
        """Debug: write NaN to the host copies of rows that a batch will change on the device."""

    @abstractmethod
    def begin_sums(self, capacity: int) -> None:
        """Allocate deferred sums and their squares for `capacity` rows; measure rows before their updates."""

    @abstractmethod
    def forget_sums(self) -> None:
        """Drop all deferred sums."""

    @abstractmethod
    def export_sums(self, num_entries: int) -> HotSums:
        """Return copies of the values of the first entries; for saving."""

    @abstractmethod
    def import_sums(self, values: HotSums) -> None:
        """Replace all deferred sums. They must fit in what `begin_sums` allocated."""

    @property
    @abstractmethod
    def buffer_bytes(self) -> tuple[int, int]:
        """Bytes of the buffers for rows and plans: pinned on the host, on the device."""

    @property
    @abstractmethod
    def num_bytes(self) -> tuple[int, int, int]:
        """Bytes of (weights, state, sums with their squares)."""
