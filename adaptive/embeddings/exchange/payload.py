"""Rows and gradients on their way between ranks: which memory they cross from, and as which bytes.

    HostPayload    over the host's memory, in the exchange's own messages (gloo). On a GPU: one copy to pinned memory
                   for each group, which is waited for, and one back, which is not
    DevicePayload  from device to device (NCCL), behind an exchange whose messages say how many: only that is waited
                   for

Those of all groups for one rank are one message, group after group, in the order of requests. With `wire="bf16"` values
cross as bfloat16, rounded to nearest, ties to even. What a rank gives to itself is rounded, too: so what is trained
does not depend on who owns a row. Rows and sums stay float32.

Letters: n requests of a group, m of them whose rows cross, rank after rank; D width; W ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.channel import Exchanged
from adaptive.embeddings.ranks.transport import Bytes, Kind
from adaptive.embeddings.tiers.device import DeviceTier
from adaptive.errors import RanksError

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]
A = TypeVar("A", Floats, Tensor)


class Payload(ABC, Generic[A]):
    """Rows of all groups, float32, as arrays of one kind, in the host's memory or on a device."""

    def __init__(self, ranks: Ranks, groups: Sequence[Group], *, rounds: bool) -> None:
        """`rounds`: values, to bfloat16."""
        self._ranks, self._rounds = ranks, rounds
        self._widths = [group.embedding_dim for group in groups]

    @abstractmethod
    def unload(self, tensors: Sequence[Tensor]) -> list[A]:
        """Tensors of the device, as they cross."""

    @abstractmethod
    def load(self, arrays: Sequence[A]) -> list[Tensor]:
        """What came, on the device."""

    @abstractmethod
    def pack(self, rows: Sequence[A], counts: Sequence[Int64s]) -> list[Bytes]:
        """The part of an exchange for each rank: the rows (m, D) of each group, or how many follow; `counts` (W,) of
        them are for each rank."""

    @abstractmethod
    def unpack(self, exchanged: Exchanged, kind: Kind, counts: Sequence[Int64s]) -> list[A]:
        """The rows (m, D) of each group that came with an exchange, `counts` (W,) from each rank. A part of gradients
        may be empty instead, for zeros. All ranks call it for the same exchanges.

        Args:
            kind: as what rows are counted: vectors or gradients.

        Raises:
            RanksError: if a part does not fit the rows that are expected.
        """

    @abstractmethod
    def zeros(self, number: int, width: int) -> A:
        """(number, width)"""

    @abstractmethod
    def take(self, rows: A, places: Int64s) -> A:
        """(n, D) copies of the rows at places (n,)."""

    @abstractmethod
    def put(self, rows: A, places: Int64s, values: A) -> None:
        """Write values (n, D) to places (n,); equal places have equal values."""

    def select(self, rows: A, chosen: Bools | None) -> A:
        """The rows (n, D) that are chosen (n,); None: all are."""
        return rows if chosen is None else self.take(rows, np.flatnonzero(chosen))

    def scatter(self, rows: A, chosen: Bools | None) -> A:
        """(n, D) the rows (m, D) at the places that are chosen (n,), 0 at the others. None: all are chosen."""
        if chosen is None:
            return rows
        scattered = self.zeros(len(chosen), rows.shape[1])
        self.put(scattered, np.flatnonzero(chosen), rows)
        return scattered

    def _sizes(self, counts: Sequence[Int64s], rank: int) -> list[int]:
        """Values of each group in `counts` (W,) rows of a rank."""
        return [width * int(numbers[rank]) for width, numbers in zip(self._widths, counts, strict=True)]


class HostPayload(Payload[Floats]):
    """See the module; `devices`: of each group, none if nothing is unloaded or loaded."""

    def __init__(
        self, ranks: Ranks, groups: Sequence[Group], devices: Sequence[DeviceTier] = (), *, rounds: bool
    ) -> None:
        super().__init__(ranks, groups, rounds=rounds)
        self._devices = tuple(devices)

    def unload(self, tensors: Sequence[Tensor]) -> list[Floats]:
        waits = [device.bring(tensor) for device, tensor in zip(self._devices, tensors, strict=True)]
        return [wait() for wait in waits]

    def load(self, arrays: Sequence[Floats]) -> list[Tensor]:
        return [device.send(array) for device, array in zip(self._devices, arrays, strict=True)]

    def pack(self, rows: Sequence[Floats], counts: Sequence[Int64s]) -> list[Bytes]:
        pieces = [np.split(of_group, np.cumsum(numbers)[:-1]) for of_group, numbers in zip(rows, counts, strict=True)]
        return [
            self._to_wire(_concatenated([np.ravel(piece) for piece in of_rank]))
            for of_rank in zip(*pieces, strict=True)
        ]

    def _to_wire(self, values: Floats) -> Bytes:
        if not self._rounds:
            return values.view(np.uint8)
        rounded: Bytes = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint8)
        return rounded

    def _from_wire(self, part: Bytes) -> Floats:
        if not self._rounds:
            return part.view(np.float32)
        bits = part.view(np.uint16).astype(np.uint32)
        return np.left_shift(bits, 16, out=bits).view(np.float32)

    def unpack(self, exchanged: Exchanged, kind: Kind, counts: Sequence[Int64s]) -> list[Floats]:
        values = []
        for rank, part in enumerate(exchanged.parts):
            sizes = self._sizes(counts, rank)
            if kind is Kind.GRADIENTS and not len(part):
                values.append([np.zeros(size, np.float32) for size in sizes])
                continue
            if len(part) != (num_bytes := (2 if self._rounds else 4) * sum(sizes)):
                raise RanksError(
                    f"{self._ranks.name}: expected {num_bytes} bytes of rows from rank {rank}, got {len(part)}: "
                    f"{exchanged.headers[rank].text}"
                )
            values.append(np.split(self._from_wire(part), np.cumsum(sizes)[:-1]))
        groups = zip(*values, strict=True)
        return [_concatenated(pieces).reshape(-1, width) for pieces, width in zip(groups, self._widths, strict=True)]

    def zeros(self, number: int, width: int) -> Floats:
        return np.zeros((number, width), np.float32)

    def take(self, rows: Floats, places: Int64s) -> Floats:
        return rows[places]

    def put(self, rows: Floats, places: Int64s, values: Floats) -> None:
        rows[places] = values


