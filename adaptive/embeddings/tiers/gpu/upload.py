"""Sends what training needs of a plan to the device, ahead of time and in one copy.

A plan may leave rows on the host (`misses = "host"`); it is cut here:

    bags whose rows are all on the host     are pooled there; their vectors cross, and their gradients return
    other bags                              are pooled on the device; their rows on the host cross one by one
    rows to update                          are updated where they are, from gradients of vectors

Either way a sum takes its lookups in order, so the cut does not change the numbers. If arrays as long as the lookups
are on the device already (`lookups`), no row is on the host.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive.arrays import Bools, Int32s, Int64s
from adaptive.counters import Counter
from adaptive.embeddings.planning.plan import (
    Deferred,
    GroupPlan,
    Moves,
    OnDevice,
    Pooling,
    RowUpdates,
    no_rows,
    take_segments,
)
from adaptive.embeddings.tiers.device import (
    DeviceBags,
    DeviceMoves,
    DevicePlan,
    DevicePooling,
    DeviceSums,
    DeviceUpdates,
    Segments,
)
from adaptive.embeddings.tiers.gpu.buffers import TransferBuffer
from adaptive.embeddings.tiers.gpu.link import ComputeLink
from adaptive.embeddings.tiers.gpu.lookups import DeviceLookups, implied_left_out
from adaptive.embeddings.tiers.gpu.transfer import Transfer
from adaptive.kernels.planning.lookups import hot_chunks

T = TypeVar("T")
Pick = Callable[[list[Tensor]], T]  # picks, from all tensors that were sent
Tensors = Pick[tuple[Tensor, ...]]


def send_plan(
    plan: GroupPlan, transfer: Transfer, transfer_buffer: TransferBuffer, inputs: Sequence[NDArray[Any]] = ()
) -> DevicePlan:
    """Send a plan, its lists for `transfer` and arrays of its batch, in one copy; count the bytes in its tally."""
    packing = _Packing()
    pick_inputs = packing.add(*inputs)
    lookups = None if plan.on_device is None else device_lookups(plan.on_device)
    pooling = _cut_pooling(plan.pooling, packing) if lookups is None else _pool(plan.pooling, lookups, packing)
    if lookups is None or not lookups.updates_all:
        now = plan.row_updates if plan.deferred is None else plan.row_updates.take(plan.deferred.now)
        row_updates = _cut_row_updates(now, plan.pooling.num_vectors, packing)
    else:
        row_updates = _update(plan.row_updates, lookups, packing)
    sums = None if plan.deferred is None else _send_sums(plan.row_updates, plan.deferred, packing)
    moves = _send_moves(plan.moves, transfer, packing)
    sent = packing.send(transfer_buffer)
    pairs = [*zip(inputs, pick_inputs(sent), strict=True), *(lookups.inputs if lookups is not None else ())]
    count_bytes(plan.tally, transfer_buffer.size, *((0, 0) if lookups is None else lookups.crossed))
    return DevicePlan(moves(sent), pooling(sent), row_updates(sent), None if sums is None else sums(sent), tuple(pairs))


def count_bytes(tally: Int64s, sent: int, searched: int, found: int) -> None:
    """Count in a plan's tally the bytes that crossed: with the plan, and of a search on the device in both directions.

    Bytes are divided among tables by their lookups.
    """
    for counter, size in ((Counter.BYTES_H2D, sent + searched), (Counter.BYTES_D2H, found)):
        if size:
            tally[:, counter] += divide_by_weight(size, tally[:, Counter.LOOKUPS])


def device_lookups(lookups: OnDevice) -> DeviceLookups:
    assert isinstance(lookups, DeviceLookups)
    return lookups


def divide_by_weight(total: int, weights: Int64s) -> Int64s:
    """Return whole shares of `total` by weights (n,) >= 0; the largest gets the remainder."""
    shares: Int64s = total * weights // max(int(weights.sum()), 1)
    shares[weights.argmax()] += total - int(shares.sum())
    return shares


def send_pooling(pooling: Pooling, link: ComputeLink) -> DevicePooling:
    """Send a forward pass alone, from the training thread."""
    packing = _Packing()
    return _cut_pooling(pooling, packing)([link.send(array) for array in packing.arrays])


class _Packing:
    """Arrays to send together, each once: forward pass and update mostly share locations."""

    def __init__(self) -> None:
        self.arrays: list[NDArray[Any]] = []
        self._places: dict[int, int] = {}  # id of an array -> its place

    def add(self, *arrays: NDArray[Any]) -> Tensors:
        """Return a function that picks the tensors of these arrays out of all that were sent."""
        places = [self._place(array) for array in arrays]
        return lambda sent: tuple(sent[place] for place in places)

    def _place(self, array: NDArray[Any]) -> int:
        if id(array) not in self._places:
            self._places[id(array)] = len(self.arrays)
            self.arrays.append(array)
        return self._places[id(array)]

    def send(self, transfer_buffer: TransferBuffer) -> list[Tensor]:
        transfer_buffer.send_arrays(self.arrays)
        return transfer_buffer.tensors


def _pool(pooling: Pooling, lookups: DeviceLookups, packing: _Packing) -> Pick[DevicePooling]:
    """A forward pass whose lookups are on the device: only the locations of its rows are added."""
    locations = pooling.row_locations
    assert not len(locations) or locations.min() >= 0, "no row is on the host"
    at = packing.add(locations)
    return lambda sent: DevicePooling(lookups.bags_at(*at(sent)), no_rows(), None, None)


def _update(row_updates: RowUpdates, lookups: DeviceLookups, packing: _Packing) -> Pick[DeviceUpdates]:
    """An update of all rows of a batch whose lookups are on the device."""
    segments = row_updates.segments
    sums = packing.add(row_updates.locations, *(() if lookups.by_row else (segments, hot_chunks(segments))))

    def updates(sent: list[Tensor]) -> DeviceUpdates:
        to, *by_row = sums(sent)
        starts, hot = lookups.by_row or by_row
        return _on_device(row_updates, Segments(to, starts, lookups.results.vectors, lookups.results.scales, hot))

    return updates


def _cut_pooling(pooling: Pooling, packing: _Packing) -> Pick[DevicePooling]:
    if not (pooling.row_locations < 0).any():  # checked first: nothing else here is as short
        bags = packing.add(*bag_arrays(pooling, pooling.row_locations))
        return lambda sent: DevicePooling(DeviceBags(pooling.num_samples, *bags(sent)), no_rows(), None, None)
    on_host = pooling.locations < 0
    if on_host.all():  # empty bags need no device either
        return lambda sent: DevicePooling(None, no_rows(), pooling, None)
    sums = np.concatenate([[0], np.cumsum(on_host)])
    host_counts, counts = np.diff(sums[pooling.bag_starts]), np.diff(pooling.bag_starts)
    whole = (host_counts == counts) & (counts > 0)
    device, host = _take_bags(pooling, ~whole), _take_bags(pooling, whole)
    used = np.zeros(len(device.row_locations), np.bool_)
    used[device.inverse] = True
    locations, crossing = _crossing(device.row_locations, used)
    bags = packing.add(*bag_arrays(device, locations))
    if not whole.any():
        return lambda sent: DevicePooling(DeviceBags(device.num_samples, *bags(sent)), crossing, None, None)
    vectors = packing.add(host.bag_vectors)
    numbered = replace(host, num_vectors=len(host.bag_vectors), bag_vectors=_count(host.bag_vectors))
    return lambda sent: DevicePooling(DeviceBags(device.num_samples, *bags(sent)), crossing, numbered, vectors(sent)[0])


def bag_arrays(pooling: Pooling, row_locations: Int64s) -> tuple[NDArray[Any], ...]:
    """Return the arguments of `DeviceBags`, without arrays that a bag's number implies."""
    vectors, starts = implied_left_out(pooling.num_samples, pooling.bag_vectors, pooling.bag_starts)
    return row_locations, pooling.inverse, vectors, starts, pooling.scales


