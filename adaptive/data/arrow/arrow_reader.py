"""`ArrowReader`: turn record batches into blocks of rows, as `TextReader` does with lines.

Record batches come from an `ArrowPiece`: a row group of a file, or a frame in memory. A row's line is its number in its
piece, from 1.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.data.arrow import arrow_values as types
from adaptive.data.arrow.arrow_values import States, ValueReader, Values
from adaptive.data.kernels import arrow as kernels
from adaptive.data.kernels import text
from adaptive.data.rows.rejects import BadLine
from adaptive.data.rows.row_source import Block, Column, PieceReader, Position, RowFormat, RowSource
from adaptive.errors import ConfigError

BATCH_ROWS = 1 << 14  # rows decoded at once: a few Arrow columns of this length fit the second-level cache


class Filled(NamedTuple):
    """The result for R rows: the rows written, and number, cause and column of each bad row."""

    rows: NDArray[np.int64]
    bad: list[tuple[int, int, Column]]


class _Bags(NamedTuple):
    """The values of a bag column: row r has the values [ends[r], ends[r + 1])."""

    values: Values
    ends: NDArray[np.int64]

    def states(self) -> States:
        """Return the state of each row: the first fault among its values, or OK."""
        out = np.zeros(len(self.ends) - 1, np.int8)
        bad = np.flatnonzero(self.values.states > 0)[::-1]  # of equal rows, the last assignment stays
        out[np.searchsorted(self.ends, bad, side="right") - 1] = self.values.states[bad]
        return out


class Filler:
    """Writes record batches with the columns of `form`, in order, into blocks."""

    def __init__(self, form: RowFormat, window: tuple[float, float]) -> None:
        self._form, self._window = form, window
        self._readers = [
            ValueReader(
                column.item if column.sort == "bags" else column.kind,
                form.max_line_bytes,
                form.null_keys(),
            )
            for column in form.columns
        ]
        self._slots, self._positives = form.slots(), form.layout().positives

    def fill(self, batch: Any, block: Block, first: int) -> Filled:
        """Write the good rows of a batch to a block, from row `first` on; there is room for all."""
        size = batch.num_rows
        where = slice(first, first + size)
        causes, at_fault = np.zeros(size, np.int8), np.zeros(size, np.int64)
        bags, is_inside = list[_Bags](), np.ones(size, np.bool_)
        for number, (column, reader) in enumerate(zip(self._form.columns, self._readers, strict=True)):
            array = batch.column(number)
            if column.sort == "bags":
                bags.append(_bags(array, reader, column))
                states = bags[-1].states()
            else:
                states = self._single(column, self._slots[number], reader.read(array), block, where)
            if states.max(initial=0) > 0:
                new = (states > 0) & (causes == 0)
                causes[new], at_fault[new] = states[new], number
            if column.sort == "time":
                times = block.columns.times[where]
                is_inside &= (self._window[0] <= times) & (times < self._window[1])
        rows = np.flatnonzero(is_inside & (causes == 0))
        if bags:
            _fill_bags(bags, rows, block, first)
        if len(rows) < size:
            _move(block, first, rows)
        bad = [(int(row), int(causes[row]), self._form.columns[at_fault[row]]) for row in np.flatnonzero(causes)]
        return Filled(rows, bad)

    def _single(self, column: Column, slot: int, values: Values, block: Block, where: slice) -> States:
        """Write a column of single values; return the states of its rows."""
        states, columns = values.states, block.columns
        if column.sort == "dense":
            out = columns.dense[where, slot]
            with np.errstate(over="ignore"):
                out[:] = np.where(states == text.OK, values.numbers, np.nan)
            return (
                states if column.kind == text.DENSE_INTEGER else np.where(np.isinf(out), np.int8(text.NUMBER), states)
            )
        if column.sort == "label":
            bad = self._labels(column, values, columns.labels[where])
            return np.where(bad | (states != text.OK), np.int8(text.LABEL), np.int8(text.OK))
        if column.sort == "time":
            columns.times[where] = values.numbers
            bad = ~np.isfinite(values.numbers)
            return np.where(bad | (states != text.OK), np.int8(text.TIME), np.int8(text.OK))
        columns.keys[slot, where] = values.keys
        np.equal(states, text.OK, out=columns.present[slot, where])
        return np.where(states == kernels.MISSING_VALUE, np.int8(text.MISSING), states) if column.required else states

    def _labels(self, column: Column, values: Values, out: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Write labels; return (R,) True for values that are not labels."""
        if column.kind == text.LABEL_SET:
            out[:] = np.isin(values.keys, self._positives)
            return np.zeros(len(out), np.bool_)
        if column.kind == text.LABEL_THRESHOLD:
            out[:] = values.numbers >= self._form.threshold
            return np.isnan(values.numbers)
        out[:] = values.numbers
        return np.asarray((out != 0) & (out != 1))


