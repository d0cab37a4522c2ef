"""`adaptive-train prepare` and `vocabulary`: store a data set, list rows of ids."""

import os
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from adaptive.cli import command_options as options
from adaptive.cli.output import note, own_stdout, print_result, write_text
from adaptive.errors import ConfigError
from adaptive.training.telemetry.formatting import bytes_text

if TYPE_CHECKING:
    from adaptive.data import PartRead

FOLDER = "vocabulary"
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\r": "\\r", "\n": "\\n"})


def prepare(
    path: options.PreparedFolder,
    data: options.PreparedData,
    schema: options.Schema = None,
    config: options.Config = None,
    sets: options.Sets = None,
    as_json: options.AsJson = False,
) -> None:
    """Store a data set with ids mapped to rows, which is read several times as fast.

    The split and the mapping of ids to rows are fixed here (--set data.holdout=0.1, data.vocabulary=true ...).
    data.shuffle_buffer and data.seed apply when it is read with --data prepared:DIR. After Ctrl-C nothing remains:
    DIR appears when it is complete.
    """
    from adaptive.data.data_options import DataOptions
    from adaptive.data.prepared_writer import prepare as write
    from adaptive.training.settings import load_settings

    flags = {"data": data, **({"data.schema_path": str(schema)} if schema is not None else {})}
    names = {"data": "--data", "data.schema_path": "--schema"}
    settings, _ = load_settings(file=config, sets=sets or (), flags=flags, flag_names=names, environ=os.environ)
    begun = time.monotonic()
    with own_stdout():
        prepared = write(settings.data, DataOptions.model_validate(settings.data_options), path, begins=_part_begins)
    seconds = time.monotonic() - begun
    parts = [part for part in (prepared.train, prepared.evaluation) if part is not None]
    num_bytes = sum(part.bytes for part in parts)
    result = {
        "schema": 1,
        "path": str(path),
        "train_samples": prepared.train.samples,
        "eval_samples": prepared.evaluation.samples if prepared.evaluation is not None else 0,
        "bytes": num_bytes,
        "rejected_lines": prepared.rejects,
        "seconds": round(seconds, 3),
    }
    lines = [
        f"{path}: {prepared.train.samples:,} training samples, {result['eval_samples']:,} evaluation "
        f"samples, {bytes_text(num_bytes)}, in {seconds:.1f} s",
        *(
            [f"rejected lines: {', '.join(f'{n:,} {cause}' for cause, n in prepared.rejects.items())}"]
            * bool(prepared.rejects)
        ),
        f"train: adaptive-train run --data {shlex.quote(f'prepared:{path}')}",
    ]
    print_result(result, table="\n".join(lines), as_json=as_json)


def _part_begins(part: str) -> "Callable[[PartRead], None]":
    """Return a callback that reports the time left for a part."""
    from adaptive.training.telemetry.progress import Countdown

    samples = Countdown(note, f"samples written ({part})")
    size = Countdown(note, f"read and written ({part})", text=bytes_text)

    def report(read: "PartRead") -> None:
        (size if read.in_bytes else samples)(read.done, read.total)

    return report


def vocabulary(
    place: options.VocabularyPlace,
    table: options.VocabularyTable = None,
    out: options.VocabularyFile = None,
    as_json: options.AsJson = False,
) -> None:
    """List the ids of a fitted vocabulary with their rows.

    Each line has row, kind and id. The kind is `id`, `other` for the row that all other ids share, or `missing`. Tabs,
    line ends and backslashes in ids are escaped as in C.
    """
    from adaptive.data.rows.vocabularies import load_vocabulary, stored_tables

    folder = _folder(place)
    tables = stored_tables(folder)
    if table is None:
        if out is not None:
            raise typer.BadParameter(f"--out: expected --table with it, one of {', '.join(tables)}")
        lines = [f"{name}: {rows:,} ids" for name, rows in tables.items()]
        print_result({"schema": 1, "folder": str(folder), "tables": tables}, table="\n".join(lines), as_json=as_json)
        return
    if table not in tables:
        raise ConfigError(
            f"{folder}: expected a table with a vocabulary ({', '.join(tables)}), got {table!r}. Rows of other tables "
            "are hashes of ids, or the ids themselves"
        )
    rows = tables[table]
    ids = [*load_vocabulary(folder, table).ids()]
    lines = ["row\tkind\tid", *_lines(ids)]
    if out is None:
        numbers = {"vocabulary_of": table, "ids": ids, "other": rows, "missing": rows + 1}
        print_result({"schema": 1, **numbers}, table="\n".join(lines), as_json=as_json)
        return
    write_text(out, "\n".join(lines) + "\n")
    print_result({"schema": 1, "ids": rows, "file": str(out)}, table=f"{out}: {rows:,} ids", as_json=as_json)


def _folder(place: Path) -> Path:
    """Return the folder of the vocabulary that belongs to `place`."""
    from adaptive.storage.run_directory import RECORD, read_record
    from adaptive.training.runs.run_record import config_of

    if (place / FOLDER / f"{FOLDER}.json").exists():
        return place / FOLDER
    if (place / f"{FOLDER}.json").exists():
        return place
    if (place / RECORD).exists():
        config = config_of(read_record(place), place)
        kind, _, path = config.data.partition(":")
        setting = config.data_options.get("vocabulary_path")
        folders = ([Path(setting)] if setting else []) + ([Path(path) / FOLDER] if kind == "prepared" else [])
        if folder := next(filter(Path.is_dir, folders), None):
            return folder
    raise ConfigError(
        f"{place}: expected a vocabulary, got none. Fit one with --set data.vocabulary=true, or vocabulary = true in "
        "the schema"
    )


def _lines(ids: list[str]) -> Iterator[str]:
    yield from (f"{row}\tid\t{id_.translate(_ESCAPES)}" for row, id_ in enumerate(ids))
    yield f"{len(ids)}\tother\t"
    yield f"{len(ids) + 1}\tmissing\t"
