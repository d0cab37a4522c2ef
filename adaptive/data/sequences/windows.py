"""Which events of a log become candidates, and which items stand in their place in samples that were no event.

E events, K candidates. All choices follow from a seed, and from nothing else.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adaptive.data.sampling import numbers

Ids = NDArray[np.int64]
CANDIDATES = (0, 1, 3, 6)  # of users with 1 to 10, 11 to 20, 21 to 30, 31 to 40 events; beyond: as many as allowed
MOST_DRAWS = 100  # of an item that a user has no event with


def choose_candidates(starts: Ids, history: int, most: int, seed: int) -> Ids:
    """Positions (K,) of candidates, ascending.

    A user of 1 to 10 events has none, of 11 to 20 one, 21 to 30 three, 31 to 40 six, and of more `most`; never more
    than `most`, nor than can be. A candidate can be any event with `history` events of its user before it, or, where
    there is none, the user's last one.

    Args:
        starts: (U + 1,) where the events of each user begin.
        seed: of the draw: event e is chosen before others whose number is greater (`sampling.numbers`).
    """
    sizes = np.diff(starts)
    wanted = np.minimum(np.append(CANDIDATES, most)[np.minimum((sizes - 1) // 10, len(CANDIDATES))], most)
    user = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(user))
    possible = np.flatnonzero((place >= starts[user] + history) | (place == starts[user + 1] - 1))
    possible = possible[wanted[user[possible]] > 0]
    order = np.lexsort((numbers(0, len(user), seed)[possible], user[possible]))
    possible = possible[order]
    owners, first, counts = np.unique(user[possible], return_index=True, return_counts=True)
    rank = np.arange(len(possible)) - np.repeat(first, counts)
    return np.sort(possible[rank < wanted[np.repeat(owners, counts)]])


def draw_negatives(count: int, num_pairs: int, is_seen: Callable[[Ids, Ids], NDArray[np.bool_]], seed: int) -> Ids:
    """For each of `count` candidates the number of a pair of item and category that its user has no event with, drawn
    evenly from `num_pairs`; -1 where 100 draws found none.

    Args:
        is_seen: (candidates, pairs) -> whether the user of each candidate has an event with the item of each pair.
        seed: draw d for candidate k is number `d * count + k` of the seed.
    """
    found = np.full(count, -1, np.int64)
    for draw in range(MOST_DRAWS):
        left = np.flatnonzero(found < 0)
        if not len(left):
            break
        pairs = (numbers(draw * count, count, seed)[left] * num_pairs).astype(np.int64)
        good = ~is_seen(left, pairs)
        found[left[good]] = pairs[good]
    return found
