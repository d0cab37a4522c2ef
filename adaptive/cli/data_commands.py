"""`adaptive-train prepare`: store a data set."""

import os
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive.cli import options
from adaptive.cli.output import note, own_stdout, print_result
from adaptive.training.telemetry.formatting import bytes_text

if TYPE_CHECKING:
    from adaptive.data import PartRead
    from adaptive.data.data_options import DataOptions


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
    from adaptive.data.prepared_writer import prepare as write

    spec, data_options = data_settings(data, schema, config, sets)
    begun = time.monotonic()
    with own_stdout():
        prepared = write(spec, data_options, path, begins=_part_begins)
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


def data_settings(
    data: str, schema: Path | None, config: Path | None, sets: Sequence[str] | None
) -> "tuple[str, DataOptions]":
    """Return the spec and the options of data from the options of a command."""
    from adaptive.data.data_options import DataOptions
    from adaptive.training.settings import load_settings

    flags = {"data": data, **({"data.schema_path": str(schema)} if schema is not None else {})}
    names = {"data": "--data", "data.schema_path": "--schema"}
    settings, _ = load_settings(file=config, sets=sets or (), flags=flags, flag_names=names, environ=os.environ)
    return settings.data, DataOptions.model_validate(settings.data_options)


def _part_begins(part: str) -> "Callable[[PartRead], None]":
    """Return a callback that reports the time left for a part."""
    from adaptive.training.telemetry.progress import Countdown

    samples = Countdown(note, f"samples written ({part})")
    size = Countdown(note, f"read and written ({part})", text=bytes_text)

    def report(read: "PartRead") -> None:
        (size if read.in_bytes else samples)(read.done, read.total)

    return report
