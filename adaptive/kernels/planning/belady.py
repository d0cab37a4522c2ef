"""Belady's bound over whole batches, held rows, and samples with all rows in slots.

Letters: K batches, U distinct rows of a batch, P uses of all batches (the sum of their U), B samples of a batch.

A row has one next use: the next batch that looks it up. So it is enough to count the resident rows by their next use:
the count of a batch is its number of hits, and a row to evict is one of those with the farthest next use. The bound
costs a few additions per use, without a heap or a set of rows.
"""

import numpy as np

from adaptive.kernels.jit import kernel

NEVER = np.int32(np.iinfo(np.int32).max)


@kernel()
def link_uses(rows, batch, first, latest, following):
    """Note that `batch` uses the distinct rows (U,), as uses from `first` on of the trace.

    latest (all rows,) int64: number of a row's latest use + 1; 0 = none. following (>= first + U,) int32: batch of the
    next use of the same row, or NEVER.
    """
    for u in range(rows.size):
        row = rows[u]
        if latest[row] > 0:
            following[latest[row] - 1] = batch
        latest[row] = first + u + 1
        following[first + u] = NEVER


@kernel()
def belady_hits(ends, following, num_slots, bypass, waiting, hits):
    """Count the hits (K,) int64 of each batch under Belady's eviction, the best possible one.

    ends (K,) int64: end of each batch's uses in following (P,) int32. With `bypass` a row may be used without a slot;
    without it every row of a batch needs one, and only rows of other batches can be evicted. waiting (K + 1,) int64
    zeros is scratch: number of resident rows by the batch of their next use, the last for none.

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
            farthest, resident = evict_farthest(waiting, farthest, resident, num_slots - needed)
        for use in range(first, ends[batch]):
            later = min(np.int64(following[use]), num_batches)
            waiting[later] += 1
            farthest = max(farthest, later)
        resident += needed
        if bypass:
            farthest, resident = evict_farthest(waiting, farthest, resident, num_slots)
        first = ends[batch]
    return -1


@kernel()
def evict_farthest(waiting, farthest, resident, limit):
    """Evict rows with the farthest next use down to `limit`; returns (farthest, resident)."""
    while resident > limit:
        leaving = min(waiting[farthest], resident - limit)
        waiting[farthest] -= leaving
        resident -= leaving
        if waiting[farthest] == 0:
            farthest -= 1
    return farthest, resident


@kernel()
def held_rows(ends, following, depth, held):
    """held (K,) int64: number of distinct rows of the batches k - depth ... k.

    ends, following: see `belady_hits`. A row counts from the batch that uses it to the one before its next use, but
    not for longer than it is held.
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
    """Return the number of samples with all rows in slots; cold (B,) bool marks the others.

    offsets (F * B + 1,) of a batch, inverse (N,) lookup -> distinct row, locations (U,) of these: slot, or negative.
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
