"""The interfaces of all row formats: columns, blocks, readers, and their `RowSource`."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.data.kernels import text as kernels
from adaptive.data.kernels.text import Columns, Layout
from adaptive.data.kernels.text_fields import hash_text
from adaptive.data.rows.rejects import RejectLog

# For each kind: the sort of its output column, and the cause to report for an unreadable field.
_KINDS = {
    kernels.SKIP: ("none", kernels.COLUMNS),  # a text can only be unreadable because of its neighbors
    kernels.DENSE_INTEGER: ("dense", kernels.NUMBER),
    kernels.DENSE_FLOAT: ("dense", kernels.NUMBER),
    kernels.KEY_HEX: ("keys", kernels.HEX),
    kernels.KEY_INTEGER: ("keys", kernels.NUMBER),
    kernels.KEY_TEXT: ("keys", kernels.COLUMNS),
    kernels.LABEL_BINARY: ("label", kernels.LABEL),
    kernels.LABEL_THRESHOLD: ("label", kernels.LABEL),
    kernels.LABEL_SET: ("label", kernels.LABEL),
    kernels.TIME_NUMBER: ("time", kernels.TIME),
    kernels.TIME_ISO: ("time", kernels.TIME),
}
EVERYTHING = (-np.inf, np.inf)  # a window that no time is outside of


@dataclass(frozen=True)
class Column:
    """A column of a file: its name and its kind, one of `adaptive.data.kernels.text`."""

    name: str
    kind: int
    item: int = kernels.SKIP  # kind of a bag's values
    inner: str = ""  # separator inside a bag
    required: bool = False
    is_weight: bool = False  # the weight of samples, read as a dense column
    is_key: bool = False  # a category whose values, taken as they are, identify rows

    @property
    def sort(self) -> str:
        """The sort of output column: dense, keys, bags, label, time or none."""
        return "bags" if self.kind == kernels.KEY_BAG else _KINDS[self.kind][0]

    @property
    def cause(self) -> int:
        return _KINDS[self.item if self.kind == kernels.KEY_BAG else self.kind][1]


@dataclass(frozen=True)
class RowFormat:
    """The layout of a file's rows. Output columns of one sort are numbered in file order."""

    columns: tuple[Column, ...]
    separator: str = "\t"
    quote: str = ""  # "" = none
    header: bool = False
    max_line_bytes: int = 1 << 20
    positives: tuple[str, ...] = ()  # texts that make a label 1, for a label column of kind LABEL_SET
    threshold: float = 0.0
    nulls: tuple[str, ...] = ()  # texts of missing values, in addition to the empty text

    def slot(self, name: str) -> int:
        """Return the number of a column among the output columns of its sort."""
        return self.slots()[next(number for number, column in enumerate(self.columns) if column.name == name)]

    def slots(self) -> list[int]:
        """Return the slot of each column."""
        counts, slots = Counter[str](), []
        for column in self.columns:
            slots.append(counts[column.sort])
            counts[column.sort] += 1
        return slots

    def count(self, sort: str) -> int:
        """Return the number of output columns of a sort."""
        return sum(column.sort == sort for column in self.columns)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """Names of the dense inputs, in the order of the output, without the weight of samples."""
        return tuple(column.name for column in self.columns if column.sort == "dense" and not column.is_weight)

    @property
    def is_labelled(self) -> bool:
        return self.count("label") > 0

    def null_keys(self) -> NDArray[np.int64]:
        return np.array([key_of(text) for text in self.nulls], np.int64)

    def layout(self, time_from: float = -np.inf, time_to: float = np.inf) -> Layout:
        """Return the tokenizer's layout; it skips rows with a time outside the given window."""
        plan = np.zeros((len(self.columns), kernels.PLAN_SIZE), np.int64)
        for entry, column, slot in zip(plan, self.columns, self.slots(), strict=True):
            entry[kernels.KIND], entry[kernels.SLOT], entry[kernels.ITEM] = column.kind, slot, column.item
            entry[kernels.INNER] = ord(column.inner) if column.inner else -1
            entry[kernels.REQUIRED], entry[kernels.CAUSE] = column.required, column.cause
        return Layout(
            plan=plan,
            positives=np.array([key_of(text) for text in self.positives], np.int64),
            nulls=self.null_keys(),
            separator=ord(self.separator),
            quote=ord(self.quote) if self.quote else -1,
            num_bags=self.count("bags"),
            max_line_bytes=self.max_line_bytes,
            threshold=float(self.threshold),
            time_from=float(time_from),
            time_to=float(time_to),
        )


