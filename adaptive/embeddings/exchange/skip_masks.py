"""Answers as bytes: for which requests of an asker no gradient is wanted, and which vectors do not cross.

For each group of tables, a bit for each request in each plane, in the order of the requests:

    flags     uint8           which planes follow, and FORGET
    left_out  (n bits)        the row is saturated: its gradient is not sent
    kept      (n bits)        the asker has the row's vector, which has not changed since: it is not sent
    keep      (n bits)        the batch does not change the row: the asker keeps its vector for coming batches

An empty message says that nothing is left out and nothing kept.

Letters: n requests, in a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.ranks.transport import Bytes
from adaptive.errors import RanksError

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
PLANES: Final = ("left_out", "kept", "keep")
FORGET: Final = 1 << len(PLANES)  # the asker first forgets all vectors that it has of this owner
NO_ANSWER: Final = np.zeros(0, np.uint8)


@dataclass(frozen=True)
class Answer:
    """Of requests (n,) in one group, in their order; see the module."""

    left_out: Bools
    kept: Bools
    keep: Bools

    @classmethod
    def nothing(cls, number: int) -> "Answer":
        return cls(*(np.zeros(number, np.bool_) for _ in PLANES))

    @classmethod
    def joined(cls, parts: Sequence["Answer"]) -> "Answer":
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in PLANES))

    def of(self, requests: slice) -> "Answer":
        """Of some of the requests."""
        return Answer(self.left_out[requests], self.kept[requests], self.keep[requests])


def pack_answers(answers: Sequence[Answer], forget: bool) -> Bytes:
    """The message for one asker: an answer for each group, and whether it forgets what it has of this owner."""
    parts: list[Bytes] = []
    says_something = False
    for answer in answers:
        planes = [plane if plane.any() else None for plane in (answer.left_out, answer.kept, answer.keep)]
        flags = sum(1 << place for place, plane in enumerate(planes) if plane is not None)
        says_something |= flags > 0
        parts.append(np.array([flags | FORGET * forget], np.uint8))
        parts += [np.packbits(plane) for plane in planes if plane is not None]
    return np.concatenate(parts) if says_something else NO_ANSWER


def unpack_answers(message: Bytes, numbers: Sequence[int], sender: str) -> tuple[list[Answer], bool]:
    """What `pack_answers` was given; `numbers`: requests in each group.

    Raises:
        RanksError: if the message is too short or too long for them.
    """
    if not len(message):
        return [Answer.nothing(number) for number in numbers], False
    found, place, forget = [], 0, False
    for number in numbers:
        flags, size = int(message[place]) if place < len(message) else 0, (number + 7) // 8
        forget |= bool(flags & FORGET)
        place += 1
        planes = []
        for bit in range(len(PLANES)):
            plane = np.zeros(number, np.bool_)
            if flags >> bit & 1:
                bits = np.unpackbits(message[place : place + size])[:number]
                plane[: len(bits)] = bits
                place += size
            planes.append(plane)
        found.append(Answer(*planes))
    if place != len(message):
        raise RanksError(
            f"{sender} sent answers of {len(message)} bytes, {place} are needed for {sum(numbers)} requests"
        )
    return found, forget
