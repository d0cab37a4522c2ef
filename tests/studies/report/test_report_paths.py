"""Paths that `report` accepts, and errors for all others."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from support.manifests import write_record
from support.report_records import Seen, comparison, nothing_drawn, write_run  # noqa: F401 (fixture)

from adaptive.errors import AdaptiveError, CheckpointError, InputError, OutputError
from adaptive.studies.compare.comparison_runs import Outcome
from adaptive.studies.compare.verdicts import judge
from adaptive.studies.report import html_report
from adaptive.studies.report.html_report import write_report

pytestmark = pytest.mark.usefixtures("nothing_drawn")


def refused(error: type[AdaptiveError], *paths: Path) -> str:
    out = paths[0].parent / "page.html"
    with pytest.raises(error) as caught:
        write_report(paths, out)
    assert not out.exists()
    return str(caught.value)


def shown(tmp_path: Path, *paths: Path) -> tuple[str, str]:
    """Kind and text of the page of these paths."""
    kind = write_report(paths, tmp_path / "page.html")["kind"]
    return kind, Seen((tmp_path / "page.html").read_text()).text


def test_runs_are_found_by_folder_record_and_parent(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"runs/{name}") for name in ("a", "b")]
    for path, report in ((runs[0], runs[:1]), (runs[0] / "run.json", runs[:1]), (tmp_path / "runs", runs)):
        result = write_report([path], tmp_path / "page.html")
        assert result["kind"] == "run" and result["shown"] == list(map(str, report))
        assert result["page_bytes"] == (tmp_path / "page.html").stat().st_size
    assert set(os.listdir(tmp_path)) == {"runs", "page.html"}


def test_names_are_as_long_as_needed(tmp_path: Path) -> None:
    _, text = shown(tmp_path, write_run(tmp_path / "x/a"), write_run(tmp_path / "y/a"))
    assert "2 runs: x/a, y/a" in text


def test_studies_are_found_by_folder_or_file(tmp_path: Path) -> None:
    """A comparison with runs, one without a finished run, and a stopped profile."""
    write_run(tmp_path / "cmp/seed-0/0-hybrid")
    (tmp_path / "cmp/comparison.json").write_text(json.dumps(comparison()))
    kind, text = shown(tmp_path, tmp_path / "cmp")
    assert kind == "comparison" and "AUC minus the control's" in text and "hybrid: within" in text
    assert "seed-0: Tier movement" in text
    failed = asdict(judge([Outcome("lru", 0, "out", error=ValueError("it broke"))], auc_budget=0.0))
    (tmp_path / "c.json").write_text(json.dumps(failed))
    said = "No run finished. problem: lru, seed 0: ValueError: it broke"
    assert said in shown(tmp_path, tmp_path / "c.json")[1]
    (tmp_path / "p").mkdir()
    (tmp_path / "p/profile.json").write_text('{"kind": "profile", "data_of": "x"}')
    kind, text = shown(tmp_path, tmp_path / "p")
    assert kind == "profile" and "stopped before a section was done" in text


def test_paths_without_a_record_are_reported(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (tmp_path / "c.json").write_text(json.dumps(comparison()))
    said = refused(InputError, run, tmp_path / "c.json")
    assert f"{run} is a run" in said and "c.json is a comparison" in said and "Make a page of each kind" in said
    (tmp_path / "empty").mkdir()
    said = refused(InputError, tmp_path / "empty")
    assert "expected run.json or reproduction.json, comparison.json, profile.json" in said
    assert "got no file or folder" in refused(InputError, tmp_path / "nothing")
    for number in range(17):
        write_run(tmp_path / f"runs/{number:02}", intervals=0)
    assert "got 17" in refused(InputError, tmp_path / "runs")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"policies": [', "expected JSON"),
        (b"\x80\x81", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (
            b"[1]",
            "a record of run, comparison, profile, placements, simulation, reproduction, got another JSON list",
        ),
        (b'{"run_dir": "runs/x"}', "The run itself is in runs/x"),
        (
            b'{"policies": [{}], "auc_budget": 1, "problems": []}',
            "expected a complete record of a comparison, got TypeError: schema: Field required",
        ),
        (b'{"runs": [], "machine": {}}', "expected a complete record of a simulation"),
    ],
)
def test_files_that_are_no_records_are_reported(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert said in refused(InputError, tmp_path / "x.json") and "x.json" in refused(InputError, tmp_path / "x.json")


def test_damaged_runs_are_reported_by_file_and_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (run / "rejects.jsonl").write_text("[1]\n")
    assert f"{run}/rejects.jsonl:1: expected a JSON object, got" in refused(InputError, run)
    with open(run / "metrics.jsonl", "a") as file:
        file.write("{broken\n")
    assert f"{run}/metrics.jsonl:10)" in refused(InputError, run)
    write_record(run, {})
    assert "expected the settings of a run as config" in refused(CheckpointError, run)
    (run / "run.json").write_text('{"schema": 1')
    assert "expected JSON, got a damaged file" in refused(CheckpointError, run)


def test_a_failed_write_keeps_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = write_run(tmp_path / "a"), tmp_path / "page.html"
    out.write_text("old")

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(html_report, "write_atomic", full)
    with pytest.raises(OutputError, match="No space left"):
        write_report([run], out)
    assert out.read_text() == "old"


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    assert "adaptive-train[report]" in refused(AdaptiveError, write_run(tmp_path / "a"))
