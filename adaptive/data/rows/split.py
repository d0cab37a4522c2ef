"""Which rows are for training and which for evaluation: by file, by last fraction, or by time.

A fraction needs the number of good rows, so all files are read once when the data set is opened (`survey`); in
passing this notes where every 65,536th row lies, so that evaluation starts there instead of at the beginning.
"""

import math
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from adaptive.data.kernels import text as kernels
from adaptive.data.reading_progress import PartRead, Told, reading_begins
from adaptive.data.rows.parallel_reader import ParallelReader
from adaptive.data.rows.rejects import Limits, RejectLog
from adaptive.data.rows.row_source import EVERYTHING, Block, Keepers, Position, RowReader, RowSource
from adaptive.errors import InputError

MARK_ROWS = 1 << 16
_LOOK_ROWS = 1 << 12


@dataclass(frozen=True)
class Split:
    """Rows of some files: from `start`, without the first `skip`, at most `limit`, with a time in `window`.

    Attributes:
        num_rows: how many these are, where that is known and `limit` does not say it; for estimates.
    """

    files: tuple[int, ...]
    start: Position | None = None
    skip: int = 0
    limit: int | None = None
    window: tuple[float, float] = EVERYTHING
    num_rows: int | None = None


@dataclass(frozen=True)
class Survey:
    """The good rows of some files, and positions between them: (rows before, position)."""

    num_rows: int
    marks: tuple[tuple[int, Position], ...]


def survey(
    source: RowSource,
    files: tuple[int, ...],
    *,
    mark_rows: int = MARK_ROWS,
    window: tuple[float, float] = EVERYTHING,
    look: Callable[[Block], None] | None = None,
    keepers: Keepers | None = None,
    report: Told | None = None,
) -> Survey:
    """Read everything once: count rows, let `look` see them and `keepers` the texts of their columns.

    Args:
        report: is called after each block of `mark_rows`; None: the listener (`reading_progress`).

    Raises:
        InputError: if a file cannot be read, too many lines are bad, or there is no good row.
    """
    report = report or reading_begins()
    num_bytes = source.size(files)
    block, num_rows, marks = Block.empty(source.formats[files[0]], mark_rows), 0, []
    with source.reader(files, window=window, keepers=keepers) as reader:
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
        raise InputError(f"no good row in {names}: {source.log.causes_text() or 'no lines'}; check format and paths")
    return Survey(num_rows, tuple(marks))


def split_last(counted: Survey, files: tuple[int, ...], fraction: float) -> tuple[Split, Split]:
    """Training rows and the last `fraction` of the rows (rounded up) for evaluation."""
    num_train = counted.num_rows - math.ceil(counted.num_rows * fraction)
    if not num_train:
        raise InputError(f"data.holdout = {fraction:g} of {counted.num_rows:,} rows leaves none for training; lower it")
    return Split(files, limit=num_train), _behind(counted, files, num_train)


def half(counted: Survey, whole: Split, which: str) -> Split:
    """The first half (rounded up) or the second of the rows of a split that ends with those of the survey of its files.

    Args:
        which: `first_half` or `second_half`.
    """
    first = 0 if whole.start is None else next(before for before, mark in counted.marks if mark == whole.start)
    first += whole.skip
    middle = first + (counted.num_rows - first + 1) // 2
    if which == "second_half" and middle == counted.num_rows:
        raise InputError(
            f"data.eval_part: expected two rows or more to take the second half of, got {counted.num_rows - first}. "
            "Keep more rows for evaluation."
        )
    if which == "first_half":
        return replace(whole, limit=middle - first, num_rows=None)
    return _behind(counted, whole.files, middle)


def _behind(counted: Survey, files: tuple[int, ...], rows: int) -> Split:
    """All but the first `rows`."""
    before, start = max(mark for mark in counted.marks if mark[0] <= rows)
    return Split(files, start=start, skip=rows - before, num_rows=counted.num_rows - rows)


def split_time(files: tuple[int, ...], cut: float) -> tuple[Split, Split]:
    """Rows before the time `cut` for training, those from it on for evaluation."""
    return Split(files, window=(-np.inf, cut)), Split(files, window=(cut, np.inf))


def check_time_split(source: RowSource, files: tuple[int, ...], cut: float, setting: object) -> None:
    """Check that rows have a time from `cut` on. Reads from the last file or row group on, up to the first such row.

    Args:
        setting: as it was given, for the message.

    Raises:
        InputError: if none has; names the last time in the data. Also if a file cannot be read.
    """
    quiet = source.noted_in(RejectLog(source.names(), Limits(1.0, 1.0), None))  # rows are read, and counted, later
    last = -math.inf
    for piece in reversed(files):
        block = Block.empty(source.formats[piece], _LOOK_ROWS)
        with quiet.reader((piece,)) as reader:
            while rows := reader.read(block):
                last = max(last, float(block.columns.times[:rows].max()))
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
    """The rows of a part in blocks of `rows`; only the last one may be smaller. A block is valid until the next.

    Args:
        threads: that read pieces side by side; the blocks are the same.
        report: is called before each block is given.
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
