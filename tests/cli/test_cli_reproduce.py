"""`reproduce` from the command line: every recipe with --quick, and its numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Result

Cli = Callable[..., Result]

HOLDS = {
    # claims that follow from the built-in stream and the model, on any machine; those by measured times are left out
    "tutorial": ["one row of a table", "512 MiB", "a sample of 10 %", "fae moves less"],
    "fae": ["a tenth of the rows", "hot inputs grow", "a mini-batch of 1024", "FAE is faster"],
    "hotline": ["learning on 20 %", "a small logger", "Hotline is faster"],
    "scratchpipe": ["knowing what comes", "and no more than", "rows shared", "more look-ahead", "a step at the speed"],
    "slipstream": ["a higher threshold", "the default mode writes fewer"],
    "zion": ["M2 on Big Basin", "4096 dense", "Zion holds", "M3 does not fit", "larger batches", "wider MLPs"],
}


@pytest.mark.slow
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
    assert list((tmp_path / "found").rglob("*.png"))


def test_the_list_and_mistakes(cli: Cli, tmp_path: Path) -> None:
    listed = cli("reproduce", "--list")
    assert listed.code == 0 and all(name in listed.out for name in HOLDS)
    assert "needed a recipe: fae" in cli("reproduce").err
    assert "neither a file nor one of fae" in cli("reproduce", "faee").err
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    full = cli("reproduce", "zion", "--out", "full")
    assert full.code != 0 and "is not empty" in full.err


def test_a_recipe_of_ones_own_runs_its_commands(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        'name = "own"\ntitle = "Own"\nsource = "me"\n[[commands]]\nid = "d"\nshows = "skew"\n'
        'words = "profile --what data --samples 300 --set data.synthetic.rows=100000 --set data.synthetic.seed=1"\n'
        '[[claims]]\nsays = "counted"\nvalue = "d.data.lookups"\nmore_than = 7799\n'
    )
    result = cli("reproduce", "own.toml", "--out", "found")
    assert result.code == 0, result.err
    assert "comes out: counted (7800 > 7799)" in result.out and "adaptive-train profile --what data" in result.err
    assert (tmp_path / "found/d/skew.png").exists()
