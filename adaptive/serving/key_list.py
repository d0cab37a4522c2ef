"""List the keys of a trained run, with their rows, lookups and ages."""

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from adaptive.config import TableConfig
from adaptive.errors import ConfigError, OutputError
from adaptive.storage.durable import replace_file
from adaptive.training.runs.loading import LoadedRun, load_with
from adaptive.training.telemetry.document import aligned
from adaptive.training.telemetry.formatting import count_text, percent_text
from adaptive.training.telemetry.report import SCHEMA

COLUMNS: Final = ("table", "key", "row", "lookups", "age", "stored")
AT_ONCE: Final = 1 << 16  # lines that are written at once


@dataclass(frozen=True)
class TableKeys:
    """Keys of one table that have a row; ages in batches."""

    table: str
    keys: int
    capacity: int
    lookups: int
    median_age: float | None
    oldest_age: int | None


@dataclass(frozen=True)
class KeyList:
    """Summary of the keys of a run, also as the text `table`; `out` is the file that lists them."""

    schema: int
    run_dir: str
    tables: list[TableKeys]
    out: str | None
    table: str


def list_keys(run_directory: Path | str, out: Path | str | None = None) -> KeyList:
    """Summarize the keys of a run's tables, and list all of them in a CSV file.

    Args:
        out: file with columns `table`, `key`, `row` (an internal number), `lookups` so far, `age` (batches since the
            latest lookup) and `stored` (1 if the row differs from its initial value). Ordered by table and key; it is
            replaced atomically. None: no list.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        ConfigError: if no table has keys.
        OutputError: if `out` cannot be written.
    """
    with load_with(Path(run_directory), {}) as run:
        tables = [table for table in run.components.tables if table.keys is not None]
        if not tables:
            raise ConfigError(f"expected a run with tables that have keys, got {run.path}, whose ids are rows")
        if out is not None:
            try:
                replace_file(Path(out), lambda file: _write(file, run, tables))
            except OSError as error:
                raise OutputError(f"{out} could not be written: {error}") from error
        summaries = [_summary(run, table) for table in tables]
        return KeyList(SCHEMA, str(run.path), summaries, None if out is None else str(out), _text(summaries))


def _summary(run: LoadedRun, table: TableConfig) -> TableKeys:
    name, capacity, records = table.name, table.num_embeddings, run.embeddings.rows.key_records(table.name)
    ages, lookups = records["age"], int(records["lookups"].sum())
    if not len(ages):
        return TableKeys(name, 0, capacity, lookups, None, None)
    return TableKeys(name, len(ages), capacity, lookups, float(np.median(ages)), int(ages.max()))


def _text(tables: Sequence[TableKeys]) -> str:
    header = ["table", "keys", "of", "in use", "lookups", "median age", "oldest (batches)"]
    lines = [[name, *map(count_text, numbers)] for name, *numbers in map(astuple, tables)]
    for line, table in zip(lines, tables, strict=True):
        line.insert(3, percent_text(table.keys / table.capacity))
    return "\n".join(aligned([header, *lines]))


def _write(file: BinaryIO, run: LoadedRun, tables: Sequence[TableConfig]) -> None:
    file.write((",".join(COLUMNS) + "\n").encode())
    for table in tables:
        records = run.embeddings.rows.key_records(table.name)
        columns = [records[column] for column in COLUMNS[1:]]
        for first in range(0, len(columns[0]), AT_ONCE):
            text = io.StringIO()
            lines = zip(*(column[first : first + AT_ONCE].tolist() for column in columns), strict=True)
            csv.writer(text, lineterminator="\n").writerows((table.name, *line) for line in lines)
            file.write(text.getvalue().encode())
