"""Pages of placements and of reproductions."""

import json
from pathlib import Path

import pytest

from adaptive.studies.machines import load_machine
from adaptive.studies.placements.placement_study import compare_placements
from adaptive.studies.placements.shape import load_shape
from adaptive.studies.report.html_report import write_report
from adaptive.studies.step_model import Locality

LOCALITY = Locality("made up", (0.1, 0.5), (0.8, 0.95), (0.2, 0.6), (64.0, 1024.0), (0.6, 0.4))


@pytest.mark.parametrize(
    "sweeps", [(), (("num_dense", ["64", "256"]),), (("num_dense", ["64"]), ("mlp", ["8^1", "9^2"]))]
)
def test_a_page_of_placements(tmp_path: Path, sweeps: tuple[tuple[str, list[str]], ...]) -> None:
    machine = load_machine("big-basin").model_copy(update={"name": "<b>$x$"})
    record = compare_placements([load_shape("sweep")], [machine], ["device", "host"], LOCALITY, sweeps=sweeps)
    record["measured"] = [{"placement": "lfu", "fits": False, "note": "<i>no room</i>"}]
    (tmp_path / "placements.json").write_text(json.dumps(record))
    write_report([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Placements, modelled" in page and "&lt;b&gt;$x$" in page and "<b>$x$" not in page
    assert "&lt;i&gt;no room" in page and "<svg" in page and "<image" not in page


def test_a_page_of_a_reproduction(tmp_path: Path) -> None:
    record = {
        "kind": "reproduction", "title": "T<x>", "source": "S", "derived": {
            "slots": {"title": "slots", "unit": "rows", "values": {"depth 0": 5.0}}},
        "claims": [{"says": "it grows", "holds": False, "numbers": "1 not > 2"}],
        "published": [], "missing": [{"what": "a machine", "why": "none"}],
        "commands": [{"id": "a", "shows": "figure 1", "words": "profile"}],
    }  # fmt: skip
    record["derived"]["quality"] = {
        "title": "AUC by step", "unit": "AUC", "values": {"a<b": 0.7}, "note": "of <one> seed",
        "curves": {"x": "step", "y": "AUC", "lines": {"a<b": [[1, 0.5], [2, 0.7]]}},
    }  # fmt: skip
    record["claims"].append({"says": "it turns", "holds": False, "numbers": "1 not < 0", "why": "the <model>"})
    record["commands"] += [
        {"id": "placements", "shows": "figure <14>", "words": "placements"},
        {"id": "../a", "shows": "a folder above", "words": "profile"},
    ]
    (tmp_path / "reproduction.json").write_text(json.dumps(record))
    shape, machine = load_shape("sweep"), load_machine("big-basin")
    found = compare_placements([shape], [machine], ["device", "host"], LOCALITY)
    (tmp_path / "placements.json").write_text(json.dumps(found))  # beside it: the folder is a reproduction all the same
    write_report([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for text in ("T&lt;x&gt;", "it grows", "1 not &gt; 2", "depth 0", "a machine", "adaptive-train profile"):
        assert text in page
    for text in (
        "it turns: the &lt;model&gt;",
        "figure &lt;14&gt;",
        "placements: Placements, modelled",
        "of &lt;one&gt;",
    ):
        assert text in page
    assert page.count("<svg") == 3 and "a&lt;b" in page and "../a: " not in page
