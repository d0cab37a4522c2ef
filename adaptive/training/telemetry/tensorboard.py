"""TensorBoard as a view of the record: which number of which record stands under which tag.

`metrics.jsonl` is the record; `view_from_metrics` makes the same view from it again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from adaptive.errors import InputError, OutputError
from adaptive.training.telemetry import events, tags
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import (
    EvalRecord,
    GuardRecord,
    IntervalRecord,
    Record,
    ResumeRecord,
    RunRecord,
    TableCounts,
    sum_tables,
)
from adaptive.training.telemetry.report import crossed_numbers

MAX_TABLES: Final = 32  # with tags of their own; the rest is one table called "other"


class TensorBoardView:
    """Writes records as TensorBoard events. A failure to write never stops training (see `events.EventFile`).

    `tags` says what stands under which tag. Of more than 32 tables the smaller ones are added up as "other". Counts of
    an interval are shown per step, as its last interval may be shorter; numbers of skipping from the first interval on
    that has any, so a run that skips nothing has no flat zeros.
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
            directory: where the event file goes; made with the first record.
            table_names: all tables of the model, in order.
            table_rows: their sizes in rows, which say what the largest 32 are; without them the first 32 count so.
            purge_from: of a resumed run: hides what earlier files have from this step on.
        """
        sizes = np.zeros(len(table_names)) if table_rows is None else np.asarray(table_rows)
        assert len(sizes) == len(table_names), (len(sizes), len(table_names))
        largest = np.argsort(-sizes, kind="stable")[:MAX_TABLES]
        self._shown = {table_names[table]: tags.table_name(table_names[table]) for table in largest}
        self._file = events.EventFile(directory, preamble=tags.page(skips=False), purge_from=purge_from)
        self._step = 0  # of the latest interval
        self._skips = False
        self._before = list[Record]()  # shown before the next record, with which the file is made

    @classmethod
    def resumed(cls, directory: Path, table_rows: Mapping[str, int], metrics: Path, step: int) -> "TensorBoardView":
        """The view of a run that goes on after this step, which is shown anew from its metrics: earlier files may lack
        it, or have an evaluation that is made again. What they have of later steps is hidden."""
        before, last, skipped = 0, list[Record](), False
        for record in read_metrics(metrics) if metrics.exists() else ():
            if isinstance(record, IntervalRecord) and record.step < step:
                before = record.step
                skipped = skipped or _has_skipping(sum_tables(list(record.tables.values())))
            if isinstance(record, IntervalRecord | EvalRecord) and record.step == step:
                last.append(record)
        purge_from = step if last else step + 1
        view = cls(directory, list(table_rows), list(table_rows.values()), purge_from=purge_from)
        view._step, view._before, view._skips = before, last, skipped
        if skipped:
            view._page_of_skipping()
        return view

    @property
    def failures(self) -> int:
        """Writes that failed so far."""
        return self._file.failures

    def write(self, record: Record) -> None:
        """Show a record."""
        shown, self._before = [*self._before, record], []
        for one in shown:
            self._show(one)

    def _show(self, record: Record) -> None:
        match record:
            case RunRecord():
                values, step = events.text("config", _indented(record.config)), 0
            case EvalRecord():
                values, step = events.scalars(tags.evaluation(record)), record.step
            case ResumeRecord():
                values, step = events.text("resumed", f"resumed after step {record.step}"), record.step
                self._step = record.step
            case GuardRecord():
                values, step = events.scalars(tags.guard(record)) + tags.decision(record), record.step
            case IntervalRecord():
                values, step = self._interval(record), record.step
        self._file.add(values, step=step, wall_time=record.wall_time)

    def close(self) -> None:
        """Close the event file."""
        self._file.close()

    def _interval(self, record: IntervalRecord) -> list[Any]:
        steps, self._step = max(record.step - self._step, 1), record.step
        tables = list(record.tables.values())
        whole = sum_tables(tables)
        begins = not self._skips and _has_skipping(whole)
        self._skips = self._skips or begins
        numbers = tags.training(record) | tags.tiers(whole, record.device_rows, steps) | tags.spread(tables)
        numbers |= {f"{tags.TIME}/{stage}_ms": value for stage, value in record.time_ms.items()}
        numbers |= {f"{tags.POLICY}/{name}": value for name, value in record.policy.items()}
        if self._skips:
            numbers |= tags.skipping(whole)
        if len(record.ranks) > 1:
            numbers |= {f"{tags.RANKS}/{name}": value for name, value in crossed_numbers(record.ranks, steps).items()}
        for name, counts in self._by_tag(record.tables).items():
            numbers |= tags.table(name, counts, steps, skips=self._skips)
        values = events.scalars(numbers)
        if record.update_norms is not None:
            values += events.histogram(tags.UPDATE_NORM, record.update_norms)
        return values + self._page_of_skipping() if begins else values

    def _page_of_skipping(self) -> list[Any]:
        """The page with the charts of skipping, for this event and later files: TensorBoard takes the last one."""
        self._file.preamble = tags.page(skips=True)
        return self._file.preamble

    def _by_tag(self, tables: dict[str, TableCounts]) -> dict[str, TableCounts]:
        shown = {tag: tables[name] for name, tag in self._shown.items() if name in tables}
        rest = [counts for name, counts in tables.items() if name not in self._shown]
        return shown | {tags.OTHER: sum_tables(rest)} if rest else shown


def view_from_metrics(metrics: Path, directory: Path) -> int:
    """Make the TensorBoard view of a `metrics.jsonl`; returns the number of records shown.

    Raises:
        InputError: if the metrics cannot be read or do not begin with the run's own record.
        OutputError: if the directory already has event files (every point would stand there twice) or cannot be
            written.
    """
    records = read_metrics(metrics)
    if not records or not isinstance(records[0], RunRecord):
        raise InputError(f"{metrics}:1: the first record must be of kind 'run'; it names the tables")
    if any(directory.glob("events.out.tfevents.*")):
        raise OutputError(f"{directory}: already holds event files; choose another directory or remove them")
    tables = records[0].table_rows
    view = TensorBoardView(directory, list(tables), list(tables.values()))
    for record in records:
        view.write(record)
    view.close()
    if view.failures:
        raise OutputError(f"{directory}: the view could not be written in full; see the warning above")
    return len(records)


def _has_skipping(counts: TableCounts) -> bool:
    """Rows are watched, or updates were skipped."""
    return counts.watched_rows > 0 or counts.skipped_updates > 0


def _indented(config: str) -> str:
    return "".join(f"    {line}\n" for line in config.splitlines())
