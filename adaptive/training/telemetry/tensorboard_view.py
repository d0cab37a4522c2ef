"""TensorBoard view of a run: events, and a page of charts. The record is `metrics.jsonl`.

torch's `SummaryWriter` writes in another thread, whose errors appear in the training thread some steps later, and makes
an event of each number. Here an interval is one event and one `write` call (1.8 ms for 26 tables, 1 ms of it for
TensorBoard's checksum), errors appear where they happen, and a failing file is replaced.
"""

import contextlib
import logging
import os
import socket
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

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
OTHER: Final = "(other tables)"  # tag of the remaining tables together
PERCENTILES: Final = (5, 50, 95)  # of the tables' hit rates


class TensorBoardView:
    """Writes records as TensorBoard events; failed writes never stop training.

    `telemetry.record` defines the tags. Of more than 32 tables the smallest are shown together. Counts of an interval
    are shown per step, since the last interval may be shorter.
    """

    def __init__(
        self, directory: Path, table_rows: Mapping[str, int], *, skips: bool, purge_from: int | None = None
    ) -> None:
        """
        Args:
            directory: of the event file; created with the first record.
            table_rows: all tables of the model, in order, with their numbers of rows.
            skips: show numbers of skipping; without a skip rule they would be flat lines.
            purge_from: for a resumed run: hide events of earlier files from this step on.
        """
        self._shown = sorted(table_rows, key=lambda name: -table_rows[name])[:MAX_TABLES]
        self._file = EventFile(directory, preamble=page(skips=skips), purge_from=purge_from)
        self._step = 0  # of the latest interval
        self._skips = skips
        self._pending = list[Record]()  # shown with the next record

    @classmethod
    def resumed(
        cls, directory: Path, table_rows: Mapping[str, int], metrics: Path, step: int, *, skips: bool
    ) -> "TensorBoardView":
        """Return the view of a run that resumes after this step.

        Events of later steps in earlier files are hidden. The records of this step are shown again from the metrics:
        earlier files may not have them, or have an evaluation that the run repeats.
        """
        previous, last = 0, list[Record]()
        for record in read_metrics(metrics) if metrics.exists() else ():
            if isinstance(record, IntervalRecord) and record.step < step:
                previous = record.step
            if isinstance(record, IntervalRecord | EvalRecord) and record.step == step:
                last.append(record)
        view = cls(directory, table_rows, skips=skips, purge_from=step if last else step + 1)
        view._step, view._pending = previous, last
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
                values, step = text("config", textwrap.indent(record.config, "    ")), 0
            case EvalRecord():
                values, step = scalars(evaluation_numbers(record)), record.step
            case ResumeRecord():
                values, step = text("resumed", f"resumed after step {record.step}"), record.step
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
        numbers = interval_numbers(record, steps, skips=self._skips) | _spread(tables)
        shown = {name: record.tables[name] for name in self._shown if name in record.tables}
        if rest := [counts for name, counts in record.tables.items() if name not in shown]:
            shown[OTHER] = sum_tables(rest)
        for name, counts in shown.items():
            numbers |= count_numbers(counts, steps, name, skips=self._skips)
        return scalars(numbers)


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
        line_chart("training loss (equal runs share one line)", f"{TRAINING}/loss"),
        line_chart("hit rate: share of lookups with their row on the device", f"{TIERS}/hit_rate"),
        line_chart("row hit rate: share of distinct rows on the device", f"{TIERS}/row_hit_rate"),
        line_chart("rows admitted to the device per step", f"{TIERS}/admitted_rows_per_step"),
        line_chart("rows evicted to the host per step", f"{TIERS}/evicted_rows_per_step"),
        line_chart("KiB moved to the device per step", f"{TIERS}/kib_to_device_per_step"),
        line_chart("KiB moved to the host per step", f"{TIERS}/kib_to_host_per_step"),
        line_chart("wait for rows (ms per step)", f"{TIME}/wait_ms"),
        _up_to("rows on the device (band: free slots)", f"{TIERS}/resident_rows", f"{TIERS}/device_rows"),
        margin_chart("hit rate of the median table (band: 5% to 95% of tables)", lower=low, value=middle, upper=high),
    ]
    if skips:
        charts += [
            line_chart("share of row updates skipped", f"{SKIPPING}/skipped_update_share"),
            _up_to("saturated rows (band: other popular rows)", f"{SKIPPING}/saturated_rows", f"{SKIPPING}/hot_rows"),
        ]
    return layout({"Tier movement": charts})


def _spread_tags(rate: str) -> tuple[str, ...]:
    return tuple(f"{TIERS}/{rate}_of_tables_p{percentile}" for percentile in PERCENTILES)


def _up_to(title: str, tag: str, most: str) -> Any:
    return margin_chart(title, value=tag, lower=tag, upper=most)


# --- event files ------------------------------------------------------------------------------------------------------