def key_of(text: str) -> int:
    """Return the tokenizer's key of a text."""
    data = np.frombuffer(text.encode() + b"\n", np.uint8)
    return int(hash_text(data, 0, -1, -1, -1)[0])


@dataclass
class Block:
    """Rows that a reader has filled in: the first `num_rows` entries of the arrays are valid."""

    columns: Columns
    file_index: NDArray[np.int32]
    num_rows: int = 0

    @classmethod
    def empty(cls, form: RowFormat, capacity: int) -> "Block":
        num_keys, num_bags = form.count("keys"), form.count("bags")
        columns = Columns(
            labels=np.full(capacity, np.nan, np.float32),
            dense=np.empty((capacity, form.count("dense")), np.float32),
            keys=np.empty((num_keys, capacity), np.int64),
            present=np.empty((num_keys, capacity), np.bool_),
            bag_keys=np.empty(4 * capacity * num_bags, np.int64),
            bag_ends=np.zeros(capacity * num_bags + 1, np.int64),
            times=np.zeros(capacity, np.float64),
            lines=np.empty(capacity, np.int64),
        )
        return cls(columns, np.empty(capacity, np.int32))

    def renewed(self) -> "Block":
        """Return the block with new arrays for those that batches share (labels, dense, origin)."""
        columns = self.columns._replace(
            labels=np.full_like(self.columns.labels, np.nan),
            dense=np.empty_like(self.columns.dense),
            lines=np.empty_like(self.columns.lines),
        )
        return Block(columns, np.empty_like(self.file_index))

    def reserve_bags(self, size: int) -> None:
        """Make room for `size` values of bags; grow by at least a factor of two."""
        keys = self.columns.bag_keys
        if len(keys) < size:
            more = np.empty(max(2 * len(keys) + 1024, size), np.int64)
            more[: len(keys)] = keys
            self.columns = self.columns._replace(bag_keys=more)


@dataclass(frozen=True)
class Position:
    """A position between two rows; the reader of the piece `file` knows the `offset`."""

    file: int = 0
    offset: int = 0
    line: int = 1


