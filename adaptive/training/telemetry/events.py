"""Write TensorBoard's event files in the calling thread.

torch's `SummaryWriter` writes in another thread, whose errors appear in the training thread some steps later, and makes
an event of each number. Here an interval is one event and one `write` call (1.8 ms for 26 tables, 1 ms of it for
TensorBoard's checksum), errors appear where they happen, and a failing file is replaced.
"""

import contextlib
import itertools
import logging
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from adaptive.training.telemetry.record import Histogram

_NAME: Final = "events.out.tfevents"
_TIME: Final = re.compile(r"events\.out\.tfevents\.([0-9]{1,12})\..*\.([0-9]{1,12})\.[0-9]+$")

logger = logging.getLogger(__name__)
_file_numbers = itertools.count()  # orders the files of one second


class EventFile:
    """Appends events to a file in a directory. A failing disk never stops training.

    A failed write loses its event; the first one logs a warning. The next event goes to a new file. Each file begins
    with the `preamble`, so every file is complete on its own.

    Attributes:
        lost: number of events that are in no file.
        preamble: first values of later files.
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
            values: results of `scalars`, `histogram` and so on.
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
        number = f"{os.getpid()}.{next(_file_numbers):06d}"
        return open(self.directory / f"{_NAME}.{self._second():010d}.{socket.gethostname()}.{number}", "xb")

    def _second(self) -> int:
        """Return the time for a new file's name, later than that of other processes' files.

        TensorBoard reads files in the order of their names, and the clock may have been set back.
        """
        matches = (_TIME.match(path.name) for path in self.directory.iterdir())
        latest = max((int(match[1]) for match in matches if match and int(match[2]) != os.getpid()), default=0)
        return max(int(time.time()), latest + 1)

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


def histogram(tag: str, values: Histogram) -> list[Any]:
    """Return a histogram without empty bins at both ends; an empty list if all bins are empty."""
    from tensorboard.compat.proto import histogram_pb2, summary_pb2

    filled = values.counts.nonzero()[0]
    if not len(filled):
        return []
    first, last = int(filled[0]), int(filled[-1])
    proto = histogram_pb2.HistogramProto(
        min=values.edges[first],
        max=values.edges[last + 1],
        num=int(values.counts.sum()),
        sum=values.sum,
        sum_squares=values.sum_squares,
        bucket_limit=values.edges[first + 1 : last + 2],
        bucket=values.counts[first : last + 1],
    )
    return [summary_pb2.Summary.Value(tag=tag, histo=proto)]


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
