"""Rows and gradients of the training thread on their way between ranks: which memory they cross from, and into.

    HostValues    over the host's memory, in the exchange's own messages (gloo). On a GPU: one copy to pinned memory for
                  each group, which is waited for, and one back, which is not
    DeviceValues  from device to device (NCCL), behind an exchange whose messages tell how many: only that is waited for

Letters: n requests of a group, m of them whose rows cross; D width; W ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.exchange.arrays import Arrays, DeviceArrays, HostArrays
from adaptive.embeddings.exchange.payload import Crossing
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.channel import Exchanged
from adaptive.embeddings.ranks.transport import Bytes
from adaptive.embeddings.ranks.wire import Kind
from adaptive.embeddings.tiers.device import DeviceTier
from adaptive.errors import RanksError

Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]
A = TypeVar("A", Floats, Tensor)


class Values(ABC, Generic[A]):
    """Rows of all groups as arrays of one kind."""

    arrays: Arrays[A]

    @abstractmethod
    def unload(self, tensors: Sequence[Tensor]) -> list[A]:
        """What lies on the device, as it crosses."""

    @abstractmethod
    def load(self, arrays: Sequence[A]) -> list[Tensor]:
        """What came, on the device."""

    @abstractmethod
    def pack(self, rows: Sequence[A], counts: Sequence[Int64s]) -> list[Bytes]:
        """The part of an exchange for each rank: the rows (m, D) of each group, or what tells of them; `counts` (W,) of
        them are for each rank."""

    @abstractmethod
    def unpack(self, found: Exchanged, kind: Kind, counts: Sequence[Int64s]) -> list[A]:
        """The rows (m, D) of each group that came with an exchange, `counts` (W,) from each rank. A part of gradients
        may be empty instead, for zeros. All ranks call it for the same exchanges.

        Args:
            kind: as what rows are counted: vectors or gradients.

        Raises:
            RanksError: if a part does not fit the rows that are expected.
        """


class HostValues(Values[Floats]):
    """See the module."""

    def __init__(self, ranks: Ranks, groups: Sequence[Group], devices: Sequence[DeviceTier]) -> None:
        """`devices`: of each group."""
        self.arrays = HostArrays()
        self._ranks, self._devices = ranks, tuple(devices)
        self._crossing = Crossing(ranks, groups, rounds=ranks.wire == "bf16")

    def unload(self, tensors: Sequence[Tensor]) -> list[Floats]:
        coming = [device.bring(tensor) for device, tensor in zip(self._devices, tensors, strict=True)]
        return [come() for come in coming]

    def load(self, arrays: Sequence[Floats]) -> list[Tensor]:
        return [device.send(array) for device, array in zip(self._devices, arrays, strict=True)]

    def pack(self, rows: Sequence[Floats], counts: Sequence[Int64s]) -> list[Bytes]:
        return self._crossing.pack(rows, counts)

    def unpack(self, found: Exchanged, kind: Kind, counts: Sequence[Int64s]) -> list[Floats]:
        return self._crossing.unpack(found, counts, may_be_empty=kind is Kind.GRADIENTS)


class DeviceValues(Values[Tensor]):
    """See the module. Work is asked of the stream that is current in the training thread."""

    def __init__(self, ranks: Ranks, groups: Sequence[Group], tier: DeviceTier, device: torch.device) -> None:
        """`tier`: any on the device."""
        self.arrays = DeviceArrays(tier, device)
        self._ranks, self._device = ranks, device
        self._widths = [group.embedding_dim for group in groups]
        self._type = torch.bfloat16 if ranks.wire == "bf16" else torch.float32
        self._stay()

    def _stay(self) -> None:
        """Nothing leaves."""
        self._leaving = torch.empty(0, dtype=self._type, device=self._device)
        self._sizes = [0] * self._ranks.size

    def unload(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)

    def load(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        return list(arrays)

    def pack(self, rows: Sequence[Tensor], counts: Sequence[Int64s]) -> list[Bytes]:
        split = [torch.split(one, numbers.tolist()) for one, numbers in zip(rows, counts, strict=True)]
        parts = [group[rank].reshape(-1) for rank in range(self._ranks.size) for group in split]
        self._leaving, self._sizes = torch.cat(parts).to(self._type), self._sizes_of(counts)
        return [np.frombuffer(size.to_bytes(8, "little"), np.uint8) for size in self._sizes]

    def _sizes_of(self, counts: Sequence[Int64s]) -> list[int]:
        """(W,) numbers in so many rows of all groups."""
        each = list(zip(self._widths, counts, strict=True))
        return [sum(width * int(numbers[rank]) for width, numbers in each) for rank in range(self._ranks.size)]

    def unpack(self, found: Exchanged, kind: Kind, counts: Sequence[Int64s]) -> list[Tensor]:
        needed, told = self._sizes_of(counts), [_told(part) for part in found.parts]
        for rank, (size, here) in enumerate(zip(needed, told, strict=True)):
            if here != size and not (kind is Kind.GRADIENTS and here is None):
                says = f"a part of {len(found.parts[rank])} bytes" if here is None else f"{here}"
                raise RanksError(
                    f"{self._ranks.name} needs {size} numbers from rank {rank}, which says {says}: "
                    f"{found.headers[rank].text}"
                )
        header, come = found.headers[self._ranks.rank], [0 if here is None else here for here in told]
        leaving, sizes = self._leaving, self._sizes
        self._stay()
        came = self._ranks.rows.swap_values(kind, header.batch, leaving, sizes, come).float()
        parts = [
            one if here is not None else one.new_zeros(size)
            for one, here, size in zip(torch.split(came, come), told, needed, strict=True)
        ]
        pieces = [
            torch.split(part, [int(numbers[rank]) * width for width, numbers in zip(self._widths, counts, strict=True)])
            for rank, part in enumerate(parts)
        ]
        joined = [torch.cat([of_rank[place] for of_rank in pieces]) for place in range(len(self._widths))]
        return [one.reshape(-1, width) for one, width in zip(joined, self._widths, strict=True)]


def _told(part: Bytes) -> int | None:
    """How many numbers a part tells of; None: of none."""
    return int.from_bytes(part.tobytes(), "little") if len(part) == 8 else None
