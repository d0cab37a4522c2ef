"""TensorBoard view of a run: events, and a page of charts. The record is `metrics.jsonl`."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from adaptive.training.telemetry import events
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import (
    SKIPPING,
    TIERS,
    TIME,
    TRAINING,
    EvalRecord,
    IntervalRecord,
    Numbers,
    Record,
    ResumeRecord,
    RunRecord,
    TableCounts,
    count_numbers,
    evaluation_numbers,
    interval_numbers,
    sum_tables,
)

MAX_TABLES: Final = 32  # with separate tags
OTHER: Final = "other"  # tag of the remaining tables together
UPDATE_NORM: Final = "update_norm"
PERCENTILES: Final = (5, 50, 95)  # of the tables' hit rates


class TensorBoardView:
    """Writes records as TensorBoard events; failed writes never stop training.

    `telemetry.record` defines the tags. Of more than 32 tables the smallest are shown together as "other". Counts of an
    interval are shown per step, since the last interval may be shorter. Numbers of skipping start with the first
    interval that has any, so runs that skip nothing have no flat lines.
    """

    def __init__(
        self,
        directory: Path,
        table_names: Sequence[str],
        table_rows: Sequence[int] | None = None,
        *,
        purge_from: int | None = None,
    ) -> None:
        """
        Args:
            directory: of the event file; created with the first record.
            table_names: all tables of the model, in order.
            table_rows: their numbers of rows, to choose the largest 32; default: the first 32 tables.
            purge_from: for a resumed run: hide events of earlier files from this step on.
        """
        sizes = np.zeros(len(table_names)) if table_rows is None else np.asarray(table_rows)
        assert len(sizes) == len(table_names), (len(sizes), len(table_names))
        largest = np.argsort(-sizes, kind="stable")[:MAX_TABLES]
        names = [table_names[table] for table in largest]
        self._shown = {name: f"{name}_table" if name == OTHER else name for name in names}  # table -> tag
        self._file = events.EventFile(directory, preamble=page(skips=False), purge_from=purge_from)
        self._step = 0  # of the latest interval
        self._skips = False
        self._pending = list[Record]()  # shown with the next record

    @classmethod
    def resumed(cls, directory: Path, table_rows: Mapping[str, int], metrics: Path, step: int) -> "TensorBoardView":
        """Return the view of a run that resumes after this step.

        Events of later steps in earlier files are hidden. The records of this step are shown again from the metrics:
        earlier files may not have them, or have an evaluation that the run repeats.
        """
        previous, last, skipped = 0, list[Record](), False
        for record in read_metrics(metrics) if metrics.exists() else ():
            if isinstance(record, IntervalRecord) and record.step < step:
                previous = record.step
                skipped = skipped or _has_skipping(sum_tables(list(record.tables.values())))
            if isinstance(record, IntervalRecord | EvalRecord) and record.step == step:
                last.append(record)
        purge_from = step if last else step + 1
        view = cls(directory, list(table_rows), list(table_rows.values()), purge_from=purge_from)
        view._step, view._pending, view._skips = previous, last, skipped
        if skipped:
            view._page_of_skipping()
        return view

    def write(self, record: Record) -> None:
        """Show a record."""
        shown, self._pending = [*self._pending, record], []
        for pending in shown:
            self._show(pending)

    def _show(self, record: Record) -> None:
        match record:
            case RunRecord():
                # Four spaces make it a block of code in Markdown.
                values, step = events.text("config", textwrap.indent(record.config, "    ")), 0
            case EvalRecord():
                values, step = events.scalars(evaluation_numbers(record)), record.step
            case ResumeRecord():
                values, step = events.text("resumed", f"resumed after step {record.step}"), record.step
                self._step = record.step
            case IntervalRecord():
                values, step = self._interval(record), record.step
        self._file.add(values, step=step, wall_time=record.wall_time)

    def close(self) -> None:
        """Close the event file."""
        self._file.close()

    def _interval(self, record: IntervalRecord) -> list[Any]:
        steps, self._step = max(record.step - self._step, 1), record.step
        tables = list(record.tables.values())
        begins = not self._skips and _has_skipping(sum_tables(tables))
        self._skips = self._skips or begins
        numbers = interval_numbers(record, steps, skips=self._skips) | _spread(tables)
        for name, counts in self._by_tag(record.tables).items():
            numbers |= count_numbers(counts, steps, name, skips=self._skips)
        values = events.scalars(numbers)
        if record.update_norms is not None:
            values += events.histogram(UPDATE_NORM, record.update_norms)
        return values + self._page_of_skipping() if begins else values

    def _page_of_skipping(self) -> list[Any]:
        """Return the layout with charts of skipping, also for later files."""
        self._file.preamble = page(skips=True)
        return self._file.preamble

    def _by_tag(self, tables: dict[str, TableCounts]) -> dict[str, TableCounts]:
        shown = {tag: tables[name] for name, tag in self._shown.items() if name in tables}
        rest = [counts for name, counts in tables.items() if name not in self._shown]
        return shown | {OTHER: sum_tables(rest)} if rest else shown


def _has_skipping(counts: TableCounts) -> bool:
    """True if there are hot rows or updates were skipped."""
    return counts.hot_rows > 0 or counts.skipped_updates > 0


def _spread(tables: Sequence[TableCounts]) -> Numbers:
    """Percentiles of the tables' hit rates."""
    numbers: Numbers = {}
    for rate in ("hit_rate", "row_hit_rate"):
        values = [value for value in (getattr(table, rate) for table in tables) if value is not None]
        if values:
            numbers |= zip(_spread_tags(rate), np.percentile(values, PERCENTILES).tolist(), strict=True)
    return numbers


