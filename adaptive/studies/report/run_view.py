"""A run as a page shows it: intervals joined for pictures, totals, summary and curves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Final, TypeVar

from adaptive.studies.charts import Line, curves
from adaptive.studies.report.page_records import JsonObject, PageRecord
from adaptive.training.telemetry.document import Figure, Gallery, Legend
from adaptive.training.telemetry.record import (
    EvalRecord,
    IntervalRecord,
    Record,
    ResumeRecord,
    RunRecord,
    RunTotals,
    TableCounts,
    sum_tables,
)
from adaptive.training.telemetry.report import run_summary

Kind = TypeVar("Kind", bound=Record)
MAX_POINTS: Final = 1600  # of the curves of all runs together


@dataclass(frozen=True)
class Stretch:
    """Consecutive intervals as one: means over their steps, and the state at their end."""

    step: int
    steps: int
    loss: float
    totals: RunTotals
    last: IntervalRecord

    @cached_property
    def whole(self) -> TableCounts:
        """All tables together."""
        return sum_tables(list(self.totals.tables.values()))


Value = Callable[[Stretch], float | None]


class RunView:
    """A run and numbers computed from it.

    Attributes:
        number, name: its color and name.
        record: of run.json; `config` has its settings.
        stretches: joined intervals, in order.
        evaluations, resumes: the other records.
        table_rows: rows of each table.
        totals: of all intervals.
        summary: at its end, or of the intervals so far.
    """

    def __init__(self, number: int, run: PageRecord, most: int) -> None:
        self.number, self.name, self.record, self.rejects = number, run.name, run.record, run.rejects
        self.config: JsonObject = run.record["config"]
        self.policy = str(self.config.get("policy", "-"))
        intervals = _of(run.metrics, IntervalRecord)
        self.stretches = stretches(intervals, most)
        self.evaluations = _thinned(_of(run.metrics, EvalRecord), most)
        self.resumes = _of(run.metrics, ResumeRecord)
        begun = _of(run.metrics, RunRecord)
        self.table_rows = begun[0].table_rows if begun else {}
        self.totals = RunTotals()
        for interval in intervals:
            self.totals.add(interval)
        self.summary = self._summary(intervals)

    def _summary(self, intervals: Sequence[IntervalRecord]) -> JsonObject:
        if isinstance(self.record.get("summary"), dict):
            return dict(self.record["summary"])
        if not intervals:
            return {}
        last = intervals[-1]
        so_far = run_summary(self.policy, self.totals, auc=last.auc, log_loss=last.log_loss, accuracy=last.accuracy)
        return {**so_far, "auc_of": "training", "device_rows": last.device_rows}


def views(runs: Sequence[PageRecord]) -> list[RunView]:
    """Views of several runs; with more runs, each has fewer points."""
    most = min(300, max(60, MAX_POINTS // len(runs)))
    return [RunView(number, run, most) for number, run in enumerate(runs)]


def stretches(intervals: Sequence[IntervalRecord], most: int) -> list[Stretch]:
    """Join intervals into at most `most` stretches of equal length (the last may be shorter).

    Samples and steps count from the interval before, so those of the first interval count from the start.
    """
    size = -(-len(intervals) // most) or 1
    joined, step, samples = [], 0, 0
    for start in range(0, len(intervals), size):
        totals, losses, previous = RunTotals(first_step=step, first_samples=samples), 0.0, step
        for interval in intervals[start : start + size]:
            losses += interval.loss * (interval.step - previous)
            previous = interval.step
            totals.add(interval)
            step, samples = interval.step, interval.samples
        joined.append(Stretch(step, totals.steps, losses / max(totals.steps, 1), totals, interval))
    return joined


def charts(runs: Sequence[RunView], *drawn: tuple[str, Value], zero: bool = True, wide: bool = False) -> Gallery:
    """Return a figure per title and number, with a curve per run that has the number.

    Args:
        zero: start the y axis at 0.
    """
    figures = []
    for title, value in drawn:
        lines = [
            Line(run.number, [stretch.step for stretch in run.stretches], list(map(value, run.stretches)))
            for run in runs
            if run.stretches
        ]
        if any(y is not None for line in lines for y in line.y):
            figures.append(curves(title, lines, zero=zero))
    return Gallery(figures, wide)


def run_legend(runs: Sequence[RunView]) -> Legend:
    """Legend of runs by their color numbers."""
    labels = [""] * (runs[-1].number + 1)
    for run in runs:
        labels[run.number] = f"{run.name} ({run.policy})"
    return Legend(labels)


def evaluation_figures(title: str, runs: Sequence[RunView], name: str) -> list[Figure]:
    """Draw a number of the evaluations over the steps; nothing if no run has two."""
    lines = [
        Line(run.number, [e.step for e in run.evaluations], list(map(attrgetter(name), run.evaluations)), marked=True)
        for run in runs
    ]
    drawn = [line for line in lines if any(value is not None for value in line.y)]
    return [curves(title, drawn)] if any(len(line.x) > 1 for line in drawn) else []


def per_step(name: str, unit: float = 1.0) -> Value:
    """A count over all tables, per step, divided by `unit`."""
    return lambda stretch: float(getattr(stretch.whole, name)) / stretch.steps / unit if stretch.steps else None


def _thinned(records: Sequence[Kind], most: int) -> list[Kind]:
    """Every n-th record, and the last."""
    every = -(-len(records) // most) or 1
    return [*records[:-1:every], *records[-1:]]


def _of(records: Sequence[Record], kind: type[Kind]) -> list[Kind]:
    return [record for record in records if isinstance(record, kind)]
