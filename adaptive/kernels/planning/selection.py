"""The lowest of many keys: which rows leave the device. n keys (uint64); among equal ones the first count as lower.

To find the border between those that leave and those that stay, keys are counted by their leading digits, and only the
ones with the border's digits are looked at again: some passes over memory that is read in order, without a branch that
depends on a key. All kernels are serial and release the GIL.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.jit import at, kernel
from adaptive.kernels.scratch import LentMemory, carve

DIGIT_BITS, NUM_DIGITS = 9, 1 << 9
TALLIES = 4 * NUM_DIGITS  # of keys in turn: a counter must not wait for the key before, which often has the same digits
S32, S63 = np.uint64(32), np.uint64(63)
ONE, DIGITS = np.uint64(1), np.uint64(DIGIT_BITS)
SIGN = np.uint64(1 << 63)
MANY, SAMPLED = 1 << 13, 64
BY_ACCESSES, BY_LAST_ACCESS, BY_ACCESSES_LAST, BY_LAST_ACCESSES = range(4)
ORDERS: Final[Mapping[tuple[str, ...], int]] = {
    ("accesses",): BY_ACCESSES,
    ("last_access",): BY_LAST_ACCESS,
    ("accesses", "last_access"): BY_ACCESSES_LAST,
    ("last_access", "accesses"): BY_LAST_ACCESSES,
}
"""Orders of rows: by one of two columns, or by the first and, among equals, the second."""


@kernel()
def score_keys(scores, keys):
    """keys (n,) uint64 in the order of scores (n,) float64 without NaN; 0.0 and -0.0 are equal."""
    bits = scores.view(np.uint64)
    for i in range(scores.size):
        own = bits[i] if scores[i] != 0.0 else np.uint64(0)
        keys[i] = ~own if own >> S63 else own | SIGN


@kernel()
def slot_keys(slots, slot_used, slot_accesses, order, keys):
    """keys (n,) uint64 in one of the orders above; slots (n,) int64, slot_used int32 from -1, slot_accesses uint32."""
    for i in range(slots.size):
        slot = at(slots[i])
        accesses, last = np.uint64(slot_accesses[slot]), np.uint64(np.int64(slot_used[slot]) + 1)
        if order == BY_ACCESSES:
            keys[i] = accesses
        elif order == BY_LAST_ACCESS:
            keys[i] = last
        elif order == BY_ACCESSES_LAST:
            keys[i] = (accesses << S32) | last
        else:
            keys[i] = (last << S32) | accesses


@kernel()
def num_bits(number):
    """Binary digits of a number."""
    found = np.uint64(0)
    while number:
        number >>= ONE
        found += ONE
    return found


@kernel()
def border_of(keys, size, count, rest, tallies):
    """The key of rank `count` (1 is the lowest) among keys[:size], and how many with this key belong to the `count`
    lowest.

    rest (size,) uint64, which may be `keys`, and tallies (TALLIES,) int64 are scratch.
    """
    least, most = keys[0], keys[0]
    for i in range(size):
        least, most = min(least, keys[i]), max(most, keys[i])
    left, rank = keys, count
    while least < most:
        bits = num_bits(most - least)
        shift = bits - DIGITS if bits > DIGITS else np.uint64(0)
        tallies[:] = 0
        for i in range(0, size - 3, 4):
            for turn in range(4):
                tallies[at((left[i + turn] - least) >> shift) + at(turn * NUM_DIGITS)] += 1
        for i in range(size - size % 4, size):
            tallies[at((left[i] - least) >> shift)] += 1
        for digit in range(NUM_DIGITS):
            for turn in range(1, 4):
                tallies[digit] += tallies[digit + turn * NUM_DIGITS]
        digit = 0
        while tallies[digit] < rank:
            rank -= tallies[digit]
            digit += 1
        first, kept = least + (np.uint64(digit) << shift), 0
        least, most = ~np.uint64(0), np.uint64(0)
        for i in range(size):
            key = left[i]
            rest[kept] = key  # if it has other digits, the next one is written over it
            has = (key >= first) & ((key - first) >> shift == np.uint64(0))
            kept += has
            least, most = min(least, key if has else least), max(most, key if has else most)
        left, size = rest, kept
    return least, rank


@kernel()
def likely_low(keys, count, rest, spots, tallies):
    """Move the keys up to a bound to the front of `rest`, and their positions to that of spots (n,) int32; returns how
    many they are, at least `count`, or 0.

    The bound is guessed from a sample, so that counting, which few high keys would make coarse, sees little more than
    it must.
    """
    num_sampled = keys.size // SAMPLED
    for i in range(num_sampled):
        rest[i] = keys[i * SAMPLED]
    rank = min(num_sampled, 8 + count // SAMPLED + count // (4 * SAMPLED))
    bound, _ = border_of(rest, num_sampled, rank, rest, tallies)
    kept = 0
    for i in range(keys.size):
        rest[kept], spots[kept] = keys[i], i
        kept += keys[i] <= bound
    return kept if kept >= count else 0


@kernel()
def choose_lowest(keys, count, rest, spots, tallies, chosen):
    """Positions of the `count` lowest keys, ascending; 0 < count <= n. chosen int64 has room for count + 1; for rest,
    spots and tallies see `likely_low`."""
    size = likely_low(keys, count, rest, spots, tallies) if keys.size >= MANY else 0
    if size == 0:
        size = keys.size
        for i in range(size):
            rest[i], spots[i] = keys[i], i
    border, level = border_of(rest, size, count, rest, tallies)
    found = 0
    for i in range(size):
        spot = at(spots[i])
        is_level = (keys[spot] == border) & (level > 0)
        chosen[found] = spot
        found += (keys[spot] < border) | is_level
        level -= is_level


def lowest(scores: NDArray[np.float64], count: int, memory: LentMemory) -> NDArray[np.int64]:
    """Positions of the `count` lowest scores (n,), which are not NaN, ascending; of equal ones the first."""
    scratch = _Scratch(len(scores), count, memory)
    score_keys(scores, scratch.keys)
    return scratch.chosen()


def lowest_slots(
    slots: NDArray[np.int64],
    slot_used: NDArray[Any],
    slot_accesses: NDArray[Any],
    order: int,
    count: int,
    memory: LentMemory,
) -> NDArray[np.int64]:
    """Positions of the `count` lowest of the slots (n,) in an order of `ORDERS`, ascending; of equal ones the first."""
    scratch = _Scratch(len(slots), count, memory)
    slot_keys(slots, slot_used, slot_accesses, order, scratch.keys)
    return scratch.chosen()


class _Scratch:
    """What choosing `count` of n keys takes, in one piece of memory, which is used again for the next choice."""

    def __init__(self, size: int, count: int, memory: LentMemory) -> None:
        self._count = min(count, size)
        self.keys, self._rest, self._spots, self._tallies, self._chosen = carve(
            memory,
            (np.uint64, size),
            (np.uint64, size),
            (np.int32, size),
            (np.int64, TALLIES),
            (np.int64, self._count + 1),
        )

    def chosen(self) -> NDArray[np.int64]:
        if self._count == len(self.keys):
            return np.arange(self._count)
        if self._count:
            choose_lowest(self.keys, self._count, self._rest, self._spots, self._tallies, self._chosen)
        return self._chosen[: self._count].copy()  # without the memory behind it
