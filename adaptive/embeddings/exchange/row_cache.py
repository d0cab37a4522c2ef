"""Rows whose vectors do not cross again, since they have not changed: deferral and saturation as an exact cache.

The owner knows, once it has planned a batch, which rows that batch changes. Those it does not change (their gradients
wait, or are left out) keep their values until a later batch changes them; so an asker that was sent such a row may use
its copy. `Holders` are the owner's books of who has which row, `Copies` the asker's vectors. Nothing is stale: an owner
answers *kept* only while the copy is the row, bit for bit.

Letters: n requests, U distinct rows of a batch, W ranks, D width.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.exchange.arrays import Arrays
from adaptive.embeddings.exchange.owner import ServedGroup
from adaptive.embeddings.exchange.skip_masks import Answer, Bools
from adaptive.embeddings.planning.hot_set import HotSet
from adaptive.embeddings.planning.plan import GroupPlan
from adaptive.kernels.planning import row_index as kernels
from adaptive.kernels.planning import watched
from adaptive.kernels.planning.books import DUE, NOW, SKIPPED, WAITS

Int64s = NDArray[np.int64]


class Holders:
    """Which ranks have the present values of an owner's rows, in one group. For the look-ahead thread.

    Only watched rows can be had, of those the ones that have been watched longest: as many as fill an asker's share of
    memory, which is as much for all owners together as this one's watched rows take.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self.forget()

    def forget(self) -> None:
        """Nobody has anything."""
        self._has: Bools = np.zeros((0, self._size), np.bool_)

    def answer(self, plan: GroupPlan, served: ServedGroup, hot: HotSet) -> Answer:
        """Of all requests (n,) of a batch that has been planned; enters who will have what after it."""
        lookups, sizes = served.lookups, served.sizes
        row_of = np.empty(len(lookups.bags.vectors), np.int64)
        row_of[lookups.bags.vectors] = lookups.distinct.inverse
        fates = fates_of(plan, row_of, len(lookups.distinct.rows))
        left_out = (fates == SKIPPED)[row_of]
        if self._size == 1:
            return Answer(left_out, *(np.zeros(len(row_of), np.bool_) for _ in range(2)))
        if not len(self._has):
            self._has = np.zeros((hot.capacity // (self._size - 1), self._size), np.bool_)
        entries = hot.entries_of(lookups.distinct.rows)
        able = (entries >= 0) & (entries < len(self._has))
        ranks = np.repeat(np.arange(self._size), sizes)
        kept = able[row_of]
        kept[kept] = self._has[entries[row_of[kept]], ranks[kept]]
        unchanged = fates >= WAITS
        keep = (unchanged & able)[row_of] & ~kept & (ranks != self._rank)
        self._has[entries[able & ~unchanged]] = False
        self._has[entries[row_of[keep]], ranks[keep]] = True
        return Answer(left_out, kept, keep)


def fates_of(plan: GroupPlan, row_of: Int64s, num_rows: int) -> NDArray[np.uint8]:
    """(U,) what becomes of each distinct row's gradient, read off a plan: the planner need not know of ranks.

    row_of: (n,) distinct row of each request.
    """
    fates = np.full(num_rows, SKIPPED, np.uint8)
    now = plan.row_updates
    fates[row_of[now.vectors[now.segments[:-1]]]] = NOW
    if plan.deferred is not None:
        summed = plan.deferred.row_updates
        rows = row_of[summed.vectors[summed.segments[:-1]]]
        fates[rows] = WAITS
        fates[rows[plan.deferred.due_at]] = DUE
    return fates


class Copies:
    """Vectors of one owner and group that an asker keeps. For the training thread."""

    def __init__(self, width: int, arrays: Arrays[Any]) -> None:
        """`arrays`: of the memory where vectors lie."""
        self._width, self._arrays = width, arrays
        self.forget()

    def forget(self) -> None:
        self._count = 0
        self._vectors = self._arrays.zeros(0, self._width)
        self._new_table(16)

    def _new_table(self, size: int) -> None:
        self._keys = np.full(size, -1, np.int64)
        self._values = np.zeros(size, np.int32)

    @property
    def num_bytes(self) -> int:
        return int(self._vectors.nbytes) + self._keys.nbytes + self._values.nbytes

    def put(self, rows: Int64s, vectors: Any) -> None:
        """Keep vectors (n, D) of rows (n,), in the place of what is kept of them; equal rows have equal vectors."""
        places = np.empty(len(rows), np.int64)
        self._make_room(self._count + len(rows))
        self._count = kernels.enter_rows(rows, self._keys, self._values, self._count, places)
        self._arrays.put(self._vectors, places, vectors)

    def get(self, rows: Int64s) -> Any:
        """(n, D) what is kept of rows (n,), all of which are there."""
        places = np.empty(len(rows), np.int64)
        watched.lookup_entries(rows, self._keys, self._values, places)
        assert not len(rows) or places.min() >= 0, "the owner says that this rank has a row which it has not"
        return self._arrays.at(self._vectors, places)

    def _make_room(self, count: int) -> None:
        if 2 * count > len(self._keys):
            keys, values, size = self._keys, self._values, len(self._keys)
            while size < 2 * count:
                size *= 2
            there = np.flatnonzero(keys >= 0)
            rows = keys[there][np.argsort(values[there])]  # they keep their places
            self._new_table(size)
            kernels.enter_rows(rows, self._keys, self._values, 0, np.empty(len(rows), np.int64))
        if count > len(self._vectors):
            more = self._arrays.zeros(max(count, 2 * len(self._vectors)), self._width)
            more[: self._count] = self._vectors[: self._count]
            self._vectors = more