def _take_bags(pooling: Pooling, which: Bools) -> Pooling:
    if which.all():
        return pooling
    chosen = np.flatnonzero(which)
    starts, inverse, scales = take_segments(chosen, pooling.bag_starts, pooling.inverse, pooling.scales)
    vectors, tables = pooling.bag_vectors[chosen], pooling.bag_tables[chosen]
    return Pooling(pooling.num_vectors, vectors, starts, tables, inverse, pooling.row_locations, scales)


def _cut_row_updates(row_updates: RowUpdates, num_vectors: int, packing: _Packing) -> Pick[DeviceUpdates]:
    on_host = row_updates.locations < 0
    if not on_host.any():
        segments = _add_segments(row_updates, packing)
        return lambda sent: _on_device(row_updates, Segments(*segments(sent)))
    device, host = (row_updates.take(np.flatnonzero(which)) for which in (~on_host, on_host))
    segments = _add_segments(device, packing)
    needed: Tensors | None = None
    if not on_host.all():
        wanted = np.zeros(num_vectors, np.bool_)
        wanted[host.vectors] = True
        needed = packing.add(np.flatnonzero(wanted))
        host = replace(host, vectors=(np.cumsum(wanted, dtype=np.int32) - 1)[host.vectors])
    return lambda sent: DeviceUpdates(
        rows=row_updates.rows,
        positions=np.flatnonzero(~on_host),
        segments=Segments(*segments(sent)),
        host_positions=np.flatnonzero(on_host),
        on_host=host,
        needed=None if needed is None else needed(sent)[0],
    )


