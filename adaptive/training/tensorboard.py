"""TensorBoard's tab "Rows": rows of each table by tier, moves, and rows that wait or rest, over time.

TensorBoard finds the plug-in by its entry point (group `tensorboard_plugins`) and imports it at its start, so nothing
heavy is imported here. The plug-in reads the `metrics.jsonl` of all runs below the log directory, since TensorBoard's
summaries keep only ten tensors per tag. `rows_tab/` has its page.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import Request, Response

from adaptive.errors import InputError, printable
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import IntervalRecord, RunRecord, RunTotals, TableCounts, sum_tables

METRICS: Final = "metrics.jsonl"
SCHEMA: Final = 1
MOST_POINTS: Final = 240  # over time; more intervals are merged
MOST_DEPTH: Final = 8  # folders below the log directory
_SKIPPED: Final = ("tensorboard", "weights", "checkpoint-", "best-", "vocabulary", ".")  # folders without runs
_KEPT_RUNS: Final = 16  # cached until their file changes


def find_runs(logdir: Path) -> dict[str, Path]:
    """Return run name (its folder below `logdir`) -> metrics file. Links are not followed."""
    runs: dict[str, Path] = {}
    for folder, names, files in os.walk(logdir):
        place = Path(folder).relative_to(logdir)
        deep = len(place.parts) >= MOST_DEPTH
        names[:] = [] if deep else sorted(name for name in names if not name.startswith(_SKIPPED))
        if METRICS in files:
            runs[place.as_posix()] = Path(folder) / METRICS
    return runs


def newest(runs: Mapping[str, Path]) -> str | None:
    """Return the most recently written run; None without runs."""
    return max(runs, key=lambda name: _changed(runs[name]), default=None)


def _changed(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # removed in the meantime
        return 0


def rows_of(metrics: Path) -> dict[str, Any]:
    """Return the rows of a run by table, first those of all together; the file is read again only if it has changed.

    Raises:
        InputError: if the file cannot be read, or a line is not a record.
    """
    stat = metrics.stat()
    return _read(metrics, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=_KEPT_RUNS)
def _read(metrics: Path, changed: int, size: int) -> dict[str, Any]:
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
    """Merge intervals into `MOST_POINTS` stretches: (last interval, counts) each."""
    size = -(-len(intervals) // MOST_POINTS) or 1
    stretches: list[tuple[IntervalRecord, Mapping[str, TableCounts]]] = []
    for start in range(0, len(intervals), size):
        totals = RunTotals()
        for record in intervals[start : start + size]:
            totals.add(record)
        stretches.append((record, totals.tables))
    return stretches


def _table(name: str, rows: int | None, steps: Sequence[int], counts: Sequence[TableCounts]) -> dict[str, Any]:
    """Return rows of a table at the end of each stretch; flows are per step within the stretch."""
    spans = [max(end - start, 1) for start, end in zip([0, *steps], steps, strict=False)]
    return {
        "name": printable(name),
        "is_whole": False,  # all tables together
        "rows": rows,
        "resident": [at_end.resident_rows for at_end in counts],
        "hot": [at_end.hot_rows for at_end in counts],
        "saturated": [at_end.saturated_rows for at_end in counts],
        "admitted": [flow.admitted / span for flow, span in zip(counts, spans, strict=True)],
        "evicted": [flow.evicted / span for flow, span in zip(counts, spans, strict=True)],
        "live_keys": [at_end.live_keys for at_end in counts],
        "admitted_keys": [flow.admitted_keys / span for flow, span in zip(counts, spans, strict=True)],
        "expired_keys": [flow.expired_keys / span for flow, span in zip(counts, spans, strict=True)],
        "evicted_keys": [flow.evicted_keys / span for flow, span in zip(counts, spans, strict=True)],
        "unadmitted": [flow.unadmitted_lookup_share or 0.0 for flow in counts],
    }


def _host(config: str) -> str:
    """Return `file` or `memory`, from the settings as JSON text."""
    try:
        host = json.loads(config)["tier"]["host"]
    except (ValueError, KeyError, TypeError):
        return "memory"
    return "file" if str(host).startswith("mmap:") else "memory"


STATIC: Final = Path(__file__).parent / "rows_tab"
FILES: Final = {"/index.js": "text/javascript", "/lanes.js": "text/javascript"}


class RowsPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """Serves the tab "Rows" for runs below a local log directory."""

    plugin_name = "adaptive_rows"

    def __init__(self, context: base_plugin.TBContext) -> None:
        """`context`: its log directory is used; with --logdir_spec the tab does not appear."""
        self._logdir = Path(context.logdir).expanduser() if context.logdir else None

    def get_plugin_apps(self) -> Mapping[str, Callable[..., Any]]:
        """Return route -> WSGI application."""
        routes = {route: _route(partial(_file, route.removeprefix("/"), kind)) for route, kind in FILES.items()}
        return routes | {"/runs": _route(self._runs), "/rows": _route(self._rows)}

    def is_active(self) -> bool:
        """Return True if there is a run to show."""
        return bool(self._find_runs())

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Return the facts of the page: an ES module that TensorBoard loads unchanged."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Rows", disable_reload=False)

    def _find_runs(self) -> dict[str, Path]:
        return find_runs(self._logdir) if self._logdir is not None and self._logdir.is_dir() else {}

    def _runs(self, request: Request) -> Response:
        runs = self._find_runs()
        return _json(request, {"runs": list(runs), "shown": list(map(printable, runs)), "newest": newest(runs)})

    def _rows(self, request: Request) -> Response:
        """Serve the rows of a run by name; a name never becomes a path."""
        name = request.args.get("run", "")
        metrics = self._find_runs().get(name)
        if metrics is None:
            return _json(request, {"error": f"expected a run below the log directory, got {name!r}"}, 404)
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