_NAME: Final = "events.out.tfevents"

logger = logging.getLogger(__name__)


class EventFile:
    """Appends events to a file in a directory. A failing disk never stops training.

    A failed write loses its event; the first one logs a warning. The next event goes to a new file. Each file begins
    with the `preamble`, so every file is complete on its own.

    Attributes:
        lost: number of events that are in no file.
    """

    def __init__(self, directory: Path, preamble: Sequence[Any] = (), *, purge_from: int | None = None) -> None:
        """
        Args:
            directory: created with the first event.
            preamble: `Summary.Value`s without a step, such as the layout.
            purge_from: TensorBoard hides events of earlier files from this step on.
        """
        # Imported here: it takes 0.2 s, which only runs with events need.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.directory = directory
        self.lost = 0
        self._event, self._summary, self._record_writer = event_pb2.Event, summary_pb2.Summary, RecordWriter
        self.preamble = list(preamble)
        self._purge_from = purge_from  # None once it is written
        self._file: BinaryIO | None = None

    def add(self, values: Sequence[Any], *, step: int, wall_time: float) -> None:
        """Write one event of `Summary.Value`s.

        Args:
            values: results of `scalars` and so on.
            step: batches trained.
            wall_time: seconds since 1970.
        """
        try:
            self._write(self._event(step=step, wall_time=wall_time, summary=self._summary(value=values)), wall_time)
        except OSError as error:
            self._drop_file()
            if not self.lost:
                logger.warning("%s: %s; training continues, the next event goes to a new file", self.directory, error)
            self.lost += 1

    def close(self) -> None:
        """Close the file; log the number of lost events as a warning."""
        self._drop_file()
        if self.lost:
            logger.warning("%s: lost %d event(s); metrics.jsonl has all records", self.directory, self.lost)

    def _write(self, event: Any, wall_time: float) -> None:
        if self._file is None:
            self._file = self._open()
            self._put(self._event(wall_time=wall_time, file_version="brain.Event:2"))
            if self._purge_from is not None:
                start = {"status": "START"}
                self._put(self._event(wall_time=wall_time, step=self._purge_from, session_log=start))
                self._purge_from = None
            if self.preamble:
                self._put(self._event(wall_time=wall_time, summary=self._summary(value=self.preamble)))
        elif not os.path.exists(self._file.name):  # writes to a removed file succeed
            raise FileNotFoundError(f"{self._file.name} was removed")
        self._put(event)
        self._file.flush()

    def _open(self) -> BinaryIO:
        self.directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names.
        return open(self.directory / f"{_NAME}.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}", "xb")

    def _put(self, event: Any) -> None:
        self._record_writer(self._file).write(event.SerializeToString())

    def _drop_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # each event is already flushed or counted as lost
                file.close()


def scalars(numbers: Mapping[str, float | None]) -> list[Any]:
    """Return `Summary.Value`s (float32) of tag -> number, without None."""
    from tensorboard.compat.proto import summary_pb2

    value = summary_pb2.Summary.Value
    return [value(tag=tag, simple_value=number) for tag, number in numbers.items() if number is not None]


def text(tag: str, content: str) -> list[Any]:
    """Return a text, which TensorBoard shows as Markdown."""
    return [_string_value(tag, content.encode(), "text", shape=(1,))]


def layout(categories: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return the layout of the custom scalars dashboard from charts by category."""
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    pages = [layout_pb2.Category(title=title, chart=charts) for title, charts in categories.items()]
    content = layout_pb2.Layout(category=pages).SerializeToString()
    return [_string_value(metadata.CONFIG_SUMMARY_TAG, content, metadata.PLUGIN_NAME, shape=())]


def line_chart(title: str, tag: str) -> Any:
    """Return a chart of one line."""
    from tensorboard.plugins.custom_scalar import layout_pb2

    # The dashboard matches the tag as a regular expression at the beginning.
    return layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=[f"^{tag}$"]))


def margin_chart(title: str, *, value: str, lower: str, upper: str) -> Any:
    """Return a chart of one line between two bounds."""
    from tensorboard.plugins.custom_scalar import layout_pb2

    series = layout_pb2.MarginChartContent.Series(value=value, lower=lower, upper=upper)
    return layout_pb2.Chart(title=title, margin=layout_pb2.MarginChartContent(series=[series]))


def _string_value(tag: str, content: bytes, plugin: str, *, shape: tuple[int, ...]) -> Any:
    from tensorboard.compat.proto import summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2

    dims = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in shape]
    tensor = tensor_pb2.TensorProto(
        dtype=types_pb2.DT_STRING,
        string_val=[content],
        tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=dims),
    )
    plugin_data = summary_pb2.SummaryMetadata.PluginData(plugin_name=plugin)
    metadata = summary_pb2.SummaryMetadata(plugin_data=plugin_data)
    return summary_pb2.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)