def page(*, skips: bool) -> list[Any]:
    """Return the layout of the page "Tier movement".

    Each chart has one line: TensorBoard gives all lines of a run the same color. Values that may stay constant are
    bands, which TensorBoard does not smooth: smoothing would show rounding errors. Titles explain bands, since
    TensorBoard has no legend for them. `skips`: add charts of skipping, which would be empty without skipping.
    """
    low, middle, high = _spread_tags("hit_rate")
    charts = [
        events.line_chart("training loss (equal runs share one line)", f"{TRAINING}/loss"),
        events.line_chart("hit rate: share of lookups with their row on the device", f"{TIERS}/hit_rate"),
        events.line_chart("row hit rate: share of distinct rows on the device", f"{TIERS}/row_hit_rate"),
        events.line_chart("rows admitted to the device per step", f"{TIERS}/admitted_rows_per_step"),
        events.line_chart("rows evicted to the host per step", f"{TIERS}/evicted_rows_per_step"),
        events.line_chart("KiB moved to the device per step", f"{TIERS}/kib_to_device_per_step"),
        events.line_chart("KiB moved to the host per step", f"{TIERS}/kib_to_host_per_step"),
        events.line_chart("wait for rows (ms per step)", f"{TIME}/wait_ms"),
        _up_to("rows on the device (band: free slots)", f"{TIERS}/resident_rows", f"{TIERS}/device_rows"),
        events.margin_chart(
            "hit rate of the median table (band: 5% to 95% of tables)", lower=low, value=middle, upper=high
        ),
    ]
    if skips:
        charts += [
            events.line_chart("share of row updates skipped", f"{SKIPPING}/skipped_update_share"),
            _up_to("saturated rows (band: other popular rows)", f"{SKIPPING}/saturated_rows", f"{SKIPPING}/hot_rows"),
        ]
    return events.layout({"Tier movement": charts})


def _spread_tags(rate: str) -> tuple[str, ...]:
    return tuple(f"{TIERS}/{rate}_of_tables_p{percentile}" for percentile in PERCENTILES)


def _up_to(title: str, tag: str, most: str) -> Any:
    return events.margin_chart(title, value=tag, lower=tag, upper=most)
