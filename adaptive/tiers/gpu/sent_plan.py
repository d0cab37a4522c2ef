"""A plan on the device: what training needs of it, sent ahead of time in one copy, and what it becomes there.

A plan may leave rows on the host (`misses = "host"`); it is cut here:

    bags whose rows all lie on the host     are pooled there; their vectors cross, and their gradients return
    other bags                              are pooled on the device; host rows among theirs cross one by one
    rows to update                          are updated where they lie, from gradients of vectors

Either way a sum runs in look-up order, so the cut does not change the numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive.counters import Counter
from adaptive.kernels.rows.bags import one_each
from adaptive.kernels.rows.hot import hot_rows
from adaptive.planning.plan import Deferred, GroupPlan, Int64s, Pooling, RowUpdates, Snapshots, no_rows
from adaptive.tiers.gpu.buffers import TransferBuffer
from adaptive.tiers.gpu.link import ComputeLink

T = TypeVar("T")
Sent = Callable[[list[Tensor]], T]  # from all that was sent to what was asked for


@dataclass(frozen=True)
class SentBags:
    """Bags on the device: arguments of the pooling kernel."""

    num_samples: int  # as of `Pooling`
    row_locations: Tensor  # of distinct rows: slots, or ~i of the rows that cross
    inverse: Tensor
    vectors: Tensor  # empty: in the order of `num_samples`
    starts: Tensor  # empty: each bag has one look-up
    scales: Tensor


@dataclass(frozen=True, kw_only=True)
class SentPooling(Pooling):
    """A forward pass cut in two: bags pooled on the device, and bags wholly on the host."""

    bags: SentBags | None  # None: no bag has a row on the device
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
    hot: Tensor  # of the rows, those with many look-ups: see `kernels.rows.hot`


@dataclass(frozen=True, kw_only=True)
class SentRowUpdates(RowUpdates):
    """An update cut in two: rows in slots (`here`) and on the host (`there`), as positions in `rows`."""

    here: Int64s
    segments_here: Segments
    there: Int64s
    on_host: RowUpdates  # the rows `there`
    needed: Tensor | None  # the vectors whose gradients the host needs, numbered 0 ... in `on_host`; None: all


@dataclass(frozen=True)
class SnapshotArguments:
    """Arguments of the drift kernel, on the device."""

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

    segments_sent: Segments  # of `row_updates`; locations are entries
    due: SentRowUpdates  # its vectors are entries: rows of the table of sums
    due_sent: Tensor  # entries whose sum is applied


@dataclass(frozen=True, kw_only=True)
class SentPlan(GroupPlan):
    """A plan whose `pooling`, `row_updates`, `snapshots` and `deferred` are the classes above."""

    original: GroupPlan  # over the same arrays
    transfer_buffer: TransferBuffer


def send_plan(plan: GroupPlan, transfer_buffer: TransferBuffer) -> SentPlan:
    """Send a plan, by one copy. A plan that changed in slots only can be sent again: its tensors stay."""
    packing = _Packing()
    pooling = _cut_pooling(plan.pooling, packing)
    row_updates = _cut_row_updates(plan.row_updates, plan.pooling.num_vectors, packing)
    snapshots = None if plan.snapshots is None else _send_snapshots(plan.snapshots, packing)
    deferred = None if plan.deferred is None else _send_deferred(plan.deferred, packing)
    sent = packing.send(transfer_buffer)
    return SentPlan(
        number=plan.number,
        pooling=pooling(sent),
        row_updates=row_updates(sent),
        moves=plan.moves,
        tally=plan.tally,
        snapshots=None if snapshots is None else snapshots(sent),
        deferred=None if deferred is None else deferred(sent),
        original=plan,
        transfer_buffer=transfer_buffer,
    )


def counted(plan: SentPlan) -> SentPlan:
    """The plan with its own bytes counted as sent to the device, shared out among tables by their look-ups."""
    plan.tally[:, Counter.BYTES_H2D] += shared_out(plan.transfer_buffer.size, plan.tally[:, Counter.LOOKUPS])
    return plan


def shared_out(total: int, weights: Int64s) -> Int64s:
    """Whole shares (n,) of `total` in proportion to weights (n,) >= 0; what does not divide goes to the largest."""
    shares: Int64s = total * weights // max(int(weights.sum()), 1)
    shares[weights.argmax()] += total - int(shares.sum())
    return shares


def send_pooling(pooling: Pooling, link: ComputeLink) -> SentPooling:
    """Send a forward pass alone, from the training thread."""
    packing = _Packing()
    return _cut_pooling(pooling, packing)([link.send(array) for array in packing.arrays])


class _Packing:
    """Arrays to be sent together."""

    def __init__(self) -> None:
        self.arrays: list[NDArray[Any]] = []

    def add(self, *arrays: NDArray[Any]) -> slice:
        """Where the tensors of these arrays will be."""
        self.arrays += arrays
        return slice(len(self.arrays) - len(arrays), len(self.arrays))

    def send(self, transfer_buffer: TransferBuffer) -> list[Tensor]:
        transfer_buffer.take([(array.dtype, array.shape) for array in self.arrays])
        for to, array in zip(transfer_buffer.arrays, self.arrays, strict=True):
            to[...] = array
        transfer_buffer.send()
        return transfer_buffer.tensors


def _cut_pooling(pooling: Pooling, packing: _Packing) -> Sent[SentPooling]:
    if not (pooling.row_locations < 0).any():  # before anything is as long as the look-ups
        bags = packing.add(*bag_arrays(pooling, pooling.row_locations))
        return lambda sent: _cut(pooling, SentBags(pooling.num_samples, *sent[bags]), no_rows(), None, None)
    on_host = pooling.locations < 0
    if on_host.all():  # empty bags need no device either
        return lambda sent: _cut(pooling, None, no_rows(), pooling, None)
    sums = np.concatenate([[0], np.cumsum(on_host)])
    found, counts = np.diff(sums[pooling.bag_starts]), np.diff(pooling.bag_starts)
    whole = (found == counts) & (counts > 0)
    here, there = _take_bags(pooling, ~whole), _take_bags(pooling, whole)
    used = np.zeros(len(here.row_locations), np.bool_)
    used[here.inverse] = True
    locations, crossing = _crossing(here.row_locations, used)
    bags = packing.add(*bag_arrays(here, locations))
    if not whole.any():
        return lambda sent: _cut(pooling, SentBags(here.num_samples, *sent[bags]), crossing, None, None)
    vectors = packing.add(there.bag_vectors)
    numbered = replace(there, num_vectors=len(there.bag_vectors), bag_vectors=_count(there.bag_vectors))
    return lambda sent: _cut(pooling, SentBags(here.num_samples, *sent[bags]), crossing, numbered, sent[vectors][0])


def _cut(
    pooling: Pooling, bags: SentBags | None, crossing: Int64s, on_host: Pooling | None, host_vectors: Tensor | None
) -> SentPooling:
    return SentPooling(**vars(pooling), bags=bags, crossing=crossing, on_host=on_host, host_vectors=host_vectors)


def bag_arrays(pooling: Pooling, row_locations: Int64s) -> tuple[NDArray[Any], ...]:
    """The arguments of `SentBags`. What the kernel can tell from a bag's number is left out."""
    vectors = pooling.bag_vectors[: 0 if pooling.num_samples else None]
    single = len(pooling.inverse) == len(pooling.bag_vectors) and one_each(pooling.bag_starts)
    starts = pooling.bag_starts[: 0 if single else None]
    return row_locations, pooling.inverse, vectors, starts, pooling.scales


