"""`RowSource`: what files of rows offer to all that splits, fits and makes batches, whatever their format."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import numpy as np

from adaptive.data.rows.format import Block, TextFormat
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.rows.texts import TextKeeper

EVERYTHING = (-np.inf, np.inf)  # a window that no time is outside of


Keepers = Mapping[str, TextKeeper]  # by column


class DataFile(Protocol):
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
    files: Sequence[DataFile]
    formats: tuple[TextFormat, ...]
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
