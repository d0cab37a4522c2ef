"""TensorBoard as a view of the record: which number of which record stands under which tag.

`metrics.jsonl` is the record; `view_from_metrics` makes the same view from it again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from adaptive.errors import InputError, OutputError
from adaptive.telemetry import events
from adaptive.telemetry.jsonl import read_metrics
from adaptive.telemetry.record import (
    EvalRecord,
    GuardRecord,
    IntervalRecord,
    Record,
    ResumeRecord,
    RunRecord,
    TableCounts,
    sum_tables,
)
from adaptive.telemetry.wording import guard_text

MAX_TABLES: Final = 32  # with tags of their own; the rest is one table called "other"
PERCENTILES: Final = (5, 50, 95)  # of a share over tables


class TensorBoardView:
    """Writes records as TensorBoard events. A failure to write never stops training (see `events.EventFile`).

    Tags: `train/*`, `eval/*`, `time/<stage>_ms`, `tier/<table>/*`, `saturated/<table>/*`, `policy/*`, `guard/*`, the
    histogram `update_norm`, the texts `config` and `guard/decision`, and a custom-scalars page "Tier movement".
    `<table>` is "all" for all tables together; of more than 32 tables the smaller ones are added up as "other".
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
        self._shown = {table_names[table]: _tag_name(table_names[table]) for table in largest}
        self._file = events.EventFile(directory, preamble=_layout(), purge_from=purge_from)

    @property
    def failures(self) -> int:
        """Writes that failed so far."""
        return self._file.failures

    def write(self, record: Record) -> None:
        """Show a record."""
        match record:
            case RunRecord():
                values, step = events.text("config", _indented(record.config)), 0
            case EvalRecord():
                numbers = {"eval/auc": record.auc, "eval/log_loss": record.log_loss, "eval/accuracy": record.accuracy}
                values, step = events.scalars(numbers), record.step
            case ResumeRecord():
                values, step = events.text("resumed", f"resumed after step {record.step}"), record.step
            case GuardRecord():
                values, step = _guard(record), record.step
            case IntervalRecord():
                values, step = self._interval(record), record.step
        self._file.add(values, step=step, wall_time=record.wall_time)

    def close(self) -> None:
        """Close the event file."""
        self._file.close()

    def _interval(self, record: IntervalRecord) -> list[Any]:
        numbers: dict[str, float | None] = {
            "train/loss": record.loss,
            "train/auc": record.auc,
            "train/log_loss": record.log_loss,
            "train/accuracy": record.accuracy,
            "train/samples_per_s": record.samples_per_s,
        }
        numbers |= {f"time/{stage}_ms": value for stage, value in record.time_ms.items()}
        numbers |= {f"policy/{name}": value for name, value in record.policy.items()}
        tables = list(record.tables.values())
        numbers |= _table_numbers("all", sum_tables(tables))
        numbers |= _spread("tier/all/hit_rate", [table.hit_rate for table in tables])
        numbers |= _spread("tier/all/row_hit_rate", [table.row_hit_rate for table in tables])
        for name, counts in self._by_tag(record.tables).items():
            numbers |= _table_numbers(name, counts)
        values = events.scalars(numbers)
        if record.update_norms is not None:
            values += events.histogram("update_norm", record.update_norms)
        return values

    def _by_tag(self, tables: dict[str, TableCounts]) -> dict[str, TableCounts]:
        shown = {tag: tables[name] for name, tag in self._shown.items() if name in tables}
        rest = [counts for name, counts in tables.items() if name not in self._shown]
        return shown | {"other": sum_tables(rest)} if rest else shown


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


def _guard(record: GuardRecord) -> list[Any]:
    numbers: dict[str, float | None] = {
        "guard/allowance": record.allowance,
        "guard/auc_difference": record.auc_difference,
        "guard/auc_change": record.auc_change,
        "guard/skipped_share": record.skipped_share,
    }
    for name in ("auc_difference", "auc_change"):
        low, high = getattr(record, f"{name}_ci") or (None, None)
        numbers |= {f"guard/{name}_low": low, f"guard/{name}_high": high}
    return events.scalars(numbers) + events.text("guard/decision", guard_text(record))


def _table_numbers(table: str, counts: TableCounts) -> dict[str, float | None]:
    tier, saturated = f"tier/{table}", f"saturated/{table}"
    return {
        f"{tier}/hit_rate": counts.hit_rate,
        f"{tier}/row_hit_rate": counts.row_hit_rate,
        f"{tier}/resident_rows": counts.resident_rows,
        f"{tier}/promoted": counts.promoted,
        f"{tier}/demoted": counts.demoted,
        f"{tier}/fetched_rows": counts.fetched,
        f"{tier}/written_back_rows": counts.written_back,
        f"{tier}/bytes_h2d": counts.bytes_h2d,
        f"{tier}/bytes_d2h": counts.bytes_d2h,
        f"{saturated}/rows": counts.saturated_rows,
        f"{saturated}/watched_rows": counts.watched_rows,
        f"{saturated}/judged_row_share": counts.judged_row_share,
        f"{saturated}/skipped_updates": counts.skipped_updates,
        f"{saturated}/skipped_update_share": counts.skipped_update_share,
        f"{saturated}/deferred_updates": counts.deferred_updates,
    }


def _spread(tag: str, shares: list[float | None]) -> dict[str, float | None]:
    known = [value for value in shares if value is not None]
    if not known:
        return {}
    values = np.percentile(known, PERCENTILES)
    return {f"{tag}_p{percentile}": float(value) for percentile, value in zip(PERCENTILES, values, strict=True)}


def _layout() -> list[Any]:
    """One page. Tables do not get charts of their own: with 26 of them nobody finds anything."""
    charts = [
        events.lines_chart("hit rate", ["tier/all/hit_rate", "tier/all/row_hit_rate"]),
        _spread_chart("look-up hit rate over tables (5, 50, 95 %)", "tier/all/hit_rate"),
        _spread_chart("row hit rate over tables (5, 50, 95 %)", "tier/all/row_hit_rate"),
        events.lines_chart("rows promoted and demoted", ["tier/all/promoted", "tier/all/demoted"]),
        events.lines_chart("bytes to the device and to the host", ["tier/all/bytes_h2d", "tier/all/bytes_d2h"]),
        events.lines_chart("resident rows", ["tier/all/resident_rows"]),
        events.lines_chart("saturated rows", ["saturated/all/rows"]),
        events.lines_chart("share of row updates not written", ["saturated/all/skipped_update_share"]),
        events.lines_chart("waiting (ms per step)", ["time/wait_ms"]),
    ]
    return events.layout({"Tier movement": charts})


def _spread_chart(title: str, tag: str) -> Any:
    lower, value, upper = (f"{tag}_p{percentile}" for percentile in PERCENTILES)
    return events.margin_chart(title, value=value, lower=lower, upper=upper)


def _tag_name(table: str) -> str:
    """The tag of a table, changed if it has the name of a sum over tables."""
    return f"{table}_table" if table in ("all", "other") else table


def _indented(config: str) -> str:
    return "".join(f"    {line}\n" for line in config.splitlines())
