"""Arrays of numbers as a `RowSource`: what splits, hashes and fits vocabularies for text does it for them, too.

A sample's line is its number in its file, from 1. Letters: R samples, D dense inputs, F features.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive.data.kernels import text as kernels
from adaptive.data.rows.rejects import BadLine
from adaptive.data.rows.row_source import (
    EVERYTHING,
    Block,
    Column,
    Piece,
    Position,
    Reading,
    RowFormat,
    RowReader,
    RowSource,
)

READ_ROWS = 1 << 14  # samples taken from a file at once


class Columns(NamedTuple):
    """Some samples: labels (R,), dense (R, D), keys (R, F), of whatever numbers the file has."""

    labels: NDArray[Any]
    dense: NDArray[Any]
    keys: NDArray[Any]

    def take(self, samples: slice | NDArray[np.bool_]) -> "Columns":
        return Columns(self.labels[samples], self.dense[samples], self.keys[samples])


class Samples(Piece, Protocol):
    """The samples of one file."""

    @property
    def num_rows(self) -> int: ...

    @property
    def num_dense(self) -> int: ...

    def rows(self, first: int, last: int) -> Columns:
        """Samples `first` to `last` - 1.

        Raises:
            InputError: if the file has changed since it was opened.
        """


def array_format(num_dense: int, num_features: int) -> RowFormat:
    """A label, `I1`, ... and `C1`, ..., as Criteo's format has them."""
    dense = tuple(Column(f"I{i + 1}", kernels.DENSE_FLOAT) for i in range(num_dense))
    keys = tuple(Column(f"C{i + 1}", kernels.KEY_INTEGER) for i in range(num_features))
    return RowFormat((Column("label", kernels.LABEL_BINARY), *dense, *keys))


@dataclass(frozen=True)
class ArraySource(RowSource):
    """Files of arrays. `modulo`: of ids, what is left of the division by it; None: ids as they are."""

    READ_ROWS: ClassVar[int] = READ_ROWS
    pieces: tuple[Samples, ...]
    modulo: int | None = None

    def open_reader(self, reading: Reading) -> "ArrayReader":
        assert reading.window == EVERYTHING, "arrays have no times"
        return ArrayReader(self, reading)


class ArrayReader(RowReader):
    """See `RowSource.reader`. A position's offset is the samples of its file before it."""

    def __init__(self, source: ArraySource, reading: Reading) -> None:
        self._source, self._left = source, list(reading.pieces)
        self._piece, self._at = reading.start.file, reading.start.offset
        self._behind = 0  # bytes on disk of the files that are used up

    def close(self) -> None:
        self._left = []

    def position(self) -> Position:
        return Position(self._piece, self._at, self._at + 1)

    def bytes_read(self) -> int:
        if not self._left or self._piece != self._left[0]:
            return self._behind
        samples = self._source.pieces[self._piece]
        return self._behind + samples.num_bytes * self._at // max(samples.num_rows, 1)

    def read(self, block: Block) -> int:
        row, room = 0, len(block.file_index)
        while row < room and self._left:
            samples = self._source.pieces[self._left[0]]
            if self._piece != self._left[0]:
                self._piece, self._at = self._left[0], 0
            size = min(room - row, samples.num_rows - self._at, READ_ROWS)
            if size:
                row += self._fill(samples.rows(self._at, self._at + size), block, row)
            else:
                self._behind += samples.num_bytes
                self._left.pop(0)
                if not self._left:
                    self._source.log.check()
        block.num_rows = row
        return row

    def _fill(self, samples: Columns, block: Block, first: int) -> int:
        """Write the samples whose label is 0 or 1 into the block, from row `first` on -> how many."""
        lines = np.arange(self._at + 1, self._at + len(samples.labels) + 1)
        good = (samples.labels == 0) | (samples.labels == 1)
        bad = [
            BadLine(int(lines[at]), kernels.CAUSES[kernels.LABEL], "label", str(samples.labels[at]).encode())
            for at in np.flatnonzero(~good)
        ]
        if bad:
            lines, samples = lines[good], samples.take(good)
        rows, columns = slice(first, first + len(lines)), block.columns
        columns.labels[rows], columns.dense[rows], columns.lines[rows] = samples.labels, samples.dense, lines
        keys = columns.keys[:, rows]
        keys[...] = samples.keys.T
        if self._source.modulo is not None:
            keys %= self._source.modulo
        columns.present[:, rows] = True
        block.file_index[rows] = self._piece
        self._at += len(good)
        self._source.log.count(self._piece, self._at, bad)
        return len(lines)
