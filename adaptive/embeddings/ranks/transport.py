"""`Transport`: sends bytes between ranks. `Header`: the beginning of every message.

`torch_transport` uses torch.distributed; tests use threads. There are two channels, each for one thread. Every rank
makes the same calls on a channel in the same order. Their meaning, and the check that ranks agree on it, are in
`adaptive.embeddings.ranks.channel`, which sends headers:

    "ADRK", version, kind, sequence number, batch, samples, signal heard, code, length of the part for each rank

A header goes to all ranks, in the first message of an exchange. So all ranks know what the others send, and make the
same decision. The network's own checksums detect damage.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import RanksError

if TYPE_CHECKING:
    from torch import Tensor

Bytes = NDArray[np.uint8]

AHEAD: Final = 0  # for the look-ahead thread: requests and answers
ROWS: Final = 1  # for the training thread: vectors, gradients, and everything between batches
CHANNELS: Final = ("ahead", "rows")


def as_bytes(array: NDArray[Any]) -> Bytes:
    """Return the bytes of an array, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class TransportError(Exception):
    """An operation failed because a rank is gone or late. The channel cannot be used any more."""


class Transport(ABC):
    """Sends bytes without interpreting them.

    Attributes:
        rank: number of this process.
        size: number of ranks.
        gpu: number of this rank's GPU; None for the current one, or if there is none.
        values_on: kind of devices between which `swap_values` works; None if it does not.
    """

    rank: int
    size: int
    gpu: int | None = None
    values_on: str | None = None

    @abstractmethod
    def swap(self, channel: int, parts: Sequence[Sequence[Bytes]], sizes: Sequence[int], largest: int) -> list[Bytes]:
        """Send each rank its part; return the parts that they sent to this rank.

        Args:
            channel: `AHEAD` or `ROWS`.
            parts: for each rank, pieces that are sent one after another.
            sizes: bytes expected from each rank.
            largest: bytes of the largest part that any rank sends to any other.

        Raises:
            TransportError: if a rank is gone or late.
        """

    def swap_values(self, values: "Tensor", sizes: Sequence[int], lengths: Sequence[int]) -> "Tensor":
        """Exchange numbers between devices of the kind `values_on`, in the training thread.

        `values` (n,) has `sizes` numbers for each rank; returns `lengths` numbers from each rank, of the same dtype.

        Raises:
            TransportError: if the failure is known at once; work on a device may fail later.
        """
        raise NotImplementedError

    def check_device(self, kind: str) -> None:
        """Check that the device tier may be on devices of this kind, "cpu" or "cuda".

        Raises:
            ConfigError: on every rank.
        """
        return

    @abstractmethod
    def name_of(self, rank: int) -> str:
        """Return the host and process of a rank, if known."""

    @abstractmethod
    def silent(self) -> list[int]:
        """After an error, return the ranks that do not respond. This takes a few seconds."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Closing twice is allowed."""


# --- headers ---------------------------------------------------------------------------------------------------------

MAGIC: Final = b"ADRK"
VERSION: Final = 3
MOST_TEXT: Final = 1024  # bytes of a message about a failure
_FIXED: Final = struct.Struct("<4sHHQqQII")
_WORD: Final = 8


class Kind(IntEnum):
    """Content of a message."""

    REQUESTS = 1  # rows of a batch that is read ahead
    END = 2  # there are no more batches
    LEFT = 3  # this rank has left its loop early
    FAILED = 4  # this rank ends with an error: its code is in the header, its text is the part
    VECTORS = 5
    GRADIENTS = 6
    STEP = 7  # a trainer's step: losses and predictions, dense gradients block by block, gradients of rows
    DENSE = 8  # only counted: the dense gradients in STEP
    SUMS = 9  # ordered sums of slices of dense gradients
    READ = 10  # requests of rows that are only read
    FACTS = 11  # everything else between batches

    READ_ROWS = 13  # responses to READ
    ANSWERS = 14  # masks of owners after planning a batch: what need not be sent


@dataclass(frozen=True)
class Header:
    """Header of a message; see the module."""

    kind: Kind
    sequence: int  # of the exchange on its channel
    batch: int  # -1 for none
    lengths: tuple[int, ...]  # bytes of the part for each rank
    samples: int = 0
    signal: int = 0
    code: int = 0

    def pack(self) -> bytes:
        """Return the bytes of the header."""
        fixed = (MAGIC, VERSION, self.kind, self.sequence, self.batch, self.samples, self.signal, self.code)
        return _FIXED.pack(*fixed) + struct.pack(f"<{len(self.lengths)}Q", *self.lengths)

    @property
    def text(self) -> str:
        return f"{self.kind.name.lower()} of batch {self.batch}, message {self.sequence}"


def header_size(size: int) -> int:
    """Return the bytes of a header among `size` ranks."""
    return _FIXED.size + size * _WORD


def unpack(message: bytes, size: int, sender: str) -> Header:
    """Return the header of a message among `size` ranks.

    Raises:
        RanksError: if it is not a header, or comes from another version or number of ranks.
    """
    needed = header_size(size)
    if len(message) != needed:
        raise RanksError(
            f"header of {sender}: expected {needed} bytes, got {len(message)}. Set the same number of ranks everywhere."
        )
    magic, version, kind, sequence, batch, samples, signal, code = _FIXED.unpack_from(message)
    if magic != MAGIC or version != VERSION:
        raise RanksError(
            f"header of {sender}: expected {MAGIC!r}, version {VERSION}, got {magic!r}, version {version}. Use the "
            "same version of adaptive-train on all ranks."
        )
    if kind not in Kind.__members__.values():
        raise RanksError(
            f"header of {sender}: expected a known kind of message, got {kind}. Use the same version of adaptive-train "
            "on all ranks."
        )
    lengths = struct.unpack_from(f"<{size}Q", message, _FIXED.size)
    return Header(Kind(kind), sequence, batch, lengths, samples, signal, code)
