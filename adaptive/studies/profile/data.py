"""`profile_data`: what a data set looks up, exactly, from its ids alone.

Two passes: one counts, the second asks of every input whether all its rows are hot. The second takes the row numbers
that the first kept.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.data.dataset import Dataset
from adaptive.data.kernels import access
from adaptive.embeddings.planning.layout import Group
from adaptive.studies.profile import hot
from adaptive.studies.profile.reuse import reuse
from adaptive.studies.profile.skew import curve, falling_counts, table_skew
from adaptive.studies.profile.trace import IdTrace, Told

Int64s = NDArray[np.int64]

THRESHOLDS: Final = tuple(10 ** (-k / 2) for k in range(4, 17))  # of a table's look-ups: 1e-2 ... 1e-8
GROUPED: Final = (1, 64, 256, 1024)  # inputs of a mini-batch that may all be hot
MOST_BUDGETS: Final = (64 - len(THRESHOLDS)) // 2  # a bit of a mark for each, and one for its sample


@dataclass(frozen=True)
class DataQuestion:
    """What is asked of a data set."""

    samples: int | None = 1_000_000  # most; None: all
    budgets: tuple[tuple[str, int], ...] = ()  # memory for hot rows as written, and rows that fit
    sample_share: float = 0.05  # for the sampled curve and FAE's estimate
    batch_size: int = 2048  # for reuse
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
) -> dict[str, Any]:
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
        heat, sampled_heat = hot.heat_of(group, counts), hot.heat_of(group, sampled)
        tables = table_skew(group, counts, trace.num_samples)
    estimator = hot.Estimator(group, sampled, question.seed)
    rules, budgets = _rules(group, heat, sampled_heat, row_bytes, question, estimator, seconds)
    with seconds.of("mark"):
        marks = hot.row_marks(group, rules)
    with seconds.of("classify"):
        inputs = _classify(trace, marks)
    shares = _Shares(rules, marks, counts, inputs)
    with seconds.of("reuse"):
        again = reuse(trace, group.num_rows, question.batch_size)
    counting = sum(seconds.spent[name] for name in ("count", "count_sample", "classify", "reuse", "sort", "mark"))
    return {
        "samples": trace.num_samples,
        "lookups": trace.num_lookups,
        "rows": group.num_rows,
        "row_bytes": row_bytes,
        "table_bytes": row_bytes * group.num_rows,
        "was_stopped": bool(stopped()),
        "tables": tables,
        "curves": _curves(group, counts, sampled),
        "sample_share": question.sample_share,
        "sampled_samples": chosen,
        "hot": [_budget_facts(one, shares, row_bytes) for one in budgets],
        "thresholds": [
            {"threshold": rule.threshold, "bytes": rule.num_rows * row_bytes, **shares.of(k)}
            for k, (rule, _) in enumerate(rules[: len(THRESHOLDS)])
        ],
        "reuse": again,
        "seconds": {**seconds.spent, "read": trace.read_seconds},
        "lookups_per_s": trace.num_lookups / counting if counting else None,
    }


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
    estimate: hot.Estimate


Rule = tuple[hot.HotRows, hot.Heat]


def _rules(
    group: Group,
    heat: hot.Heat,
    sampled_heat: hot.Heat,
    row_bytes: int,
    question: DataQuestion,
    estimator: hot.Estimator,
    seconds: _Seconds,
) -> tuple[list[Rule], list[_Budget]]:
    """The rules that make rows hot: thresholds first, then two for each budget."""
    rules: list[Rule] = [(hot.above(group, heat, t, row_bytes), heat) for t in THRESHOLDS]
    budgets = []
    for text, rows in question.budgets:
        full = hot.within(group, heat, rows, row_bytes)
        sampled = hot.within(group, sampled_heat, rows, row_bytes)
        with seconds.of("estimate"):
            estimate = estimator.estimate(sampled.threshold, sampled.whole)
        budgets.append(_Budget(text, rows, len(rules), len(rules) + 1, estimate))
        rules += [(full, heat), (sampled, sampled_heat)]
    return rules, budgets


def _classify(trace: IdTrace, marks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(samples,) the rules under which each input is hot."""
    found = np.empty(trace.num_samples, np.uint64)
    first = 0
    for chunk in trace:
        part = found[first : first + chunk.num_samples]
        access.all_of_rows(chunk.rows, chunk.offsets, marks, part)
        first += chunk.num_samples
    return found


class _Shares:
    """What the rules make of the look-ups and inputs."""

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

    def of(self, k: int) -> dict[str, Any]:
        """Rule k: hot rows, the look-ups they take, hot inputs, mini-batches of consecutive inputs all of which are."""
        covered = int(self._seen_counts[_has(self._seen_marks, k)].sum())
        batches = {str(size): _mean(_has(found, k)) for size, found in self._batches.items()}
        return {
            "hot_rows": self.rules[k][0].num_rows,
            "lookup_share": covered / int(self._seen_counts.sum()) if len(self._seen) else None,
            "hot_input_share": _mean(_has(self._inputs, k)),
            "hot_batch_share": batches,
        }

    def same_rows(self, k: int, other: int) -> float | None:
        """Share of the rows hot under k that are hot under the other rule, too."""
        mine = _has(self._marks, k)
        return _mean(_has(self._marks[mine], other))


def _has(marks: NDArray[np.uint64], k: int) -> NDArray[np.bool_]:
    return (marks & np.uint64(1 << k)).astype(np.bool_)


def _mean(found: NDArray[np.bool_]) -> float | None:
    return float(found.mean()) if len(found) else None


def _budget_facts(budget: _Budget, shares: _Shares, row_bytes: int) -> dict[str, Any]:
    full = shares.rules[budget.full][0]
    sampled = shares.of(budget.sampled)
    threshold = full.threshold
    return {
        "memory": budget.text,
        "rows_that_fit": budget.rows,
        "bytes": budget.rows * row_bytes,
        "threshold": threshold if math.isfinite(threshold) else None,
        **shares.of(budget.full),
        "sampled": {
            **sampled,
            "same_rows_share": shares.same_rows(budget.full, budget.sampled),
            "estimated_rows": budget.estimate.rows,
            "estimated_margin": budget.estimate.margin,
            "estimated_bytes": budget.estimate.rows * row_bytes,
        },
    }


def _curves(group: Group, counts: Int64s, sampled: Int64s) -> list[dict[str, Any]]:
    """Sorted counts of every table, of all inputs and of the sample."""
    parts = [(table.name, slice(*group.table_starts[t : t + 2])) for t, table in enumerate(group.tables)]
    return [
        {
            "table": name,
            "full": curve(falling_counts(counts[part])),
            "sampled": curve(falling_counts(sampled[part])),
        }
        for name, part in parts
    ]
