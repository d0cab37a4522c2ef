"""`Lists`: numbers of rows and slots on the device, for the kernels of the copy stream."""

from collections import deque
from collections.abc import Iterator

import numpy as np
from torch import Tensor

from adaptive.planning.plan import Int64s
from adaptive.tiers.buffers import Bytes, added
from adaptive.tiers.mover import Mover
from adaptive.tiers.staging import Parcel

NUM_LISTS = 8  # a plan needs up to 4
LIST_ROWS = 1 << 19  # at once: buffers are never freed, and a flush, or a tier that shrinks, names every row there is


class Ring:
    """Parcels used in turn."""

    def __init__(self, mover: Mover, size: int) -> None:
        self._parcels = deque(Parcel(mover) for _ in range(size))

    def next(self) -> Parcel:
        self._parcels.rotate(-1)
        return self._parcels[0]

    @property
    def num_bytes(self) -> Bytes:
        return added(parcel.num_bytes for parcel in list(self._parcels))


class Lists:
    """Sends numbers of rows or slots to the device, for the kernels of the copy stream.

    What is sent lies in buffers that are used again, so work on it has to be asked for before the next call.
    """

    def __init__(self, mover: Mover) -> None:
        self._ring = Ring(mover, NUM_LISTS)

    def send(self, *numbers: Int64s) -> Iterator[list[Tensor]]:
        """Lists of one length on the device, a stretch of all of them at a time."""
        for first in range(0, len(numbers[0]), LIST_ROWS):
            parts = [array[first : first + LIST_ROWS] for array in numbers]
            parcel = self._ring.next()
            parcel.take([(np.int64, part.shape) for part in parts])
            for to, part in zip(parcel.arrays, parts, strict=True):
                to[...] = part
            parcel.send()
            yield parcel.tensors

    @property
    def num_bytes(self) -> Bytes:
        return self._ring.num_bytes
