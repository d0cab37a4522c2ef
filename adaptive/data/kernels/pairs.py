"""User-item pairs: lines of positives become samples, with negatives drawn by hashing.

Letters: L lines, P positive pairs of the lines, M negatives per pair; a pair gives 1 + M samples, it first.
"""

from typing import NamedTuple

import numpy as np

from adaptive.data.kernels.text_rows import Ids, Word, mixed, scaled_to
from adaptive.kernels.jit import kernel

ALL, KEPT, HELD_OUT = range(3)

_TRIES = 32
_S1 = np.uint64(1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Draw(NamedTuple):
    """Which pairs are wanted and how their negatives are drawn."""

    split_hash: np.uint64
    negative_hash: np.uint64
    held_out_below: int  # times 2^-63: the share of the pairs that is held out
    wanted: int  # ALL, KEPT or HELD_OUT
    num_items: int
    num_negatives: int


@kernel()
def chained(hash_: np.uint64, value: Word) -> np.uint64:
    """The hash of a value after others that gave `hash_`."""
    return mixed(hash_ ^ (mixed(value) + _GOLDEN))


@kernel()
def contains(items: Ids, first: int, stop: int, item: np.int64) -> bool:
    found = False
    for i in range(first, stop):
        found |= items[i] == item
    return found


@kernel()
def expand(users: Ids, items: Ids, ends: Ids, draw: Draw, samples: Ids) -> int:
    """Samples of some lines -> how many: each wanted pair, followed by its negatives.

    A negative is an even draw from all items; one that is among the positives of its line is drawn again, up to 32
    times. It depends on the hash, the user and the item of its pair only, not on where the pair lies.

    Args:
        users: (L,).
        items: (P,), of all lines.
        ends: (L,) where the items of each line end.
        samples: (P * (1 + M), 4) to fill: user, item, label, line (an index into `users`).
    """
    count, first = 0, 0
    for line in range(len(users)):
        for i in range(first, ends[line]):
            held_out = np.int64(chained(chained(draw.split_hash, users[line]), items[i]) >> _S1) < draw.held_out_below
            if draw.wanted == ALL or held_out == (draw.wanted == HELD_OUT):
                write_sample(samples, count, users[line], items[i], 1, line)
                state = chained(chained(draw.negative_hash, users[line]), items[i])
                for k in range(1, 1 + draw.num_negatives):
                    state, item = drawn(state, items, first, ends[line], draw.num_items)
                    write_sample(samples, count + k, users[line], item, 0, line)
                count += 1 + draw.num_negatives
        first = ends[line]
    return count


@kernel()
def drawn(state: np.uint64, items: Ids, first: int, stop: int, num_items: int) -> tuple[np.uint64, np.int64]:
    """The next item of a stream of draws that is not in `items[first:stop]` -> (new state, item)."""
    item = np.int64(0)
    for _ in range(_TRIES):
        state = mixed(state + _GOLDEN)
        item = scaled_to(state, num_items)
        if not contains(items, first, stop, item):
            break
    return state, item


@kernel()
def write_sample(samples: Ids, at: int, user: np.int64, item: np.int64, label: int, line: int) -> None:
    samples[at, 0], samples[at, 1], samples[at, 2], samples[at, 3] = user, item, label, line
