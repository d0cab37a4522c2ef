"""`Transport`: how bytes get from rank to rank, and `Header`: what stands before every message.

`torch_transport` is torch.distributed; tests have threads. There are two channels. Each belongs to one thread, and
every rank asks a channel for the same operations in the same order: what they mean, and whether ranks agree on it, is
the business of `adaptive.embeddings.ranks.channel`, by headers:

    "ADRK", version, kind, sequence number, batch, samples, signal heard, code, length of the part for each rank
    checksum of the part for the receiver, checksum of all that stands before, and of the job's
    number, sender and receiver

A header goes to all ranks, in the first message of an exchange; so all know what the others send, and decide alike.
Checksums tell damage on the way, and messages of another job; they keep nobody out.
"""

import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.data.kernels.checksum import checksum
from adaptive.errors import RanksError

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

    def swap_values(self, values: "Tensor", sizes: Sequence[int], lengths: Sequence[int]) -> "Tensor":
        """The same from the training thread for numbers that lie on a device, of one type: `sizes` of the `values`
        (n,) are for each rank, one after the other; returns as many as `lengths` from each. Where `values_on` says so.

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


# --- headers ---------------------------------------------------------------------------------------------------------

MAGIC: Final = b"ADRK"
VERSION: Final = 2
MOST_TEXT: Final = 1024  # bytes of a message about a failure
_FIXED: Final = struct.Struct("<4sHHQqQII")
_PADDING: Final = 4  # bytes, so that parts begin at whole words behind it
_END: Final = struct.Struct(f"<I{_PADDING}x")
_WORD: Final = 8
_SMALL: Final = 4096  # bytes, from which on the kernel is faster


class Kind(IntEnum):
    """What a message holds."""

    REQUESTS = 1  # rows of a batch that is read ahead
    END = 2  # there are no more batches
    LEFT = 3  # this rank has left its loop before the end
    FAILED = 4  # this rank ends with an error: its code is in the header, its text is the message
    VECTORS = 5
    GRADIENTS = 6
    STEP = 7  # of a trainer's step: losses and predictions, dense gradients block by block, gradients of rows
    DENSE = 8  # the dense gradients in it, as they are counted
    SUMS = 9  # ordered sums of slices of dense gradients
    READ = 10  # rows to be read only
    FACTS = 11  # whatever ranks tell each other between batches
    WAITING = 12  # nothing: this rank knows of a failure, and asks for its text
    READ_ROWS = 13  # the answer to READ
    ANSWERS = 14  # of owners to requests, once a batch is planned: what need not cross


@dataclass(frozen=True)
class Header:
    """See the module."""

    kind: Kind
    sequence: int
    batch: int
    lengths: tuple[int, ...]  # of the part for each rank, bytes
    samples: int = 0
    signal: int = 0
    code: int = 0
    check: int = 0  # of the part for the rank that this header goes to

    def pack(self, seed: int = 0) -> bytes:
        """`seed`: see `seed_of`."""
        fixed = (MAGIC, VERSION, self.kind, self.sequence, self.batch, self.samples, self.signal, self.code)
        head = _FIXED.pack(*fixed) + struct.pack(f"<{len(self.lengths)}QQ", *self.lengths, self.check)
        return head + _END.pack(zlib.crc32(head, seed))

    @property
    def text(self) -> str:
        return f"{self.kind.name.lower()} of batch {self.batch}, message {self.sequence}"


def part_check(part: Bytes) -> int:
    """A checksum of the bytes of a part, and of how many there are."""
    if len(part) < _SMALL:
        return zlib.crc32(part.tobytes(), len(part))
    whole = len(part) // _WORD * _WORD
    words = np.require(part[:whole], requirements="A").view(np.uint64)
    return int(checksum(words)) % 2**64 ^ zlib.crc32(part[whole:].tobytes())


def header_size(size: int) -> int:
    """Bytes of a header among `size` ranks."""
    return _FIXED.size + (size + 1) * _WORD + _END.size


def seed_of(job: int, sender: int, receiver: int) -> int:
    """Of the checksum of a header. `job`: a number below 2^32 that all its ranks know, and most likely no other's."""
    return zlib.crc32(struct.pack("<3I", job, sender, receiver))


def unpack(message: bytes, size: int, sender: str, seed: int = 0) -> Header:
    """The header in a message to `size` ranks; `seed` as it was packed.

    Raises:
        RanksError: if it is none, damaged, or of another version, job or rank.
    """
    needed = header_size(size)
    if len(message) != needed:
        raise RanksError(
            f"{sender} sent a header: expected {needed} bytes, got {len(message)}: another number of ranks?"
        )
    magic, version, kind, sequence, batch, samples, signal, code = _FIXED.unpack_from(message)
    if magic != MAGIC or version != VERSION:
        raise RanksError(
            f"{sender} sent a header that begins with {magic!r}, version {version}; expected {MAGIC!r}, version "
            f"{VERSION}: does it run another version of adaptive-train?"
        )
    if kind not in Kind.__members__.values():
        raise RanksError(f"{sender} sent a message of kind {kind}, which is none")
    end = len(message) - _END.size
    if _END.unpack_from(message, end)[0] != zlib.crc32(message[:end], seed) or any(message[-_PADDING:]):
        raise RanksError(f"{sender} sent a header that is damaged on the way, or of another job or rank")
    *lengths, check = struct.unpack_from(f"<{size + 1}Q", message, _FIXED.size)
    return Header(Kind(kind), sequence, batch, tuple(lengths), samples, signal, code, check)
