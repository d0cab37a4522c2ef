"""Which distinct rows a batch looks up."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.errors import InputError
from adaptive.kernels import lookups
from adaptive.tiers.layout import Group

Int64s = NDArray[np.int64]
MOST_USES: Final = 2**31 - 1  # of an int32


@dataclass(frozen=True)
class Distinct:
    """The distinct rows of a batch and one group, table by table, in order of first look-up."""

    rows: Int64s  # (U,) local
    counts: NDArray[np.int32]  # (U,) look-ups of each
    inverse: NDArray[np.int32]  # (N,) look-up -> distinct row
    table_ends: Int64s  # (T,) where each table's rows end


class DistinctFinder:
    """Finds them with a hash table of its own: one finder for each thread that needs one."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._positions = np.array([feature.position for feature in group.features])
        self._span_tables = np.array([feature.table for feature in group.features], np.int32)
        self._clear(16)

    def find(self, batch: Batch) -> Distinct:
        """The distinct rows of a batch.

        Raises:
            InputError: if an id is negative or too large, naming feature, position, value and data line.
        """
        spans = self._spans(batch)
        sizes = np.bincount(self._span_tables, weights=spans[:, 1] - spans[:, 0])
        num_lookups = int(sizes.sum())
        places = max(16, 1 << (2 * int(sizes.max()) - 1).bit_length())
        if places > len(self._places) or int(self._used[0]) + num_lookups > MOST_USES:
            self._clear(max(places, len(self._places)))
        rows, counts = np.empty(num_lookups, np.int64), np.empty(num_lookups, np.int32)
        inverse, table_ends = np.empty(num_lookups, np.int32), np.empty(len(self._group.tables), np.int64)
        size = lookups.distinct_rows(
            batch.ids,
            spans,
            self._span_tables,
            self._group.table_sizes,
            self._group.table_starts,
            self._places,
            self._used,
            rows,
            counts,
            inverse,
            table_ends,
        )
        if size < 0:
            raise self._bad_id(batch, -size - 1)
        return Distinct(rows[:size], counts[:size], inverse, table_ends)

    def _clear(self, places: int) -> None:
        self._places, self._used = np.zeros(places, np.int32), np.ones(1, np.int64)

    def _spans(self, batch: Batch) -> Int64s:
        samples = batch.num_samples
        firsts, lasts = self._positions * samples, (self._positions + 1) * samples
        return np.stack([batch.offsets[firsts], batch.offsets[lasts]], axis=1)

    def _bad_id(self, batch: Batch, position: int) -> InputError:
        bag = int(np.searchsorted(batch.offsets, position, side="right")) - 1
        feature_position, sample = divmod(bag, batch.num_samples)
        feature = next(f for f in self._group.features if f.position == feature_position)
        table = self._group.tables[feature.table]
        where = f" ({batch.origin.where(sample)})" if batch.origin is not None else ""
        return InputError(
            f"feature {feature.name}, sample {sample}{where}, position {position - int(batch.offsets[bag])}: "
            f"id {batch.ids[position]} is outside table {table.name}, which has ids 0 to {table.num_embeddings - 1}. "
            f"Correct the data, enlarge the table, or let the reader send such ids to a row of their own (oov)."
        )
