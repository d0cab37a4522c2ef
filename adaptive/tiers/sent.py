"""A plan on the device: what `adaptive.tiers.shipping` sent, cut into the parts of device and host."""

from dataclasses import dataclass

from torch import Tensor

from adaptive.planning.plan import Deferred, Grouping, GroupPlan, Int64s, Pooling, Snapshots
from adaptive.tiers.staging import Parcel


@dataclass(frozen=True)
class Bags:
    """Bags on the device: arguments of the pooling kernel."""

    locations: Tensor  # slots, or ~i of the rows that cross
    vectors: Tensor
    starts: Tensor
    scales: Tensor


@dataclass(frozen=True, kw_only=True)
class SentPooling(Pooling):
    """A forward pass cut in two."""

    bags: Bags | None  # None: no bag has a row on the device
    crossing: Int64s  # host rows that these bags need
    on_host: Pooling | None  # bags wholly on the host, their vectors numbered 0 ..., or the whole
    host_vectors: Tensor | None  # where those vectors belong; None: `on_host` is the whole


@dataclass(frozen=True)
class Segments:
    """Rows to update on the device: arguments of the update kernel."""

    locations: Tensor
    starts: Tensor
    vectors: Tensor
    scales: Tensor


@dataclass(frozen=True, kw_only=True)
class SentGrouping(Grouping):
    """An update cut in two. `here` and `there` are positions in `rows`."""

    here: Int64s
    segments_here: Segments
    there: Int64s
    on_host: Grouping  # the rows `there`
    needed: Tensor | None  # the vectors whose gradients the host needs, numbered 0 ... in `on_host`; None: all


@dataclass(frozen=True)
class SnapshotArguments:
    """Of the drift kernel."""

    locations: Tensor  # slots, or ~i of the rows that cross
    entries: Tensor
    known: Tensor


@dataclass(frozen=True, kw_only=True)
class SentSnapshots(Snapshots):
    """Snapshots with their arguments on the device."""

    arguments: SnapshotArguments
    crossing: Int64s


@dataclass(frozen=True, kw_only=True)
class SentDeferred(Deferred):
    """Sums with their arguments on the device."""

    segments_sent: Segments  # of `grouping`; locations are entries
    due: SentGrouping  # its vectors are entries: rows of the table of sums
    due_sent: Tensor  # entries whose sum is applied


@dataclass(frozen=True, kw_only=True)
class SentPlan(GroupPlan):
    """A plan whose `pooling`, `grouping`, `snapshots` and `deferred` are the classes above."""

    original: GroupPlan  # over the same arrays
    parcel: Parcel
