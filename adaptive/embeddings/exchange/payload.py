"""Rows and gradients in flight between ranks: their memory, and their bytes.

    HostPayload    through the host's memory, in the messages of the exchange (gloo). On a GPU: one copy to pinned
                   memory for each group, which is waited for, and one back, which is not
    DevicePayload  from device to device (NCCL), after an exchange whose messages contain the sizes: only the exchange
                   is waited for

The rows of all groups for one rank are one message, group by group, in the order of requests. With `wire="bf16"`,
values are sent as bfloat16, rounded to nearest, ties to even. The rows that a rank requests of itself are rounded, too,
so that training does not depend on which rank owns a row. Rows and sums stay float32.

Rows of tables in bfloat16 are sent in 2 bytes, which rounds nothing; from device to device only if all tables are
bfloat16, because an exchange has one type. Their gradients are float32 sums, sent in 4 bytes unless `wire="bf16"`.

Letters: n requests of a group, m of them whose rows are sent, rank by rank; D width; W ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.plan import joined
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.channel import Exchanged
from adaptive.embeddings.ranks.transport import Bytes, Kind
from adaptive.embeddings.tiers.device import DeviceTier
from adaptive.errors import RanksError
from adaptive.kernels.vector.bfloat16 import BFLOAT16, widen

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]
A = TypeVar("A", Floats, Tensor)


class Payload(ABC, Generic[A]):
    """Converts rows of all groups, float32 arrays of one kind, to messages and back."""

    def __init__(self, ranks: Ranks, groups: Sequence[Group], *, rounds: bool) -> None:
        """`rounds`: round values to bfloat16."""
        self._ranks, self._rounds = ranks, rounds
        self._widths = [group.embedding_dim for group in groups]
        self._is_half = [group.dtype == BFLOAT16 for group in groups]

    @abstractmethod
    def unload(self, tensors: Sequence[Tensor]) -> list[A]:
        """Copy tensors of the device to the memory from which they are sent."""

    @abstractmethod
    def load(self, arrays: Sequence[A]) -> list[Tensor]:
        """Copy received arrays to the device."""

    def value_bytes(self, kind: Kind) -> list[int]:
        """Return the bytes of a value of each group in messages of a kind."""
        return [2 if self._rounds or (half and kind is not Kind.GRADIENTS) else 4 for half in self._is_half]

    @abstractmethod
    def pack(self, rows: Sequence[A], counts: Sequence[Int64s], kind: Kind) -> list[Bytes]:
        """Return each rank's message: its `counts` (W,) of the rows (m, D), or how many follow."""

    @abstractmethod
    def unpack(self, exchanged: Exchanged, kind: Kind, counts: Sequence[Int64s]) -> list[A]:
        """Return the rows (m, D) of each group from an exchange. All ranks call it together.

        `counts` (W,) of each group: rows expected of each rank. An empty message of `Kind.GRADIENTS` means zeros.

        Raises:
            RanksError: if a message does not fit the expected rows.
        """

    @abstractmethod
    def zeros(self, number: int, width: int) -> A:
        """Return zeros (number, width)."""

    @abstractmethod
    def take(self, rows: A, places: Int64s) -> A:
        """Return copies (n, D) of the rows at places (n,)."""

    @abstractmethod
    def put(self, rows: A, places: Int64s, values: A) -> None:
        """Write values (n, D) to places (n,); equal places must have equal values."""

    def select(self, rows: A, chosen: Bools | None) -> A:
        """Return the rows (m, D) of (n, D) where `chosen` (n,) is True; all rows if it is None."""
        return rows if chosen is None else self.take(rows, np.flatnonzero(chosen))

    def scatter(self, rows: A, chosen: Bools | None) -> A:
        """Return (n, D) with the rows (m, D) where `chosen` (n,), 0 elsewhere; None: all."""
        if chosen is None:
            return rows
        scattered = self.zeros(len(chosen), rows.shape[1])
        self.put(scattered, np.flatnonzero(chosen), rows)
        return scattered

    def _count_values(self, counts: Sequence[Int64s], rank: int) -> list[int]:
        """Return the number of values of each group in the rows of a rank."""
        return [width * int(numbers[rank]) for width, numbers in zip(self._widths, counts, strict=True)]