def _take_bags(pooling: Pooling, which: NDArray[np.bool_]) -> Pooling:
    if which.all():
        return pooling
    lookups, starts = _spans(pooling.bag_starts, np.flatnonzero(which))
    scales = pooling.scales[lookups] if len(pooling.scales) else pooling.scales
    vectors, tables = pooling.bag_vectors[which], pooling.bag_tables[which]
    return Pooling(
        pooling.num_vectors, vectors, starts, tables, pooling.inverse[lookups], pooling.row_locations, scales
    )


def _cut_row_updates(row_updates: RowUpdates, num_vectors: int, packing: _Packing) -> Sent[SentRowUpdates]:
    on_host = row_updates.locations < 0
    here, there = _take_rows(row_updates, ~on_host), _take_rows(row_updates, on_host)
    segments = _add_segments(here, packing)
    needed: slice | None = None
    if on_host.any() and not on_host.all():
        wanted = np.zeros(num_vectors, np.bool_)
        wanted[there.vectors] = True
        needed = packing.add(np.flatnonzero(wanted))
        there = replace(there, vectors=(np.cumsum(wanted, dtype=np.int32) - 1)[there.vectors])
    return lambda sent: SentRowUpdates(
        **vars(row_updates),
        here=np.flatnonzero(~on_host),
        segments_here=Segments(*sent[segments]),
        there=np.flatnonzero(on_host),
        on_host=there,
        needed=None if needed is None else sent[needed][0],
    )


