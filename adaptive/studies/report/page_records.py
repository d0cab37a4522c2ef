"""Load the records at the paths of a command line, and recognize their kind."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from adaptive.errors import CheckpointError, InputError
from adaptive.storage.files import parse_json, read_file
from adaptive.storage.run_directory import RECORD, read_record
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import Record

MAX_RECORDS: Final = 16  # on a page: nobody can tell more curves apart
MAX_LINE: Final = 1 << 16  # bytes of a bad line
MAX_REJECTS: Final = 50  # bad lines that a page shows
# Files that identify a folder. The first that exists counts: a reproduction also has the records of its commands.
FILES: Final = ("reproduction.json", "comparison.json", "profile.json", "placements.json")

JsonObject = Mapping[str, Any]  # written by a command


@dataclass(frozen=True)
class PageRecord:
    """A record that a page shows.

    Attributes:
        kind: "run", "comparison", "simulation", ...
        name: the shortest part of the path that tells it from the others.
        path: its folder, or the file.
        record: the JSON object.
        metrics: for a run, the records of `metrics.jsonl`; empty without that file.
        rejects: for a run, its first bad lines.
    """

    kind: str
    name: str
    path: Path
    record: JsonObject
    metrics: Sequence[Record] = ()
    rejects: Sequence[JsonObject] = ()


def load_records(paths: Sequence[Path], kinds: Mapping[str, Callable[[JsonObject], bool]]) -> list[PageRecord]:
    """Load the records at the paths.

    Paths are run directories, comparisons, files of `--json`, or folders of runs.

    Args:
        kinds: kind -> function that is True for a JSON object of this kind.

    Raises:
        CheckpointError, InputError: if the paths have other content, too many records, or several kinds.
    """
    places = list(dict.fromkeys(place for path in paths for place in _places(path)))
    if len(places) > MAX_RECORDS:
        raise InputError(
            f"expected at most {MAX_RECORDS} records on a page, got {len(places)} ({places[0]} to {places[-1]}). Name "
            "those that you want to see"
        )
    records = [_load(place, kinds) for place in places]
    by_kind = {record.kind: record.path for record in records}
    if len(by_kind) > 1:
        where = ", ".join(f"{path} is a {kind}" for kind, path in by_kind.items())
        raise InputError(f"expected records of one kind, got several: {where}. Make a page of each kind")
    return [replace(record, name=name) for record, name in zip(records, _names(places), strict=True)]


def _places(path: Path) -> list[Path]:
    """Return the path itself, or the folders with records in it."""
    if not path.exists():
        raise InputError(
            f"{path}: expected a run directory, a comparison, a profile or a file of --json, got no file or folder"
        )
    if not path.is_dir() or _record_in(path):
        return [path]
    inside = sorted(folder for folder in path.iterdir() if _record_in(folder))
    if not inside:
        raise InputError(
            f"{path}: expected {RECORD} or {', '.join(FILES)}, or folders with one of them, got neither. Name a run "
            "directory, that of a comparison or a profile, or a file that simulate --json printed"
        )
    return inside


def _record_in(folder: Path) -> Path | None:
    return next((folder / name for name in (RECORD, *FILES) if (folder / name).exists()), None)


def _load(path: Path, kinds: Mapping[str, Callable[[JsonObject], bool]]) -> PageRecord:
    file = _record_in(path) or path
    if file.name == RECORD:
        return load_run(file.parent)
    try:
        record = read_json(file)
    except InputError as error:
        raise InputError(f"{error}, or not a file of --json") from error
    for kind, is_of_kind in kinds.items():
        if isinstance(record, dict) and is_of_kind(record):
            return PageRecord(kind, "", path, record)
    content = "object" if isinstance(record, dict) else "list" if isinstance(record, list) else "value"
    run_dir = record.get("run_dir") if isinstance(record, dict) else None  # `run --json` prints it
    hint = f". The run itself is in {run_dir}" if isinstance(run_dir, str) else ""
    raise InputError(f"{file}: expected a record of {', '.join(kinds)}, got another JSON {content}{hint}")


def load_run(path: Path) -> PageRecord:
    """Load the run in a directory, finished or not.

    Raises:
        CheckpointError, InputError: if its record or a line of its metrics is damaged.
    """
    record = read_record(path)
    if record.get("own_loop"):  # `adaptive.Recording` writes no settings
        record = {**record, "config": {"policy": record.get("policy")}}
    if not isinstance(record.get("config"), dict):
        raise CheckpointError(
            f"{path / RECORD}: expected the settings of a run as config, got none. The file is damaged"
        )
    metrics, rejects = path / "metrics.jsonl", path / "rejects.jsonl"
    return PageRecord(
        "run",
        path.name,
        path,
        record,
        metrics=read_metrics(metrics) if metrics.exists() else (),
        rejects=_first_lines(rejects) if rejects.exists() else (),
    )


def read_json(file: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: if it is no plain file, or no JSON.
    """
    return parse_json(read_file(file, error=InputError), str(file), error=InputError)


def _first_lines(file: Path) -> list[JsonObject]:
    bad_lines: list[JsonObject] = []
    with open(file, "rb") as lines:
        for number in range(MAX_REJECTS):
            line = lines.readline(MAX_LINE)
            if not line:
                break
            try:
                bad_lines.append(dict(json.loads(line)))
            except (ValueError, TypeError, RecursionError) as error:
                if line.endswith(b"\n"):  # the last line may be incomplete
                    raise InputError(f"{file}:{number + 1}: expected a JSON object, got {error}") from error
    return bad_lines


def _names(places: Sequence[Path]) -> list[str]:
    """Return the last part of each path, with as many parts before it as tell them apart."""
    full = [place.resolve().parts for place in places]
    for length in range(1, max(map(len, full), default=1) + 1):
        names = ["/".join(parts[-length:]) for parts in full]
        if len(set(names)) == len(names):
            return names
    return [str(place) for place in places]
