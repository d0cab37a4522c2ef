"""A log of lookups in bounded memory: a set-associative cache of tags.

It is Hotline's embedding access logger (https://arxiv.org/abs/2204.05436, version 1, 4.2.2) in software: the hash of a
row's number gives its set and its tag, and within a set the entry to replace is chosen by SRRIP (Jaleel et al., ISCA
2010, https://doi.org/10.1145/1815961.1815971) with two bits per entry.

Letters: n rows, S sets of W ways. sets (S, W) uint16: `tag << 2 | re-reference value`, or 0 if empty. A tag is
1 ... 16,383, so two rows of one set have the same tag with probability 1 in 16,383.
"""

import numpy as np

from adaptive.kernels.jit import at, kernel
from adaptive.kernels.rows.cpu.initial import mix

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
