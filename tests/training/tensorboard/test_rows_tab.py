"""The tab "Rows": which runs it finds, the numbers it is given, what it answers, and the page in a browser."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from support.report_records import HOSTILE, browse, write_run
from tensorboard.plugins.base_plugin import TBContext
from werkzeug import Request, Response
from werkzeug.serving import make_server
from werkzeug.test import Client

from adaptive.errors import InputError
from adaptive.training.tensorboard import MOST_POINTS, RowsPlugin, find_runs, newest, rows_of

PREFIX = "/data/plugin/adaptive_rows"


def plugin(logdir: Path | None) -> RowsPlugin:
    return RowsPlugin(TBContext(logdir=None if logdir is None else str(logdir)))


def answer(found: RowsPlugin, route: str, **query: str) -> tuple[int, Any]:
    response = Client(found.get_plugin_apps()[route]).get(route, query_string=query)
    return response.status_code, json.loads(response.data)


def test_tensorboard_finds_the_plugin_by_its_entry_point() -> None:
    (found,) = (one for one in entry_points(group="tensorboard_plugins") if one.name == "adaptive_rows")
    assert found.load() is RowsPlugin
    metadata = plugin(None).frontend_metadata()
    assert metadata.tab_name == "Rows" and metadata.es_module_path in plugin(None).get_plugin_apps()


def test_runs_are_found_where_they_lie(tmp_path: Path) -> None:
    """At any depth, not in folders that a run makes, not through links, and not too deep."""
    for place in ("a", "cmp/seed-0/0-lfu", "a/weights/x", "a/checkpoint-3/x", ".hidden/x", "/".join("123456789")):
        write_run(tmp_path / "logs" / place, intervals=1)
    write_run(tmp_path / "elsewhere", intervals=1)
    (tmp_path / "logs/link").symlink_to(tmp_path / "elsewhere")
    found = find_runs(tmp_path / "logs")
    assert list(found) == ["a", "cmp/seed-0/0-lfu"]
    os.utime(found["a"], (1, 1))
    assert newest(found) == "cmp/seed-0/0-lfu" and newest({}) is None
    assert list(find_runs(tmp_path / "elsewhere")) == ["."]


def test_rows_by_table(tmp_path: Path) -> None:
    """Counts "now" as they are, flows per step: intervals of ten steps, with 7 n rows admitted and 3 n evicted."""
    found = rows_of(write_run(tmp_path / "a", intervals=3, skips=True) / "metrics.jsonl")
    assert (found["policy"], found["host"], found["steps"]) == ("lfu", "memory", [10, 20, 30])
    assert found["device_rows"] == [1000, 1000, 1000]
    user = {
        "name": "user",
        "is_whole": False,
        "rows": 1000,
        "resident": [10, 20, 30],
        "hot": [20, 20, 20],
        "saturated": [1, 2, 3],
    }
    whole, first, second = found["tables"]
    keys = {key: [0, 0, 0] for key in ("live_keys", "admitted_keys", "expired_keys", "evicted_keys", "unadmitted")}
    assert first == {**user, "admitted": [0.7, 1.4, 2.1], "evicted": [0.3, 0.6, 0.9], **keys}
    assert [one["name"] for one in (whole, first, second)] == ["all tables", "user", "item"]
    assert whole["is_whole"] and whole["rows"] == first["rows"] + second["rows"]
    for name in ("resident", "hot", "saturated", "admitted", "evicted"):
        assert whole[name] == pytest.approx([a + b for a, b in zip(first[name], second[name], strict=True)])


def test_long_runs_are_thinned_without_loss(tmp_path: Path) -> None:
    intervals = 2 * MOST_POINTS + 1  # stretches of three
    found = rows_of(write_run(tmp_path / "a", intervals=intervals) / "metrics.jsonl")
    steps, user = found["steps"], found["tables"][1]
    assert len(steps) <= MOST_POINTS and steps[:2] == [30, 60] and steps[-1] == 10 * intervals
    spans = [end - start for start, end in zip([0, *steps], steps, strict=False)]
    moved = sum(rate * span for rate, span in zip(user["admitted"], spans, strict=True))
    assert moved == pytest.approx(7 * intervals * (intervals + 1) / 2)
    assert user["resident"][0] == 30


def test_a_run_that_goes_on_is_read_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", intervals=2)
    whole = (run / "metrics.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:9])  # its last line is being written
    assert rows_of(run / "metrics.jsonl")["steps"] == [10]
    (run / "metrics.jsonl").write_bytes(whole)
    assert rows_of(run / "metrics.jsonl")["steps"] == [10, 20]


def test_invisible_characters_in_names_are_escaped(tmp_path: Path) -> None:
    """Of the policy, of tables and of runs; a run is still asked for by its own name."""
    tables = ("\u202eexe.gpj", "a\x00b\x1b[31m", "\u2066 \u200f", "<script>'\"")
    run = write_run(tmp_path / "\u202enur", intervals=1, tables=tables, policy="\u202eufl'\"<b>")
    found = rows_of(run / "metrics.jsonl")
    assert found["policy"] == "\\u202eufl'\"<b>"
    names = ["\\u202eexe.gpj", "a\\x00b\\x1b[31m", "\\u2066 \\u200f", "<script>'\""]
    assert [table["name"] for table in found["tables"][1:]] == names
    answered = answer(plugin(tmp_path), "/runs")[1]
    assert (answered["runs"], answered["shown"]) == (["\u202enur"], ["\\u202enur"])
    assert answer(plugin(tmp_path), "/rows", run="\u202enur")[1] == found


def test_answers(tmp_path: Path) -> None:
    write_run(tmp_path / "a", intervals=1)
    found = plugin(tmp_path)
    assert found.is_active() and answer(found, "/runs") == (200, {"runs": ["a"], "shown": ["a"], "newest": "a"})
    assert answer(found, "/rows", run="a")[1]["steps"] == [10]
    for name in ("b", "../a", str(tmp_path / "a"), ""):
        code, said = answer(found, "/rows", run=name)
        assert code == 404 and repr(name) in said["error"]
    with open(tmp_path / "a/metrics.jsonl", "a") as file:
        file.write("broken\n")
    code, said = answer(found, "/rows", run="a")
    assert code == 500 and "metrics.jsonl:4)" in said["error"]
    with pytest.raises(InputError, match=r"metrics\.jsonl:4"):
        rows_of(tmp_path / "a/metrics.jsonl")


def test_without_runs_the_tab_stays_away(tmp_path: Path) -> None:
    for logdir in (None, tmp_path, tmp_path / "missing"):
        assert not plugin(logdir).is_active()
        assert answer(plugin(logdir), "/runs") == (200, {"runs": [], "shown": [], "newest": None})


PAGE = """<!DOCTYPE html><meta charset="utf-8"><body><script type="module">
const page = await import('./index.js');
await page.render();
const svg = document.getElementById('lanes'), box = svg.getBoundingClientRect();
const at = {clientX: box.right - 20, clientY: box.top + 20, bubbles: true};
svg.dispatchEvent(new PointerEvent('pointermove', at));
document.body.dataset.done = 'yes';
</script>"""


@contextmanager
def served(found: RowsPlugin) -> Iterator[str]:
    """The plug-in's routes and a page that loads it as TensorBoard does, and points at the end of the first lane."""
    apps = found.get_plugin_apps()

    @Request.application
    def page(request: Request) -> Response:
        return Response(PAGE, content_type="text/html")

    def route(environ: Any, start: Any) -> Any:
        return apps.get(environ["PATH_INFO"].removeprefix(PREFIX), page)(environ, start)

    server = make_server("127.0.0.1", 0, route, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{PREFIX}/page.html"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.nightly
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """A lane for each table, names as text, numbers at the pointer; an empty console."""
    policy = f"{HOSTILE[0]} {HOSTILE[1]} {HOSTILE[3]}"
    write_run(tmp_path / "logs/\u202ea", tables=HOSTILE[:3], skips=True, policy=policy)
    with served(plugin(tmp_path / "logs")) as url:
        dom, console = browse(url, tmp_path / "browser", options=("--virtual-time-budget=5000",))
    assert console == "" and 'data-done="yes"' in dom
    assert dom.count('class="lane"') == 4  # one of all tables
    assert dom.count('class="line saturated"') == 4
    assert dom.count("<script") == 1 and "<img" not in dom
    assert 'policy &lt;script&gt;alert(1)&lt;/script&gt; "&gt;&lt;img src=x onerror=alert(2)&gt; \\u202eexe.gpj' in dom
    assert ">\\u202ea</option>" in dom and dom.count("\u202e") == dom.count('value="\u202ea"') <= 1
    assert "all tables, step 40" in dom  # the tip: the last stretch of the first lane
    for told in (
        "on the device    120 (4.0%)",
        "in host memory    2,880",
        "admitted per step    8.4",
        "saturated    12",
    ):
        assert told in dom, told