class DevicePayload(Payload[Tensor]):
    """See the module. Work is asked of the stream that is current in the training thread."""

    def __init__(
        self, ranks: Ranks, groups: Sequence[Group], tier: DeviceTier, device: torch.device, *, rounds: bool
    ) -> None:
        """`tier`: any on the device."""
        super().__init__(ranks, groups, rounds=rounds)
        self._tier, self._device = tier, device
        self._type = torch.bfloat16 if rounds else torch.float32
        self._pack_nothing()

    def _pack_nothing(self) -> None:
        self._packed = torch.empty(0, dtype=self._type, device=self._device)
        self._packed_sizes = [0] * self._ranks.size

    def unload(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)

    def load(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        return list(arrays)

    def pack(self, rows: Sequence[Tensor], counts: Sequence[Int64s]) -> list[Bytes]:
        pieces = [torch.split(of_group, numbers.tolist()) for of_group, numbers in zip(rows, counts, strict=True)]
        by_rank = [piece.reshape(-1) for of_rank in zip(*pieces, strict=True) for piece in of_rank]
        self._packed = torch.cat(by_rank).to(self._type)
        self._packed_sizes = [sum(self._sizes(counts, rank)) for rank in range(self._ranks.size)]
        return [np.frombuffer(size.to_bytes(8, "little"), np.uint8) for size in self._packed_sizes]

    def unpack(self, exchanged: Exchanged, kind: Kind, counts: Sequence[Int64s]) -> list[Tensor]:
        sizes = [self._sizes(counts, rank) for rank in range(self._ranks.size)]
        announced = []
        for rank, part in enumerate(exchanged.parts):
            number = int.from_bytes(part.tobytes(), "little") if len(part) == 8 else None
            if number != sum(sizes[rank]) and not (kind is Kind.GRADIENTS and number is None):
                says = f"a part of {len(part)} bytes" if number is None else f"{number}"
                raise RanksError(
                    f"{self._ranks.name}: expected {sum(sizes[rank])} numbers from rank {rank}, which says {says}: "
                    f"{exchanged.headers[rank].text}"
                )
            announced.append(number)
        batch = exchanged.headers[self._ranks.rank].batch
        packed, packed_sizes, lengths = self._packed, self._packed_sizes, [number or 0 for number in announced]
        self._pack_nothing()
        received = self._ranks.rows.swap_values(kind, batch, packed, packed_sizes, lengths).float()
        values = [
            torch.split(part if number is not None else part.new_zeros(sum(of_rank)), of_rank)
            for part, number, of_rank in zip(torch.split(received, lengths), announced, sizes, strict=True)
        ]
        groups = zip(*values, strict=True)
        return [torch.cat(pieces).reshape(-1, width) for pieces, width in zip(groups, self._widths, strict=True)]

    def zeros(self, number: int, width: int) -> Tensor:
        return torch.zeros((number, width), device=self._device)

    def take(self, rows: Tensor, places: Int64s) -> Tensor:
        return rows.index_select(0, self._tier.send(places))

    def put(self, rows: Tensor, places: Int64s, values: Tensor) -> None:
        rows.index_copy_(0, self._tier.send(places), values)


def _concatenated(pieces: Sequence[Floats]) -> Floats:
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]


def count_chosen(sizes: Int64s, chosen: Bools | None) -> Int64s:
    """(W,) how many of each rank's requests (n,) are chosen; `sizes` (W,) of all; None: all are."""
    if chosen is None:
        return sizes
    before, ends = np.concatenate([[0], np.cumsum(chosen)]), np.cumsum(sizes)
    counts: Int64s = before[ends] - before[ends - sizes]
    return counts
