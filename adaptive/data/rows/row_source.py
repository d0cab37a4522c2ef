"""What the columns of a text file are, and the arrays into which the tokeniser writes them.

`RowSource`: what files of rows offer to all that splits, fits and makes batches, whatever their format.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from adaptive.data.kernels import text as kernels
from adaptive.data.kernels.text import Columns, Layout
from adaptive.data.kernels.text_fields import text as text_key
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.rows.vocabularies import TextKeeper

_CAUSE_OF_KIND = {
    kernels.SKIP: kernels.COLUMNS,  # an unreadable text has a wrong neighbour only
    kernels.DENSE_INTEGER: kernels.NUMBER,
    kernels.DENSE_FLOAT: kernels.NUMBER,
    kernels.KEY_HEX: kernels.HEX,
    kernels.KEY_INTEGER: kernels.NUMBER,
    kernels.KEY_TEXT: kernels.COLUMNS,
    kernels.LABEL_BINARY: kernels.LABEL,
    kernels.LABEL_THRESHOLD: kernels.LABEL,
    kernels.LABEL_SET: kernels.LABEL,
    kernels.TIME_NUMBER: kernels.TIME,
    kernels.TIME_ISO: kernels.TIME,
}
_LABELS = (kernels.LABEL_BINARY, kernels.LABEL_THRESHOLD, kernels.LABEL_SET)
_KEYS = (kernels.KEY_HEX, kernels.KEY_INTEGER, kernels.KEY_TEXT)


@dataclass(frozen=True)
class Column:
    """One column of a file: its name and one of the kinds of `adaptive.data.kernels.text`."""

    name: str
    kind: int
    item: int = kernels.SKIP  # kind of a bag's values
    inner: str = ""  # separator inside a bag
    required: bool = False
    is_label: bool = False  # a further label, read as a dense column is

    @property
    def cause(self) -> int:
        return _CAUSE_OF_KIND[self.item if self.kind == kernels.KEY_BAG else self.kind]


@dataclass(frozen=True)
class RowFormat:
    """How the lines of a file are laid out. Output columns of one sort are numbered in file order."""

    columns: tuple[Column, ...]
    separator: str = "\t"
    quote: str = ""  # "" = none
    header: bool = False
    max_line_bytes: int = 1 << 20
    positives: tuple[str, ...] = ()  # texts that make a label 1, where the rule is a set
    threshold: float = 0.0
    nulls: tuple[str, ...] = ()  # texts of missing values, besides the empty one

    def slot(self, name: str) -> int:
        """The number of a column among the output columns of its sort."""
        return self.slots()[next(number for number, column in enumerate(self.columns) if column.name == name)]

    def slots(self) -> list[int]:
        """Of each column, the number of those of its sort before it."""
        before: Counter[str] = Counter()
        found = []
        for column in self.columns:
            found.append(before[_sort(column.kind)])
            before[_sort(column.kind)] += 1
        return found

    def count(self, kind: int) -> int:
        """Output columns of the sort of `kind`."""
        return sum(_sort(column.kind) == _sort(kind) for column in self.columns)

    def key_columns(self) -> tuple[str, ...]:
        """Names of the columns of single categories."""
        return tuple(column.name for column in self.columns if column.kind in _KEYS)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """Names of the dense inputs, in the order of the output; further labels stand among them."""
        return tuple(column.name for column in self.columns if _sort(column.kind) == "dense" and not column.is_label)

    @property
    def is_labelled(self) -> bool:
        return any(column.kind in _LABELS for column in self.columns)

    def null_keys(self) -> NDArray[np.int64]:
        return np.array([key_of(text) for text in self.nulls], np.int64)

    def layout(self, time_from: float = -np.inf, time_to: float = np.inf) -> Layout:
        """The plan the tokeniser works by; rows with a time outside [time_from, time_to) are passed over."""
        plan = np.zeros((len(self.columns), kernels.PLAN_SIZE), np.int64)
        for entry, column, slot in zip(plan, self.columns, self.slots(), strict=True):
            entry[kernels.KIND] = column.kind
            entry[kernels.SLOT] = slot
            entry[kernels.ITEM] = column.item
            entry[kernels.INNER] = ord(column.inner) if column.inner else -1
            entry[kernels.REQUIRED] = column.required
            entry[kernels.CAUSE] = column.cause
        return Layout(
            plan=plan,
            positives=np.array([key_of(text) for text in self.positives], np.int64),
            nulls=self.null_keys(),
            separator=ord(self.separator),
            quote=ord(self.quote) if self.quote else -1,
            num_bags=self.count(kernels.KEY_BAG),
            max_line_bytes=self.max_line_bytes,
            threshold=float(self.threshold),
            time_from=float(time_from),
            time_to=float(time_to),
        )


def _sort(kind: int) -> str:
    """Which output array a kind goes to."""
    if kind in (kernels.DENSE_INTEGER, kernels.DENSE_FLOAT):
        return "dense"
    if kind in _KEYS:
        return "keys"
    return {kernels.KEY_BAG: "bags", kernels.SKIP: "none"}.get(kind, "one of a kind")


def key_of(text: str) -> int:
    """The key the tokeniser gives a text."""
    data = np.frombuffer(text.encode() + b"\n", np.uint8)
    return int(text_key(data, 0, -1, -1, -1)[0])


@dataclass
class Block:
    """Some rows as the tokeniser left them: the first `num_rows` entries of the arrays count."""

    columns: Columns
    file_index: NDArray[np.int32]
    num_rows: int = field(default=0)

    @classmethod
    def empty(cls, form: RowFormat, capacity: int) -> "Block":
        num_keys, num_bags = form.count(kernels.KEY_HEX), form.count(kernels.KEY_BAG)
        columns = Columns(
            labels=np.full(capacity, np.nan, np.float32),
            dense=np.empty((capacity, form.count(kernels.DENSE_FLOAT)), np.float32),
            keys=np.empty((num_keys, capacity), np.int64),
            present=np.empty((num_keys, capacity), np.bool_),
            bag_keys=np.empty(4 * capacity * num_bags, np.int64),
            bag_ends=np.zeros(capacity * num_bags + 1, np.int64),
            times=np.zeros(capacity, np.float64),
            lines=np.empty(capacity, np.int64),
            starts=np.empty(capacity, np.int64),
        )
        return cls(columns, np.empty(capacity, np.int32))

    def renewed(self) -> "Block":
        """The block with new arrays where batches share them (labels, dense, origin); the others are reused."""
        columns = self.columns._replace(
            labels=np.full_like(self.columns.labels, np.nan),
            dense=np.empty_like(self.columns.dense),
            lines=np.empty_like(self.columns.lines),
        )
        return Block(columns, np.empty_like(self.file_index))

    def grow_bags(self) -> None:
        """Twice the room for the values of bags."""
        more = np.empty(2 * len(self.columns.bag_keys) + 1024, np.int64)
        more[: len(self.columns.bag_keys)] = self.columns.bag_keys
        self.columns = self.columns._replace(bag_keys=more)


EVERYTHING = (-np.inf, np.inf)  # a window that no time is outside of


Keepers = Mapping[str, TextKeeper]  # by column


class Fingerprinted(Protocol):
    """What data come from, for the fingerprint."""

    def fingerprint(self) -> dict[str, object]: ...


@dataclass(frozen=True)
class Position:
    """A position between two rows: the next one is `line` (1 = first) of a piece, at an offset its reader knows."""

    file: int = 0
    offset: int = 0
    line: int = 1


class RowReader(ABC):
    """Reads the rows of some pieces of a source, one piece after another; a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def position(self) -> Position:
        """Where the next row is."""

    @abstractmethod
    def bytes_read(self) -> int:
        """Bytes on disk of its pieces up to where it reads, for estimates only: in the end all of them."""

    @abstractmethod
    def read(self, block: Block) -> int:
        """Fill a block from its first row on -> its rows, fewer than there is room for at the end of the data only.

        Raises:
            InputError: if a file cannot be read, or too many rows are bad.
        """


class RowSource(ABC):
    """Pieces of data whose rows become the same columns. A piece is a file of text or a row group of a Parquet file;
    its number indexes `formats` and `names()`."""

    READ_ROWS: ClassVar[int] = 1  # rows that are read at once, at least
    files: Sequence[Fingerprinted]
    formats: tuple[RowFormat, ...]
    log: RejectLog

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """How rows of a piece are told: `name:row`, rows from 1."""

    @abstractmethod
    def size(self, piece: int) -> int:
        """Bytes of a piece on disk; 0 where it is in memory."""

    @abstractmethod
    def noted_in(self, log: RejectLog) -> Self:
        """The same pieces; what is bad in them is told to another log."""

    @abstractmethod
    def reader(
        self,
        pieces: Sequence[int],
        *,
        start: Position | None = None,
        window: tuple[float, float] = EVERYTHING,
        keepers: Keepers | None = None,
    ) -> RowReader:
        """A reader of some pieces.

        Args:
            pieces: numbers, ascending.
            start: where to begin, in one of these pieces; pieces before it are left out.
            window: rows with a time outside [from, to) are passed over.
            keepers: are given the texts of these columns.
        """
