"""Parquet files: `parquet:PATH[,PATH...]` with a schema. A piece is a row group, so that a bad value is told as
`FILE[row group 2]:17`, row groups from 0 as Parquet's tools count them, rows from 1 as lines are.
"""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive.data.arrow import types
from adaptive.data.arrow.damage import damage_told
from adaptive.data.arrow.describe import describe_columns, readable
from adaptive.data.arrow.reader import ArrowSource
from adaptive.data.arrow.row_group import RowGroup, parquet_file
from adaptive.data.dataset import Dataset
from adaptive.data.options import DataOptions
from adaptive.data.text.assemble import limits, open_text
from adaptive.data.text.rejects import RejectLog
from adaptive.data.text.schema import DelimitedSchema, load_schema
from adaptive.data.text.source import TextFile, find_file
from adaptive.errors import ConfigError, InputError


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
    count = sum(one.num_groups for one in opened[: len(train)])
    parts = tuple(range(count)), tuple(range(count, len(pieces)))
    return open_text((source, *parts), plan, options, run_dir=run_dir)


def find_parquet(spec: str) -> tuple[TextFile, ...]:
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
class _Opened:
    """A file whose footer has been read."""

    file: TextFile
    types: dict[str, Any]  # of its columns, by name
    rows: tuple[int, ...]  # of each row group
    sizes: tuple[int, ...]  # bytes of each row group on disk

    @classmethod
    def of(cls, file: TextFile) -> "_Opened":
        with damage_told(str(file.path)), parquet_file(file) as found:
            groups = [found.metadata.row_group(number) for number in range(found.num_row_groups)]
            sizes = [sum(g.column(c).total_compressed_size for c in range(g.num_columns)) for g in groups]
            schema = found.schema_arrow
        kinds: dict[str, Any] = {}
        for field in schema:
            if field.name in kinds:
                raise InputError(f"{file.path}: column {field.name!r} comes twice")
            kinds[field.name] = field.type
        return cls(file, kinds, tuple(group.num_rows for group in groups), tuple(sizes))

    @property
    def num_groups(self) -> int:
        return len(self.rows)

    def row_groups(self, keys: Sequence[str]) -> list[RowGroup]:
        """Its pieces. Texts in the columns `keys` are read as dictionaries, each text once."""
        texts = tuple(name for name in keys if name in self.types and types.is_text(self.types[name]))
        groups = enumerate(zip(self.rows, self.sizes, strict=True))
        return [RowGroup(self.file, number, rows, size, texts) for number, (rows, size) in groups]