class PieceReader(ABC):
    """Reads the rows of one piece of a source, from a position on; for one thread."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def position(self) -> Position:
        """Return the position of the next row."""

    @abstractmethod
    def bytes_read(self) -> int:
        """Return the bytes of the piece on disk that were read so far, an estimate."""

    @abstractmethod
    def read(self, block: Block, row: int) -> int:
        """Fill a block from `row` on; return the row after the last one; less than there is room for only at the end.

        Raises:
            InputError: if the piece cannot be read, or too many rows are bad.
        """


class RowReader:
    """Reads some pieces of a source, one after another; for one thread. See `RowSource.reader`."""

    def __init__(
        self, source: "RowSource", pieces: Sequence[int], start: Position, window: tuple[float, float]
    ) -> None:
        self._source, self._left, self._window = source, [piece for piece in pieces if piece >= start.file], window
        self._position = start
        self._behind = 0  # bytes on disk of the finished pieces
        self._piece: PieceReader | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._left = []
        if self._piece is not None:
            self._piece.close()

    def position(self) -> Position:
        """Return the position of the next row."""
        return self._position if self._piece is None else self._piece.position()

    def bytes_read(self) -> int:
        """Return the bytes on disk read so far, an estimate; at the end, those of all pieces."""
        return self._behind + (0 if self._piece is None else self._piece.bytes_read())

    def read(self, block: Block) -> int:
        """Fill a block from its first row on; return its rows, fewer only at the end.

        Raises:
            InputError: if a file cannot be read, or too many rows are bad.
        """
        row, room = 0, len(block.file_index)
        while row < room and (self._piece is not None or self._next_piece()):
            assert self._piece is not None
            first, row = row, self._piece.read(block, row)
            self._position = self._piece.position()
            block.file_index[first:row] = self._position.file
            if row < room:
                self._behind += self._source.size([self._position.file])
                self._piece.close()
                self._piece = None
        block.num_rows = row
        return row

    def _next_piece(self) -> bool:
        if not self._left:
            self._source.log.check()
            return False
        piece = self._left.pop(0)
        start = self._position if self._position.file == piece else Position(piece)
        self._piece = self._source.open_piece(start, self._window)
        return True


class Fingerprinted(Protocol):
    """A file or a frame, as the origin of data."""

    def fingerprint(self) -> dict[str, object]: ...


class Piece(Protocol):
    """Rows that are read together: a text file, a row group, a frame."""

    @property
    def name(self) -> str:
        """Its name in messages: `name:row`, rows from 1."""

    @property
    def num_bytes(self) -> int:
        """Bytes on disk; 0 if it is in memory."""


class RawValues:
    """Values of columns, as they are in the data, for batches in the order of the data."""

    def __init__(self, source: "RowSource", columns: Sequence[str]) -> None:
        self._source, self._columns = source, columns
        self._piece, self._number = -1, 0
        self._rows: Iterator[Sequence[Any]] = iter(())

    def of(self, batch: Batch) -> list[Sequence[Any]]:
        """Return the values of each sample."""
        assert batch.origin is not None
        return list(map(self._row, batch.origin.file_index.tolist(), batch.origin.lines.tolist()))

    def _row(self, piece: int, line: int) -> Sequence[Any]:
        if piece != self._piece or line <= self._number:
            self._piece, self._number, self._rows = piece, 0, self._source.raw_rows(piece, self._columns)
        row: Sequence[Any] = ()
        while self._number < line:
            row, self._number = next(self._rows), self._number + 1
        return row


@dataclass(frozen=True)
class RowSource(ABC):
    """Pieces of data whose rows become the same columns; `formats` has the format of each."""

    READ_ROWS: ClassVar[int] = 1  # minimum number of rows to read at once
    MOST_THREADS: ClassVar[int] = 256  # that read it
    files: Sequence[Fingerprinted]
    pieces: Sequence[Piece]
    formats: tuple[RowFormat, ...]
    log: RejectLog

    def names(self) -> tuple[str, ...]:
        return tuple(piece.name for piece in self.pieces)

    @abstractmethod
    def raw_rows(self, piece: int, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        """Yield the values of columns of each row of a piece, or of each line of a file, as they are there.

        Raises:
            ConfigError: if there is no such column.
            InputError: if it cannot be read.
        """

    def size(self, pieces: Sequence[int]) -> int:
        """Return the bytes on disk of some pieces."""
        return sum(self.pieces[piece].num_bytes for piece in pieces)

    def noted_in(self, log: RejectLog) -> Self:
        """Return the same source with another log for bad rows."""
        return replace(self, log=log)

    def reader(
        self,
        pieces: Sequence[int],
        *,
        start: Position | None = None,
        window: tuple[float, float] = EVERYTHING,
    ) -> RowReader:
        """Open a reader of some pieces.

        Args:
            pieces: numbers, ascending.
            start: position to begin at, in one of these pieces; earlier pieces are skipped.
            window: rows with a time outside [from, to) are skipped.
        """
        return RowReader(self, pieces, start or Position(file=pieces[0] if pieces else 0), window)

    @abstractmethod
    def open_piece(self, start: Position, window: tuple[float, float]) -> PieceReader:
        """Open a reader of the piece `start.file`, from this position on."""
