"""A run as a page shows it: its intervals, thinned to what a picture holds, beside totals and summary."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

from adaptive.studies.charts import Line, curves
from adaptive.studies.report.blocks import Legend, Picture
from adaptive.studies.report.load import Loaded
from adaptive.training.telemetry.record import (
    EvalRecord,
    GuardRecord,
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
MOST_POINTS: Final = 1600  # of the curves of all runs together


@dataclass(frozen=True)
class Stretch:
    """Some intervals that follow each other, as one: means over their steps, and "so far" or "now" at the end."""

    step: int
    steps: int
    loss: float
    totals: RunTotals
    last: IntervalRecord

    @cached_property
    def whole(self) -> TableCounts:
        """All tables together."""
        return sum_tables(list(self.totals.tables.values()))


class RunView:
    """A run and what is computed of it once.

    Attributes:
        number, name: its colour, and as it is called.
        record: of run.json; `config` its settings.
        stretches: of its intervals, in order.
        evaluations, guards, resumes: the other records.
        table_rows: rows of each table.
        totals: of all intervals.
        summary: at its end, or of the intervals so far.
    """

    def __init__(self, number: int, loaded: Loaded, most: int) -> None:
        self.number, self.name, self.path = number, loaded.name, loaded.path
        self.record: Mapping[str, Any] = loaded.record
        self.config: Mapping[str, Any] = loaded.record["config"]
        self.rejects = loaded.rejects
        intervals = _of(loaded.metrics, IntervalRecord)
        self.stretches = stretches(intervals, most)
        self.evaluations = _thinned(_of(loaded.metrics, EvalRecord), most)
        self.guards = _of(loaded.metrics, GuardRecord)
        self.resumes = _of(loaded.metrics, ResumeRecord)
        runs = _of(loaded.metrics, RunRecord)
        self.table_rows: Mapping[str, int] = runs[0].table_rows if runs else {}
        self.totals = RunTotals()
        for one in intervals:
            self.totals.add(one)
        self.summary = self._summary(intervals)

    @property
    def finished(self) -> bool:
        return isinstance(self.record.get("summary"), dict)

    @property
    def policy(self) -> str:
        return str(self.config.get("policy", "-"))

    def _summary(self, intervals: Sequence[IntervalRecord]) -> Mapping[str, Any]:
        if self.finished:
            return dict(self.record["summary"])
        if not intervals:
            return {}
        last = intervals[-1]
        so_far = run_summary(self.policy, self.totals, auc=last.auc, log_loss=last.log_loss, accuracy=last.accuracy)
        return {**so_far, "auc_of": "training", "device_rows": last.device_rows}

    def line(self, value: Callable[[Stretch], float | None], *, dashed: bool = False) -> Line:
        """A number of each stretch over the steps."""
        return Line(self.number, [one.step for one in self.stretches], list(map(value, self.stretches)), dashed)


def views(loaded: Sequence[Loaded]) -> list[RunView]:
    """Several runs; the more there are, the fewer points has each."""
    most = min(300, max(60, MOST_POINTS // len(loaded)))
    return [RunView(number, one, most) for number, one in enumerate(loaded)]


def stretches(intervals: Sequence[IntervalRecord], most: int) -> list[Stretch]:
    """At most so many stretches, of as many intervals each (the last may have fewer). Samples and steps count from the
    interval before, so those of the first interval count from the start."""
    size = -(-len(intervals) // most) or 1
    found, step, samples = [], 0, 0
    for start in range(0, len(intervals), size):
        some = intervals[start : start + size]
        totals, losses, before = RunTotals(first_step=step, first_samples=samples), 0.0, step
        for one in some:
            losses += one.loss * (one.step - before)
            before = one.step
            totals.add(one)
        step, samples = some[-1].step, some[-1].samples
        found.append(Stretch(step, totals.steps, losses / max(totals.steps, 1), totals, some[-1]))
    return found


def chart(
    title: str, runs: Sequence[RunView], value: Callable[[Stretch], float | None], *, y: str = "", zero: bool = False
) -> Picture | None:
    """A curve for each run; None if no run has a value."""
    lines = [run.line(value) for run in runs if run.stretches]
    return curves(title, lines, y=y, zero=zero) if any(any(v is not None for v in line.y) for line in lines) else None


def run_legend(runs: Sequence[RunView]) -> Legend:
    """Colours are those of the numbers of runs; a run without intervals keeps its own."""
    labels = [""] * (runs[-1].number + 1)
    for run in runs:
        labels[run.number] = f"{run.name} ({run.policy})"
    return Legend(labels)


def per_step(name: str) -> Callable[[Stretch], float | None]:
    """A count of all tables, per step."""

    def value(stretch: Stretch) -> float | None:
        return float(getattr(stretch.whole, name)) / stretch.steps if stretch.steps else None

    return value


def _thinned(records: Sequence[Kind], most: int) -> list[Kind]:
    """Every n-th, and the last."""
    every = -(-len(records) // most) or 1
    return [*records[:-1:every], *records[-1:]]


def _of(records: Sequence[Record], kind: type[Kind]) -> list[Kind]:
    return [one for one in records if isinstance(one, kind)]
