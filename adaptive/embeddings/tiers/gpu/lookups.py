"""Lookups of a batch on the device, sent ahead of its plan: found by the host, or by the device itself.

If no row stays on the host, the plan only adds where the rows are, and the look-ahead thread neither copies nor sends
an array as long as the lookups or the samples. `HostSearch` sends what the host has found, as soon as it has, from the
thread that found it. For batches with many lookups, `DeviceSearch` lets the device find them:

    host                                   finding stream
    row of each lookup, bags     ------->  sort, number, group (`kernels.planning.torch_lookups`)
    distinct rows, their counts  <-------  for as many rows as the largest batch so far had, and the rest if necessary
    decide, plan                           the distinct row of each lookup, and lookups by row, stay on the device

The host needs the distinct rows, because it plans. Arrays as long as the lookups cross once, 4 bytes each (8 in groups
of 2^31 rows and more; 4 for a weight), and stay until the batch is trained. The host waits for the distinct rows, which
come last, so copies and training of the batch find everything done. The numbers are those that the host would find, in
the same order. For what the host has found, the copies of the batch's plan wait for its lookups (`await_found`).
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive.arrays import Int32s, Int64s
from adaptive.batch import Batch
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import (
    Bags,
    DistinctFinder,
    Lookups,
    Search,
    Searcher,
    bad_id,
    feature_lookups,
    lay_out_bags,
)
from adaptive.embeddings.planning.plan import OnDevice
from adaptive.embeddings.tiers.device import DeviceBags
from adaptive.embeddings.tiers.gpu.buffers import TORCH_DTYPES, Bytes, DeviceBlock, TransferBuffer, add_bytes
from adaptive.embeddings.tiers.mover import Event, Mover
from adaptive.kernels.planning import lookups as kernels
from adaptive.kernels.planning import torch_lookups
from adaptive.kernels.planning.lookups import Distinct
from adaptive.kernels.planning.torch_lookups import LookupTensors

# Smallest batches for which `tier.lookups=auto` lets a GPU search. With 4.3 million lookups, 10 a bag, a step on an
# H100 became 1.36 times as fast; the limits themselves were not measured.
LONG_BAGS: Final = 4  # lookups a bag, on average
MANY_LOOKUPS: Final = 1 << 16  # launching some 30 operations takes as long as the host needs for a tenth of these

FREE: Final = -1  # no batch uses this memory; otherwise the number of the batch that does, or
NOT_PLANNED: Final = 1 << 62
FIRST_ROOM: Final = 8  # lookups for each distinct row that fits, at least


class DeviceLookups(OnDevice):
    """Memory for the lookups of one batch and their results; reused after its training.

    Attributes:
        updates_all: lookups by row are on the device, too; else the host selects those that update rows now.
        by_row: starts of each row's lookups and hot rows, if they have been sent: see `device.Segments`.
        inputs: arrays of the batch that have been sent along, with their tensors.
        event: when all of it has been sent, if the host has found it.
    """

    def __init__(self, mover: Mover, *, updates_all: bool) -> None:
        self.user, self.updates_all = FREE, updates_all
        self.sent, self.received = TransferBuffer(mover, mover.finding), TransferBuffer(mover, mover.finding)
        self.block = DeviceBlock(mover.finding)
        self.bags: torch_lookups.Bags
        self.results: LookupTensors
        self.by_row: tuple[Tensor, Tensor] | None = None
        self.inputs: list[tuple[NDArray[Any], Tensor]] = []
        self.event: Event | None = None

    def bags_at(self, row_locations: Tensor) -> DeviceBags:
        """Return bags for the pooling kernel, with the distinct rows at these slots (U,)."""
        bags = self.bags
        return DeviceBags(bags.num_samples, row_locations, self.results.inverse, bags.vectors, bags.starts, bags.scales)

    @property
    def crossed(self) -> tuple[int, int]:
        """Bytes sent to the device, and back to the host."""
        return self.sent.size, self.received.size if self.event is None else 0

    @property
    def num_bytes(self) -> Bytes:
        return add_bytes([self.sent.num_bytes, self.received.num_bytes, (0, self.block.num_bytes)])


class DeviceSearcher(Searcher):
    """Finds the lookups of batches in one group, on the device or on the host, and leaves them on the device.

    Args:
        group: the tables.
        mover: of the device; for its finding stream.
        least, least_per_bag: smallest number of lookups in a batch, and in a bag on average, for which the device
            searches. A batch without lookups is left to the host.
        updates_all: the host selects no lookups by row, and does not need them. True if the device searches.
        sends_inputs: dense inputs, labels and extras of a batch cross along with its lookups.
    """

    def __init__(
        self,
        group: Group,
        mover: Mover,
        least: float,
        least_per_bag: float,
        *,
        updates_all: bool = True,
        sends_inputs: bool = False,
    ) -> None:
        self.group, self.mover = group, mover
        self._updates_all, self._sends_inputs = updates_all, sends_inputs
        self.most_rows = 0  # of a batch so far
        self._least, self._least_per_bag = max(1, least), least_per_bag
        self._memories: list[DeviceLookups] = []

    @property
    def num_bytes(self) -> Bytes:
        return add_bytes(memory.num_bytes for memory in list(self._memories))

    def begin(self) -> None:
        for memory in self._memories:
            memory.user = FREE

    def inputs(self, batch: Batch) -> list[NDArray[Any]]:
        """Arrays of a batch to send along."""
        arrays = (batch.dense, batch.labels, *batch.extras.values()) if self._sends_inputs else ()
        return [array for array in arrays if array.dtype in TORCH_DTYPES]

    def start(self, batch: Batch) -> Search:
        sizes = [batch.num_lookups(feature.position) for feature in self.group.features]
        trained = self.mover.start_finding()
        memory = next((memory for memory in self._memories if memory.user <= trained), None)
        if memory is None:
            memory = DeviceLookups(self.mover, updates_all=self._updates_all)
            self._memories.append(memory)
        memory.user = NOT_PLANNED
        if sum(sizes) < max(self._least, self._least_per_bag * len(sizes) * batch.num_samples):
            return HostSearch(self, batch, memory)
        return DeviceSearch(self, batch, sum(sizes), memory)


class HostSearch(Search):
    """The host's search for one batch's lookups, which sends them to its own memory on the device."""

    _lookups: Lookups

    def __init__(self, searcher: DeviceSearcher, batch: Batch, memory: DeviceLookups) -> None:
        self._searcher, self._batch, self._memory = searcher, batch, memory

    def launch(self, finder: DistinctFinder) -> None:
        lookups, memory = finder.find_lookups(self._batch), self._memory
        bags, sent, inputs = lookups.bags, memory.sent, self._searcher.inputs(self._batch)
        by_row: list[NDArray[Any]] = []
        if memory.updates_all:
            by_row = [lookups.segments, kernels.hot_chunks(lookups.segments), lookups.vectors, lookups.scales]
        of_bags = *implied_left_out(bags.num_samples, bags.vectors, bags.starts), bags.scales
        memory.event = sent.send_arrays((lookups.distinct.inverse, *of_bags, *inputs, *by_row))
        inverse, *tensors = sent.tensors
        memory.bags = torch_lookups.Bags(bags.num_vectors, bags.num_samples, *tensors[:3])
        memory.inputs = list(zip(inputs, tensors[3:], strict=False))
        none = inverse[:0]  # the host has rows and counts
        segments, hot, vectors, scales = tensors[-4:] if by_row else [none] * 4
        memory.results = LookupTensors(none, none, none, inverse, vectors, scales)
        memory.by_row = (segments, hot) if by_row else None
        self._lookups = self._without_sent(lookups)

    def _without_sent(self, lookups: Lookups) -> Lookups:
        """Return lookups without arrays that only the device needs."""
        distinct = lookups.distinct._replace(inverse=lookups.distinct.inverse[:0])
        vectors, scales = lookups.vectors, lookups.scales
        if self._memory.updates_all:
            vectors, scales = vectors[:0], scales[:0]
        return Lookups(distinct, lookups.bags, lookups.segments, vectors, scales, self._memory)

    def lookups(self) -> Lookups:
        return self._lookups


class DeviceSearch(Search):
    """The search for one batch's lookups, in its own memory."""

    _event: Event
    _bags: Bags

    def __init__(self, searcher: DeviceSearcher, batch: Batch, num_lookups: int, memory: DeviceLookups) -> None:
        self._searcher, self._batch, self._num_lookups, self._memory = searcher, batch, num_lookups, memory
        self._stream = searcher.mover.finding

    def launch(self, finder: DistinctFinder) -> None:
        rows, lookup_ends = self._send()
        memory, num_lookups = self._memory, self._num_lookups
        dtype = np.int32 if rows.element_size() == 4 else np.int64
        places, int32s = (dtype, num_lookups + 1), (np.int32, num_lookups)
        scales = (np.float32, len(self._bags.scales))
        parts = [places, (np.int32, num_lookups + 1), (np.int64, len(lookup_ends)), int32s, int32s, scales]
        results, bags = LookupTensors(*memory.block.take(parts)), memory.bags
        memory.results, memory.by_row, memory.event = results, None, None
        self._stream.run(lambda: torch_lookups.find_lookups(rows, lookup_ends, bags, results))
        most = self._searcher.most_rows
        self._to_host(dtype, max(num_lookups // FIRST_ROOM, most + most // FIRST_ROOM, 1))

    def _send(self) -> list[Tensor]:
        """Send the row of each lookup, the ends of each table's lookups, and the bags."""
        group, batch, sent = self._searcher.group, self._batch, self._memory.sent
        bags = self._bags = lay_out_bags(group, batch)
        inputs = self._searcher.inputs(batch)
        arrays: list[NDArray[Any]] = [*implied_left_out(bags.num_samples, bags.vectors, bags.starts), bags.scales]
        arrays += inputs
        dtype = np.int32 if group.num_rows < 1 << 31 else np.int64
        parts = [(dtype, self._num_lookups), (np.int64, len(group.tables))]
        sent.take([*parts, *((array.dtype, array.shape) for array in arrays)])
        outside = kernels.copy_rows(feature_lookups(group, batch), group.table_rows, *sent.arrays[:2])
        if outside:
            raise bad_id(group, batch, -outside - 1)
        for to, array in zip(sent.arrays[2:], arrays, strict=True):
            to[...] = array
        sent.send()
        self._memory.bags = torch_lookups.Bags(bags.num_vectors, bags.num_samples, *sent.tensors[2:5])
        self._memory.inputs = list(zip(inputs, sent.tensors[5:], strict=True))
        return sent.tensors[:2]

    def _to_host(self, dtype: type, room: int) -> None:
        """Start to copy the first `room` distinct rows to the host."""
        results, received = self._memory.results, self._memory.received
        room = min(room, self._num_lookups)
        received.take([(np.int64, len(results.table_ends)), (dtype, room), (np.int32, room)])
        to = received.tensors

        def gather() -> None:
            for tensor, part in zip(to, (results.table_ends, results.rows[:room], results.counts[:room]), strict=True):
                tensor.copy_(part)

        self._stream.run(gather)
        self._event = received.to_host(0)

    def lookups(self) -> Lookups:
        distinct = self._distinct()
        segments = np.zeros(len(distinct.rows) + 1, np.int64)
        np.cumsum(distinct.counts, out=segments[1:])
        nowhere: tuple[Any, Any] = np.zeros(0, np.int32), np.zeros(0, np.float32)
        return Lookups(distinct, self._bags, segments, *nowhere, self._memory)

    def _distinct(self) -> Distinct:
        while True:
            self._searcher.mover.await_brought(self._event)
            table_ends, rows, counts = self._memory.received.arrays
            num_rows = int(table_ends[-1])
            assert 0 < num_rows <= self._num_lookups
            if num_rows <= len(rows):
                break
            self._to_host(rows.dtype.type, num_rows)
        self._searcher.most_rows = max(self._searcher.most_rows, num_rows)
        nowhere = np.zeros(0, np.int32)
        return Distinct(rows[:num_rows].astype(np.int64), counts[:num_rows].copy(), nowhere, table_ends.copy())


def implied_left_out(num_samples: int, vectors: Int32s, starts: Int64s) -> tuple[Int32s, Int64s]:
    """Return vectors and starts of bags to send, each empty if a bag's number implies them."""
    return vectors[: 0 if num_samples else None], starts[: 0 if kernels.one_each(starts, 0, int(starts[-1])) else None]
