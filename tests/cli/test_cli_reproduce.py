"""`reproduce` from the command line: every recipe with --quick, and its numbers."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Result

from adaptive.studies.report.writing import write_report
from adaptive.studies.reproduce.recipe import load_recipe
from adaptive.studies.reproduce.reproduce import reproduce

Cli = Callable[..., Result]

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
    "tutorial": ["one row of a table", "512 MiB", "a sample of 10 %", "fae moves less"],
    "fae": [
        "a tenth of the rows",
        "hot inputs grow",
        "a mini-batch of 1024",
        "quality rises",
        "FAE moves",
        "FAE is faster",
    ],
    "hotline": ["learning on 20 %", "the larger the logger", "Hotline is faster", "a working set"],
    "scratchpipe": ["knowing what comes", "and no more than", "rows shared", "more look-ahead", "a step at the speed"],
    "slipstream": ["a higher threshold", "the default mode writes fewer", "Slipstream is faster"],
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
def test_a_quick_run_has_the_numbers_that_it_claims(cli: Cli, tmp_path: Path, name: str) -> None:
    result = cli("reproduce", name, "--quick", "--out", "found", "--json")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    assert found["kind"] == "reproduction" and found["quick"]
    for beginning in HOLDS[name]:
        (claim,) = (one for one in found["claims"] if one["says"].startswith(beginning))
        assert claim["holds"], claim
    for one in found["commands"]:
        assert json.loads((tmp_path / "found" / f"{one['id']}.json").read_text())
    assert "cannot here: " in (tmp_path / "found/report.md").read_text()
    for derived, points in CURVES[name].items():
        lines = found["derived"][derived]["curves"]["lines"]
        assert max(map(len, lines.values())) >= points, lines
        assert (tmp_path / "found" / f"{derived}.png").exists()
    for one in found["derived"].values():
        assert one["values"] and all(isinstance(value, float | int) for value in one["values"].values())
    ratios = found["derived"].get("ratios", {"values": {"XDL": 0.5, "DLRM": 1, "ScratchPipe": 2}})["values"]
    assert ratios["XDL"] < ratios["DLRM"] == 1 < ratios["ScratchPipe"]
    page = (tmp_path / "found/report.html").read_text()
    assert len(page) < 2_000_000 and "<image" not in page and found["page"].endswith("report.html")
    for one in found["commands"]:
        assert f"{one['id']}: " in page
    assert list((tmp_path / "found").rglob("*.png"))


def test_a_recipe_that_is_shipped_has_its_numbers(cli: Cli, tmp_path: Path) -> None:
    """As the slow test, for two commands that train nothing, on small data: their claims, and the page of the whole."""
    zion, kept = load_recipe("zion"), ("placements", "mlp")
    claims = tuple(claim for claim in zion.claims if claim.value.split(".")[0] in kept)
    part = {"commands": tuple(one for one in zion.commands if one.id in kept), "claims": claims, "derived": ()}
    small = ("data.synthetic.rows=100000", "data.synthetic.num_train=20000", "data.synthetic.num_eval=0")

    def run(words: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(cli(*words, "--json").out)
        return found

    (tmp_path / "found").mkdir()
    more = [word for one in small for word in ("--set", one)]
    found = reproduce(zion.model_copy(update=part), tmp_path / "found", run, quick=True, more=more)
    judged = {one["says"]: one for one in found["claims"]}
    assert len(judged) == 5
    for says, one in judged.items():
        assert one["holds"] == (not says.startswith("on Zion")), one
    assert "the model is to blame, not the data" in found["table"].splitlines()[-2]
    write_report([tmp_path / "found"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "the model is to blame" in page and "mlp: Placements, modelled" in page and page.count("<svg") == 2


def test_ctrl_c_keeps_the_commands_that_are_done(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.toml").write_text(
        'name = "own"\ntitle = "Own"\nsource = "me"\n'
        '[[commands]]\nid = "first"\nshows = "skew"\nwords = "profile --sections data --samples 300"\n'
        '[[commands]]\nid = "second"\nshows = "hits"\nwords = "simulate --policy lru --batches 2"\n'
        '[[claims]]\nsays = "counted"\nvalue = "first.data.lookups"\nmore_than = 1\n'
    )

    def interrupted(*words: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("adaptive.studies.simulate.simulation.simulate", interrupted)
    result = cli("reproduce", "own.toml", "--out", "found", "--set", "data.synthetic.rows=100000")
    assert result.code == 130 and "found has what was done by then" in result.err
    assert "comes out: counted" in result.out
    page = (tmp_path / "found/report.html").read_text()
    assert "first: Rows and look-ups by table" in page and "second" not in page


def test_the_list_and_mistakes(cli: Cli, tmp_path: Path) -> None:
    listed = cli("reproduce", "--list")
    assert listed.code == 0 and all(name in listed.out for name in HOLDS)
    assert "needed a recipe: fae" in cli("reproduce").err
    assert "neither a file nor one of fae" in cli("reproduce", "faee").err
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    full = cli("reproduce", "zion", "--out", "full")
    assert full.code != 0 and "is not empty" in full.err


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (("--schema", "s.toml"), "--schema s.toml: the built-in stream has none; name the data"),
        (("--seeds", "3"), "--seeds 3: recipe zion"),
        (("--set", "steps"), "needed KEY=VALUE"),
        (("--data", ""), "--data: needed a value, found an empty one"),
    ],
)
def test_what_would_be_ignored_is_refused(cli: Cli, tmp_path: Path, words: tuple[str, ...], needed: str) -> None:
    result = cli("reproduce", "scratchpipe" if "--seeds" in words else "zion", "--out", "found", *words)
    assert result.code == 2 and needed.replace("zion", "scratchpipe") in result.err, result.err
    assert not (tmp_path / "found").exists()


def test_a_recipe_of_ones_own_runs_its_commands(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        'name = "own"\ntitle = "Own"\nsource = "me"\n[[commands]]\nid = "d"\nshows = "skew"\n'
        'words = "profile --sections data --samples 300 --set data.synthetic.rows=100000 --set data.synthetic.seed=1"\n'
        '[[claims]]\nsays = "counted"\nvalue = "d.data.lookups"\nmore_than = 7799\n'
    )
    result = cli("reproduce", "own.toml", "--out", "found")
    assert result.code == 0, result.err
    assert "comes out: counted (7,800 > 7,799)" in result.out and "adaptive-train profile --sections data" in result.err
    assert (tmp_path / "found/d/skew.png").exists()
