"""`DevicePlan`: what kernels need of a `GroupPlan`, as tensors on the device.

Both travel side by side: the host reads the one, the device the other. `gpu.upload` makes them; a device in ordinary
memory needs none.
"""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from adaptive.arrays import Int64s
from adaptive.embeddings.planning.plan import Pooling, RowUpdates


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
