"""`OwnPart`: the part of a global batch that one of several ranks trains, block by block."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from adaptive.batch.batch import Batch


@dataclass(frozen=True)
class OwnPart(Batch):
    """Samples of a global batch that belong to one rank; there may be none.

    `block_sizes`: samples of each of the rank's blocks, in order, some of which may be 0.
    """

    block_sizes: tuple[int, ...] = ()

    @classmethod
    def of_batch(cls, batch: Batch, bounds: Sequence[int]) -> "OwnPart":
        """Samples `bounds[0]` to `bounds[-1]` of a batch, cut at the other bounds."""
        samples = np.arange(bounds[0], bounds[-1])
        taken = batch.take(samples) if len(samples) else _none_of(batch)
        given = {item.name: getattr(taken, item.name) for item in fields(Batch)}
        return cls(**given, block_sizes=tuple(np.diff(bounds).tolist())).mark_unshared()

    def blocks(self) -> list[Batch | None]:
        """The blocks as batches of their own; None: one without a sample."""
        return cut(self, self.block_sizes)


def cut(batch: Batch, sizes: Sequence[int]) -> list[Batch | None]:
    """A batch in pieces of so many samples, in order; None: a piece without any."""
    if len(sizes) == 1 and sizes[0]:
        return [batch]
    ends = np.cumsum(sizes)
    return [batch.take(np.arange(end - size, end)) if size else None for end, size in zip(ends, sizes, strict=True)]


def _none_of(batch: Batch) -> Batch:
    """No sample of a batch."""
    return Batch(
        dense=batch.dense[:0],
        ids=batch.ids[:0],
        offsets=np.zeros(1, np.int64),
        labels=batch.labels[:0],
        extras={name: array[:0] for name, array in batch.extras.items()},
    )
