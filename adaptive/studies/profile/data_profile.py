"""`profile_data`: exact lookup counts of a data set, from its ids alone.

There are two passes. The first counts lookups; the second, over the row numbers that the first kept, finds the inputs
all of whose rows are hot.

Hot rows follow FAE (https://arxiv.org/abs/2103.00686, PVLDB 15(1), 2022). A row's *heat* is its share of its table's
lookups. Under a threshold t, rows with a heat of at least t are hot, and so are all rows of tables below 1 MB (section
4.1.2). A memory budget takes the smallest t whose hot rows fit; if it is too small for the small tables, it takes the
smallest of them.

Letters: T tables, R rows of all tables, C rows that were looked up.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from adaptive.counters import Stopwatch
from adaptive.data.dataset import Dataset
from adaptive.data.kernels import access
from adaptive.embeddings.planning.layout import Group
from adaptive.studies.profile import (
    DataProfile,
    HashCollisions,
    HotByMemory,
    HotBySample,
    HotByThreshold,
    HotShares,
    Reuse,
    SkewCurve,
    SuggestedSize,
    TableSkew,
)
from adaptive.studies.profile.id_trace import IdTrace, OnProgress, mean_of, reuse

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

SMALL_TABLE_BYTES: Final = 1_000_000
CHUNKS, CHUNK_ROWS, CONFIDENCE = 35, 1024, 0.999  # of FAE's estimate (section 4.1.3)


@dataclass(frozen=True, eq=False)
class Heat:
    """Rows of all tables that were looked up, hottest first."""

    rows: Int64s  # (C,)
    tables: NDArray[np.int32]  # (C,)
    heat: Floats  # (C,) falling


@dataclass(frozen=True, eq=False)
class HotRows:
    """Hot rows under one rule: all rows of some tables, and other rows from a threshold on."""

    whole: NDArray[np.bool_]  # (T,) tables that are hot as a whole
    threshold: float  # smallest heat of a hot row; infinity if only whole tables are hot
    num_rows: int


@dataclass(frozen=True)
class Estimate:
    """FAE's estimate of hot rows, with half its confidence interval (99.9%)."""

    rows: float
    margin: float


def heat_of(group: Group, counts: Int64s) -> Heat:
    """Return rows by heat, from the number of lookups (R,) of every row."""
    rows = np.flatnonzero(counts)
    tables = group.tables_of(rows)
    whole = np.bincount(tables, counts[rows], minlength=len(group.tables))
    heat = counts[rows] / whole[tables]
    order = np.argsort(-heat, kind="stable")
    return Heat(rows[order], tables[order], heat[order])


def small_tables(group: Group, row_bytes: int, room: int) -> NDArray[np.bool_]:
    """Return a mask (T,) of whole hot tables: below 1 MB, smallest first, up to `room` rows."""
    sizes = group.table_sizes
    order = np.argsort(sizes, kind="stable")
    fits = (np.cumsum(sizes[order]) <= room) & (sizes[order] * row_bytes < SMALL_TABLE_BYTES)
    chosen = np.zeros(len(sizes), np.bool_)
    chosen[order[fits]] = True
    return chosen


def above(group: Group, heat: Heat, threshold: float, row_bytes: int) -> HotRows:
    """Return the hot rows under a threshold, without a memory limit."""
    whole = small_tables(group, row_bytes, group.num_rows)
    number = int(((heat.heat >= threshold) & ~whole[heat.tables]).sum())
    return HotRows(whole, threshold, number + int(group.table_sizes[whole].sum()))


def within(group: Group, heat: Heat, budget: int, row_bytes: int) -> HotRows:
    """Return the hot rows under the smallest threshold that makes at most `budget` rows hot."""
    whole = small_tables(group, row_bytes, budget)
    in_whole = int(group.table_sizes[whole].sum())
    falling = heat.heat[~whole[heat.tables]]
    most = min(budget - in_whole, len(falling))
    if most < len(falling) and most > 0 and falling[most] == falling[most - 1]:  # take all rows of one heat, or none
        most = int(np.searchsorted(-falling, -falling[most], "left"))
    return HotRows(whole, float(falling[most - 1]) if most else math.inf, most + in_whole)