def _cut_sums(deferred: Deferred, packing: _Packing) -> Sent[SentRowUpdates]:
    """The update from sums that are due, one each; the host gets those of its rows."""
    starts, entries = np.arange(len(deferred.due_rows) + 1), deferred.due_entries.astype(np.int32)
    due = RowUpdates(deferred.due_rows, deferred.due_locations, starts, entries, np.zeros(0, np.float32))
    on_host = due.locations < 0
    here, there = _take_rows(due, ~on_host), _take_rows(due, on_host)
    segments = _add_segments(here, packing)
    needed = packing.add(there.vectors)
    return lambda sent: SentRowUpdates(
        **vars(due),
        here=np.flatnonzero(~on_host),
        segments_here=Segments(*sent[segments]),
        there=np.flatnonzero(on_host),
        on_host=replace(there, vectors=_count(there.vectors)),
        needed=sent[needed][0],
    )


def _add_segments(row_updates: RowUpdates, packing: _Packing) -> slice:
    """Where the arguments of `Segments` will be."""
    arrays = row_updates.locations, row_updates.segments, row_updates.vectors, row_updates.scales
    return packing.add(*arrays, hot_rows(row_updates.segments))


def _take_rows(row_updates: RowUpdates, which: NDArray[np.bool_]) -> RowUpdates:
    if which.all():
        return row_updates
    lookups, segments = _spans(row_updates.segments, np.flatnonzero(which))
    scales = row_updates.scales[lookups] if len(row_updates.scales) else row_updates.scales
    return RowUpdates(
        row_updates.rows[which], row_updates.locations[which], segments, row_updates.vectors[lookups], scales
    )


def _send_snapshots(snapshots: Snapshots, packing: _Packing) -> Sent[SentSnapshots]:
    locations, crossing = _crossing(snapshots.locations)
    parts = packing.add(locations, snapshots.entries, snapshots.known)
    return lambda sent: SentSnapshots(**vars(snapshots), arguments=SnapshotArguments(*sent[parts]), crossing=crossing)


def _send_deferred(deferred: Deferred, packing: _Packing) -> Sent[SentDeferred]:
    row_updates, due = deferred.row_updates, _cut_sums(deferred, packing)
    segments = _add_segments(row_updates, packing)
    entries = packing.add(deferred.due_entries)
    return lambda sent: SentDeferred(
        **vars(deferred), segments_sent=Segments(*sent[segments]), due=due(sent), due_sent=sent[entries][0]
    )


def _crossing(locations: Int64s, used: NDArray[np.bool_] | None = None) -> tuple[Int64s, Int64s]:
    """Locations in which the i-th host row is ~i, and the host rows; of those `used`, default all."""
    on_host = np.flatnonzero(locations < 0 if used is None else (locations < 0) & used)
    if not len(on_host):
        return locations, no_rows()
    found = locations.copy()
    found[on_host] = ~np.arange(len(on_host))
    return found, ~locations[on_host]


def _spans(starts: Int64s, which: Int64s) -> tuple[Int64s, Int64s]:
    """The positions that the spans `which` of [starts[i], starts[i + 1]) cover, and where each begins among them."""
    lengths = starts[which + 1] - starts[which]
    begins = np.concatenate([[0], np.cumsum(lengths)])
    return np.repeat(starts[which] - begins[:-1], lengths) + np.arange(begins[-1]), begins


def _count(vectors: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.arange(len(vectors), dtype=np.int32)
