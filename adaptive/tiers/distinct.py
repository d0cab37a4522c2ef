"""Which distinct rows a batch looks up."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.errors import InputError
from adaptive.kernels import planning
from adaptive.tiers.crew import ALONE, Crew
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
    """Finds them with hash tables of its own: one finder for each thread that needs one, `crew` may help it."""

    def __init__(self, group: Group, crew: Crew = ALONE) -> None:
        self.crew = crew
        self._group = group
        self._span_tables = np.array([feature.table for feature in group.features], np.int32)
        self._scratch: dict[int, _Hash] = {}  # by worker

    def find(self, batch: Batch) -> Distinct:
        """The distinct rows of a batch.

        Raises:
            InputError: if an id is negative or too large, naming feature, position, value and data line.
        """
        spans = self._spans(batch)
        sizes = np.bincount(self._span_tables, weights=spans[:, 1] - spans[:, 0]).astype(np.int64)
        places = max(16, 1 << (2 * int(sizes.max()) - 1).bit_length())  # of a hash table
        runs = self._runs(sizes)
        found = _Found(runs, runs[-1].lookups.stop)

        def find_run(worker: int, number: int) -> None:
            run = runs[number]
            found.sizes[number] = planning.distinct_rows(
                batch.ids,
                spans[run.features],
                self._span_tables[run.features] - np.int32(run.tables.start),
                self._group.table_sizes[run.tables],
                self._group.table_starts[run.tables],
                *self._hash(worker, places),
                found.rows[run.lookups],
                found.counts[run.lookups],
                found.inverse[run.lookups],
                found.table_ends[run.tables],
            )

        self.crew.share(len(runs), find_run)
        if bad := [size for size in found.sizes if size < 0]:
            raise self._bad_id(batch, -bad[0] - 1)
        return found.together(self.crew)

    def _runs(self, sizes: Int64s) -> list["_Run"]:
        """Runs of tables with `sizes` (T,) look-ups, for the crew to share."""
        found, at = [], 0
        for tables in self.crew.cut_runs(sizes.tolist()):
            stop = at + int(sizes[tables].sum())
            features = np.searchsorted(self._span_tables, [tables.start, tables.stop]).tolist()
            found.append(_Run(tables, slice(*features), slice(at, stop)))
            at = stop
        return found

    def _hash(self, worker: int, places: int) -> "_Hash":
        if worker not in self._scratch or len(self._scratch[worker][0]) < places:
            self._scratch[worker] = np.zeros(places, np.int64), np.zeros(places, np.int32)
        return self._scratch[worker]

    def _spans(self, batch: Batch) -> Int64s:
        positions = np.array([feature.position for feature in self._group.features])
        samples = batch.num_samples
        return np.stack([batch.offsets[positions * samples], batch.offsets[(positions + 1) * samples]], axis=1)

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


_Hash = tuple[Int64s, NDArray[np.int32]]  # keys, places; see `planning.distinct_rows`


class _Run(NamedTuple):
    """Tables that follow each other."""

    tables: slice
    features: slice
    lookups: slice


class _Found:
    """What was found in runs of tables, each where its look-ups lie: there are as many places, and more."""

    def __init__(self, runs: Sequence[_Run], num_lookups: int) -> None:
        self.rows, self.counts = np.empty(num_lookups, np.int64), np.empty(num_lookups, np.int32)
        self.inverse, self.table_ends = np.empty(num_lookups, np.int32), np.empty(runs[-1].tables.stop, np.int64)
        self.sizes = [0] * len(runs)  # distinct rows of each
        self._runs = runs

    def together(self, crew: Crew) -> Distinct:
        """The runs behind each other."""
        if len(self.sizes) == 1:
            size = self.sizes[0]
            return Distinct(self.rows[:size], self.counts[:size], self.inverse, self.table_ends)
        bounds = [0, *accumulate(self.sizes)]
        rows, counts = np.empty(bounds[-1], np.int64), np.empty(bounds[-1], np.int32)

        def move_run(worker: int, number: int) -> None:
            run, to = self._runs[number], slice(*bounds[number : number + 2])
            own = slice(run.lookups.start, run.lookups.start + self.sizes[number])
            rows[to], counts[to] = self.rows[own], self.counts[own]
            self.inverse[run.lookups] += np.int32(to.start)
            self.table_ends[run.tables] += to.start

        crew.share(len(self.sizes), move_run)
        return Distinct(rows, counts, self.inverse, self.table_ends)
