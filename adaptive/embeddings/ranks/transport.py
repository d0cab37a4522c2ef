"""`Transport`: how bytes get from rank to rank. `torch_transport` is torch.distributed; tests have threads.

There are two channels. Each belongs to one thread, and every rank asks a channel for the same operations in the same
order: what the operations mean, and whether ranks agree on it, is the business of `adaptive.embeddings.ranks.channel`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Bytes = NDArray[np.uint8]

AHEAD: Final = 0  # of the look-ahead thread: who asks whom for which rows
ROWS: Final = 1  # of the training thread: vectors, gradients, and whatever else is agreed on
CHANNELS: Final = ("ahead", "rows")


def as_bytes(array: NDArray[Any]) -> Bytes:
    """The array's memory, or that of a contiguous copy."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class TransportError(Exception):
    """An operation that cannot be completed: a rank is gone, or has not come in time. The channel is of no more use."""


class Transport(ABC):
    """Moves bytes; adds nothing and understands nothing.

    Attributes:
        job: a number below 2^32 that all ranks have, drawn for this job.
        gpu: number of the GPU that is this rank's; None: whichever is current, if there is one.
        values_on: the kind of devices between which `swap_values` works; None: it does not.
    """

    rank: int
    size: int
    job: int = 0
    gpu: int | None = None
    values_on: str | None = None

    @abstractmethod
    def swap(self, channel: int, parts: Sequence[Sequence[Bytes]], sizes: Sequence[int], largest: int) -> list[Bytes]:
        """Give each rank its part, of pieces that follow one another; returns what each rank had for this one, of
        `sizes` bytes each, whole. `largest`: bytes of the largest part that any rank has for any other.

        Raises:
            TransportError: if a rank is gone or does not come in time.
        """

    def swap_values(self, values: "Tensor", sizes: Sequence[int], come: Sequence[int]) -> "Tensor":
        """The same from the training thread for numbers that lie on a device, of one type: `sizes` of the `values`
        (n,) are for each rank, one after the other; returns as many as `come` from each. Where `values_on` says so.

        Raises:
            TransportError: as far as it is known at once; work on a device goes on by itself.
        """
        raise NotImplementedError

    def check_device(self, kind: str) -> None:
        """Check that rows may lie on devices of a kind, "cpu" or "cuda".

        Raises:
            ConfigError: on every rank.
        """
        return

    @abstractmethod
    def name_of(self, rank: int) -> str:
        """Host and process of a rank, as far as known."""

    @abstractmethod
    def silent(self) -> list[int]:
        """After an error: the ranks of which nothing can be heard any more. It takes a few seconds to find out."""

    @abstractmethod
    def close(self) -> None:
        """Release what the transport holds. Closing twice is fine."""
