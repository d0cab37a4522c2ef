"""Look-ups that the device finds itself, where bags hold many: distinct rows come back, for the books are the host's.

    host                                    finding stream
    row of each look-up, bags    ------->   sort, number, group (`kernels.planning.torch_lookups`)
    distinct rows, their counts  <-------   for as many rows as the largest batch so far had, and the rest if need be
    decide, plan                            the distinct row of each look-up, and look-ups by row, lie where they are

What is as long as the look-ups crosses once, 4 bytes each (8 in groups of 2^31 rows and more; 4 for a weight), and
stays until the batch is trained. The host waits for the distinct rows, the last that is asked for, so copies and
training of the batch find everything done. The numbers are those that the host finds, in the same order.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import (
    Bags,
    Distinct,
    Lookups,
    Search,
    Searcher,
    bad_id,
    feature_spans,
    lay_out_bags,
)
from adaptive.embeddings.planning.plan import Int64s, OnDevice
from adaptive.embeddings.tiers.gpu.buffers import Bytes, DeviceBlock, TransferBuffer, added
from adaptive.embeddings.tiers.gpu.sent import SentBags
from adaptive.embeddings.tiers.mover import Event, Mover
from adaptive.kernels.planning import lookups as kernels
from adaptive.kernels.planning import torch_lookups
from adaptive.kernels.planning.torch_lookups import Found

# From which batches on `tier.lookups=auto` has a GPU find their look-ups. A guess: no GPU has measured it.
LONG_BAGS: Final = 4  # look-ups a bag, on average
MANY_LOOKUPS: Final = 1 << 16  # asking for some 30 operations takes as long as the host needs for a tenth of these

FREE: Final = -1  # no batch uses this memory; otherwise the number of the one that does, or
NOT_PLANNED: Final = 1 << 62
FIRST_ROOM: Final = 8  # room for a distinct row to so many look-ups, at least


class FoundLookups(OnDevice):
    """Memory for the look-ups of one batch, and what was found; used again when the batch has been trained."""

    def __init__(self, mover: Mover) -> None:
        self.user = FREE
        self.sent, self.brought = TransferBuffer(mover, mover.finding), TransferBuffer(mover, mover.finding)
        self.kept = DeviceBlock(mover.finding)
        self.bags: torch_lookups.Bags
        self.found: Found

    def bags_at(self, row_locations: Tensor) -> SentBags:
        """Bags for the pooling kernel, with the distinct rows at these slots (U,)."""
        bags = self.bags
        return SentBags(bags.num_samples, row_locations, self.found.inverse, bags.vectors, bags.starts, bags.scales)

    @property
    def crossed(self) -> tuple[int, int]:
        """Bytes that were sent to the device, and that came back."""
        return self.sent.size, self.brought.size

    @property
    def num_bytes(self) -> Bytes:
        return added([self.sent.num_bytes, self.brought.num_bytes, (0, self.kept.num_bytes)])


class DeviceSearcher(Searcher):
    """Finds what batches look up in one group.

    Args:
        group: the tables.
        mover: of the device; for its finding stream.
        least, least_per_bag: look-ups of a batch, and of a bag on average, from which on the device finds them. What is
            empty is the host's in any case.
    """

    def __init__(self, group: Group, mover: Mover, *, least: int, least_per_bag: float) -> None:
        self.group, self.mover = group, mover
        self.most_rows = 0  # of a batch so far
        self._least, self._least_per_bag = max(1, least), least_per_bag
        self._memories: list[FoundLookups] = []  # all there are

    @property
    def num_bytes(self) -> Bytes:
        return added(memory.num_bytes for memory in list(self._memories))

    def begin(self) -> None:
        for memory in self._memories:
            memory.user = FREE

    def start(self, batch: Batch) -> "DeviceSearch | None":
        sizes = [batch.num_lookups(feature.position) for feature in self.group.features]
        if sum(sizes) < max(self._least, self._least_per_bag * len(sizes) * batch.num_samples):
            return None
        trained = self.mover.start_finding()
        memory = next((memory for memory in self._memories if memory.user <= trained), None)
        if memory is None:
            memory = FoundLookups(self.mover)
            self._memories.append(memory)
        memory.user = NOT_PLANNED
        return DeviceSearch(self, batch, sum(sizes), memory)


class DeviceSearch(Search):
    """The search for one batch's look-ups, in memory of its own."""

    _event: Event
    _bags: Bags

    def __init__(self, searcher: DeviceSearcher, batch: Batch, num_lookups: int, memory: FoundLookups) -> None:
        self._searcher, self._batch, self._num_lookups, self._memory = searcher, batch, num_lookups, memory
        self._stream = searcher.mover.finding

    def launch(self) -> None:
        rows, lookup_ends = self._send()
        memory, num_lookups = self._memory, self._num_lookups
        dtype = np.int32 if rows.element_size() == 4 else np.int64
        places, int32s = (dtype, num_lookups + 1), (np.int32, num_lookups)
        scales = (np.float32, len(self._bags.scales))
        parts = [places, (np.int32, num_lookups + 1), (np.int64, len(lookup_ends)), int32s, int32s, scales]
        found, bags = Found(*memory.kept.take(parts)), memory.bags
        memory.found = found
        self._stream.run(lambda: torch_lookups.find_lookups(rows, lookup_ends, bags, found))
        most = self._searcher.most_rows
        self._bring(dtype, max(num_lookups // FIRST_ROOM, most + most // FIRST_ROOM, 1))

    def _send(self) -> list[Tensor]:
        """The row of each look-up, and where those of each table end, on the device; the bags too."""
        group, batch, sent = self._searcher.group, self._batch, self._memory.sent
        bags = self._bags = lay_out_bags(group, batch)
        arrays = *told_bags(bags.num_samples, bags.vectors, bags.starts), bags.scales
        dtype = np.int32 if group.num_rows < 1 << 31 else np.int64
        parts = [(dtype, self._num_lookups), (np.int64, len(group.tables))]
        sent.take([*parts, *((array.dtype, array.shape) for array in arrays)])
        spans, tables = feature_spans(group, batch)
        outside = kernels.copy_rows(
            batch.ids, spans, tables, group.table_sizes, group.table_starts, sent.arrays[0], sent.arrays[1]
        )
        if outside:
            raise bad_id(group, batch, -outside - 1)
        for to, array in zip(sent.arrays[2:], arrays, strict=True):
            to[...] = array
        sent.send()
        self._memory.bags = torch_lookups.Bags(bags.num_vectors, bags.num_samples, *sent.tensors[2:])
        return sent.tensors[:2]

    def _bring(self, dtype: type, room: int) -> None:
        """Ask for the first `room` distinct rows."""
        found, brought = self._memory.found, self._memory.brought
        room = min(room, self._num_lookups)
        brought.take([(np.int64, len(found.table_ends)), (dtype, room), (np.int32, room)])
        to = brought.tensors

        def gather() -> None:
            for tensor, part in zip(to, (found.table_ends, found.rows[:room], found.counts[:room]), strict=True):
                tensor.copy_(part)

        self._stream.run(gather)
        self._event = brought.bring(0)

    def lookups(self) -> Lookups:
        distinct = self._distinct()
        segments = np.zeros(len(distinct.rows) + 1, np.int64)
        np.cumsum(distinct.counts, out=segments[1:])
        return Lookups(distinct, self._bags, segments, _nowhere(np.int32), _nowhere(np.float32), self._memory)

    def _distinct(self) -> Distinct:
        while True:
            self._searcher.mover.await_brought(self._event)
            table_ends, rows, counts = self._memory.brought.arrays
            num_rows = int(table_ends[-1])
            assert 0 < num_rows <= self._num_lookups
            if num_rows <= len(rows):
                break
            self._bring(rows.dtype.type, num_rows)
        self._searcher.most_rows = max(self._searcher.most_rows, num_rows)
        found = rows[:num_rows].astype(np.int64), counts[:num_rows].copy()
        return Distinct(*found, _nowhere(np.int32), table_ends.copy())


def told_bags(num_samples: int, vectors: NDArray[np.int32], starts: Int64s) -> tuple[NDArray[np.int32], Int64s]:
    """The vectors and starts of bags that a device is sent: none of what it can tell from a bag's number."""
    return vectors[: 0 if num_samples else None], starts[: 0 if kernels.one_each(starts, int(starts[-1])) else None]


def _nowhere(dtype: type) -> NDArray[Any]:
    return np.zeros(0, dtype)
