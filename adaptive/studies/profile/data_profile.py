"""`profile_data`: what a data set looks up, exactly, from its ids alone.

Two passes: one counts, the second asks of every input whether all its rows are hot. The second takes the row numbers
that the first kept.

Hot rows and hot inputs: which rows a budget of memory makes hot, how FAE would estimate it from a sample, and which
inputs then find all their rows hot (https://arxiv.org/abs/2103.00686, PVLDB 15(1), 2022).

A row's *heat* is its share of its table's lookups. Under a threshold t the rows with a heat of at least t are hot, and
all rows of tables below 1 MB, as in the paper (its 4.1.2). A budget takes the smallest t whose hot rows fit; a budget
too small for the small tables takes the smallest of them.

Letters: T tables, C rows that were looked up.

How unevenly the rows of each table are looked up, from their counts.

Letters: T tables, R rows of all tables, C rows of a table that were looked up.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from adaptive.data.dataset import Dataset
from adaptive.data.kernels import access
from adaptive.embeddings.planning.layout import Group
from adaptive.studies.profile import (
    DataProfile,
    HotByMemory,
    HotBySample,
    HotByThreshold,
    HotShares,
    Reuse,
    SkewCurve,
    SuggestedSize,
    TableSkew,
)
from adaptive.studies.profile.id_trace import IdTrace, Told, reuse

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
    """From the lookups (R,) of every row."""
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
        counts: lookups (R,), of a sample.
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
            hot = (chunks >= threshold).sum(axis=1)
            if len(hot) == 1:
                rows += float(hot[0])
                continue
            num_chunks = float(size / CHUNK_ROWS)
            rows += num_chunks * float(hot.mean())
            left = (num_chunks - len(hot)) / num_chunks
            variance += left * float(hot.var(ddof=1)) / len(hot) * num_chunks**2
        return Estimate(rows, float(stats.t.ppf((1 + CONFIDENCE) / 2, CHUNKS - 1)) * math.sqrt(variance))


CURVE_POINTS: Final = 60  # of a sorted curve, evenly on a log axis


def table_skew(group: Group, counts: Int64s, num_samples: int) -> list[TableSkew]:
    """A line for each table, and one for all of them together if there are several; counts (R,) of lookups."""
    names = [(table.name, slice(*group.table_starts[t : t + 2])) for t, table in enumerate(group.tables)]
    if len(names) > 1:
        names.append(("all", slice(0, group.num_rows)))
    return [_skew(name, counts[part], num_samples) for name, part in names]


def _skew(table: str, counts: Int64s, num_samples: int) -> TableSkew:
    """Facts of one table; counts (rows,). Shares are None without lookups."""
    falling = falling_counts(counts)
    lookups, seen = int(falling.sum()), len(falling)
    return TableSkew(
        table=table,
        rows=len(counts),
        lookups=lookups,
        lookups_per_sample=lookups / num_samples,
        seen=seen,
        top_share=int(falling[0]) / lookups if lookups else None,
        rows_for_half=rows_for(falling, 0.5),
        rows_for_90=rows_for(falling, 0.9),
        hottest_over_median=float(falling[0] / np.median(falling)) if lookups else None,
        seen_once_share=int((falling == 1).sum()) / seen if seen else None,
    )


def falling_counts(counts: Int64s) -> Int64s:
    """(C,) the counts above 0, largest first."""
    return np.sort(counts[counts > 0])[::-1]


def rows_for(falling: Int64s, share: float) -> int:
    """The least number of rows with at least this share of the lookups; falling (C,) counts, largest first."""
    covered = np.cumsum(falling)
    return 0 if not len(falling) else int(np.searchsorted(covered, share * covered[-1])) + 1


def curve(falling: Int64s) -> list[tuple[int, int]]:
    """(rank from 1, count) at ranks that lie evenly on a log axis, both ends among them."""
    if not len(falling):
        return []
    ranks = np.unique(np.geomspace(1, len(falling), CURVE_POINTS).round().astype(np.int64))
    return [(int(rank), int(falling[rank - 1])) for rank in ranks]


THRESHOLDS: Final = tuple(10 ** (-k / 2) for k in range(4, 17))  # of a table's lookups: 1e-2 ... 1e-8
GROUPED: Final = (1, 64, 256, 1024)  # inputs of a mini-batch that may all be hot
MOST_BUDGETS: Final = (64 - len(THRESHOLDS)) // 2  # a bit of a mark for each, and one for its sample


@dataclass(frozen=True)
class DataQuestion:
    """What is asked of a data set."""

    samples: int | None = 1_000_000  # most; None: all
    budgets: tuple[tuple[str, int], ...] = ()  # memory for hot rows as written, and rows that fit
    sample_share: float = 0.05  # for the sampled curve and FAE's estimate
    batch_size: int = 2048  # for reuse
    depth: int = 4  # of look-ahead, for the suggested size
    seed: int = 0  # of the sample and the estimate's chunks


@dataclass
class _Seconds:
    """Where the time of profiling goes."""

    spent: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.spent[what] = self.spent.get(what, 0.0) + time.perf_counter() - started


def profile_data(
    dataset: Dataset,
    group: Group,
    row_bytes: int,
    question: DataQuestion,
    *,
    stopped: Callable[[], bool] = lambda: False,
    told: Told = lambda samples: None,
) -> DataProfile:
    """Skew, hot rows and inputs by memory and by threshold, reuse; all numbers exact but FAE's estimate.

    Args:
        dataset: its training part.
        group: its tables.
        row_bytes: of a row with its optimizer state.
        question: see there.
        stopped: asked between chunks; what was read by then is profiled.
        told: called with the samples read so far.
    """
    seconds = _Seconds()
    trace = IdTrace(dataset, group, question.samples, stopped=stopped, told=told)
    counts, sampled, chosen = _count(trace, question, seconds)
    with seconds.of("sort"):
        heat, sampled_heat = heat_of(group, counts), heat_of(group, sampled)
        tables = table_skew(group, counts, trace.num_samples)
    estimator = Estimator(group, sampled, question.seed)
    rules, budgets = _rules(group, heat, sampled_heat, row_bytes, question, estimator, seconds)
    with seconds.of("mark"):
        marks = row_marks(group, rules)
    with seconds.of("classify"):
        inputs = _classify(trace, marks)
    shares = _Shares(rules, marks, counts, inputs)
    with seconds.of("reuse"):
        again = reuse(trace, group.num_rows, question.batch_size)
    counting = sum(seconds.spent[name] for name in ("count", "count_sample", "classify", "reuse", "sort", "mark"))
    return DataProfile(
        samples=trace.num_samples,
        lookups=trace.num_lookups,
        rows=group.num_rows,
        row_bytes=row_bytes,
        table_bytes=row_bytes * group.num_rows,
        was_stopped=bool(stopped()),
        tables=tables,
        curves=_curves(group, counts, sampled),
        sample_share=question.sample_share,
        sampled_samples=chosen,
        hot=[_by_memory(budget, shares, row_bytes) for budget in budgets],
        thresholds=[
            HotByThreshold(**vars(shares.of(k)), threshold=rule.threshold, bytes=rule.num_rows * row_bytes)
            for k, (rule, _) in enumerate(rules[: len(THRESHOLDS)])
        ],
        reuse=again,
        suggested=suggested_size(tables[-1].rows_for_90, again, group.num_rows, row_bytes, question.depth),
        seconds={**seconds.spent, "read": trace.read_seconds},
        lookups_per_s=trace.num_lookups / counting if counting else None,
    )


def suggested_size(rows_for_90: int, reuse: Reuse, num_rows: int, row_bytes: int, depth: int) -> SuggestedSize:
    """The hottest rows with 90 % of the lookups, and no less than a policy that fetches rows ahead must hold: those of
    the batch that is trained, of `depth` batches before it and of the one being planned, as if they had no row in
    common."""
    distinct = reuse.distinct_by_batch_size
    each = distinct.get(str(reuse.batch_size), max(distinct.values(), default=0.0))
    in_flight = min(num_rows, math.ceil((depth + 2) * each))
    rows = max(rows_for_90, in_flight)
    return SuggestedSize(rows, rows * row_bytes, rows_for_90, in_flight, depth)


def _count(trace: IdTrace, question: DataQuestion, seconds: _Seconds) -> tuple[Int64s, Int64s, int]:
    """Look-ups (R,) of every row: of all inputs, and of those drawn; how many were drawn."""
    counts, sampled = np.zeros(trace.group.num_rows, np.int64), np.zeros(trace.group.num_rows, np.int64)
    random = np.random.default_rng(question.seed)
    drawn = 0
    for chunk in trace:
        with seconds.of("count"):
            access.count_rows(chunk.rows, counts)
        with seconds.of("count_sample"):
            chosen = random.random(chunk.num_samples) < question.sample_share
            access.count_chosen(chunk.rows, chunk.offsets, chosen, sampled)
            drawn += int(chosen.sum())
    return counts, sampled, drawn


@dataclass(frozen=True)
class _Budget:
    """One budget: as written, the rules from all counts and from the sample by number, FAE's estimate."""

    text: str
    rows: int
    full: int
    sampled: int
    estimate: Estimate


