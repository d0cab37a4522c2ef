"""`IdTrace`: the lookups of a data set as row numbers; `reuse` of rows by batches.

Letters: B samples, F features, N lookups of a batch, R rows of all tables.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.data.dataset import Dataset
from adaptive.data.kernels import access
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import DistinctFinder, check_batch
from adaptive.errors import InputError
from adaptive.studies.profile import Reuse

CHUNK_SAMPLES: Final = 16_384
KEPT_BYTES: Final = 1 << 30  # of row numbers in memory; with more, the data are read again

OnProgress = Callable[[int], None]  # called with the number of samples or steps that are done


def mean_of(mask: NDArray[np.bool_]) -> float | None:
    """Return the share of True; None for an empty mask."""
    return float(mask.mean()) if len(mask) else None


@dataclass(frozen=True)
class Chunk:
    """Samples in the order of the data."""

    rows: NDArray[Any]  # (N,) int32 or int64, feature by feature
    offsets: NDArray[np.int64]  # (F * B + 1,)
    num_samples: int


class RowNumbers:
    """Lookups of batches as row numbers of a group."""

    def __init__(self, group: Group) -> None:
        self.group = group
        tables = np.array([f.table for f in sorted(group.features, key=lambda feature: feature.position)])
        self._starts, self._sizes = group.table_starts[tables], group.table_sizes[tables]
        self._dtype = np.int32 if group.num_rows <= np.iinfo(np.int32).max else np.int64

    def of(self, batch: Batch) -> NDArray[Any]:
        """Row numbers (N,) int32 or int64, feature by feature; InputError for an id outside its table."""
        rows = np.empty(len(batch.ids), self._dtype)
        bad = access.number_rows(batch.ids, batch.offsets, batch.num_samples, self._starts, self._sizes, rows)
        if bad >= 0:
            DistinctFinder(self.group).find(batch)  # raises, with feature, sample and line
            raise AssertionError("an id outside its table was not refused")
        return rows


class IdTrace:
    """The first training samples of a data set in chunks; can be iterated any number of times.

    Args:
        dataset: only its first epoch is read.
        group: its tables.
        most: maximum number of samples; None for all.
        is_stopped: asked between chunks. After it returns True nothing new is read, and every pass ends there.
        on_progress: called with the number of samples of the first pass so far.
        kept_bytes: maximum size of the row numbers kept in memory.

    Attributes:
        num_samples, num_lookups: complete after the first pass.
        read_seconds: time spent reading the data, in all passes.
    """

    def __init__(
        self,
        dataset: Dataset,
        group: Group,
        most: int | None,
        *,
        is_stopped: Callable[[], bool] = lambda: False,
        on_progress: OnProgress = lambda samples: None,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self.group = group
        self._dataset, self._most, self._is_stopped, self._on_progress = dataset, most, is_stopped, on_progress
        self._kept_bytes = kept_bytes
        self._chunks: list[Chunk] | None = []  # None if they are too large
        self._is_read = False
        self._numbers = RowNumbers(group)
        self.num_samples = self.num_lookups = 0
        self.read_seconds = 0.0

    def __iter__(self) -> Iterator[Chunk]:
        if not self._is_read:
            yield from self._first_pass()
        elif self._chunks is not None:
            yield from self._chunks
        else:
            yield from self._read(self.num_samples)

    @property
    def is_kept(self) -> bool:
        return self._chunks is not None

    def _first_pass(self) -> Iterator[Chunk]:
        for chunk in self._read(self._most):
            self.num_samples += chunk.num_samples
            self.num_lookups += len(chunk.rows)
            if self._chunks is not None:
                self._chunks.append(chunk)
                if self.num_lookups * chunk.rows.itemsize > self._kept_bytes:
                    self._chunks = None
            self._on_progress(self.num_samples)
            yield chunk
            if self._is_stopped():
                break
        self._is_read = True
        if not self.num_samples:
            raise InputError("expected training samples to profile, got none. Check data.holdout and the data's size")

    def _read(self, most: int | None) -> Iterator[Chunk]:
        left = most
        batches = self._dataset.train(CHUNK_SAMPLES)
        while left is None or left > 0:
            started = time.perf_counter()
            batch = next(batches, None)
            self.read_seconds += time.perf_counter() - started
            if batch is None:
                return
            if left is not None and batch.num_samples > left:
                batch = batch.take(np.arange(left))
            if left is not None:
                left -= batch.num_samples
            check_batch(batch, [self.group])
            yield Chunk(self._numbers.of(batch), batch.offsets, batch.num_samples)


MOST_BATCHES: Final = 64
WITHIN: Final = (1, 2, 4, 8, 16, 32, 64)  # batches
SIZES: Final = (64, 256, 1024, 4096, 16_384)  # samples
SAMPLES_FOR_SIZES: Final = 131_072  # eight batches of the largest size


class Visits:
    """Tracks when batches of one size look rows up again; rows are below `num_rows`.

    Attributes:
        distinct: distinct rows of each batch so far.
    """

    def __init__(self, batch_size: int, num_rows: int) -> None:
        self.batch_size = batch_size
        self.distinct: list[int] = []
        self._latest = np.zeros(num_rows, np.int32)
        self._gaps = np.zeros(MOST_BATCHES + 2, np.int64)
        self._samples = 0

    def add(self, chunk: Chunk) -> None:
        """Add the next samples; a batch may span chunks."""
        first = 0
        while first < chunk.num_samples:
            number, inside = divmod(self._samples, self.batch_size)
            last = min(first + self.batch_size - inside, chunk.num_samples)
            rows = access.visit(
                chunk.rows, chunk.offsets, first, last, chunk.num_samples, number + 1, self._latest, self._gaps
            )
            if inside == 0:
                self.distinct.append(0)
            self.distinct[-1] += rows
            self._samples += last - first
            first = last

    @property
    def whole_batches(self) -> list[int]:
        """Distinct rows of the batches that are complete."""
        return self.distinct[: self._samples // self.batch_size]

    def reused_from(self, batches: int) -> float | None:
        """Share of distinct rows that one of the `batches` batches before also looked up.

        The first batches have fewer before them. None for a single batch.
        """
        if len(self.distinct) < 2:
            return None
        return float(self._gaps[1 : batches + 1].sum()) / sum(self.distinct)


def reuse(chunks: Iterable[Chunk], num_rows: int, batch_size: int) -> Reuse:
    """Return row reuse in batches of `batch_size`, and distinct rows at other sizes."""
    chosen = Visits(batch_size, num_rows)
    others = [Visits(size, num_rows) for size in SIZES if size != batch_size]
    samples = 0
    for chunk in chunks:
        chosen.add(chunk)
        if samples < SAMPLES_FOR_SIZES:
            for visits in others:
                visits.add(chunk)
        samples += chunk.num_samples
    by_size = sorted([chosen, *others], key=lambda visits: visits.batch_size)
    return Reuse(
        batch_size=batch_size,
        batches=len(chosen.distinct),
        reused_from={str(n): chosen.reused_from(n) for n in WITHIN},
        distinct_by_batch_size={
            str(visits.batch_size): float(np.mean(visits.whole_batches)) for visits in by_size if visits.whole_batches
        },
    )
