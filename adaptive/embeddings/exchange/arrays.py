"""`Arrays`: rows as arrays, in the host's memory or on a device, and the little that exchanges do to them there.

Letters: n places, D width.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.tiers.device import DeviceTier

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]
A = TypeVar("A", Floats, Tensor)


class Arrays(ABC, Generic[A]):
    """Arrays of rows, float32."""

    @abstractmethod
    def zeros(self, number: int, width: int) -> A:
        """(number, width)"""

    @abstractmethod
    def at(self, rows: A, places: Int64s) -> A:
        """(n, D) copies of the rows at places (n,)."""

    @abstractmethod
    def put(self, rows: A, places: Int64s, values: A) -> None:
        """Write values (n, D) to places (n,); equal places have equal values."""

    def chosen(self, rows: A, which: Bools | None) -> A:
        """The rows that are chosen; None: all are."""
        return rows if which is None else self.at(rows, np.flatnonzero(which))

    def spread(self, rows: A, which: Bools | None) -> A:
        """(n, D) the rows at the places that are chosen (n,); the others are 0. None: all are chosen."""
        if which is None:
            return rows
        found = self.zeros(len(which), rows.shape[1])
        self.put(found, np.flatnonzero(which), rows)
        return found


class HostArrays(Arrays[Floats]):
    """In the host's memory."""

    def zeros(self, number: int, width: int) -> Floats:
        return np.zeros((number, width), np.float32)

    def at(self, rows: Floats, places: Int64s) -> Floats:
        return rows[places]

    def put(self, rows: Floats, places: Int64s, values: Floats) -> None:
        rows[places] = values


class DeviceArrays(Arrays[Tensor]):
    """On a device, in the stream that is current: that of training."""

    def __init__(self, tier: DeviceTier, device: torch.device) -> None:
        """`tier`: sends places to the device."""
        self._tier, self._device = tier, device

    def zeros(self, number: int, width: int) -> Tensor:
        return torch.zeros((number, width), device=self._device)

    def at(self, rows: Tensor, places: Int64s) -> Tensor:
        return rows.index_select(0, self._tier.send(places))

    def put(self, rows: Tensor, places: Int64s, values: Tensor) -> None:
        rows.index_copy_(0, self._tier.send(places), values)