Rule = tuple[HotRows, Heat]


def _rules(
    group: Group,
    heat: Heat,
    sampled_heat: Heat,
    row_bytes: int,
    question: DataQuestion,
    estimator: Estimator,
    seconds: _Seconds,
) -> tuple[list[Rule], list[_Budget]]:
    """The rules that make rows hot: thresholds first, then two for each budget."""
    rules: list[Rule] = [(above(group, heat, t, row_bytes), heat) for t in THRESHOLDS]
    budgets = []
    for text, rows in question.budgets:
        full = within(group, heat, rows, row_bytes)
        sampled = within(group, sampled_heat, rows, row_bytes)
        with seconds.of("estimate"):
            estimate = estimator.estimate(sampled.threshold, sampled.whole)
        budgets.append(_Budget(text, rows, len(rules), len(rules) + 1, estimate))
        rules += [(full, heat), (sampled, sampled_heat)]
    return rules, budgets


def _classify(trace: IdTrace, marks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(samples,) the rules under which each input is hot."""
    marked = np.empty(trace.num_samples, np.uint64)
    first = 0
    for chunk in trace:
        part = marked[first : first + chunk.num_samples]
        access.all_of_rows(chunk.rows, chunk.offsets, marks, part)
        first += chunk.num_samples
    return marked


class _Shares:
    """What the rules make of the lookups and inputs."""

    def __init__(
        self, rules: Sequence[Rule], marks: NDArray[np.uint64], counts: Int64s, inputs: NDArray[np.uint64]
    ) -> None:
        self.rules, self._marks, self._counts, self._inputs = rules, marks, counts, inputs
        self._seen = np.flatnonzero(counts)
        self._seen_marks, self._seen_counts = marks[self._seen], counts[self._seen]
        self._batches = {
            size: np.bitwise_and.reduce(inputs[: len(inputs) // size * size].reshape(-1, size), axis=1)
            for size in GROUPED[1:]
        }

    def of(self, k: int) -> HotShares:
        """Rule k: hot rows, the lookups they take, hot inputs, mini-batches of consecutive inputs all of which are."""
        covered = int(self._seen_counts[_has(self._seen_marks, k)].sum())
        batches = {str(size): _mean(_has(inputs, k)) for size, inputs in self._batches.items()}
        return HotShares(
            hot_rows=self.rules[k][0].num_rows,
            lookup_share=covered / int(self._seen_counts.sum()) if len(self._seen) else None,
            hot_input_share=_mean(_has(self._inputs, k)),
            hot_batch_share=batches,
        )

    def same_rows(self, k: int, other: int) -> float | None:
        """Share of the rows hot under k that are hot under the other rule, too."""
        mine = _has(self._marks, k)
        return _mean(_has(self._marks[mine], other))


def _has(marks: NDArray[np.uint64], k: int) -> NDArray[np.bool_]:
    return (marks & np.uint64(1 << k)).astype(np.bool_)


def _mean(mask: NDArray[np.bool_]) -> float | None:
    return float(mask.mean()) if len(mask) else None


def _by_memory(budget: _Budget, shares: _Shares, row_bytes: int) -> HotByMemory:
    threshold, estimate = shares.rules[budget.full][0].threshold, budget.estimate
    return HotByMemory(
        **vars(shares.of(budget.full)),
        memory=budget.text,
        rows_that_fit=budget.rows,
        bytes=budget.rows * row_bytes,
        threshold=threshold if math.isfinite(threshold) else None,
        sampled=HotBySample(
            **vars(shares.of(budget.sampled)),
            same_rows_share=shares.same_rows(budget.full, budget.sampled),
            estimated_rows=estimate.rows,
            estimated_margin=estimate.margin,
            estimated_bytes=estimate.rows * row_bytes,
        ),
    )


def _curves(group: Group, counts: Int64s, sampled: Int64s) -> list[SkewCurve]:
    """Sorted counts of every table, of all inputs and of the sample."""
    parts = [(table.name, slice(*group.table_starts[t : t + 2])) for t, table in enumerate(group.tables)]
    return [
        SkewCurve(name, curve(falling_counts(counts[part])), curve(falling_counts(sampled[part])))
        for name, part in parts
    ]