def _bags(array: Any, reader: ValueReader, column: Column) -> _Bags:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_text(array.type):
        array = pc.split_pattern(array.cast(pa.large_string()), pattern=column.inner)
    sizes = np.zeros(len(array), np.int64)
    if not pa.types.is_null(array.type):
        lengths = pc.list_value_length(array).fill_null(0)
        sizes, array = lengths.to_numpy(), pc.list_flatten(array)  # without values below nulls
    return _Bags(reader.read(array), np.concatenate([[0], np.cumsum(sizes)]))


def _fill_bags(bags: list[_Bags], rows: NDArray[np.int64], block: Block, first: int) -> None:
    """Write the bags of the good rows; their slots are in the order of the columns."""
    starts = np.cumsum([0, *(len(bag.values.keys) for bag in bags)])
    ends = np.stack([bag.ends + start for bag, start in zip(bags, starts[:-1], strict=True)])
    keys = np.concatenate([bag.values.keys for bag in bags])
    states = np.concatenate([bag.values.states for bag in bags])
    begin = int(block.columns.bag_ends[first * len(bags)])
    block.reserve_bags(begin + len(keys))
    kernels.fill_bags(rows, ends, keys, states, first, block.columns.bag_keys, block.columns.bag_ends)


def _move(block: Block, first: int, rows: NDArray[np.int64]) -> None:
    """Close the gaps of bad rows: move the good `rows`, counted from `first`, together."""
    source, target, columns = first + rows, slice(first, first + len(rows)), block.columns
    for by_row in (columns.labels, columns.dense, columns.times):
        by_row[target] = by_row[source]
    for by_column in (columns.keys, columns.present):
        by_column[:, target] = by_column[:, source]


@dataclass(frozen=True)
class ArrowPiece(ABC):
    """Some rows with one set of columns."""

    name: str
    num_rows: int
    num_bytes: int  # on disk

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of any size with these columns, in this order.

        Raises:
            InputError: if it cannot be read.
        """


@dataclass(frozen=True)
class ArrowSource(RowSource):
    """Pieces with columns in Arrow's format."""

    READ_ROWS: ClassVar[int] = BATCH_ROWS
    MOST_THREADS: ClassVar[int] = 1  # several are slower
    pieces: tuple[ArrowPiece, ...]

    def raw_rows(self, piece: int, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        try:
            for batch in self.pieces[piece].batches(list(dict.fromkeys(columns))):
                yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        except KeyError as error:
            raise ConfigError(
                f"{self.pieces[piece].name}: expected columns of the data, got {error} (--with)"
            ) from error

    def open_piece(self, start: Position, window: tuple[float, float]) -> "ArrowReader":
        return ArrowReader(self, start, window)


class ArrowReader(PieceReader):
    """Reads the rows of a piece. Offsets of positions are numbers of rows in it."""

    def __init__(self, source: ArrowSource, start: Position, window: tuple[float, float]) -> None:
        form = source.formats[start.file]
        self._number, self._piece, self._log = start.file, source.pieces[start.file], source.log
        self._filler = Filler(form, window)
        self._batches = self._piece.batches([column.name for column in form.columns])
        self._batch: Any = None
        self._used = start.offset  # rows of the piece read so far
        self._at = 0  # of them, rows of the current batch
        self._skipped = start.offset  # rows still to skip

    def close(self) -> None:
        self._batch, self._batches = None, iter(())

    def position(self) -> Position:
        return Position(self._number, self._used, self._used + 1)

    def bytes_read(self) -> int:
        return self._piece.num_bytes * self._used // max(self._piece.num_rows, 1)

    def read(self, block: Block, row: int) -> int:
        room = len(block.file_index)
        while row < room and (self._batch is not None or self._next_batch()):
            size = min(room - row, self._batch.num_rows - self._at, BATCH_ROWS)
            part = self._batch.slice(self._at, size)
            lines = np.arange(self._used + 1, self._used + size + 1)
            with types.report_damage(self._piece.name):
                rows, faults = self._filler.fill(part, block, row)
            bad = []
            for at, cause, column in faults:
                value = _text(part, column.name, at)
                bad.append(BadLine(int(lines[at]), text.CAUSES[cause], column.name, value, value))
            block.columns.lines[row : row + len(rows)] = lines if len(rows) == size else lines[rows]
            row += len(rows)
            self._used, self._at = self._used + size, self._at + size
            if self._at == self._batch.num_rows:
                self._batch = None
            self._log.count(self._number, self._used, bad)
        return row

    def _next_batch(self) -> bool:
        """Take the next record batch with rows that are not skipped; return False at the end."""
        for batch in self._batches:
            if batch.num_rows > self._skipped:
                self._batch, self._at, self._skipped = batch, self._skipped, 0
                return True
            self._skipped -= batch.num_rows
        return False


def _text(batch: Any, name: str, row: int) -> bytes:
    """Return the content of a bad field."""
    scalar = batch.column(name)[row]
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError):  # not UTF-8, or a time that Python cannot hold
        return bytes(scalar.as_buffer()) if hasattr(scalar, "as_buffer") else b""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")
