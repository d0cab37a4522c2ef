"""`profile`: record, tables, pictures, machine file and mistakes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
SMALL = (
    *("--set", "data.synthetic.rows=100000", "--set", "data.synthetic.num_train=4000"),
    *("--set", "data.synthetic.num_eval=0", "--batch-size", "64"),
    *("--set", "model.bottom_mlp=32-16", "--set", "model.top_mlp=8-1"),
)


@pytest.mark.nightly
def test_a_profile_writes_record_page_and_pictures(cli: Cli, tmp_path: Path) -> None:
    result = cli(
        "profile", "--sections", "data,step,movement", *SMALL, "--policies", "hybrid,lfu", "--time-steps", "5",
        "--steps", "10", "--every", "5", "--memory", "10%,1MiB", "--out", "found", "--save", "machine.toml",
    )  # fmt: skip
    assert result.code == 0, result.err
    for word in ("hot inputs", "estimated rows", "MLPs backward", "moved < 2%", "hottest/median", "hidden"):
        assert word in result.out
    record = json.loads((tmp_path / "found/profile.json").read_text())
    assert max(map(len, result.out.splitlines())) <= 100
    suggested = record["data"]["suggested"]
    assert (
        suggested["device_rows"] == max(suggested["rows_for_90"], suggested["rows_in_flight"]) < record["data"]["rows"]
    )
    assert f"suggested: --device-rows {suggested['device_rows']} (" in result.out
    places = [result.out.index(text) for text in ("suggested:", "Rows and lookups by table", "Hot rows and inputs")]
    assert places == sorted(places)
    assert record["kind"] == "profile" and record["data"]["lookups"] == 4000 * 26
    assert [entry["memory"] for entry in record["data"]["hot"]] == ["10%", "1MiB"]
    names = {path.stem for path in (tmp_path / "found").glob("*.png")}
    assert names == {"skew", "hot", "tables", "reuse", "step", "movement", "drop"}
    tables = (tmp_path / "found/tables.csv").read_text().splitlines()
    assert tables[0].startswith("table,rows,lookups/sample,seen") and len(tables) == 28
    simulated = cli("simulate", *SMALL[:8], "--policies", "lru,hybrid", "--device-rows", "20%", "--machine",
                    "machine.toml", "--steps", "10", "--json")  # fmt: skip
    assert simulated.code == 0, simulated.err
    runs = json.loads(simulated.out)["runs"]
    assert all(run["expected_ms"] > 0 and run["read_ms"] > 0 for run in runs)
    faster = cli("simulate", *SMALL[:8], "--policies", "lru", "--device-rows", "20%", "--machine", "h200",
                 "--steps", "10", "--dense-ms", "7")  # fmt: skip
    assert faster.code == 0 and "expected" not in faster.out and " 7.0" in faster.out


def test_profile_json_is_only_the_record(cli: Cli) -> None:
    result = cli("profile", "--sections", "data", *SMALL, "--samples", "500", "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["kind"] == "profile" and report["data"]["samples"] == 500 and report["step"] == []


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (("--sections", "data,speed"), "--sections: expected some of data, step, movement"),
        (("--sections", "data", "--save", "m.toml"), "Add step to --sections"),
        (("--sample", "5"), "expected a share of the inputs"),
        (("--sample", "lots"), "--sample"),
        (("--memory", "1%,lots"), "--memory"),
        (("--save", "no/where.toml"), "folder no does not exist"),
        (("--policies", "slipstreem"), "did you mean slipstream"),
        (("--memory", ","), "--memory: expected sizes"),
        (
            ("--sections", "step", "--policies", "lfu,lru", "--save", "m.toml"),
            "Give --policies hybrid and one that prefetches",
        ),
        (
            ("--sections", "step", "--policies", "hybrid,fae", "--save", "m.toml"),
            "Give --policies hybrid and one that prefetches",
        ),
        (
            ("--schema", "adfea.toml"),
            "data synthetic: expected no data.schema_path, got a value: the stream is built in",
        ),
    ],
)
def test_mistakes(cli: Cli, words: tuple[str, ...], needed: str) -> None:
    result = cli("profile", *SMALL, *words)
    assert result.code != 0 and result.out == "" and needed in result.err


def test_memory_below_one_row_and_unwritable_folders(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    result = cli("profile", *SMALL, "--sections", "data", "--memory", "10%,1B")
    assert result.code == 2 and "--memory: expected at least one row (68 bytes with its state), got 1B" in result.err
    monkeypatch.setattr("adaptive.training.components.open_data", lambda *_: pytest.fail("data are read"))
    Path("file").touch()
    result = cli("profile", *SMALL, "--out", "file")
    assert result.code == 6 and "folder file cannot be created" in result.err
