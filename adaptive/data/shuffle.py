"""Bounded shuffle: rows are shuffled inside consecutive blocks, in an order that depends on seed and epoch only."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from adaptive.batch import Batch


def block_rows(shuffle_buffer: int, batch_size: int) -> int:
    """Rows read at once: whole batches, at least `shuffle_buffer` rows; one batch if nothing is shuffled."""
    return max(-(-shuffle_buffer // batch_size), 1) * batch_size


def in_blocks(
    read: Callable[[int], Iterator[Batch]], batch_size: int, *, shuffle_buffer: int, seed: int, epoch: int
) -> Iterator[Batch]:
    """The batches of a source in its order, or shuffled in blocks if there is a buffer.

    Args:
        read: gives the source's batches of so many rows.
    """
    if not shuffle_buffer:
        return read(batch_size)
    return shuffled(read(block_rows(shuffle_buffer, batch_size)), batch_size, seed=seed, epoch=epoch)


def shuffled(blocks: Iterable[Batch], batch_size: int, *, seed: int, epoch: int) -> Iterator[Batch]:
    """Batches of the rows of each block in random order; only the last one may be smaller.

    Args:
        blocks: batches of `block_rows(...)` rows, the last one of as many as are left.
    """
    for number, block in enumerate(blocks):
        order = np.random.default_rng([seed, epoch, number]).permutation(block.num_samples)
        for first in range(0, block.num_samples, batch_size):
            yield block.take(order[first : first + batch_size])
