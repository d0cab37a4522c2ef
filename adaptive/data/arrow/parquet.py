"""Parquet files: `parquet:PATH[,PATH...]` with a schema. A piece is a row group, so that a bad value is told as
`FILE[row group 2]:17`, row groups from 0 as Parquet's tools count them, rows from 1 as lines are.
"""

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive.data.arrow import arrow_types as types
from adaptive.data.arrow.arrow_reader import BATCH_ROWS, ArrowSource, Piece
from adaptive.data.arrow.arrow_types import DamagedError, damage_told, describe_columns, first_line, readable
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.data.rows.data_files import DataFile, find_file
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.rows.row_dataset import limits, open_rows
from adaptive.data.text.schema import DelimitedSchema, load_schema
from adaptive.errors import ConfigError, InputError

# Of texts in these encodings pyarrow can give the dictionary and the numbers of its entries, which saves reading
# equal texts again; with any other it refuses to.
_PLAIN = {"PLAIN", "RLE", "BIT_PACKED"}
_DICTIONARY = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}


def open_parquet(paths: str, options: DataOptions, *, run_dir: Path | None = None) -> Dataset:
    """The data set of `parquet:PATH[,PATH...]`; see `adaptive.data.open.open_dataset`."""
    types.pyarrow_or_error("parquet:")
    if options.schema_path is None:
        raise ConfigError(
            "parquet: needs a schema that says what the columns are: --schema FILE (data.schema_path); see docs/data.md"
        )
    schema = load_schema(options.schema_path)
    if not isinstance(schema, DelimitedSchema):
        raise ConfigError("parquet: the schema's format is user_items, lists in text files; describe columns instead")
    train = find_parquet(paths)
    files = train + (find_parquet(options.eval_data) if options.eval_data is not None else ())
    opened = [_Opened.of(file) for file in files]
    form, plan = describe_columns(schema, opened[0].types, options, what=f"{opened[0].file.path}")
    pieces = [piece for one in opened for piece in one.row_groups(form.key_columns())]
    for one in opened[1:]:
        readable(form, one.types, str(one.file.path))
    log = RejectLog(
        tuple(piece.name for piece in pieces), limits(options), run_dir and run_dir / "rejects.jsonl", unit="rows"
    )
    source = ArrowSource(files, tuple(pieces), (form,) * len(pieces), log)
    count = sum(len(one.groups) for one in opened[: len(train)])
    parts = tuple(range(count)), tuple(range(count, len(pieces)))
    return open_rows((source, *parts), plan, options, run_dir=run_dir)


def find_parquet(spec: str) -> tuple[DataFile, ...]:
    """Files named by `PATH[,PATH...]`: files, folders (all `.parquet` in them and below, by path), patterns.

    Names that begin with a dot or an underscore are left out of folders, as other tools do.

    Raises:
        InputError: if a file is missing, or a folder or pattern has none.
    """
    found: list[Path] = []
    for part in spec.split(","):
        path = Path(part.strip()).expanduser()
        if not part.strip():
            raise InputError(f"data {spec!r}: a path is empty; give PATH or PATH,PATH, a folder or a pattern")
        paths = [Path(match) for match in sorted(glob.glob(str(path)))] if _is_pattern(path) else [path]
        below = [file for one in paths for file in (_in_folder(one) if one.is_dir() else [one])]
        if not below:
            raise InputError(
                f"data: no .parquet file in {part.strip()!r}; check the path, and quote patterns in the shell"
            )
        found += below
    return tuple(find_file(path) for path in found)


def _is_pattern(path: Path) -> bool:
    return glob.has_magic(str(path)) and not path.exists()


def _in_folder(folder: Path) -> list[Path]:
    files = (file for file in folder.rglob("*.parquet") if file.is_file())
    return sorted(file for file in files if not any(part[0] in "._" for part in file.relative_to(folder).parts))


@dataclass(frozen=True)
class RowGroup(Piece):
    """A row group of a Parquet file.

    Args:
        texts: columns of texts to read as dictionaries, each text once.
    """

    name: str
    num_rows: int
    num_bytes: int  # on disk
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


@dataclass(frozen=True)
class _Opened:
    """A file whose footer has been read."""

    file: DataFile
    types: dict[str, Any]  # of its columns, by name
    groups: tuple[tuple[int, int, frozenset[str]], ...]  # of each row group its rows, bytes, columns with dictionaries

    @classmethod
    def of(cls, file: DataFile) -> "_Opened":
        with damage_told(str(file.path)), _parquet_file(file) as opened:
            groups = tuple(_contents(opened.metadata.row_group(number)) for number in range(opened.num_row_groups))
            schema = opened.schema_arrow
        kinds: dict[str, Any] = {}
        for field in schema:
            if field.name in kinds:
                raise InputError(f"{file.path}: column {field.name!r} comes twice")
            kinds[field.name] = field.type
        return cls(file, kinds, groups)

    def row_groups(self, keys: Sequence[str]) -> list[RowGroup]:
        """Its pieces; `keys` are the columns whose values are read as texts."""
        names = [name for name in keys if name in self.types and types.is_text(self.types[name])]
        return [
            RowGroup(
                f"{self.file.path}[row group {number}]",
                rows,
                size,
                self.file,
                number,
                tuple(name for name in names if name in dictionaries),
            )
            for number, (rows, size, dictionaries) in enumerate(self.groups)
        ]


def _contents(group: Any) -> tuple[int, int, frozenset[str]]:
    """A row group's rows, its bytes on disk, and its columns that have a dictionary and no encodings but its own."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    encodings = {chunk.path_in_schema: set(chunk.encodings) for chunk in chunks}
    dictionaries = {name for name, found in encodings.items() if found & _DICTIONARY and found <= _DICTIONARY | _PLAIN}
    return group.num_rows, sum(chunk.total_compressed_size for chunk in chunks), frozenset(dictionaries)
