"""TensorBoard's event files: values in, one file out, written in the calling thread.

torch's `SummaryWriter` hands events to a thread of its own, whose errors surface in the training thread some steps
later, and wraps each number in an event of its own. Here an interval is one event and one `write` call (1.8 ms for 26
tables, of which 1 is TensorBoard's checksum), errors surface where they happen, and a file that fails is replaced.
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

MAX_PAUSE: Final = 64  # events left out between two tries, at most

_NAME: Final = "events.out.tfevents"
_TIME: Final = re.compile(r"events\.out\.tfevents\.([0-9]{1,12})\..*\.([0-9]{1,12})\.[0-9]+$")

logger = logging.getLogger(__name__)
_file_numbers = itertools.count()  # two files of one second sort in the order of their making


class EventFile:
    """Appends events to a file in a directory. A disk that fails never stops training.

    After a failed write one warning is logged and the event is lost; a new file is tried with the next event, then
    after 2, 4, ... and at most 64 events. Each file begins with the `preamble`, so that one is enough to look at.

    Attributes:
        failures: writes that failed.
        lost: events that are in no file.
        preamble: of files that are yet to be begun.
    """

    def __init__(self, directory: Path, preamble: Sequence[Any] = (), *, purge_from: int | None = None) -> None:
        """Nothing is written yet. `preamble`: `Summary.Value`s without a step, such as the layout; `purge_from`: what
        earlier files of the directory have from that step on is not shown."""
        # Imported late because it takes 0.2 s, which only runs that write events should pay.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.directory = directory
        self.failures = 0
        self.lost = 0
        self._event, self._summary, self._record_writer = event_pb2.Event, summary_pb2.Summary, RecordWriter
        self.preamble = list(preamble)
        self._purge_from = purge_from  # until it has been said
        self._file: BinaryIO | None = None
        self._tries = 0  # failures since the last event that was written
        self._pause = 0  # events still to leave out before the next try

    def add(self, values: Sequence[Any], *, step: int, wall_time: float) -> None:
        """Write one event of `Summary.Value`s.

        Args:
            values: what `scalars`, `histogram` and so on make.
            step: batches trained.
            wall_time: seconds since 1970.
        """
        if self._pause:
            self._pause -= 1
            self.lost += 1
            return
        try:
            self._write(self._event(step=step, wall_time=wall_time, summary=self._summary(value=values)), wall_time)
        except OSError as error:
            self._fail(error)
        else:
            self._tries = 0

    def close(self) -> None:
        """Close the file. A warning says how many events it lacks."""
        self._drop_file()
        if self.lost:
            logger.warning("%s lacks %d event(s); metrics.jsonl is the record", self.directory, self.lost)

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
        elif not os.path.exists(self._file.name):  # a removed file takes writes without an error
            raise FileNotFoundError(f"{self._file.name} was removed")
        self._put(event)
        self._file.flush()

    def _open(self) -> BinaryIO:
        self.directory.mkdir(parents=True, exist_ok=True)
        number = f"{os.getpid()}.{next(_file_numbers):06d}"
        return open(self.directory / f"{_NAME}.{self._second():010d}.{socket.gethostname()}.{number}", "xb")

    def _second(self) -> int:
        """The time in a new file's name: TensorBoard reads files in the order of their names, so it is later than that
        of an earlier process's files, also where the clock was put back."""
        matches = (_TIME.match(path.name) for path in self.directory.iterdir())
        latest = max((int(match[1]) for match in matches if match and int(match[2]) != os.getpid()), default=0)
        return max(int(time.time()), latest + 1)

    def _put(self, event: Any) -> None:
        self._record_writer(self._file).write(event.SerializeToString())

    def _fail(self, error: OSError) -> None:
        self._drop_file()
        self._pause = min(2**self._tries, MAX_PAUSE) - 1
        self._tries += 1
        self.failures += 1
        self.lost += 1
        if self.failures == 1:
            logger.warning("%s: %s; training goes on, a new event file will be tried", self.directory, error)

    def _drop_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # each event was flushed before, or counted as lost
                file.close()


def scalars(numbers: Mapping[str, float | None]) -> list[Any]:
    """`Summary.Value`s of the numbers by tag; those that are None are left out. TensorBoard keeps float32."""
    from tensorboard.compat.proto import summary_pb2

    value = summary_pb2.Summary.Value
    return [value(tag=tag, simple_value=number) for tag, number in numbers.items() if number is not None]


def histogram(tag: str, values: Histogram) -> list[Any]:
    """A histogram made of bins, cut to those that hold something; nothing if none does."""
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
    """A text, shown as Markdown; indent by four spaces what should stay as it is."""
    return [_string_value(tag, content.encode(), "text", shape=(1,))]


def layout(categories: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The page layout of the custom scalars dashboard: charts by category."""
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    pages = [layout_pb2.Category(title=title, chart=charts) for title, charts in categories.items()]
    content = layout_pb2.Layout(category=pages).SerializeToString()
    return [_string_value(metadata.CONFIG_SUMMARY_TAG, content, metadata.PLUGIN_NAME, shape=())]


def line_chart(title: str, tag: str) -> Any:
    """A chart of one line."""
    from tensorboard.plugins.custom_scalar import layout_pb2

    # The dashboard takes the tag for a regular expression that must match the beginning.
    return layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=[f"^{tag}$"]))


def margin_chart(title: str, *, value: str, lower: str, upper: str) -> Any:
    """A chart of one line between two bounds."""
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
