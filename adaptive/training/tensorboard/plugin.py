"""The plug-in as TensorBoard sees it: a tab, its page and two routes for data."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypedDict

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


class TableRows(TypedDict):
    """The rows of a table at the ends of stretches of time; flows per step since the end before."""

    name: str  # as it is shown: what nobody sees in it (marks of writing direction) escaped
    is_whole: bool  # all tables together
    rows: int | None
    resident: list[int]
    watched: list[int]
    saturated: list[int]
    promoted: list[float]
    demoted: list[float]


class RunRows(TypedDict):
    """The rows of a run by table, first of several those of all together."""

    schema: int
    policy: str
    host: str
    steps: list[int]  # the ends of stretches
    device_rows: list[int | None]
    tables: list[TableRows]


def find_runs(logdir: Path) -> dict[str, Path]:
    """Names of runs, as TensorBoard has them less its own last folder, and their metrics. Links are not followed."""
    runs: dict[str, Path] = {}
    for folder, names, files in os.walk(logdir):
        place = Path(folder).relative_to(logdir)
        deep = len(place.parts) >= MOST_DEPTH
        names[:] = [] if deep else sorted(name for name in names if not name.startswith(_SKIPPED))
        if METRICS in files:
            runs[place.as_posix()] = Path(folder) / METRICS
    return runs


def newest(runs: Mapping[str, Path]) -> str | None:
    """The run that was written to last; None without runs."""
    return max(runs, key=lambda name: _changed(runs[name]), default=None)


def _changed(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # removed since it was found
        return 0


def rows_of(metrics: Path) -> RunRows:
    """The rows of a run; read again only when the file has changed.

    Raises:
        InputError: if the file cannot be read, or a line is not a record.
    """
    stat = metrics.stat()
    return _read(metrics, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=_KEPT_RUNS)
def _read(metrics: Path, changed: int, size: int) -> RunRows:
    records = read_metrics(metrics)
    run = next((record for record in records if isinstance(record, RunRecord)), RunRecord(policy="", table_rows={}))
    stretches = _thinned([record for record in records if isinstance(record, IntervalRecord)])
    ends = [end for end, _ in stretches]
    names = list(ends[-1].tables) if ends else []  # in the model's order
    steps, rows = [end.step for end in ends], run.table_rows
    tables = [_table(name, rows.get(name), steps, [counts[name] for _, counts in stretches]) for name in names]
    if len(names) > 1:
        total = sum(rows[name] for name in names) if set(names) <= set(rows) else None
        whole = [sum_tables([counts[name] for name in names]) for _, counts in stretches]
        tables.insert(0, {**_table("all tables", total, steps, whole), "is_whole": True})
    return {
        "schema": SCHEMA,
        "policy": printable(run.policy),
        "host": _host(run.config),
        "steps": steps,
        "device_rows": [end.device_rows for end in ends],
        "tables": tables,
    }


def _thinned(intervals: Sequence[IntervalRecord]) -> list[tuple[IntervalRecord, Mapping[str, TableCounts]]]:
    """Last interval and counts of each of at most `MOST_POINTS` stretches of as many intervals."""
    size = -(-len(intervals) // MOST_POINTS) or 1
    stretches = []
    for start in range(0, len(intervals), size):
        stretch = intervals[start : start + size]
        total: Mapping[str, TableCounts] = {}
        for record in stretch:
            total = {name: add_counts(total.get(name, TableCounts()), added) for name, added in record.tables.items()}
        stretches.append((stretch[-1], total))
    return stretches


def _table(name: str, rows: int | None, steps: Sequence[int], counts: Sequence[TableCounts]) -> TableRows:
    spans = [max(end - start, 1) for start, end in zip([0, *steps], steps, strict=False)]
    return {
        "name": printable(name),
        "is_whole": False,
        "rows": rows,
        "resident": [at_end.resident_rows for at_end in counts],
        "watched": [at_end.watched_rows for at_end in counts],
        "saturated": [at_end.saturated_rows for at_end in counts],
        "promoted": [flow.promoted / span for flow, span in zip(counts, spans, strict=True)],
        "demoted": [flow.demoted / span for flow, span in zip(counts, spans, strict=True)],
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
        routes = {route: _route(partial(_file, route.removeprefix("/"), kind)) for route, kind in FILES.items()}
        return routes | {"/runs": _route(self._runs), "/rows": _route(self._rows)}

    def is_active(self) -> bool:
        """There is a run to show."""
        return bool(self._find_runs())

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """The page is an ES module, which TensorBoard loads as it is."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Rows", disable_reload=False)

    def _find_runs(self) -> dict[str, Path]:
        return find_runs(self._logdir) if self._logdir is not None and self._logdir.is_dir() else {}

    def _runs(self, request: Request) -> Response:
        runs = self._find_runs()
        return _json(request, {"runs": list(runs), "shown": list(map(printable, runs)), "newest": newest(runs)})

    def _rows(self, request: Request) -> Response:
        """Of a run that is there by name: a name never becomes a path."""
        name = request.args.get("run", "")
        metrics = self._find_runs().get(name)
        if metrics is None:
            return _json(request, {"error": f"there is no run {name!r} below the log directory"}, 404)
        try:
            return _json(request, rows_of(metrics))
        except (InputError, OSError) as error:
            return _json(request, {"error": str(error)}, 500)


def _file(name: str, kind: str, request: Request) -> Response:
    response: Response = http_util.Respond(request, (STATIC / name).read_bytes(), kind)
    return response


def _json(request: Request, content: object, code: int = 200) -> Response:
    text = json.dumps(content, allow_nan=False)
    response: Response = http_util.Respond(request, text, "application/json", code=code)
    return response


def _route(serve: Callable[[Request], Response]) -> Callable[..., Any]:
    return Request.application(serve)
