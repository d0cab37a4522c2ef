"""A random share of the inputs of a stream of batches, spread over all of it, in bounded memory.

Whether an input is taken follows from a hash of its number and a seed, so the same ones are taken however the stream is
cut into batches, and its length need not be known.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, concatenate

_STEP, _SECOND, _THIRD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LIMIT = 1 << 64


@dataclass(frozen=True)
class Sample:
    """The inputs that were taken, in order, in batches; and how many there were in all, None: not all were read."""

    batches: list[Batch]
    num_samples: int | None = None


def take_share(
    batches: Iterable[Batch], share: float, *, seed: int, most: int, read_all: bool = True, batch_size: int = 2048
) -> Sample:
    """Each input with the probability `share`.

    Args:
        batches: the data, in order.
        share: above 0, at most 1.
        seed: chooses the inputs.
        most: inputs taken at most. Are there more, they are thinned out evenly, as if the share had been smaller ...
        read_all: ... or, if this is false, reading ends with the batch that completes them.
        batch_size: inputs in each of the batches returned; the last one may have fewer.
    """
    taken, count, number = list[tuple[NDArray[np.float64], Batch]](), 0, 0
    for batch in batches:
        drawn = numbers(number, batch.num_samples, seed)
        number += batch.num_samples
        piece = _below(drawn, batch, share)
        taken += piece
        count += sum(len(one) for one, _ in piece)
        if count >= most and not read_all:
            return Sample(_cut(taken, batch_size))
        while count > most:
            share /= 2
            taken = [rest for drawn, batch in taken for rest in _below(drawn, batch, share)]
            count = sum(len(drawn) for drawn, _ in taken)
    return Sample(_cut(taken, batch_size), number)


def numbers(first: int, count: int, seed: int) -> NDArray[np.float64]:
    """(count,) numbers in [0, 1), one for each of the inputs `first` and following (SplitMix64).

    Args:
        seed: any whole number; streams of different seeds have nothing to do with each other.
    """
    start = np.uint64((seed * int(_THIRD) + int(_STEP)) % _LIMIT)
    mixed = np.arange(first, first + count, dtype=np.uint64) * _STEP + start
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _SECOND
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _THIRD
    found: NDArray[np.float64] = (mixed ^ (mixed >> np.uint64(31))) / _LIMIT
    return found


def _below(drawn: NDArray[np.float64], batch: Batch, share: float) -> list[tuple[NDArray[np.float64], Batch]]:
    """The inputs whose number is below the share, if there are any."""
    chosen = np.flatnonzero(drawn < share)
    return [(drawn[chosen], batch.take(chosen))] if len(chosen) else []


def _cut(taken: list[tuple[NDArray[np.float64], Batch]], batch_size: int) -> list[Batch]:
    """The same inputs in batches of one size. Empties the list on the way, so that they are in memory once."""
    batches, waiting, count = list[Batch](), list[Batch](), 0
    taken.reverse()
    while taken:
        _, batch = taken.pop()
        waiting.append(batch)
        count += batch.num_samples
        if count >= batch_size:
            joined = concatenate(waiting)
            whole = count - count % batch_size
            batches += [joined.take(np.arange(at, at + batch_size)) for at in range(0, whole, batch_size)]
            waiting, count = ([joined.take(np.arange(whole, count))], count - whole) if whole < count else ([], 0)
    return batches + ([concatenate(waiting)] if waiting else [])
