"""Plans on the device: arguments of kernels, as tensors. `sent_plan` makes them."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.planning.plan import Deferred, GroupPlan, Int64s, Moves, Pooling, RowUpdates
from adaptive.embeddings.tiers.gpu.buffers import TransferBuffer


@dataclass(frozen=True)
class SentBags:
    """Bags on the device: arguments of the pooling kernel."""

    num_samples: int  # as of `Pooling`
    row_locations: Tensor  # of distinct rows: slots, or ~i of the rows that cross
    inverse: Tensor
    vectors: Tensor  # empty: in the order of `num_samples`
    starts: Tensor  # empty: each bag has one lookup
    scales: Tensor


@dataclass(frozen=True, kw_only=True)
class SentPooling(Pooling):
    """A forward pass cut in two: bags pooled on the device, and bags entirely on the host."""

    bags: SentBags | None  # None: no bag has a row on the device
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


@dataclass(frozen=True, kw_only=True)
class SentRowUpdates(RowUpdates):
    """An update cut in two: rows in slots and rows on the host, as positions in `rows`."""

    device_positions: Int64s | slice
    device_segments: Segments
    host_positions: Int64s
    host_updates: RowUpdates
    needed: Tensor | None  # vectors whose gradients the host needs, numbered 0 ... in `host_updates`; None: all


@dataclass(frozen=True, kw_only=True)
class SentDeferred(Deferred):
    """Sums with their arguments on the device."""

    segments_sent: Segments  # of the rows `summed`; locations are entries
    applied: SentRowUpdates  # from sums that are due: its vectors are entries, rows of the table of sums
    due_sent: Tensor  # their entries


@dataclass(frozen=True)
class Fetches:
    """Rows to fetch, as slots (n,) and rows (n,)."""

    stored: tuple[Int64s, Int64s]
    initial: tuple[Int64s, ...]  # group rows, and their keys if they have some: initial values follow from these


@dataclass(frozen=True, kw_only=True)
class SentMoves(Moves):
    """Moves with the lists of slots and rows that kernels need on the device, each (slots, rows)."""

    fetches: Fetches
    back_sent: tuple[Tensor, ...]  # empty: rows cross in buffers
    stored_sent: tuple[Tensor, ...]  # empty: rows cross in buffers
    initial_sent: tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class SentPlan(GroupPlan):
    """A plan whose parts are the classes above.

    With `deferred`, `row_updates` has the rows that are updated now.
    """

    original: GroupPlan  # over the same arrays
    inputs: tuple[NDArray[Any], ...]  # of the batch, sent with the plan
    sent_inputs: tuple[Tensor, ...]
    transfer_buffer: TransferBuffer

    @property
    def written_locations(self) -> Int64s:
        return self.original.written_locations
