"""What stands before every message: the header, which says of what it is, and lets ranks see that they agree.

    "ADRK", version, kind, sequence number, batch, samples, signal heard, code, length of the part for each rank

A header goes to all ranks, in the first message of an exchange; so all know what the others send, and decide alike.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from adaptive.errors import RanksError

MAGIC: Final = b"ADRK"
VERSION: Final = 1
MOST_TEXT: Final = 1024  # bytes of a message about a failure
_FIXED: Final = struct.Struct("<4sHHQqQII")
_LENGTH: Final = struct.Struct("<Q")


class Kind(IntEnum):
    """What a message holds."""

    REQUESTS = 1  # rows that are asked for, of a batch that is read ahead
    END = 2  # there are no more batches
    LEFT = 3  # this rank has left its loop before the end
    FAILED = 4  # this rank ends with an error: its code is in the header, its text is the message
    VECTORS = 5
    GRADIENTS = 6
    STEP = 7  # of a trainer's step: losses and predictions, dense gradients block by block, gradients of rows
    DENSE = 8  # the dense gradients in it, as they are counted
    SUMS = 9  # ordered sums of slices of dense gradients
    READ = 10  # rows that are asked for, to be read only
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

    def pack(self) -> bytes:
        fixed = (MAGIC, VERSION, self.kind, self.sequence, self.batch, self.samples, self.signal, self.code)
        return _FIXED.pack(*fixed) + b"".join(map(_LENGTH.pack, self.lengths))

    @property
    def text(self) -> str:
        return f"{self.kind.name.lower()} of batch {self.batch}, message {self.sequence}"


def unpack(message: bytes, size: int, sender: str) -> Header:
    """The header in a message to `size` ranks.

    Raises:
        RanksError: if it is none, or of another version.
    """
    needed = _FIXED.size + size * _LENGTH.size
    if len(message) != needed:
        raise RanksError(
            f"{sender} sent a header of {len(message)} bytes, {needed} are needed: another number of ranks?"
        )
    magic, version, kind, sequence, batch, samples, signal, code = _FIXED.unpack_from(message)
    if magic != MAGIC or version != VERSION:
        raise RanksError(
            f"{sender} sent a header that begins with {magic!r}, version {version}; {MAGIC!r}, version {VERSION} are "
            "needed: does it run another version of adaptive-train?"
        )
    if kind not in Kind.__members__.values():
        raise RanksError(f"{sender} sent a message of kind {kind}, which is none")
    lengths = tuple(_LENGTH.unpack_from(message, _FIXED.size + place * _LENGTH.size)[0] for place in range(size))
    return Header(Kind(kind), sequence, batch, lengths, samples, signal, code)
