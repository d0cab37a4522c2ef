"""The plug-in as TensorBoard sees it: a tab, its page and two routes for data."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import Request, Response

from adaptive.errors import InputError, printable
from adaptive.training.tensorboard.rows import find_runs, newest, rows_of

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
