"""A row group of a Parquet file as a piece: its columns decoded here where that is faster, by pyarrow where not."""

import os
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from adaptive.data.arrow import types
from adaptive.data.arrow.damage import damage_told, first_line
from adaptive.data.arrow.pages import Chunk, ColumnReader, read_chunk
from adaptive.data.arrow.reader import BATCH_ROWS, Piece
from adaptive.data.text.source import TextFile
from adaptive.errors import InputError


class RowGroup(Piece):
    """A row group of a Parquet file.

    Args:
        texts: columns that pyarrow, where it reads them, is to read as dictionaries.
    """

    def __init__(self, file: TextFile, number: int, num_rows: int, num_bytes: int, texts: tuple[str, ...]) -> None:
        self.name, self.num_rows, self.num_bytes = f"{file.path}[row group {number}]", num_rows, num_bytes
        self._file, self._number, self._texts = file, number, texts

    def batches(self, columns: Sequence[str], bags: Container[str]) -> Iterator[Any]:
        with damage_told(self.name), parquet_file(self._file, texts=self._texts) as found:
            single = [name for name in columns if name not in bags]
            readers = _decoders(self._file, found, self._number, single, self.name)
            others = [name for name in columns if name not in readers]
            if not others:
                yield _Rows(self, columns, readers, 0, found.metadata.row_group(self._number).num_rows, None)
                return
            row = 0
            batches = found.iter_batches(BATCH_ROWS, row_groups=[self._number], columns=others, use_threads=False)
            for batch in batches:
                yield _Rows(self, columns, readers, row, batch.num_rows, batch)
                row += batch.num_rows

    def column(self, name: str) -> Any:
        """A column as pyarrow reads it."""
        with damage_told(self.name), parquet_file(self._file) as found:
            return found.read_row_group(self._number, columns=[name], use_threads=False).column(0)


class _Rows:
    """Some rows of a row group, in the place of a record batch. Slices are taken front to back, each once."""

    def __init__(
        self,
        group: RowGroup,
        names: Sequence[str],
        readers: dict[str, ColumnReader],
        first: int,
        num_rows: int,
        others: Any,
    ) -> None:
        self._group, self._names, self._readers = group, names, readers
        self._first, self._others = first, others
        self.num_rows = num_rows
        self._texts: dict[str, Any] = {}

    def slice(self, at: int, size: int) -> "_Rows":
        others = None if self._others is None else self._others.slice(at, size)
        part = _Rows(self._group, self._names, self._readers, self._first + at, size, others)
        part._texts = self._texts
        return part

    def column(self, which: int | str) -> Any:
        """A column by number: a `ColumnReader`, at its place, or an Arrow array; by name: as pyarrow reads it."""
        if isinstance(which, str):
            if which not in self._texts:
                self._texts[which] = self._group.column(which)
            return self._texts[which].slice(self._first, self.num_rows)
        name = self._names[which]
        reader = self._readers.get(name)
        if reader is None:
            return self._others.column(name)
        reader.skip_to(self._first)
        return reader


def _decoders(file: TextFile, found: Any, number: int, columns: Sequence[str], where: str) -> dict[str, ColumnReader]:
    """Readers of those of the columns that are decoded here."""
    meta, fields = found.metadata.row_group(number), {field.name: field.type for field in found.schema_arrow}
    leaves = dict[str, list[int]]()
    for leaf in range(meta.num_columns):
        leaves.setdefault(found.schema.column(leaf).path, []).append(leaf)
    readers = dict[str, ColumnReader]()
    with ExitStack() as stack:
        handle = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, handle)
        for name in columns:
            if len(leaves.get(name, ())) != 1:
                continue
            leaf = leaves[name][0]
            chunk = Chunk.of(name, fields[name], found.schema.column(leaf), meta.column(leaf))
            if chunk is None or chunk.num_rows != meta.num_rows or chunk.start + chunk.size > file.size:
                continue
            data = read_chunk(chunk, lambda at, size, into: os.preadv(handle, [into[:size]], at))
            reader = chunk.pages(data, where) if data is not None else None
            if reader is not None:
                readers[name] = reader
    return readers


def parquet_file(file: TextFile, texts: Sequence[str] = ()) -> Any:
    """The file, opened.

    Raises:
        InputError: if it is gone, another than when the data set was opened, or no Parquet file.
    """
    pyarrow = types.pyarrow_or_error("parquet:")
    from pyarrow import parquet

    try:
        size = file.path.stat().st_size
        if size != file.size:
            raise InputError(
                f"{file.path}: has {size} bytes, had {file.size} when the data set was opened; data must not change "
                "during a run"
            )
        return parquet.ParquetFile(file.path, read_dictionary=list(texts))
    except (OSError, UnicodeDecodeError, OverflowError, pyarrow.ArrowException) as error:
        raise InputError(f"{file.path}: cannot be read as Parquet ({first_line(error)}); check the file") from error