class HostPayload(Payload[Floats]):
    """Payload in the host's memory; see the module."""

    def __init__(
        self, ranks: Ranks, groups: Sequence[Group], devices: Sequence[DeviceTier] = (), *, rounds: bool
    ) -> None:
        """`devices`: one for each group; none if nothing is unloaded or loaded."""
        super().__init__(ranks, groups, rounds=rounds)
        self._devices = tuple(devices)

    def unload(self, tensors: Sequence[Tensor]) -> list[Floats]:
        waits = [device.to_host(tensor) for device, tensor in zip(self._devices, tensors, strict=True)]
        return [wait() for wait in waits]

    def load(self, arrays: Sequence[Floats]) -> list[Tensor]:
        return [device.send(array) for device, array in zip(self._devices, arrays, strict=True)]

    def pack(self, rows: Sequence[Floats], counts: Sequence[Int64s], kind: Kind) -> list[Bytes]:
        pieces = [
            np.split(_to_wire(of_group, size), np.cumsum(numbers)[:-1])
            for of_group, numbers, size in zip(rows, counts, self.value_bytes(kind), strict=True)
        ]
        return [
            joined([piece.reshape(-1).view(np.uint8) for piece in of_rank]) for of_rank in zip(*pieces, strict=True)
        ]

    def unpack(self, exchanged: Exchanged, kind: Kind, counts: Sequence[Int64s]) -> list[Floats]:
        values, value_bytes = [], self.value_bytes(kind)
        for rank, part in enumerate(exchanged.parts):
            sizes = self._count_values(counts, rank)
            if kind is Kind.GRADIENTS and not len(part):
                values.append([np.zeros(size, np.float32) for size in sizes])
                continue
            ends = np.cumsum([size * number for size, number in zip(value_bytes, sizes, strict=True)])
            if len(part) != (num_bytes := int(ends[-1])):
                raise RanksError(
                    f"{self._ranks.name}: expected {num_bytes} bytes of rows from rank {rank}, got {len(part)} "
                    f"({exchanged.headers[rank].text}). Use the same version and settings on all ranks."
                )
            pieces = zip(np.split(part, ends[:-1]), value_bytes, strict=True)
            values.append([_from_wire(piece, size) for piece, size in pieces])
        groups = zip(*values, strict=True)
        return [joined(of_group).reshape(-1, width) for of_group, width in zip(groups, self._widths, strict=True)]

    def zeros(self, number: int, width: int) -> Floats:
        return np.zeros((number, width), np.float32)

    def take(self, rows: Floats, places: Int64s) -> Floats:
        return rows[places]

    def put(self, rows: Floats, places: Int64s, values: Floats) -> None:
        rows[places] = values


class DevicePayload(Payload[Tensor]):
    """Payload on a device; see the module. Uses the current stream of the training thread."""

    def __init__(
        self, ranks: Ranks, groups: Sequence[Group], tier: DeviceTier, device: torch.device, *, rounds: bool
    ) -> None:
        """`tier`: any tier on the device."""
        super().__init__(ranks, groups, rounds=rounds)
        self._tier, self._device = tier, device
        self._type = torch.bfloat16 if rounds else torch.float32
        self._pack_nothing()

    def _pack_nothing(self) -> None:
        self._packed = torch.empty(0, dtype=self._type, device=self._device)
        self._packed_sizes = [0] * self._ranks.size

    def value_bytes(self, kind: Kind) -> list[int]:
        sizes = super().value_bytes(kind)
        return [max(sizes)] * len(sizes)

    def unload(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)

    def load(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        return list(arrays)

    def pack(self, rows: Sequence[Tensor], counts: Sequence[Int64s], kind: Kind) -> list[Bytes]:
        pieces = [torch.split(of_group, numbers.tolist()) for of_group, numbers in zip(rows, counts, strict=True)]
        by_rank = [piece.reshape(-1) for of_rank in zip(*pieces, strict=True) for piece in of_rank]
        self._packed = torch.cat(by_rank).to(torch.bfloat16 if self.value_bytes(kind)[0] == 2 else torch.float32)
        self._packed_sizes = [sum(self._count_values(counts, rank)) for rank in range(self._ranks.size)]
        return [np.frombuffer(size.to_bytes(8, "little"), np.uint8) for size in self._packed_sizes]

    def unpack(self, exchanged: Exchanged, kind: Kind, counts: Sequence[Int64s]) -> list[Tensor]:
        sizes = [self._count_values(counts, rank) for rank in range(self._ranks.size)]
        announced = []
        for rank, part in enumerate(exchanged.parts):
            number = int.from_bytes(part.tobytes(), "little") if len(part) == 8 else None
            if number != sum(sizes[rank]) and not (kind is Kind.GRADIENTS and number is None):
                got = f"a message of {len(part)} bytes" if number is None else f"{number}"
                raise RanksError(
                    f"{self._ranks.name}: expected {sum(sizes[rank])} numbers from rank {rank}, got {got} "
                    f"({exchanged.headers[rank].text}). Use the same version and settings on all ranks."
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


def _to_wire(values: Floats, size: int) -> NDArray[Any]:
    """Return values in `size` bytes each."""
    return values if size == 4 else torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()


def _from_wire(part: Bytes, size: int) -> Floats:
    if size == 2:
        return widen(part.view(np.uint16))
    return np.require(part.view(np.float32), requirements="A")  # rows in 2 bytes may come before


def count_chosen(sizes: Int64s, chosen: Bools | None) -> Int64s:
    """Return how many (W,) of each rank's `sizes` (W,) requests are chosen; None: all."""
    if chosen is None:
        return sizes
    totals, ends = np.concatenate([[0], np.cumsum(chosen)]), np.cumsum(sizes)
    counts: Int64s = totals[ends] - totals[ends - sizes]
    return counts
