"""Parquet files: `parquet:PATH[,PATH...]` with a schema.

A piece is a row group. The place of a value in messages is `FILE[row group 2]:17`, with row groups from 0, as Parquet's
tools number them, and rows from 1, like lines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from adaptive.data.arrow import arrow_values as types
from adaptive.data.arrow.arrow_reader import BATCH_ROWS, ArrowPiece, ArrowSource
from adaptive.data.arrow.arrow_values import (
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
            wanted = list(columns)
            # pyarrow returns columns in the order of the file
            for batch in opened.iter_batches(BATCH_ROWS, row_groups=[self.number], columns=wanted, use_threads=False):
                yield batch.select(wanted)


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
        with report_damage(file.name), _parquet_file(file) as opened:
            groups = [_Group.of(opened.metadata.row_group(number)) for number in range(opened.num_row_groups)]
            return cls(file, types.types_of(opened.schema_arrow, file.name), groups)

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
