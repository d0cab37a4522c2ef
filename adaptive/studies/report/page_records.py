"""Paths of the command line as records: what they hold, and of which kind it is."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from adaptive.errors import CheckpointError, InputError
from adaptive.storage.run_directory import RECORD, read_record
from adaptive.storage.untrusted import open_plain, parse_json, read_plain
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import Record

MOST: Final = 16  # next to each other: more curves nobody tells apart
MOST_LINE: Final = 1 << 16  # bytes of one of them
MOST_REJECTS: Final = 50  # bad lines that are kept, to be shown
# Records that have a folder. The first that exists counts: a reproduction's commands leave records next to its own.
FILES: Final = ("reproduction.json", "comparison.json", "profile.json", "placements.json")

JsonObject = Mapping[str, Any]  # as a command wrote it


@dataclass(frozen=True)
class PageRecord:
    """A record as a page shows it.

    Attributes:
        kind: "run", "comparison", "simulation", ...
        name: as short as tells it from the others of the page.
        path: its folder, or the file.
        record: the JSON object.
        metrics: of a run, the records of `metrics.jsonl`; empty if there is no such file.
        rejects: of a run, its first bad lines.
    """

    kind: str
    name: str
    path: Path
    record: JsonObject
    metrics: Sequence[Record] = ()
    rejects: Sequence[JsonObject] = ()


def load_records(paths: Sequence[Path], kinds: Mapping[str, Callable[[JsonObject], bool]]) -> list[PageRecord]:
    """What the paths hold: run directories, comparisons, files of `--json`, or folders of runs.

    Args:
        kinds: name of a kind -> True for a JSON object that is a record of it.

    Raises:
        CheckpointError, InputError: if they hold something else, or too much, or several kinds.
    """
    places = list(dict.fromkeys(place for path in paths for place in _places(path)))
    if len(places) > MOST:
        raise InputError(
            f"{len(places)} records, {places[0]} to {places[-1]}: a page shows at most {MOST} side by side; "
            "name those that are wanted"
        )
    records = [_load(place, kinds) for place in places]
    by_kind = {record.kind: record.path for record in records}
    if len(by_kind) > 1:
        where = ", ".join(f"{path} is a {kind}" for kind, path in by_kind.items())
        raise InputError(f"{where}: a page shows records of one kind; make a page of each")
    return [replace(record, name=name) for record, name in zip(records, _names(places), strict=True)]


def _places(path: Path) -> list[Path]:
    """The path itself, or the runs in a folder that is none."""
    if not path.exists():
        raise InputError(
            f"{path}: there is no such file or folder; needed a run directory, a comparison, a profile or a file of "
            "--json"
        )
    if not path.is_dir() or _record_in(path):
        return [path]
    inside = sorted(folder for folder in path.iterdir() if _record_in(folder))
    if not inside:
        raise InputError(
            f"{path}: holds none of {RECORD}, {', '.join(FILES)}, and is no folder of folders that do; needed a run "
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
        raise InputError(f"{error}, or none of --json") from error
    for kind, is_of_kind in kinds.items():
        if isinstance(record, dict) and is_of_kind(record):
            return PageRecord(kind, "", path, record)
    what = "object" if isinstance(record, dict) else "list" if isinstance(record, list) else "value"
    run_dir = record.get("run_dir") if isinstance(record, dict) else None  # `run --json` prints it
    hint = f"; the run itself is in {run_dir}" if isinstance(run_dir, str) else ""
    raise InputError(f"{file}: a JSON {what}, but no record that a page can show ({', '.join(kinds)}){hint}")


def load_run(path: Path) -> PageRecord:
    """The run in a directory, under way or at its end.

    Raises:
        CheckpointError, InputError: if its record, or a line of its metrics, is damaged.
    """
    record = read_record(path)
    if record.get("own_loop"):  # `adaptive.Recording` writes no settings
        record = {**record, "config": {"policy": record.get("policy")}}
    if not isinstance(record.get("config"), dict):
        raise CheckpointError(
            f"{path / RECORD}: expected the settings of a run as config, found none; the file is damaged"
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
    """The content of a JSON file of a stranger's.

    Raises:
        InputError: if it is no plain file, or no JSON.
    """
    return parse_json(read_plain(file, error=InputError, follow=True), str(file), error=InputError)


def _first_lines(file: Path) -> list[JsonObject]:
    bad_lines: list[JsonObject] = []
    with open_plain(file, error=InputError) as lines:
        for number in range(MOST_REJECTS):
            line = lines.readline(MOST_LINE)
            if not line:
                break
            try:
                bad_lines.append(dict(json.loads(line)))
            except (ValueError, TypeError, RecursionError) as error:
                if line.endswith(b"\n"):  # the last one may be being written
                    raise InputError(f"{file}:{number + 1}: expected a bad line as JSON, found {error}") from error
    return bad_lines


def _names(places: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many before it as tell them apart."""
    full = [place.resolve().parts for place in places]
    for length in range(1, max(map(len, full), default=1) + 1):
        names = ["/".join(parts[-length:]) for parts in full]
        if len(set(names)) == len(names):
            return names
    return [str(place) for place in places]
