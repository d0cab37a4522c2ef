"""`RowsExchange`: rows go to those who asked for them, and their gradients back, but for those that need not cross."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.exchange.arrays import Arrays
from adaptive.embeddings.exchange.batch_exchange import ExchangedBatch
from adaptive.embeddings.exchange.id_requests import AskedGroup
from adaptive.embeddings.exchange.owner import ServedGroup
from adaptive.embeddings.exchange.payload import count_chosen
from adaptive.embeddings.exchange.row_cache import Copies
from adaptive.embeddings.exchange.skip_masks import Answer, Bools
from adaptive.embeddings.exchange.values import DeviceValues, HostValues, Values
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.channel import NOTHING, Exchanged
from adaptive.embeddings.ranks.transport import Bytes
from adaptive.embeddings.ranks.wire import Kind
from adaptive.embeddings.tiers.device import DeviceTier

Int64s = NDArray[np.int64]


class RowsExchange:
    """The training thread's part; see `Exchange` for its arguments."""

    def __init__(
        self, ranks: Ranks, groups: Sequence[Group], devices: Sequence[DeviceTier], device: torch.device
    ) -> None:
        self._ranks, self._groups = ranks, tuple(groups)
        self._values: Values[Any] = HostValues(ranks, groups, devices)
        if ranks.crosses_on(device.type):
            self._values = DeviceValues(ranks, groups, devices[0], device)
        self._value_bytes = 2 if ranks.wire == "bf16" else 4
        arrays = self._values.arrays
        self._copies = [[Copies(group.embedding_dim, arrays) for _ in range(ranks.size)] for group in groups]

    def forget(self) -> None:
        """No row is kept any more."""
        for rank in range(self._ranks.size):
            self._forget(rank)

    def _forget(self, rank: int) -> None:
        for copies in self._copies:
            copies[rank].forget()

    def vectors(self, number: int, asked: ExchangedBatch, served: Sequence[Tensor]) -> list[Tensor]:
        """Give all ranks the rows they asked for, `served` (requests, D) of each group; returns the rows that this one
        asked for (n, D), on the device."""
        arrays = self._values.arrays
        here, counts = _crossing(asked.served, "kept")
        there, come = _crossing(asked.groups, "kept")
        rows = [arrays.chosen(*one) for one in zip(self._values.unload(served), here, strict=True)]
        found = self._ranks.rows.exchange(Kind.VECTORS, number, self._values.pack(rows, counts))
        self._spare("vectors_spared", [one.sizes for one in asked.served], counts)
        came = self._values.unpack(found, Kind.VECTORS, come)
        for rank in asked.forget:
            self._forget(rank)
        whole = [arrays.spread(*one) for one in zip(came, there, strict=True)]
        for group, copies, vectors in zip(asked.groups, self._copies, whole, strict=True):
            _use_copies(arrays, group, copies, vectors)
        return self._values.load(whole)

    def gradients(self, number: int, asked: ExchangedBatch, sums: Sequence[Tensor] | None) -> list[Tensor] | None:
        """Give the owners the gradients of the rows this rank asked for, `sums` (m, D) of each group without those that
        are left out, or none; returns those for the requests of all ranks, as `taken_in` does."""
        parts = self.for_owners(asked, sums)
        return self.taken_in(
            asked, self._ranks.rows.exchange(Kind.GRADIENTS, number, parts, samples=int(sums is not None))
        )

    def for_owners(self, asked: ExchangedBatch, sums: Sequence[Tensor] | None) -> list[Bytes]:
        """The part of each owner of the gradients that `gradients` is given."""
        _, counts = _crossing(asked.groups, "left_out")
        self._spare("gradients_spared", [one.sizes for one in asked.groups], counts)
        return [NOTHING] * self._ranks.size if sums is None else self._values.pack(self._values.unload(sums), counts)

    def taken_in(self, asked: ExchangedBatch, found: Exchanged) -> list[Tensor] | None:
        """The gradients for the requests of all ranks (requests, D) on the device, 0 where they are left out, from what
        `for_owners` gave on each rank. Ranks whose header tells of no samples count as 0; None: no rank has
        gradients."""
        if not any(header.samples for header in found.headers):
            return None
        wanted, come = _crossing(asked.served, "left_out")
        arrays, came = self._values.arrays, self._values.unpack(found, Kind.GRADIENTS, come)
        return self._values.load([arrays.spread(*one) for one in zip(came, wanted, strict=True)])

    def _spare(self, name: str, sizes: Sequence[Int64s], counts: Sequence[Int64s]) -> None:
        """Count rows that would have gone to other ranks."""
        rank, spared = self._ranks.rank, 0
        for group, size, count in zip(self._groups, sizes, counts, strict=True):
            left = size - count
            spared += int(left.sum() - left[rank]) * self._value_bytes * group.embedding_dim
        self._ranks.rows.tally.add(**{name: spared})


def _opposite(answer: Answer | None, plane: str) -> Bools | None:
    """The requests (n,) that are not in a plane of an answer; None: all."""
    there: Bools | None = None if answer is None else getattr(answer, plane)
    return None if there is None or not there.any() else ~there


def _crossing(requests: Sequence[AskedGroup | ServedGroup], plane: str) -> tuple[list[Any], list[Int64s]]:
    """Of each group the requests (n,) whose rows cross, as they are not in a plane of the answers (None: all), and how
    many of each rank these are (W,)."""
    chosen = [_opposite(one.answer, plane) for one in requests]
    return chosen, [count_chosen(one.sizes, which) for one, which in zip(requests, chosen, strict=True)]


def _use_copies(arrays: Arrays[Any], group: AskedGroup, copies: Sequence[Copies], vectors: Any) -> None:
    """Fill in the vectors (n, D) that did not cross, and keep those that are not to cross again."""
    if group.answer is None or not (group.answer.kept.any() or group.answer.keep.any()):
        return
    last = 0
    for size, own in zip(group.sizes.tolist(), copies, strict=True):
        answer = group.answer.of(slice(last, last + size))
        kept, keep = (last + np.flatnonzero(which) for which in (answer.kept, answer.keep))
        if len(kept):
            arrays.put(vectors, kept, own.get(group.rows[kept]))
        if len(keep):
            own.put(group.rows[keep], arrays.at(vectors, keep))
        last += size
