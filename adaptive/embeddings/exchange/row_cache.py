"""Skip masks and row caches, to send no skipped gradients and no unchanged vectors.

Once an owner has planned a batch, it knows which rows that batch changes. Rows that it does not change, because their
updates are deferred or skipped, keep their values until a later batch changes them. So a rank that has received such a
row may use its copy. A `CacheDirectory` records which rank has which row of an owner; a `RowCache` stores a requester's
vectors. No copy is ever outdated: an owner sets *cached* only while the copy equals the row, bit for bit.

The message from an owner contains, for each group of tables, a bit for each request in each plane, in the order of
requests:

    flags     uint8           bits for the planes that follow, and FORGET
    skipped   (n bits)        the row is saturated: its gradient is not sent
    cached    (n bits)        the requester has the row's current vector: it is not sent
    to_cache  (n bits)        the batch does not change the row: the requester caches its vector for later batches

An empty message means that nothing is skipped and nothing is cached.

Letters: n requests in a group, U distinct rows of a batch, W ranks, D width.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.exchange.payload import Payload
from adaptive.embeddings.planning.hot_set import HotSet
from adaptive.embeddings.planning.lookups import Lookups
from adaptive.embeddings.planning.plan import GroupPlan
from adaptive.embeddings.ranks.transport import Bytes
from adaptive.errors import RanksError
from adaptive.kernels.planning import watched
from adaptive.kernels.planning.books import DUE, NOW, SKIPPED, WAITS

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
NUM_PLANES: Final = 3
FORGET: Final = 1 << NUM_PLANES  # the requester first drops all cached vectors of this owner


class SkipMasks(NamedTuple):
    """Masks of requests (n,) in one group, in their order; see the module."""

    skipped: Bools
    cached: Bools
    to_cache: Bools

    @classmethod
    def nothing(cls, number: int) -> "SkipMasks":
        return cls(*(np.zeros(number, np.bool_) for _ in range(NUM_PLANES)))

    @classmethod
    def joined(cls, parts: Sequence["SkipMasks"]) -> "SkipMasks":
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def of(self, requests: slice) -> "SkipMasks":
        """Return the masks of some of the requests."""
        return SkipMasks(*(plane[requests] for plane in self))


def pack_masks(masks: Sequence[SkipMasks], *, forget: bool) -> Bytes:
    """Return the masks of each group as a message; with `forget`, its receiver drops rows."""
    parts: list[Bytes] = []
    for planes in masks:
        flags = sum(int(plane.any()) << place for place, plane in enumerate(planes))
        parts.append(np.array([flags | FORGET * forget], np.uint8))
        parts += [np.packbits(plane) for plane in planes if plane.any()]
    return np.concatenate(parts) if len(parts) > len(masks) else np.zeros(0, np.uint8)


def unpack_masks(message: Bytes, numbers: Sequence[int], sender: str) -> tuple[list[SkipMasks], bool]:
    """Return the arguments of `pack_masks`; `numbers`: requests in each group.

    Raises:
        RanksError: if the message is too short or too long for the requests.
    """
    masks = [SkipMasks.nothing(number) for number in numbers]
    if not len(message):
        return masks, False
    place, forget = 0, False
    for planes, number in zip(masks, numbers, strict=True):
        flags, size = int(message[place]) if place < len(message) else 0, (number + 7) // 8
        forget |= bool(flags & FORGET)
        place += 1
        for bit, plane in enumerate(planes):
            if flags >> bit & 1:
                bits = np.unpackbits(message[place : place + size])[:number]
                plane[: len(bits)] = bits
                place += size
    if place != len(message):
        raise RanksError(
            f"answers of {sender}: expected {place} bytes for {sum(numbers)} requests, got {len(message)}. The message "
            "was damaged, or ranks differ: use the same version of adaptive on all ranks."
        )
    return masks, forget


class CacheDirectory:
    """Records which ranks have cached which of an owner's rows. For the look-ahead thread.

    Only watched rows are cached, those with the lowest entries first: so many that a requester's caches of all owners
    together take as much memory as its own watched rows.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self.forget()

    def forget(self) -> None:
        """Record that no rank has cached any row."""
        self._has: Bools = np.zeros((0, self._size), np.bool_)

    def masks_of(self, plan: GroupPlan, lookups: Lookups, sizes: Int64s, hot: HotSet) -> SkipMasks:
        """Return the masks of all requests (n,), `sizes` (W,) of each rank; record what is cached."""
        row_of = np.empty(len(lookups.bags.vectors), np.int64)
        row_of[lookups.bags.vectors] = lookups.distinct.inverse
        fates = read_fates(plan, row_of, len(lookups.distinct.rows))
        skipped = (fates == SKIPPED)[row_of]
        if self._size == 1:
            return SkipMasks.nothing(len(row_of))._replace(skipped=skipped)
        if not len(self._has):
            self._has = np.zeros((hot.capacity // (self._size - 1), self._size), np.bool_)
        entries = hot.entries_of(lookups.distinct.rows)
        can_cache = (entries >= 0) & (entries < len(self._has))
        ranks = np.repeat(np.arange(self._size), sizes)
        cached = can_cache[row_of]
        cached[cached] = self._has[entries[row_of[cached]], ranks[cached]]
        unchanged = fates >= WAITS
        to_cache = (unchanged & can_cache)[row_of] & ~cached & (ranks != self._rank)
        self._has[entries[can_cache & ~unchanged]] = False
        self._has[entries[row_of[to_cache]], ranks[to_cache]] = True
        return SkipMasks(skipped, cached, to_cache)


def read_fates(plan: GroupPlan, row_of: Int64s, num_rows: int) -> NDArray[np.uint8]:
    """Return the fate (U,) of each distinct row's gradient; `row_of` (n,): of each request."""
    fates, updates, deferred = np.full(num_rows, SKIPPED, np.uint8), plan.row_updates, plan.deferred
    if deferred is None:
        fates[row_of[updates.vectors[updates.segments[:-1]]]] = NOW
    else:
        fates[deferred.summed], fates[deferred.written] = WAITS, DUE
        fates[deferred.now] = NOW
    return fates


class RowCache:
    """Vectors of one owner and group that a requester has cached. For the training thread."""

    def __init__(self, width: int, payload: Payload[Any]) -> None:
        """`payload`: allocates and copies vectors in their memory."""
        self._width, self._payload = width, payload
        self.forget()

    def forget(self) -> None:
        self._count = 0
        self._vectors = self._payload.zeros(0, self._width)
        self._new_index(16)

    def _new_index(self, size: int) -> None:
        self._keys = np.full(size, -1, np.int64)
        self._values = np.zeros(size, np.int32)

    def put(self, rows: Int64s, vectors: Any) -> None:
        """Store vectors (n, D) of rows (n,); equal rows must have equal vectors."""
        places = np.empty(len(rows), np.int64)
        self._reserve(self._count + len(rows))
        self._count = watched.enter_rows(rows, self._keys, self._values, self._count, places)
        self._payload.put(self._vectors, places, vectors)

    def get(self, rows: Int64s) -> Any:
        """Return the vectors (n, D) of rows (n,), all of which must be cached."""
        places = np.empty(len(rows), np.int64)
        watched.lookup_entries(rows, self._keys, self._values, places)
        assert not len(rows) or places.min() >= 0, "an owner did not send a row that is not cached here"
        return self._payload.take(self._vectors, places)

    def _reserve(self, count: int) -> None:
        if 2 * count > len(self._keys):
            used = np.flatnonzero(self._keys >= 0)
            rows = self._keys[used][np.argsort(self._values[used])]  # in this order, rows keep their places
            self._new_index(max(len(self._keys), 1 << (2 * count - 1).bit_length()))
            watched.enter_rows(rows, self._keys, self._values, 0, np.empty(len(rows), np.int64))
        if count > len(self._vectors):
            more = self._payload.zeros(max(count, 2 * len(self._vectors)), self._width)
            more[: self._count] = self._vectors[: self._count]
            self._vectors = more
