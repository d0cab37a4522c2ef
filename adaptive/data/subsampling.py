"""Training without a share of the negative samples, as dlrm's `--data-sub-sample-rate` has it.

Which samples are left out follows from the seed, the file's number and the line alone: the same in every epoch, for
every batch size and shuffle.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, concatenate
from adaptive.batch.batch import Origin

_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def without_negatives(
    read: Callable[[int], Iterator[Batch]], rate: float, seed: int
) -> Callable[[int], Iterator[Batch]]:
    """A reader of batches of any size without the share `rate` of the samples whose label is 0.

    Args:
        read: gives batches of so many samples, with origins.
    """

    def kept(size: int) -> Iterator[Batch]:
        return in_size((_kept(batch, rate, seed) for batch in read(size)), size)

    return kept


def in_size(batches: Iterator[Batch], size: int) -> Iterator[Batch]:
    """The samples of batches of any sizes in batches of `size`; only the last one may be smaller, none is empty."""
    waiting, count = list[Batch](), 0
    for batch in batches:
        if batch.num_samples:
            waiting.append(batch)
            count += batch.num_samples
        while count >= size:
            whole = concatenate(waiting)
            yield whole.take(np.arange(size))
            waiting, count = [whole.take(np.arange(size, count))] if count > size else [], count - size
    if waiting:
        yield concatenate(waiting)


def _kept(batch: Batch, rate: float, seed: int) -> Batch:
    assert batch.origin is not None
    return batch.take(np.flatnonzero((batch.labels != 0) | (uniform(batch.origin, seed) >= rate)))


def uniform(origin: Origin, seed: int) -> NDArray[np.float64]:
    """(B,) a number in [0, 1) for each sample: two rounds of SplitMix64 over seed, file and line."""
    with np.errstate(over="ignore"):
        mixed = _mixed(np.uint64(seed) + _STEP * (origin.file_index.astype(np.uint64) + np.uint64(1)))
        mixed = _mixed(mixed + _STEP * origin.lines.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))
