"""`reproduce`: every paper with --quick, and its claims."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from adaptive.studies.reproduce.paper import load_paper
from adaptive.studies.reproduce.reproduction import command_lines, reproduce

Cli = Callable[..., Any]

CURVES = {
    # derived tables with a picture, and the least number of points of their longest line
    "tutorial": {},
    "fae": {"quality": 4, "accuracy": 4},
    "hotline": {"quality": 4, "accuracy": 4, "logger_size": 4, "working_set": 5},
    "scratchpipe": {"slots": 5, "designs": 2},
    "slipstream": {"skipping": 2},
    "zion": {"batch_quality": 2},
}
HOLDS = {
    # claims that follow from the built-in stream and the model, on any machine; those by measured times are left out
    "tutorial": ["one row of a table", "a sample of 10%", "fae moves less"],
    "fae": ["the hottest 7%", "a mini-batch of 1024"],
    "hotline": ["the larger the logger", "a working set"],
    "scratchpipe": ["knowing the next", "and no more than", "rows shared", "a step at the speed"],
    "slipstream": [],
    "zion": [
        "M2 on Big Basin",
        "4096 dense",
        "Zion holds",
        "M3 does not fit",
        "larger batches: throughput",
        "larger batches learn",
        "wider MLPs",
    ],
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(HOLDS))
def test_a_quick_reproduction_meets_its_claims(cli: Cli, tmp_path: Path, name: str) -> None:
    done = cli("reproduce", name, "--quick", "--out", "found", "--json")
    assert done.code == 0, done.err
    result: dict[str, Any] = json.loads(done.out)
    assert result["kind"] == "reproduction" and result["quick"] and result["paper"] == name
    for beginning in HOLDS[name]:
        (claim,) = (claim for claim in result["claims"] if claim["says"].startswith(beginning))
        assert claim["holds"], claim
    for command in result["commands"]:
        assert json.loads((tmp_path / "found" / f"{command['id']}.json").read_text())
    assert "not available here: " in (tmp_path / "found/report.md").read_text()
    for derived, points in CURVES[name].items():
        lines = result["derived"][derived]["curves"]["lines"]
        assert max(map(len, lines.values())) >= points, lines
        assert (tmp_path / "found" / f"{derived}.png").exists()
    for table in result["derived"].values():
        assert table["values"] and all(isinstance(value, float | int) for value in table["values"].values())
    ratios = result["derived"].get("ratios", {"values": {"XDL": 1.2, "DLRM": 1, "ScratchPipe": 2}})["values"]
    assert ratios["DLRM"] == 1 < ratios["XDL"] < ratios["ScratchPipe"]
    assert list((tmp_path / "found").rglob("*.png"))


def test_a_shipped_paper_reports_its_numbers(cli: Cli, tmp_path: Path) -> None:
    """Like the slow test, for two commands that train nothing, on small data."""
    zion, ids = load_paper("zion"), ("placements", "mlp")
    part = replace(
        zion,
        commands=[command for command in zion.commands if command.id in ids],
        findings=lambda records: islice(zion.findings(records), 4),  # those of placements
    )
    small = ("data.synthetic.rows=100000", "data.synthetic.num_train=20000", "data.synthetic.num_eval=0")

    def run(words: Sequence[str]) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(cli(*words, "--json").out)
        return record

    out = tmp_path / "found"
    out.mkdir()
    lines = command_lines(part, out, quick=True, more=[word for setting in small for word in ("--set", setting)])
    result = reproduce(part, lines, out, run, quick=True)
    assert [claim["holds"] for claim in result["claims"]] == [True, True, False, True]
    assert result["claims"][2]["says"].startswith("on Zion")
    assert "the model is the cause, not the data" in result["table"].splitlines()[-2]


OWN = """
from adaptive.studies.reproduce.paper import Claim, Command, Paper

def findings(records):
    yield Claim("counted", records["first"]["data"]["lookups"], ">", 7799)

words = "profile --sections data --samples 300 --set data.synthetic.rows=100000 --set data.synthetic.seed=1"
PAPER = Paper("Own", "me", [Command("first", "skew", words)%s], findings)
"""


@pytest.mark.nightly
def test_ctrl_c_keeps_finished_commands(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(OWN % ', Command("second", "hits", "simulate --policies lru --steps 2")')

    def interrupted(*words: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("adaptive.studies.simulate.simulation.simulate", interrupted)
    result = cli("reproduce", "own.py", "--out", "found")
    assert result.code == 130 and "found has the results of the finished commands" in result.err
    assert "comes out: counted" in result.out
    page = (tmp_path / "found/report.md").read_text()
    assert "skew (first)" in page and "second" not in page


@pytest.mark.nightly
def test_a_custom_script_runs_its_commands(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN % "")
    result = cli("reproduce", "own.py", "--out", "found")
    assert result.code == 0, result.err
    assert "comes out: counted (7,800 > 7,799)" in result.out and "adaptive-train profile --sections data" in result.err
    assert (tmp_path / "found/first/skew.png").exists()


def test_reproduce_lists_papers_and_reports_mistakes(cli: Cli, tmp_path: Path) -> None:
    listed = cli("reproduce", "--list")
    assert listed.code == 0 and all(name in listed.out for name in HOLDS)
    assert [paper["name"] for paper in json.loads(cli("reproduce", "--list", "--json").out)["papers"]] == sorted(HOLDS)
    assert "expected a paper, one of fae" in cli("reproduce").err
    assert "expected one of fae" in cli("reproduce", "faee").err
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    full = cli("reproduce", "zion", "--out", "full")
    assert full.code != 0 and "expected a new or empty folder, got full" in full.err


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (("--schema", "s.toml"), "--schema: expected --data with it, got only --schema s.toml"),
        (("--seeds", "3"), "--seeds: expected a paper that compares policies, got zion"),
        (("--set", "steps"), "expected KEY=VALUE"),
        (("--data", ""), "--data: expected a value, got an empty one"),
    ],
)
def test_options_without_effect_are_refused(cli: Cli, tmp_path: Path, words: tuple[str, ...], needed: str) -> None:
    result = cli("reproduce", "scratchpipe" if "--seeds" in words else "zion", "--out", "found", *words)
    assert result.code == 2 and needed.replace("zion", "scratchpipe") in result.err, result.err
    assert not (tmp_path / "found").exists()
