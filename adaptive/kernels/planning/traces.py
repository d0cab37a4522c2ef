"""Lookups over many batches: Belady's bound, held rows, popular samples, and a log in bounded memory.

Letters: K batches, U distinct rows of a batch, P uses of all batches (the sum of their U), B samples of a batch, n
rows, S sets of W ways.

A row has one next use: the next batch that looks it up. So it is enough to count the resident rows by their next use:
the count of a batch is its number of hits, and a row to evict is one of those with the farthest next use. The bound
costs a few additions per use, without a heap or a set of rows.

The log is Hotline's embedding access logger (https://arxiv.org/abs/2204.05436, version 1, 4.2.2) in software: the hash
of a row's number gives its set and its tag, and within a set the entry to replace is chosen by SRRIP (Jaleel et al.,
ISCA 2010, https://doi.org/10.1145/1815961.1815971) with two bits per entry. sets (S, W) uint16: `tag << 2 |
re-reference value`, or 0 if empty. A tag is 1 ... 16,383, so two rows of one set have the same tag with probability 1
in 16,383.
"""

import numpy as np

from adaptive.kernels.jit import at, kernel
from adaptive.kernels.rows.cpu.initial import mix

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


SOON, LATE, LAST = 0, 2, 3  # re-reference values: used again; new; to be replaced
TAGS = np.uint64(2**14 - 1)
LOW32 = np.uint64(2**32 - 1)
S32 = np.uint64(32)
ONE = np.uint64(1)


@kernel(inline=True)
def home(row, num_sets):
    """(set, tag << 2) of a row."""
    mixed = mix(np.uint64(row))
    place = ((mixed >> S32) * np.uint64(num_sets)) >> S32
    return place, np.int64((mixed & LOW32) % TAGS + ONE) << 2


@kernel(inline=True)
def way_of(sets, place, tag):
    """The way of a set that holds a tag, or -1."""
    for way in range(sets.shape[1]):
        if sets[place, way] >= tag and sets[place, way] <= tag + LAST:
            return way
    return -1


@kernel(inline=True)
def make_room(sets, place):
    """The way for the next entry of a set: the first empty one, or else the first LAST one.

    All entries age until one is LAST.
    """
    oldest = SOON
    for way in range(sets.shape[1]):
        if sets[place, way] == 0:
            return way
        oldest = max(oldest, sets[place, way] & LAST)
    first = -1
    for way in range(sets.shape[1]):
        sets[place, way] += LAST - oldest
        if first < 0 and sets[place, way] & LAST == LAST:
            first = way
    return first


@kernel()
def log_rows(rows, sets):
    """Enter lookups of rows (n,) int64, in order: a row in its set becomes SOON, others LATE."""
    if sets.shape[0] == 0:
        return
    for i in range(rows.size):
        place, tag = home(rows[i], sets.shape[0])
        way = way_of(sets, place, tag)
        if way >= 0:
            sets[place, at(way)] = tag + SOON
        else:
            sets[place, at(make_room(sets, place))] = tag + LATE


@kernel()
def find_rows(rows, sets, is_held):
    """is_held (n,) bool: True if the row is in its set."""
    is_held[:] = False
    if sets.shape[0] == 0:
        return
    for i in range(rows.size):
        place, tag = home(rows[i], sets.shape[0])
        is_held[i] = way_of(sets, place, tag) >= 0
