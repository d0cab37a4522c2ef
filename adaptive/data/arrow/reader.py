"""`ArrowReader`: record batches in, blocks of rows out, as `TextReader` makes them of lines.

What record batches come from is a `Piece`: a row group of a file, or a frame in memory. A row's line is its number in
its piece, from 1.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from adaptive.data.arrow.damage import damage_told
from adaptive.data.arrow.fill import Filler
from adaptive.data.kernels import text as kernels
from adaptive.data.rows.format import Block, TextFormat
from adaptive.data.rows.rejects import BadLine, RejectLog
from adaptive.data.rows.row_source import EVERYTHING, DataFile, Keepers, Position, RowReader, RowSource

BATCH_ROWS = 1 << 14  # rows decoded at once: a few of Arrow's columns of so many fit the second-level cache


class Piece(ABC):
    """Some rows with one set of columns."""

    name: str
    num_rows: int
    num_bytes: int

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Record batches of these columns, in this order, of any size.

        Raises:
            InputError: if it cannot be read.
        """


@dataclass(frozen=True)
class ArrowSource(RowSource):
    """Pieces of columns in Arrow's format."""

    READ_ROWS: ClassVar[int] = BATCH_ROWS
    files: Sequence[DataFile]
    pieces: tuple[Piece, ...]
    formats: tuple[TextFormat, ...]
    log: RejectLog

    def names(self) -> tuple[str, ...]:
        return tuple(piece.name for piece in self.pieces)

    def size(self, piece: int) -> int:
        return self.pieces[piece].num_bytes

    def noted_in(self, log: RejectLog) -> Self:
        return replace(self, log=log)

    def reader(
        self,
        pieces: Sequence[int],
        *,
        start: Position | None = None,
        window: tuple[float, float] = EVERYTHING,
        keepers: Keepers | None = None,
    ) -> "ArrowReader":
        first = start or Position(file=pieces[0] if pieces else 0)
        return ArrowReader(self, pieces, first, window, keepers or {})


class ArrowReader(RowReader):
    """See `RowSource.reader`. A position's offset is the rows of its piece before it."""

    def __init__(
        self,
        source: ArrowSource,
        pieces: Sequence[int],
        start: Position,
        window: tuple[float, float],
        keepers: Keepers,
    ) -> None:
        self._source, self._start = source, start
        self._left = [piece for piece in pieces if piece >= start.file]
        self._fillers = {form: Filler(form, window, keepers) for form in dict.fromkeys(source.formats)}
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = None
        self._piece = start.file
        self._behind = 0  # bytes on disk of the pieces that are used up
        self._is_open = False
        self._used = start.offset  # rows of the piece that were read
        self._at = 0  # of which in the batch
        self._skipped = 0  # rows that are still to be passed over

    def close(self) -> None:
        self._batch, self._batches, self._left = None, iter(()), []

    def position(self) -> Position:
        return Position(self._piece, self._used, self._used + 1)

    def bytes_read(self) -> int:
        if not self._is_open:
            return self._behind
        piece = self._source.pieces[self._piece]
        return self._behind + piece.num_bytes * self._used // max(piece.num_rows, 1)

    def read(self, block: Block) -> int:
        row, room = 0, len(block.file_index)
        while row < room and (self._batch is not None or self._next_batch()):
            size = min(room - row, self._batch.num_rows - self._at, BATCH_ROWS)
            part = self._batch.slice(self._at, size)
            lines = np.arange(self._used + 1, self._used + size + 1)
            with damage_told(self._source.pieces[self._piece].name):
                filled = self._fillers[self._source.formats[self._piece]].fill(part, block, row)
            bad = [
                BadLine(int(lines[at]), kernels.CAUSES[cause], column.name, _text(part, column.name, at))
                for at, cause, column in filled.bad
            ]
            if len(filled.rows) < size:
                lines = lines[filled.rows]
            block.columns.lines[row : row + len(filled.rows)] = lines
            block.file_index[row : row + len(filled.rows)] = self._piece
            row += len(filled.rows)
            self._used, self._at = self._used + size, self._at + size
            if self._at == self._batch.num_rows:
                self._batch = None
            self._source.log.count(self._piece, self._used, bad)
        block.num_rows = row
        return row

    def _next_batch(self) -> bool:
        """Bring the next record batch with rows, from the next piece where this one is used up."""
        while True:
            batch = next(self._batches, None)
            if batch is None:
                if not self._next_piece():
                    return False
            elif batch.num_rows > self._skipped:
                self._batch, self._at, self._skipped = batch, self._skipped, 0
                return True
            else:
                self._skipped -= batch.num_rows

    def _next_piece(self) -> bool:
        if self._is_open:
            self._behind += self._source.size(self._piece)
        self._is_open = bool(self._left)
        if not self._left:
            self._source.log.check()
            return False
        self._piece = self._left.pop(0)
        self._used = self._start.offset if self._piece == self._start.file else 0
        self._skipped = self._used
        columns = self._source.formats[self._piece].columns
        self._batches = self._source.pieces[self._piece].batches([column.name for column in columns])
        return True


def _text(batch: Any, name: str, row: int) -> bytes:
    """What stands in a bad field."""
    scalar = batch.column(name)[row]
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError):  # not UTF-8, or a time that Python has not
        return bytes(scalar.as_buffer()) if hasattr(scalar, "as_buffer") else b""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")
