"""`adaptive-train prepare`: store a data set as columns that training maps into memory. `adaptive-train vocabulary`:
which row stands for which id, for a server that looks rows up itself."""

import os
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaptive.cli.flags import DATA
from adaptive.cli.output import SETTINGS, AsJson, Sets, note, own_stdout, print_result, size_text
from adaptive.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from adaptive.data.reading_progress import PartRead

FOLDER = "vocabulary"
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\r": "\\r", "\n": "\\n"})


def prepare(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the prepared data.", show_default=False)],
    data: Annotated[str, typer.Option("--data", metavar="SPEC", help="Data set, as of `run`.", rich_help_panel=DATA)],
    schema: Annotated[
        Path | None,
        typer.Option("--schema", metavar="FILE", help="Schema of csv:PATH or parquet:PATH.", rich_help_panel=DATA),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings from a TOML or JSON file, or run.json.", rich_help_panel=SETTINGS),
    ] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Store a data set with its ids already rows, so that each later run and epoch reads it several times as fast.

    How it is split, and how ids become rows, is settled here (--set data.holdout=0.1, data.vocabulary=true ...).
    data.shuffle_buffer and data.seed count when it is read: --data prepared:DIR. Stopped by Ctrl-C, it leaves nothing
    behind: neither DIR nor a part of it.
    """
    from adaptive.data.data_options import DataOptions
    from adaptive.data.prepared.prepared_writer import prepare as write
    from adaptive.training.settings import load_settings

    flags = {"data": data, **({"data.schema_path": str(schema)} if schema is not None else {})}
    names = {"data": "--data", "data.schema_path": "--schema"}
    settings, _ = load_settings(file=config, sets=sets or (), flags=flags, flag_names=names, environ=os.environ)
    begun = time.monotonic()
    with own_stdout():
        found = write(settings.data, DataOptions.model_validate(settings.data_options), path, begins=_part_begins)
    seconds = time.monotonic() - begun
    parts = [part for part in (found.train, found.evaluation) if part is not None]
    num_bytes = sum(part.bytes for part in parts)
    result = {
        "schema": 1,
        "path": str(path),
        "train_samples": found.train.samples,
        "eval_samples": found.evaluation.samples if found.evaluation is not None else 0,
        "bytes": num_bytes,
        "rejected_lines": found.rejects,
        "seconds": round(seconds, 3),
    }
    lines = [
        f"{path}: {found.train.samples:,} samples to train with, {result['eval_samples']:,} to evaluate, "
        f"{size_text(num_bytes)}, in {seconds:.1f} s",
        *(
            [f"rejected lines: {', '.join(f'{n:,} {cause}' for cause, n in found.rejects.items())}"]
            * bool(found.rejects)
        ),
        f"train: adaptive-train run --data {shlex.quote(f'prepared:{path}')}",
    ]
    print_result({**result, "table": "\n".join(lines)}, as_json=as_json)


def _part_begins(part: str) -> "Callable[[PartRead], None]":
    """Tells how long it takes to write a part."""
    from adaptive.training.telemetry.formatting import bytes_text
    from adaptive.training.telemetry.progress import Countdown

    samples = Countdown(note, f"samples written ({part})")
    size = Countdown(note, f"read and written ({part})", text=bytes_text)

    def told(read: "PartRead") -> None:
        (size if read.in_bytes else samples)(read.done, read.total)

    return told


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
