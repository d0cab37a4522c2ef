"""The plug-in as TensorBoard sees it: a tab, its page and two routes for data."""

import json
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import Request, Response

from adaptive.errors import InputError, printable
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import IntervalRecord, RunRecord, TableCounts, add_counts, sum_tables

METRICS: Final = "metrics.jsonl"
SCHEMA: Final = 1
MOST_POINTS: Final = 240  # over time; more, and neighbours are one
MOST_DEPTH: Final = 8  # folders below the log directory
_SKIPPED: Final = ("tensorboard", "weights", "checkpoint-", "best-", "vocabulary", ".")  # folders without runs
_KEPT_RUNS: Final = 16  # whose rows stay in memory until their file changes


def find_runs(logdir: Path) -> dict[str, Path]:
    """Names of runs, as TensorBoard has them less its own last folder, and their metrics. Links are not followed."""
    found: dict[str, Path] = {}
    for folder, names, files in os.walk(logdir):
        place = Path(folder).relative_to(logdir)
        deep = len(place.parts) >= MOST_DEPTH
        names[:] = [] if deep else sorted(name for name in names if not name.startswith(_SKIPPED))
        if METRICS in files:
            found[place.as_posix()] = Path(folder) / METRICS
    return found


def newest(runs: Mapping[str, Path]) -> str | None:
    """The run that was written to last; None without runs."""
    return max(runs, key=lambda name: _changed(runs[name]), default=None)


def _changed(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # removed since it was found
        return 0


def rows_of(metrics: Path) -> dict[str, Any]:
    """The rows of a run by table, as JSON values; read again only when the file has changed.

    `steps` are the ends of stretches of time; of all tables together and of each table, with as many values: rows on
    the device (resident) and saturated at that end, rows promoted and demoted per step since the one before. Names are
    as they are shown, what nobody sees in them (marks of writing direction) escaped.

    Raises:
        InputError: if the file cannot be read, or a line is not a record.
    """
    found = metrics.stat()
    return _read(metrics, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=_KEPT_RUNS)
def _read(metrics: Path, changed: int, size: int) -> dict[str, Any]:
    records = read_metrics(metrics)
    runs = [one for one in records if isinstance(one, RunRecord)]
    intervals = [one for one in records if isinstance(one, IntervalRecord)]
    table_rows: Mapping[str, int] = runs[0].table_rows if runs else {}
    steps, ends, tables = _thinned(intervals)
    names = list(ends[-1].tables) if ends else []  # in the model's order
    return {
        "schema": SCHEMA,
        "policy": printable(runs[0].policy) if runs else "",
        "host": _host(runs[0].config if runs else ""),
        "steps": steps,
        "device_rows": [one.device_rows for one in ends],
        "tables": _tables(names, table_rows, steps, tables),
    }


def _tables(
    names: list[str], table_rows: Mapping[str, int], steps: list[int], tables: list[dict[str, TableCounts]]
) -> list[dict[str, Any]]:
    """Facts of each table; before them, of several, those of all together, of which `is_whole` is true."""
    each = [_table(name, table_rows.get(name), steps, [one[name] for one in tables]) for name in names]
    if len(names) < 2:
        return each
    rows = sum(table_rows[name] for name in names) if set(names) <= set(table_rows) else None
    sums = [sum_tables([one[name] for name in names]) for one in tables]
    return [{**_table("all tables", rows, steps, sums), "is_whole": True}, *each]


def _thinned(
    intervals: list[IntervalRecord],
) -> tuple[list[int], list[IntervalRecord], list[dict[str, TableCounts]]]:
    """Last steps, last intervals and counts of at most `MOST_POINTS` stretches of as many intervals each."""
    size = -(-len(intervals) // MOST_POINTS) or 1
    ends, counts = [], []
    for start in range(0, len(intervals), size):
        some = intervals[start : start + size]
        total = dict(some[0].tables)
        for one in some[1:]:
            total = {name: add_counts(total.get(name, TableCounts()), added) for name, added in one.tables.items()}
        ends.append(some[-1])
        counts.append(total)
    return [one.step for one in ends], ends, counts


def _table(name: str, rows: int | None, steps: list[int], counts: list[TableCounts]) -> dict[str, Any]:
    spans = [max(end - start, 1) for start, end in zip([0, *steps], steps, strict=False)]
    return {
        "name": printable(name),
        "rows": rows,
        "resident": [one.resident_rows for one in counts],
        "watched": [one.watched_rows for one in counts],
        "saturated": [one.saturated_rows for one in counts],
        "promoted": [one.promoted / span for one, span in zip(counts, spans, strict=True)],
        "demoted": [one.demoted / span for one, span in zip(counts, spans, strict=True)],
    }


def _host(config: str) -> str:
    """`file` or `memory`, from the settings as the record has them: JSON text."""
    try:
        host = json.loads(config)["tier"]["host"]
    except (ValueError, KeyError, TypeError):
        return "memory"
    return "file" if str(host).startswith("mmap:") else "memory"


STATIC: Final = Path(__file__).parent / "static"
FILES: Final = {"/index.js": "text/javascript", "/lanes.js": "text/javascript"}


class RowsPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """Serves the tab "Rows" for runs below a local log directory."""

    plugin_name = "adaptive_rows"

    def __init__(self, context: base_plugin.TBContext) -> None:
        """`context`: whose log directory counts; with --logdir_spec there is none, and the tab stays away."""
        self._logdir = Path(context.logdir).expanduser() if context.logdir else None

    def get_plugin_apps(self) -> Mapping[str, Callable[..., Any]]:
        """Route -> WSGI application."""
        files = {route: _file(route.removeprefix("/"), kind) for route, kind in FILES.items()}
        return {**files, "/runs": _json(self._runs), "/rows": _json(self._rows)}

    def is_active(self) -> bool:
        """There is a run to show."""
        return bool(self._found())

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """The page is an ES module, which TensorBoard loads as it is."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Rows", disable_reload=False)

    def _found(self) -> dict[str, Path]:
        return find_runs(self._logdir) if self._logdir is not None and self._logdir.is_dir() else {}

    def _runs(self, request: Request) -> tuple[dict[str, Any], int]:
        found = self._found()
        return {"runs": list(found), "shown": list(map(printable, found)), "newest": newest(found)}, 200

    def _rows(self, request: Request) -> tuple[dict[str, Any], int]:
        """Of a run that is there by name: a name never becomes a path."""
        name = request.args.get("run", "")
        metrics = self._found().get(name)
        if metrics is None:
            return {"error": f"there is no run {name!r} below the log directory"}, 404
        try:
            return rows_of(metrics), 200
        except (InputError, OSError) as error:
            return {"error": str(error)}, 500


def _file(name: str, kind: str) -> Callable[..., Any]:
    def serve(request: Request) -> Response:
        response: Response = http_util.Respond(request, (STATIC / name).read_bytes(), kind)
        return response

    return _application(serve)


def _json(answer: Callable[[Request], tuple[dict[str, Any], int]]) -> Callable[..., Any]:
    def serve(request: Request) -> Response:
        content, code = answer(request)
        text = json.dumps(content, allow_nan=False)
        response: Response = http_util.Respond(request, text, "application/json", code=code)
        return response

    return _application(serve)


def _application(serve: Callable[[Request], Response]) -> Callable[..., Any]:
    return Request.application(serve)
