"""`adaptive-train prepare`: store a data set as columns that training maps into memory."""

import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaptive.cli.flags import DATA
from adaptive.cli.output import SETTINGS, AsJson, Sets, note, own_stdout, print_result, size_text

if TYPE_CHECKING:
    from adaptive.data.dataset import PartRead


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
