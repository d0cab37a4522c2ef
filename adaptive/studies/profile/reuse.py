"""How soon rows come again, and how many rows a batch has: what caches and look-ahead live on."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from adaptive.data.kernels import access
from adaptive.studies.profile.trace import Chunk

MOST_BATCHES: Final = 64
WITHIN: Final = (1, 2, 4, 8, 16, 32, 64)  # batches
SIZES: Final = (64, 256, 1024, 4096, 16_384)  # samples
SAMPLES_FOR_SIZES: Final = 131_072  # enough for a mean, and eight batches of the largest size


class Visits:
    """Follows the batches of one size through the data; rows below `num_rows`.

    Attributes:
        distinct: rows of each batch so far, each counted once.
    """

    def __init__(self, batch_size: int, num_rows: int) -> None:
        self.batch_size = batch_size
        self.distinct: list[int] = []
        self._latest = np.zeros(num_rows, np.int32)
        self._gaps = np.zeros(MOST_BATCHES + 2, np.int64)
        self._samples = 0

    def add(self, chunk: Chunk) -> None:
        """The next samples of the data; a batch may begin in one chunk and end in another."""
        first = 0
        while first < chunk.num_samples:
            number, inside = divmod(self._samples, self.batch_size)
            last = min(first + self.batch_size - inside, chunk.num_samples)
            found = access.visit(
                chunk.rows, chunk.offsets, first, last, chunk.num_samples, number + 1, self._latest, self._gaps
            )
            if inside == 0:
                self.distinct.append(0)
            self.distinct[-1] += found
            self._samples += last - first
            first = last

    @property
    def whole_batches(self) -> list[int]:
        """Distinct rows of the batches that are complete."""
        return self.distinct[: self._samples // self.batch_size]

    def known_from(self, batches: int) -> float | None:
        """Share of the batches' distinct rows that one of the `batches` batches before had looked up, too; the first
        batches have fewer before them. None for a single batch."""
        if len(self.distinct) < 2:
            return None
        return float(self._gaps[1 : batches + 1].sum()) / sum(self.distinct)


def reuse(chunks: Iterable[Chunk], num_rows: int, batch_size: int) -> dict[str, Any]:
    """Facts of all chunks in batches of `batch_size`; distinct rows of other sizes from the first samples beside it."""
    own = Visits(batch_size, num_rows)
    others = [Visits(size, num_rows) for size in SIZES if size != batch_size]
    samples = 0
    for chunk in chunks:
        own.add(chunk)
        if samples < SAMPLES_FOR_SIZES:
            for visits in others:
                visits.add(chunk)
        samples += chunk.num_samples
    by_size = sorted([own, *others], key=lambda visits: visits.batch_size)
    return {
        "batch_size": batch_size,
        "batches": len(own.distinct),
        "known_from": {str(n): own.known_from(n) for n in WITHIN},
        "distinct_by_batch_size": {
            str(visits.batch_size): float(np.mean(visits.whole_batches)) for visits in by_size if visits.whole_batches
        },
    }
