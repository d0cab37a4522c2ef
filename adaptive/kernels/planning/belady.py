"""Belady's bound over whole batches, rows that batches in flight hold, inputs that find all rows on the device.

Letters: K batches, U distinct rows of a batch, P uses of all batches (the sum of their U), B samples of a batch.

A row has one next use, the batch that looks it up next. So resident rows need no names: how many of them wait for
each batch says what hits, and who leaves is one of those that wait for the farthest batch. That makes a bound cost
a few additions a use, with neither a heap nor a set of rows.
"""

import numpy as np

from adaptive.kernels.jit import kernel

NEVER = np.int32(np.iinfo(np.int32).max)


@kernel()
def link_uses(rows, batch, first, latest, following):
    """Note that `batch` uses the distinct rows (U,), as uses first ... first + U - 1 of the trace.

    latest (all rows,) int64: number of a row's latest use, + 1; 0 = none so far. following (>= first + U,) int32:
    the batch of the next use of the same row, NEVER until there is one.
    """
    for u in range(rows.size):
        row = rows[u]
        if latest[row] > 0:
            following[latest[row] - 1] = batch
        latest[row] = first + u + 1
        following[first + u] = NEVER


@kernel()
def belady_hits(ends, following, num_slots, bypass, waiting, hits):
    """Hits (K,) int64 of each batch under the best possible eviction: the row whose next use is farthest leaves.

    ends (K,) int64: where the uses of each batch end in following (P,) int32. With `bypass` a row may be used
    without a slot; without it every row of a batch needs one, and only rows of other batches can leave for it.
    waiting (K + 1,) int64 zeros is scratch: resident rows by the batch that uses them next, the last: none does.

    Returns the first batch whose rows do not fit, or -1.
    """
    num_batches = ends.size
    resident = 0
    farthest = 0
    first = 0
    for batch in range(num_batches):
        needed = ends[batch] - first
        hits[batch] = waiting[batch]
        resident -= waiting[batch]
        waiting[batch] = 0
        if not bypass:
            if needed > num_slots:
                return batch
            farthest, resident = let_go(waiting, farthest, resident, num_slots - needed)
        for use in range(first, ends[batch]):
            later = min(np.int64(following[use]), num_batches)
            waiting[later] += 1
            farthest = max(farthest, later)
        resident += needed
        if bypass:
            farthest, resident = let_go(waiting, farthest, resident, num_slots)
        first = ends[batch]
    return -1


@kernel()
def let_go(waiting, farthest, resident, limit):
    """Let the rows with the farthest next use leave until `limit` are left; returns (farthest, resident)."""
    while resident > limit:
        leaving = min(waiting[farthest], resident - limit)
        waiting[farthest] -= leaving
        resident -= leaving
        if waiting[farthest] == 0:
            farthest -= 1
    return farthest, resident


@kernel()
def held_rows(ends, following, depth, held):
    """held (K,) int64: distinct rows that the batches k - depth ... k look up, which all need a slot when k is planned.

    ends, following: see `belady_hits`. A row counts from the batch that uses it up to the one before it is used again,
    but not for longer than it is held.
    """
    num_batches = ends.size
    held[:] = 0
    first = 0
    for batch in range(num_batches):
        for use in range(first, ends[batch]):
            after = min(np.int64(following[use]), batch + depth + 1)
            held[batch] += 1
            if after < num_batches:
                held[after] -= 1
        first = ends[batch]
    for batch in range(1, num_batches):
        held[batch] += held[batch - 1]


@kernel()
def popular_inputs(offsets, inverse, locations, cold):
    """How many samples have all their rows in slots; cold (B,) bool gets the others.

    offsets (F * B + 1,) and inverse (N,) are those of a batch and its distinct rows, locations (U,) their slots, or
    negative.
    """
    num_samples = cold.size
    cold[:] = False
    for first in range(0, offsets.size - 1, num_samples):
        for sample in range(num_samples):
            for p in range(offsets[first + sample], offsets[first + sample + 1]):
                if locations[inverse[p]] < 0:
                    cold[sample] = True
                    break
    popular = 0
    for sample in range(num_samples):
        popular += not cold[sample]
    return popular