def row_marks(group: Group, rules: Sequence[tuple[HotRows, Heat]]) -> NDArray[np.uint64]:
    """Return bit masks (R,): bit k is set for rows that are hot under rule k."""
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
    """FAE's estimate of hot rows, from 35 random chunks of 1,024 rows per large table.

    Tables that are hardly larger are counted. Equations 1 to 4 of the paper: the mean number of hot rows per chunk
    times the number of chunks, with Student's t at 99.9% for the interval.

    Args:
        group: the tables.
        counts: lookups (R,) in a sample.
        seed: for drawing the chunks.
    """

    def __init__(self, group: Group, counts: Int64s, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self._sizes = group.table_sizes
        self._chunks = [
            self._drawn(counts[slice(*group.table_starts[t : t + 2])], random) for t in range(len(group.tables))
        ]

    @staticmethod
    def _drawn(counts: Int64s, random: np.random.Generator) -> Floats:
        """Heat (35, 1024) of random rows; (1, rows) of all rows if the table is not much larger."""
        heat = counts / max(int(counts.sum()), 1)
        if len(counts) <= 2 * CHUNKS * CHUNK_ROWS:
            return heat[None]
        return heat[random.choice(len(counts), (CHUNKS, CHUNK_ROWS), replace=False)]

    def estimate(self, threshold: float, whole: NDArray[np.bool_]) -> Estimate:
        """Estimate the rows with at least this heat, plus all rows of the tables in `whole` (T,)."""
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


CURVE_POINTS: Final = 60  # of a sorted curve, evenly spaced on a log axis


def table_skew(group: Group, counts: Int64s, num_samples: int) -> list[TableSkew]:
    """Return the skew of each table, then of all; counts (R,) are lookups."""
    names = [(table.name, slice(*group.table_starts[t : t + 2])) for t, table in enumerate(group.tables)]
    if len(names) > 1:
        names.append(("all", slice(0, group.num_rows)))
    return [_skew(name, counts[part], num_samples) for name, part in names]


def hash_collisions(hash_rows: Mapping[str, int], group: Group, counts: Int64s) -> list[HashCollisions]:
    """Return the expected collisions of tables whose ids are hashed; counts (R,) are lookups.

    n ids fill a row with probability 1 - exp(-n / rows). An id is alone in its row with probability exp(-n / rows),
    however often it is looked up.
    """
    collisions = []
    for table, start in zip(group.tables, group.table_starts[:-1].tolist(), strict=True):
        rows = hash_rows.get(table.name, 0)  # without the row for missing ids
        seen = int((counts[start : start + rows] > 0).sum())
        if seen:
            ids = -rows * math.log1p(-seen / rows) if seen < rows else None
            collisions.append(HashCollisions(table.name, rows, seen, ids, seen / rows))
    return collisions


def _skew(table: str, counts: Int64s, num_samples: int) -> TableSkew:
    """Skew of one table; counts (rows,)."""
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
    """Return the counts above 0, (C,), largest first."""
    return np.sort(counts[counts > 0])[::-1]


def rows_for(falling: Int64s, share: float) -> int:
    """Return the smallest number of rows with this share of falling counts (C,)."""
    covered = np.cumsum(falling)
    return 0 if not len(falling) else int(np.searchsorted(covered, share * covered[-1])) + 1


def curve(falling: Int64s) -> list[tuple[int, int]]:
    """Return (rank from 1, count) at ranks evenly spaced on a log axis, both ends included."""
    if not len(falling):
        return []
    ranks = np.unique(np.geomspace(1, len(falling), CURVE_POINTS).round().astype(np.int64))
    return [(int(rank), int(falling[rank - 1])) for rank in ranks]


THRESHOLDS: Final = tuple(10 ** (-k / 2) for k in range(4, 17))  # of a table's lookups: 1e-2 ... 1e-8
GROUPED: Final = (1, 64, 256, 1024)  # inputs of a mini-batch that may all be hot
MOST_BUDGETS: Final = (64 - len(THRESHOLDS)) // 2  # a bit of a mark for each, and one for its sample


@dataclass(frozen=True)
class DataQuestion:
    """Options of `profile_data`.

    Attributes:
        samples: maximum number; None for all.
        budgets: memory for hot rows: as the user wrote it, and the rows that fit.
        sample_share: share of the inputs for the sampled curve and FAE's estimate.
        batch_size: for row reuse.
        depth: of look-ahead, for the suggested size.
        seed: for the sample and the estimate's chunks.
    """

    samples: int | None = 1_000_000
    budgets: tuple[tuple[str, int], ...] = ()
    sample_share: float = 0.05
    batch_size: int = 2048
    depth: int = 4
    seed: int = 0


def profile_data(
    dataset: Dataset,
    group: Group,
    row_bytes: int,
    question: DataQuestion,
    *,
    is_stopped: Callable[[], bool] = lambda: False,
    on_progress: OnProgress = lambda samples: None,
) -> DataProfile:
    """Profile a data set: skew, hot rows and inputs by memory and by threshold, row reuse.

    All numbers are exact except FAE's estimate.

    Args:
        dataset: its training part is read.
        group: its tables.
        row_bytes: bytes of a row with its optimizer state.
        question: options.
        is_stopped: asked between chunks; the samples read by then are profiled.
        on_progress: called with the number of samples read so far.
    """
    watch = Stopwatch()
    trace = IdTrace(dataset, group, question.samples, is_stopped=is_stopped, on_progress=on_progress)
    counts, sampled, chosen = _count(trace, question, watch)
    with watch.stage("sort"):
        heat, sampled_heat = heat_of(group, counts), heat_of(group, sampled)
        tables = table_skew(group, counts, trace.num_samples)
    # Rules by number: one per threshold, then two per budget, from all counts and from the sample
    rules: list[Rule] = [(above(group, heat, t, row_bytes), heat) for t in THRESHOLDS]
    for _, rows in question.budgets:
        rules += [(within(group, of_rule, rows, row_bytes), of_rule) for of_rule in (heat, sampled_heat)]
    estimator = Estimator(group, sampled, question.seed)
    with watch.stage("estimate"):
        estimates = [estimator.estimate(rule.threshold, rule.whole) for rule, _ in rules[len(THRESHOLDS) + 1 :: 2]]
    with watch.stage("mark"):
        marks = row_marks(group, rules)
    with watch.stage("classify"):
        inputs = _classify(trace, marks)
    shares = _Shares(rules, marks, counts, inputs)
    with watch.stage("reuse"):
        reused = reuse(trace, group.num_rows, question.batch_size)
    seconds = {name: ms / 1e3 for name, ms in watch.total_ms().items()}
    counting = sum(seconds[name] for name in ("count", "count_sample", "classify", "reuse", "sort", "mark"))
    return DataProfile(
        samples=trace.num_samples,
        lookups=trace.num_lookups,
        rows=group.num_rows,
        row_bytes=row_bytes,
        table_bytes=row_bytes * group.num_rows,
        was_stopped=bool(is_stopped()),
        tables=tables,
        collisions=hash_collisions(dataset.hash_rows, group, counts),
        curves=_curves(group, counts, sampled),
        sample_share=question.sample_share,
        sampled_samples=chosen,
        hot=[
            _by_memory(budget, len(THRESHOLDS) + 2 * number, shares, estimates[number], row_bytes)
            for number, budget in enumerate(question.budgets)
        ],
        thresholds=[
            HotByThreshold(**vars(shares.of(k)), threshold=rule.threshold, bytes=rule.num_rows * row_bytes)
            for k, (rule, _) in enumerate(rules[: len(THRESHOLDS)])
        ],
        reuse=reused,
        suggested=suggested_size(tables[-1].rows_for_90, reused, group.num_rows, row_bytes, question.depth),
        seconds={**seconds, "read": trace.read_seconds},
        lookups_per_s=trace.num_lookups / counting if counting else None,
    )


def suggested_size(rows_for_90: int, reuse: Reuse, num_rows: int, row_bytes: int, depth: int) -> SuggestedSize:
    """Suggest a device tier size.

    It holds the rows with 90% of the lookups, but no less than batches in flight hold.

    In flight are the batch in training, `depth` batches before it and the one being planned, counted as if they shared
    no row.
    """
    distinct = reuse.distinct_by_batch_size
    each = distinct.get(str(reuse.batch_size), max(distinct.values(), default=0.0))
    in_flight = min(num_rows, math.ceil((depth + 2) * each))
    rows = max(rows_for_90, in_flight)
    return SuggestedSize(rows, rows * row_bytes, rows_for_90, in_flight, depth)


def _count(trace: IdTrace, question: DataQuestion, watch: Stopwatch) -> tuple[Int64s, Int64s, int]:
    """Return lookups (R,) in all inputs and in the sample, and the sample's size."""
    counts, sampled = np.zeros(trace.group.num_rows, np.int64), np.zeros(trace.group.num_rows, np.int64)
    random = np.random.default_rng(question.seed)
    drawn = 0
    for chunk in trace:
        with watch.stage("count"):
            access.count_rows(chunk.rows, counts)
        with watch.stage("count_sample"):
            chosen = random.random(chunk.num_samples) < question.sample_share
            access.count_chosen(chunk.rows, chunk.offsets, chosen, sampled)
            drawn += int(chosen.sum())
    return counts, sampled, drawn


Rule = tuple[HotRows, Heat]


def _classify(trace: IdTrace, marks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return (samples,) bit masks of the rules under which each input is hot."""
    marked = np.empty(trace.num_samples, np.uint64)
    first = 0
    for chunk in trace:
        part = marked[first : first + chunk.num_samples]
        access.all_of_rows(chunk.rows, chunk.offsets, marks, part)
        first += chunk.num_samples
    return marked


class _Shares:
    """Shares of the lookups and inputs that are hot under each rule."""

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
        """Shares under rule k; mini-batches are of consecutive inputs."""
        covered = int(self._seen_counts[_has(self._seen_marks, k)].sum())
        batches = {str(size): mean_of(_has(inputs, k)) for size, inputs in self._batches.items()}
        return HotShares(
            hot_rows=self.rules[k][0].num_rows,
            lookup_share=covered / int(self._seen_counts.sum()) if len(self._seen) else None,
            hot_input_share=mean_of(_has(self._inputs, k)),
            hot_batch_share=batches,
        )

    def same_rows(self, k: int, other: int) -> float | None:
        """Share of the rows hot under rule k that are also hot under the other rule."""
        return mean_of(_has(self._marks[_has(self._marks, k)], other))


def _has(marks: NDArray[np.uint64], k: int) -> NDArray[np.bool_]:
    return (marks & np.uint64(1 << k)).astype(np.bool_)


def _by_memory(budget: tuple[str, int], rule: int, shares: _Shares, estimate: Estimate, row_bytes: int) -> HotByMemory:
    """Hot rows within a budget, under rule number `rule`; the next rule is that of the sample."""
    text, rows = budget
    threshold = shares.rules[rule][0].threshold
    return HotByMemory(
        **vars(shares.of(rule)),
        memory=text,
        rows_that_fit=rows,
        bytes=rows * row_bytes,
        threshold=threshold if math.isfinite(threshold) else None,
        sampled=HotBySample(
            **vars(shares.of(rule + 1)),
            same_rows_share=shares.same_rows(rule, rule + 1),
            estimated_rows=estimate.rows,
            estimated_margin=estimate.margin,
            estimated_bytes=estimate.rows * row_bytes,
        ),
    )


def _curves(group: Group, counts: Int64s, sampled: Int64s) -> list[SkewCurve]:
    """Sorted counts of every table, in all inputs and in the sample."""
    parts = [(table.name, slice(*group.table_starts[t : t + 2])) for t, table in enumerate(group.tables)]
    return [
        SkewCurve(name, curve(falling_counts(counts[part])), curve(falling_counts(sampled[part])))
        for name, part in parts
    ]
