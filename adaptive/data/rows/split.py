"""Split rows into training and evaluation parts: by file, by last fraction, or by time.

A fraction needs the number of good rows, so all files are read once when the data set is opened (`survey`). This also
records the position of every 65,536th row, so that evaluation need not read from the beginning.
"""

import math
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from adaptive.data import PartRead, begin_reading
from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text as kernels
from adaptive.data.rows.parallel_reader import ParallelReader
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.rows.row_source import EVERYTHING, Block, Position, RowReader, RowSource
from adaptive.errors import InputError

MARK_ROWS = 1 << 16
MILLISECONDS = 1e11  # seconds since 1970 reach it in the year 5138, milliseconds in 1973
_LOOK_ROWS = 1 << 12


@dataclass(frozen=True)
class Split:
    """Rows of files: from `start`, without `skip`, up to `limit`, with a time in `window`.

    Attributes:
        num_rows: number of these rows, for estimates, if it is known and is not `limit`.
    """

    files: tuple[int, ...]
    start: Position | None = None
    skip: int = 0
    limit: int | None = None
    window: tuple[float, float] = EVERYTHING
    num_rows: int | None = None


@dataclass(frozen=True)
class Survey:
    """The number of good rows of some files, and marks: (rows before it, position)."""

    num_rows: int
    marks: tuple[tuple[int, Position], ...]


def survey(
    source: RowSource,
    files: tuple[int, ...],
    *,
    mark_rows: int = MARK_ROWS,
    window: tuple[float, float] = EVERYTHING,
    look: Callable[[Block], None] | None = None,
) -> Survey:
    """Read everything once and count rows.

    Args:
        look: is called with each block.

    Raises:
        InputError: if a file cannot be read, too many lines are bad, or there is no good row.
    """
    report = begin_reading()
    num_bytes = source.size(files)
    block, num_rows, marks = Block.empty(source.formats[files[0]], mark_rows), 0, []
    with source.reader(files, window=window) as reader:
        while True:
            marks.append((num_rows, reader.position()))
            rows = reader.read(block)
            num_rows += rows
            if look is not None and rows:
                look(block)
            report(reader.bytes_read(), num_bytes)
            if rows < mark_rows:
                break
    if not num_rows:
        names = ", ".join(source.names()[file] for file in files)
        causes = source.log.causes_text() or "no lines"
        raise InputError(f"{names}: expected rows, got no good one ({causes}). Check format and paths.")
    return Survey(num_rows, tuple(marks))


def split_last(counted: Survey, files: tuple[int, ...], fraction: float) -> tuple[Split, Split]:
    """Return the training rows, and the last `fraction` of the rows (rounded up)."""
    num_train = count_training(counted.num_rows, fraction)
    return Split(files, limit=num_train), _behind(counted, files, num_train)


def count_training(num_rows: int, holdout: float) -> int:
    """Return the number of rows before the last fraction; raise InputError if it is 0."""
    num_train = num_rows - math.ceil(num_rows * holdout)
    if not num_train:
        raise InputError(
            f"data.holdout: expected a share that leaves rows to train on, got {holdout:g} of {num_rows:,}. Lower it."
        )
    return num_train


def _behind(counted: Survey, files: tuple[int, ...], rows: int) -> Split:
    """Return all but the first `rows`."""
    marked, start = max(mark for mark in counted.marks if mark[0] <= rows)
    return Split(files, start=start, skip=rows - marked, num_rows=counted.num_rows - rows)


def split_time(files: tuple[int, ...], cut: float) -> tuple[Split, Split]:
    """Return the rows before the time `cut` for training, and the others for evaluation."""
    return Split(files, window=(-np.inf, cut)), Split(files, window=(cut, np.inf))


def check_time_split(source: RowSource, files: tuple[int, ...], cut: float, setting: object) -> None:
    """Check that some row has a time from `cut` on.

    Reads pieces from the last one on, up to the first such row.

    Args:
        setting: the setting as the user wrote it, for the message.

    Raises:
        InputError: if no row has; names the last time in the data. Also if a file cannot be read.
    """
    options = DataOptions(max_bad_fraction=1.0)  # training counts bad lines again
    quiet = source.noted_in(RejectLog(source.names(), options, None))
    last = -math.inf
    for piece in reversed(files):
        block = Block.empty(source.formats[piece], _LOOK_ROWS)
        with quiet.reader((piece,)) as reader:
            while rows := reader.read(block):
                last = max(last, float(block.columns.times[:rows].max()))
                if last >= 300 * cut > 0.3 * MILLISECONDS:  # units are a factor of 1,000 apart
                    raise InputError(
                        f"data.time_split: expected a time in the unit of the data, such as {last:.17g}, got "
                        f"{setting}, which seems to have a larger one. Multiply it."
                    )
                if last >= cut:
                    return
    if last > -math.inf:
        is_iso = any(column.kind == kernels.TIME_ISO for column in source.formats[files[0]].columns)
        shown = datetime.fromtimestamp(last, UTC).isoformat(" ") if is_iso else f"{last:.17g}"
        raise InputError(
            f"data.time_split: expected a time up to the last one in the data, {shown}, got {setting}, which leaves no "
            "row to evaluate on. Give an earlier time."
        )


def read_part(
    source: RowSource,
    part: Split,
    rows: int,
    *,
    threads: int = 1,
    report: Callable[[PartRead], None] = lambda read: None,
) -> Generator[Block, None, None]:
    """Yield the rows of a part in blocks of `rows`; only the last one may be smaller.

    A block is valid until the next.

    Args:
        threads: number of threads that read pieces in parallel; the blocks are the same.
        report: is called before each block.
    """
    form = source.formats[part.files[0]]
    reader: RowReader | ParallelReader
    if threads > 1 and len(part.files) > 1:
        reader = ParallelReader(source, part.files, start=part.start, window=part.window, threads=threads)
    else:
        reader = source.reader(part.files, start=part.start, window=part.window)
    with closing(reader):
        if part.skip:
            reader.read(Block.empty(form, part.skip))
        left = math.inf if part.limit is None else part.limit
        num_rows = part.num_rows if part.limit is None else part.limit
        num_bytes, done = source.size(part.files), 0
        block = Block.empty(form, int(min(rows, left)))
        while left and reader.read(block):
            done += block.num_rows
            report(
                PartRead(reader.bytes_read(), num_bytes, in_bytes=True)
                if num_rows is None
                else PartRead(done, num_rows)
            )
            yield block
            left -= block.num_rows
            block = block.renewed() if left >= rows else Block.empty(form, int(left))
