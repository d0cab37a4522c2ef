"""`adaptive-train vocabulary`: which row stands for which id, for a server that looks rows up itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from adaptive.cli.output import AsJson, print_result
from adaptive.errors import ConfigError, OutputError

FOLDER = "vocabulary"
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\r": "\\r", "\n": "\\n"})


def vocabulary(
    where: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run directory, prepared data, or the folder of a vocabulary.")
    ],
    table: Annotated[
        str | None, typer.Option("--table", metavar="NAME", help="Without it: what tables are there.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write row, kind and id as tab-separated lines.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the ids of a fitted vocabulary with their rows.

    A line has row, kind and id. Kind is `id`, or `other` for the row that all other ids share, or `missing`. In ids a
    tab, line end or backslash is written as in C.
    """
    from adaptive.data.rows.vocabularies import load_vocabulary, stored_tables

    folder = _folder(where)
    tables = stored_tables(folder)
    if table is None:
        if out is not None:
            raise typer.BadParameter(f"--out needs --table; tables: {', '.join(tables)}")
        lines = [f"{name}: {rows:,} ids" for name, rows in tables.items()]
        print_result({"schema": 1, "folder": str(folder), "tables": tables, "table": "\n".join(lines)}, as_json=as_json)
        return
    if table not in tables:
        raise ConfigError(
            f"{folder}: no vocabulary of table {table!r}; there are {', '.join(tables)}. In other tables rows are "
            "hashes of ids, or the ids themselves: see docs/data.md"
        )
    rows = tables[table]
    ids = [*load_vocabulary(folder, table).ids()]
    lines = ["row\tkind\tid", *_lines(ids)]
    if out is None:
        found = {"schema": 1, "vocabulary_of": table, "ids": ids, "other": rows, "missing": rows + 1}
        print_result({**found, "table": "\n".join(lines)}, as_json=as_json)
        return
    _write(out, lines)
    print_result({"schema": 1, "ids": rows, "file": str(out), "table": f"{out}: {rows:,} ids"}, as_json=as_json)


def _folder(where: Path) -> Path:
    """The folder of the vocabulary that belongs to `where`."""
    from adaptive.storage.run_directory import RECORD, read_record
    from adaptive.training.runs.run_record import config_of

    if (where / FOLDER).is_dir():
        return where / FOLDER
    if (where / f"{FOLDER}.json").exists():
        return where
    if (where / RECORD).exists():
        config = config_of(read_record(where), where)
        kind, _, path = config.data.partition(":")
        given = config.data_options.get("vocabulary_path")
        places = ([Path(given)] if given else []) + ([Path(path) / FOLDER] if kind == "prepared" else [])
        found = next((folder for folder in places if folder.is_dir()), None)
        if found is not None:
            return found
    raise ConfigError(
        f"{where}: no vocabulary here; rows are fitted to ids with --set data.vocabulary=true, or vocabulary = true in "
        "the schema"
    )


def _lines(ids: list[str]) -> Iterator[str]:
    yield from (f"{row}\tid\t{id_.translate(_ESCAPES)}" for row, id_ in enumerate(ids))
    yield f"{len(ids)}\tother\t"
    yield f"{len(ids) + 1}\tmissing\t"


def _write(path: Path, lines: list[str]) -> None:
    from adaptive.storage.durable import write_atomic

    try:
        write_atomic(path, ("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error
