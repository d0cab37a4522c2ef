"""Parquet files: `parquet:PATH[,PATH...]` with a schema.

A piece is a row group. The place of a value in messages is `FILE[row group 2]:17`, with row groups from 0, as Parquet's
tools number them, and rows from 1, like lines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from adaptive.data.arrow import arrow_values as types
from adaptive.data.arrow.arrow_reader import BATCH_ROWS, ArrowPiece, ArrowSource
from adaptive.data.arrow.arrow_values import (
    DamagedError,
    Types,
    check_readable,
    describe_columns,
    first_line,
    report_damage,
)
from adaptive.data.data_options import DataOptions
from adaptive.data.rows.data_files import DataFile, find_parts, names_below
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.rows.row_dataset import Opened, RowData
from adaptive.data.text.schema import required_schema
from adaptive.errors import InputError

# For texts in these encodings pyarrow can return the dictionary and its codes, so that equal texts are parsed once. For
# other encodings it refuses.
_PLAIN = {"PLAIN", "RLE", "BIT_PACKED"}
_DICTIONARY = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def open_parquet(paths: str, options: DataOptions, run_dir: Path | None) -> RowData:
    """Open the data set `parquet:PATH[,PATH...]`."""
    schema = required_schema("parquet", options.schema_path)
    types.pyarrow_or_error("data parquet")
    files, num_train = find_parts(paths, options.eval_data, list_folder=_in_folder)
    opened = [_Opened.of(file) for file in files]
    form, plan = describe_columns(schema, opened[0].types, options, what=files[0].name)
    for other in opened[1:]:
        check_readable(form, other.types, other.file.name)
    keys = [column.name for column in form.columns if column.sort == "keys"]
    pieces = [piece for content in opened for piece in content.row_groups(keys)]
    log = RejectLog(tuple(piece.name for piece in pieces), options, run_dir, unit="rows")
    source = ArrowSource(files, tuple(pieces), (form,) * len(pieces), log)
    count = sum(len(content.groups) for content in opened[:num_train])
    return RowData(Opened.of(source, count), plan)


def _in_folder(folder: Path) -> list[Path]:
    """Return all Parquet files in a folder and below, without hidden and temporary ones."""
    return [file for name in names_below(folder, (".parquet",)) if (file := folder / name).is_file()]


@dataclass(frozen=True)
class RowGroup(ArrowPiece):
    """A row group of a Parquet file.

    Args:
        texts: columns of texts to read as dictionaries, each text once.
    """

    file: DataFile
    number: int
    texts: tuple[str, ...]

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        with report_damage(self.name), _parquet_file(self.file, texts=self.texts) as opened:
            rows, held = 0, set(opened.schema_arrow.names)
            folders = {name: text for name, text in hive_columns(self.file.path).items() if name not in held}
            wanted = [name for name in columns if name not in folders]
            # pyarrow returns columns in the order of the file
            for batch in opened.iter_batches(BATCH_ROWS, row_groups=[self.number], columns=wanted, use_threads=False):
                rows += batch.num_rows
                for name in set(columns) & folders.keys():
                    batch = batch.append_column(name, _repeated(folders[name], batch.num_rows))
                yield batch.select(list(columns))
            if rows != self.num_rows:
                raise DamagedError(f"the footer promises {self.num_rows} rows, the file has {rows}")


def hive_columns(path: Path) -> dict[str, str | None]:
    """Return the columns that folders such as `dt=2026-11-28` name, and their one value each."""
    parts = (part.partition("=") for part in path.parts[:-1] if "=" in part)
    return {name: None if value == _HIVE_NULL else unquote(value) for name, _, value in parts if name}


def _repeated(value: str | None, count: int) -> Any:
    """Return a dictionary array of one text."""
    import pyarrow as pa

    codes = pa.array(np.zeros(count, np.int32), mask=None if value is not None else np.ones(count, np.bool_))
    return pa.DictionaryArray.from_arrays(codes, pa.array([value or ""]))


def _parquet_file(file: DataFile, texts: Sequence[str] = ()) -> Any:
    """Open a file; pages with a checksum are verified when they are read.

    Raises:
        InputError: if it is gone, has changed since the data set was opened, or is not a Parquet file.
    """
    pyarrow = types.pyarrow_or_error("data parquet")
    from pyarrow import parquet

    try:
        file.require_unchanged(file.path.stat())
        return parquet.ParquetFile(file.path, read_dictionary=list(texts), page_checksum_verification=True)
    except (OSError, UnicodeDecodeError, OverflowError, pyarrow.ArrowException) as error:
        raise InputError(f"{file.path}: expected a Parquet file, got {first_line(error)}. Check it.") from error


class _Group(NamedTuple):
    """A row group: rows, bytes on disk, and columns that are encoded by a dictionary only."""

    num_rows: int
    num_bytes: int
    dictionaries: frozenset[str]

    @classmethod
    def of(cls, group: Any) -> "_Group":
        chunks = [group.column(number) for number in range(group.num_columns)]
        encodings = {chunk.path_in_schema: set(chunk.encodings) for chunk in chunks}
        dictionaries = {name for name, used in encodings.items() if used & _DICTIONARY and used <= _DICTIONARY | _PLAIN}
        return cls(group.num_rows, sum(chunk.total_compressed_size for chunk in chunks), frozenset(dictionaries))


class _Opened(NamedTuple):
    """A file whose footer has been read."""

    file: DataFile
    types: Types
    groups: list[_Group]

    @classmethod
    def of(cls, file: DataFile) -> "_Opened":
        import pyarrow as pa

        with report_damage(file.name), _parquet_file(file) as opened:
            groups = [_Group.of(opened.metadata.row_group(number)) for number in range(opened.num_row_groups)]
            schema, num_rows, held = opened.schema_arrow, opened.metadata.num_rows, sum(one.num_rows for one in groups)
            if held != num_rows:
                raise DamagedError(f"the footer promises {num_rows} rows, its row groups have {held}")
            columns = {name: pa.dictionary(pa.int32(), pa.string()) for name in hive_columns(file.path)}
        return cls(file, {**columns, **types.types_of(schema, file.name)}, groups)

    def row_groups(self, keys: Sequence[str]) -> list[RowGroup]:
        """Return the row groups as pieces; `keys` are the columns whose values are read as texts."""
        texts = {name for name in keys if name in self.types and types.is_text(self.types[name])}
        return [
            RowGroup(
                f"{self.file.path}[row group {number}]",
                group.num_rows,
                group.num_bytes,
                self.file,
                number,
                tuple(sorted(texts & group.dictionaries)),
            )
            for number, group in enumerate(self.groups)
        ]
