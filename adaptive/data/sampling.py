"""Choose samples of a stream and their order: shuffles, random shares, dropped negatives.

Every choice is a hash of a seed and the sample's number or place. So it does not depend on the batches of the stream,
whose length need not be known.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, concatenate
from adaptive.batch.batch import Origin

_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LIMIT = 1 << 64


def block_rows(shuffle_buffer: int, batch_size: int) -> int:
    """Return the rows to read at once: whole batches, at least `shuffle_buffer` rows."""
    return max(-(-shuffle_buffer // batch_size), 1) * batch_size


def in_blocks(
    read: Callable[[int], Iterator[Batch]], batch_size: int, *, shuffle_buffer: int, seed: int, epoch: int
) -> Iterator[Batch]:
    """Return the batches of a source in its order, or shuffled in blocks if there is a buffer.

    Args:
        read: yields the source's batches of the given number of rows.
    """
    if not shuffle_buffer:
        return read(batch_size)
    return shuffled(read(block_rows(shuffle_buffer, batch_size)), batch_size, seed=seed, epoch=epoch)


def shuffled(blocks: Iterable[Batch], batch_size: int, *, seed: int, epoch: int) -> Iterator[Batch]:
    """Yield the rows of each block in batches, in an order that depends on seed and epoch.

    Args:
        blocks: batches of `block_rows(...)` rows; only the last one may be smaller, as of the result.
    """
    for number, block in enumerate(blocks):
        order = np.random.default_rng([seed, epoch, number]).permutation(block.num_samples)
        for first in range(0, block.num_samples, batch_size):
            yield block.take(order[first : first + batch_size])


@dataclass(frozen=True)
class Sample:
    """A sample of a stream; `num_samples` of the stream, None if it was not read to the end."""

    batches: list[Batch]
    num_samples: int | None = None


def take_share(
    batches: Iterable[Batch], share: float, *, seed: int, most: int, read_all: bool = True, batch_size: int = 2048
) -> Sample:
    """Take each sample with the probability `share`, in bounded memory.

    Args:
        batches: the data, in order.
        share: above 0, at most 1.
        seed: chooses the samples.
        most: maximum number of samples. If there are more, they are thinned out evenly, as with a smaller share.
        read_all: if False, stop reading at `most` samples instead.
        batch_size: samples in each batch of the result; the last one may have fewer.
    """
    taken, count, number = list[tuple[NDArray[np.float64], Batch]](), 0, 0
    for batch in batches:
        piece = _below(numbers(number, batch.num_samples, seed), batch, share)
        number += batch.num_samples
        taken += piece
        count += sum(len(drawn) for drawn, _ in piece)
        if count >= most and not read_all:
            return Sample(_cut(taken, batch_size))
        while count > most:
            share /= 2
            taken = [rest for drawn, batch in taken for rest in _below(drawn, batch, share)]
            count = sum(len(drawn) for drawn, _ in taken)
    return Sample(_cut(taken, batch_size), number)


def numbers(first: int, count: int, seed: int) -> NDArray[np.float64]:
    """Return (count,) numbers in [0, 1) for the samples from `first` on (SplitMix64).

    Args:
        seed: any whole number; streams of different seeds are independent.
    """
    start = np.uint64((seed * int(_SECOND) + int(_STEP)) % _LIMIT)
    return np.asarray(_mixed(np.arange(first, first + count, dtype=np.uint64) * _STEP + start) / _LIMIT, np.float64)


def _below(drawn: NDArray[np.float64], batch: Batch, share: float) -> list[tuple[NDArray[np.float64], Batch]]:
    """Return the samples whose number is below the share, with these numbers, if any."""
    chosen = np.flatnonzero(drawn < share)
    return [(drawn[chosen], batch.take(chosen))] if len(chosen) else []


def _cut(taken: list[tuple[NDArray[np.float64], Batch]], batch_size: int) -> list[Batch]:
    """Return the samples in batches of one size. Empties the list, to hold them once."""
    taken.reverse()
    return list(in_size((taken.pop()[1] for _ in range(len(taken))), batch_size))


def without_negatives(
    read: Callable[[int], Iterator[Batch]], rate: float, seed: int
) -> Callable[[int], Iterator[Batch]]:
    """Return a reader without the share `rate` of samples with label 0, as dlrm subsamples.

    The dropped samples are the same in every epoch, and for every batch size and shuffle.

    Args:
        read: yields batches of the given number of samples, with origins.
    """

    def keep(batch: Batch) -> Batch:
        assert batch.origin is not None
        return batch.take(np.flatnonzero((batch.labels != 0) | (uniform(batch.origin, seed) >= rate)))

    return lambda size: in_size(map(keep, read(size)), size)


def in_size(batches: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Yield the samples of batches in batches of `size`; only the last one may be smaller."""
    waiting, count = list[Batch](), 0
    for batch in batches:
        if batch.num_samples:
            waiting.append(batch)
            count += batch.num_samples
        if count >= size:
            joined, whole = concatenate(waiting), count - count % size
            for first in range(0, whole, size):
                yield joined.take(np.arange(first, first + size))
            count -= whole
            waiting = [joined.take(np.arange(whole, whole + count))] if count else []
    if waiting:
        yield concatenate(waiting)


def uniform(origin: Origin, seed: int) -> NDArray[np.float64]:
    """Return numbers (B,) in [0, 1): two rounds of SplitMix64 over seed, file and line."""
    with np.errstate(over="ignore"):
        mixed = _mixed(np.uint64(seed) + _STEP * (origin.file_index.astype(np.uint64) + np.uint64(1)))
        mixed = _mixed(mixed + _STEP * origin.lines.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))