def _on_device(row_updates: RowUpdates, segments: Segments) -> DeviceUpdates:
    """Return an update of rows that are all on the device."""
    none, no_places = no_rows(), row_updates.vectors[:0]
    return DeviceUpdates(
        rows=row_updates.rows,
        positions=slice(None),
        segments=segments,
        host_positions=none,
        on_host=RowUpdates(none, none, np.zeros(1, np.int64), no_places, row_updates.scales[:0]),
        needed=None,
    )


def _cut_sums(row_updates: RowUpdates, deferred: Deferred, packing: _Packing) -> Pick[DeviceUpdates]:
    """Cut the update from sums, one each; the host gets those of its rows."""
    num_now, entries = len(deferred.now), deferred.entries[deferred.applied]
    rows, locations = deferred.rows[num_now:], row_updates.locations[deferred.written[num_now:]]
    applied = RowUpdates(rows, locations, np.arange(len(rows) + 1), entries, np.zeros(0, np.float32))
    on_host = applied.locations < 0
    device, host = (applied.take(np.flatnonzero(which)) for which in (~on_host, on_host))
    segments = _add_segments(device, packing)
    needed = packing.add(host.vectors)
    return lambda sent: DeviceUpdates(
        rows=applied.rows,
        positions=np.flatnonzero(~on_host),
        segments=Segments(*segments(sent)),
        host_positions=np.flatnonzero(on_host),
        on_host=replace(host, vectors=_count(host.vectors)),
        needed=needed(sent)[0],
    )


def _add_segments(row_updates: RowUpdates, packing: _Packing) -> Tensors:
    """Add the arguments of `Segments`."""
    arrays = row_updates.locations, row_updates.segments, row_updates.vectors, row_updates.scales
    return packing.add(*arrays, hot_chunks(row_updates.segments))


def _send_moves(moves: Moves, transfer: Transfer, packing: _Packing) -> Pick[DeviceMoves]:
    fetches, in_place = transfer.fetches(moves), transfer.in_place
    back = packing.add(*((moves.back_slots, moves.back_rows) if in_place else ()))
    stored, initial = packing.add(*(fetches.stored if in_place else ())), packing.add(*fetches.initial)
    return lambda sent: DeviceMoves(fetches, back(sent), stored(sent), initial(sent))


def _send_sums(row_updates: RowUpdates, deferred: Deferred, packing: _Packing) -> Pick[DeviceSums]:
    applied = _cut_sums(row_updates, deferred, packing)
    entries = deferred.entries.astype(np.int64)
    segments = _add_segments(replace(row_updates.take(deferred.summed), locations=entries), packing)
    applied_entries = packing.add(entries[deferred.applied])
    return lambda sent: DeviceSums(Segments(*segments(sent)), applied(sent), applied_entries(sent)[0])


def _crossing(locations: Int64s, used: Bools | None = None) -> tuple[Int64s, Int64s]:
    """Return locations in which the i-th host row is ~i, and the host rows.

    used: which locations count, default all.
    """
    on_host = np.flatnonzero(locations < 0 if used is None else (locations < 0) & used)
    if not len(on_host):
        return locations, no_rows()
    numbered = locations.copy()
    numbered[on_host] = ~np.arange(len(on_host))
    return numbered, ~locations[on_host]


def _count(vectors: Int32s) -> Int32s:
    return np.arange(len(vectors), dtype=np.int32)
