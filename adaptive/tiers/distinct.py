"""Which distinct rows a batch looks up."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.errors import InputError
from adaptive.kernels import planning
from adaptive.tiers.layout import Group

Int64s = NDArray[np.int64]


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
        self._span_tables = np.array([feature.table for feature in group.features], np.int32)
        self._keys = np.zeros(16, np.int64)
        self._places = np.zeros(16, np.int32)

    def find(self, batch: Batch) -> Distinct:
        """The distinct rows of a batch.

        Raises:
            InputError: if an id is negative or too large, naming feature, position, value and data line.
        """
        spans = self._spans(batch)
        num_lookups = int((spans[:, 1] - spans[:, 0]).sum())
        self._grow_scratch(spans)
        rows, counts = np.empty(num_lookups, np.int64), np.empty(num_lookups, np.int32)
        inverse = np.empty(num_lookups, np.int32)
        table_ends = np.empty(len(self._group.tables), np.int64)
        found = planning.distinct_rows(
            batch.ids,
            spans,
            self._span_tables,
            self._group.table_sizes,
            self._group.table_starts,
            self._keys,
            self._places,
            rows,
            counts,
            inverse,
            table_ends,
        )
        if found < 0:
            raise self._bad_id(batch, -found - 1)
        return Distinct(rows[:found], counts[:found], inverse, table_ends)

    def _spans(self, batch: Batch) -> Int64s:
        positions = np.array([feature.position for feature in self._group.features])
        samples = batch.num_samples
        return np.stack([batch.offsets[positions * samples], batch.offsets[(positions + 1) * samples]], axis=1)

    def _grow_scratch(self, spans: Int64s) -> None:
        per_table = np.bincount(self._span_tables, weights=spans[:, 1] - spans[:, 0])
        needed = 16
        while needed < 2 * int(per_table.max()):
            needed *= 2
        if needed > len(self._keys):
            self._keys, self._places = np.zeros(needed, np.int64), np.zeros(needed, np.int32)

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
