"""Parquet files: `parquet:PATH[,PATH...]` with a schema. A piece is a row group, so that a bad value is told as
`FILE[row group 2]:17`, row groups from 0 as Parquet's tools count them, rows from 1 as lines are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from adaptive.data.arrow import arrow_values as types
from adaptive.data.arrow.arrow_reader import BATCH_ROWS, ArrowPiece, ArrowSource
from adaptive.data.arrow.arrow_values import (
    DamagedError,
    Types,
    check_readable,
    damage_told,
    describe_columns,
    first_line,
)
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.data.rows.data_files import DataFile, find_parts
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.rows.row_dataset import Opened, open_rows
from adaptive.data.text.schema import delimited_only, required_schema
from adaptive.errors import InputError

# Of texts in these encodings pyarrow can give the dictionary and the numbers of its entries, which saves reading
# equal texts again; with any other it refuses to.
_PLAIN = {"PLAIN", "RLE", "BIT_PACKED"}
_DICTIONARY = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}


def open_parquet(paths: str, options: DataOptions, run_dir: Path | None) -> Dataset:
    """The data set of `parquet:PATH[,PATH...]`."""
    schema = delimited_only("parquet:", required_schema("parquet", options.schema_path))
    types.pyarrow_or_error("parquet:")
    files, num_train = find_parts(paths, options.eval_data, list_folder=_in_folder)
    opened = [_Opened.of(file) for file in files]
    form, plan = describe_columns(schema, opened[0].types, options, what=files[0].name)
    for other in opened[1:]:
        check_readable(form, other.types, other.file.name)
    pieces = [piece for content in opened for piece in content.row_groups(form.key_columns())]
    log = RejectLog.of(tuple(piece.name for piece in pieces), options, run_dir, unit="rows")
    source = ArrowSource(files, tuple(pieces), (form,) * len(pieces), log)
    count = sum(len(content.groups) for content in opened[:num_train])
    return open_rows(Opened.of(source, count), plan, options, run_dir=run_dir)


def _in_folder(folder: Path) -> list[Path]:
    """All Parquet files of a folder and below, by path, but for names that begin with a dot or an underscore."""
    files = (file for file in folder.rglob("*.parquet") if file.is_file())
    return sorted(file for file in files if not any(part[0] in "._" for part in file.relative_to(folder).parts))


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
        with damage_told(self.name), _parquet_file(self.file, texts=self.texts) as opened:
            rows = 0
            # pyarrow gives columns in the order of the file
            for batch in opened.iter_batches(
                BATCH_ROWS, row_groups=[self.number], columns=list(columns), use_threads=False
            ):
                rows += batch.num_rows
                yield batch.select(list(columns))
            if rows != self.num_rows:
                raise DamagedError(f"it has {rows} rows, its footer says {self.num_rows}")


def _parquet_file(file: DataFile, texts: Sequence[str] = ()) -> Any:
    """The file, opened; pages that have a checksum are checked against it.

    Raises:
        InputError: if it is gone, another than when the data set was opened, or no Parquet file.
    """
    pyarrow = types.pyarrow_or_error("parquet:")
    from pyarrow import parquet

    try:
        file.require_unchanged(file.path.stat())
        return parquet.ParquetFile(file.path, read_dictionary=list(texts), page_checksum_verification=True)
    except (OSError, UnicodeDecodeError, OverflowError, pyarrow.ArrowException) as error:
        raise InputError(f"{file.path}: cannot be read as Parquet ({first_line(error)}); check the file") from error


class _Group(NamedTuple):
    """A row group's rows, its bytes on disk, and its columns that have a dictionary and no encodings but its own."""

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
        with damage_told(file.name), _parquet_file(file) as opened:
            groups = [_Group.of(opened.metadata.row_group(number)) for number in range(opened.num_row_groups)]
            schema = opened.schema_arrow
        return cls(file, types.types_of(schema, file.name), groups)

    def row_groups(self, keys: Sequence[str]) -> list[RowGroup]:
        """Its pieces; `keys` are the columns whose values are read as texts."""
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
