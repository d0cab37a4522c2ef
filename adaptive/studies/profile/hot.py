"""Hot rows and hot inputs: which rows a budget of memory makes hot, how FAE would estimate it from a sample, and which
inputs then find all their rows hot (https://arxiv.org/abs/2103.00686, PVLDB 15(1), 2022).

A row's *heat* is its share of its table's look-ups. Under a threshold t the rows with a heat of at least t are hot, and
all rows of tables below 1 MB, as in the paper (its 4.1.2). A budget takes the smallest t whose hot rows fit; a budget
too small for the small tables takes the smallest of them.

Letters: T tables, C rows that were looked up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from adaptive.embeddings.planning.layout import Group

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

SMALL_TABLE_BYTES: Final = 1_000_000
CHUNKS, CHUNK_ROWS, CONFIDENCE = 35, 1024, 0.999  # of FAE's estimate (its 4.1.3)


@dataclass(frozen=True, eq=False)
class Heat:
    """The rows of all tables that were looked up, hottest first."""

    rows: Int64s  # (C,)
    tables: NDArray[np.int32]  # (C,)
    heat: Floats  # (C,) falling


@dataclass(frozen=True, eq=False)
class HotRows:
    """Which rows are hot: those of whole tables, and of all others the `first` ones of a `Heat`."""

    whole: NDArray[np.bool_]  # (T,)
    threshold: float  # least heat of a hot row; infinity where only whole tables are hot
    num_rows: int


@dataclass(frozen=True)
class Estimate:
    """Hot rows as FAE estimates them, with half the width of the confidence interval (99.9 %)."""

    rows: float
    margin: float


def heat_of(group: Group, counts: Int64s) -> Heat:
    """From the look-ups (R,) of every row."""
    rows = np.flatnonzero(counts)
    tables = group.tables_of(rows)
    whole = np.bincount(tables, counts[rows], minlength=len(group.tables))
    heat = counts[rows] / whole[tables]
    order = np.argsort(-heat, kind="stable")
    return Heat(rows[order], tables[order], heat[order])


def small_tables(group: Group, row_bytes: int, room: int) -> NDArray[np.bool_]:
    """(T,) the tables that are hot as a whole: below 1 MB, smallest first, as far as `room` rows hold them."""
    sizes = group.table_sizes
    order = np.argsort(sizes, kind="stable")
    fits = (np.cumsum(sizes[order]) <= room) & (sizes[order] * row_bytes < SMALL_TABLE_BYTES)
    chosen = np.zeros(len(sizes), np.bool_)
    chosen[order[fits]] = True
    return chosen


def above(group: Group, heat: Heat, threshold: float, row_bytes: int) -> HotRows:
    """The hot rows under a threshold, whatever memory they take."""
    whole = small_tables(group, row_bytes, group.num_rows)
    number = int(((heat.heat >= threshold) & ~whole[heat.tables]).sum())
    return HotRows(whole, threshold, number + int(group.table_sizes[whole].sum()))


def within(group: Group, heat: Heat, budget: int, row_bytes: int) -> HotRows:
    """The hot rows under the smallest threshold whose hot rows are at most `budget`."""
    whole = small_tables(group, row_bytes, budget)
    in_whole = int(group.table_sizes[whole].sum())
    falling = heat.heat[~whole[heat.tables]]
    most = min(budget - in_whole, len(falling))
    if most < len(falling) and most > 0 and falling[most] == falling[most - 1]:  # all rows of one heat, or none
        most = int(np.searchsorted(-falling, -falling[most], "left"))
    return HotRows(whole, float(falling[most - 1]) if most else math.inf, most + in_whole)


def row_marks(group: Group, rules: Sequence[tuple[HotRows, Heat]]) -> NDArray[np.uint64]:
    """(R,) with bit k for rows that are hot under rule k, by the heat it is judged by; at most 64 rules."""
    assert len(rules) <= 64, len(rules)
    marks = np.zeros(group.num_rows, np.uint64)
    for k, (rule, heat) in enumerate(rules):
        bit = np.uint64(1 << k)
        number = int(np.searchsorted(-heat.heat, -rule.threshold, "right"))
        marks[heat.rows[:number]] |= bit
        for table in np.flatnonzero(rule.whole):
            marks[group.table_starts[table] : group.table_starts[table + 1]] |= bit
    return marks


class Estimator:
    """FAE's estimate of how many rows a threshold makes hot, from 35 random chunks of 1024 rows of each large table.

    Tables hardly larger than that are counted; small ones are hot as a whole. The paper's equations 1 to 4: the mean
    number of hot rows a chunk times the number of chunks, with Student's t at 99.9 % for its interval.

    Args:
        group: the tables.
        counts: look-ups (R,), of a sample.
        seed: of the chunks.
    """

    def __init__(self, group: Group, counts: Int64s, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self._sizes = group.table_sizes
        self._chunks = [
            self._drawn(counts[slice(*group.table_starts[t : t + 2])], random) for t in range(len(group.tables))
        ]

    @staticmethod
    def _drawn(counts: Int64s, random: np.random.Generator) -> Floats:
        """Heat (35, 1024) of random rows, or (1, rows) of all rows of a table that is not much larger."""
        heat = counts / max(int(counts.sum()), 1)
        if len(counts) <= 2 * CHUNKS * CHUNK_ROWS:
            return heat[None]
        return heat[random.choice(len(counts), (CHUNKS, CHUNK_ROWS), replace=False)]

    def estimate(self, threshold: float, whole: NDArray[np.bool_]) -> Estimate:
        """Rows with at least this heat, and all rows of the whole tables (T,)."""
        rows, variance = float(self._sizes[whole].sum()), 0.0
        for chunks, size in ((self._chunks[t], self._sizes[t]) for t in np.flatnonzero(~whole)):
            found = (chunks >= threshold).sum(axis=1)
            if len(found) == 1:
                rows += float(found[0])
                continue
            num_chunks = float(size / CHUNK_ROWS)
            rows += num_chunks * float(found.mean())
            left = (num_chunks - len(found)) / num_chunks
            variance += left * float(found.var(ddof=1)) / len(found) * num_chunks**2
        return Estimate(rows, float(stats.t.ppf((1 + CONFIDENCE) / 2, CHUNKS - 1)) * math.sqrt(variance))
