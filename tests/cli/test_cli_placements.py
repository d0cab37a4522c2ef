"""`placements` from the command line."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_cli_profile import SMALL

from adaptive.studies.machines import load_machine

Cli = Callable[..., Any]


@pytest.mark.nightly
def test_measured_placements_appear_next_to_the_model(cli: Cli, tmp_path: Path) -> None:
    result = cli(
        "placements", *SMALL, "--machine", "here,big-basin", "--placements", "device,host,lfu", "--measure",
        "--time-steps", "5", "--out", "found",
    )  # fmt: skip
    assert result.code == 0, result.err
    record = json.loads((tmp_path / "found/placements.json").read_text())
    assert record["kind"] == "placements" and {line["machine"] for line in record["lines"]} == {"here", "big-basin"}
    assert [entry["placement"] for entry in record["measured"]] == ["device", "host", "lfu"]
    for entry in record["measured"]:
        assert entry["error_share"] == pytest.approx(entry["modelled_ms"] / entry["step_ms"] - 1)
    assert "measured ms" in result.out and "modeled" in result.out
    assert (tmp_path / "found/placements.png").exists() and (tmp_path / "found/measured.csv").exists()


def test_a_sweep_over_machines_and_batch_sizes(cli: Cli) -> None:
    small = ("--set", "data.synthetic.rows=100000", "--set", "data.synthetic.num_train=2000")
    good = cli("placements", *small, "--preset", "sweep", "--sweep", "num_dense=64,256", "--machine", "h200", "--json",
               "--sweep", "batch_size=512,1024")  # fmt: skip
    assert good.code == 0, good.err
    result = json.loads(good.out)
    assert len(result["lines"]) == 2 * 2 * 8 and result["machines"][0]["watts"] == 1400


@pytest.mark.parametrize(
    ("words", "code", "needed"),
    [
        (("--preset", "rmc9"), 2, "expected a file or a known name, got neither"),
        (("--machine", ","), 2, "expected names separated by commas"),
        (("--sweep", "speed=1"), 2, "expected KEY=VALUE"),
        (("--machine", "zion,nothere"), 2, "machine file 'nothere': expected a file or a known name, got neither"),
        (("--preset", ","), 2, "--preset: expected names separated by commas, got ','"),
        (("--preset", "rmc1", "--sweep", "batch_size=" + "9" * 30), 2, "batch_size: Input should be less than or"),
        (("--preset", "rmc1", "--sweep", "batch_size=nan"), 2, "batch_size: expected a whole number, got 'nan'"),
        (("--preset", "rmc1", "--batch-size", "64"), 2, "expected --sweep batch_size=... with --preset"),
        (("--placements", ","), 2, "expected names separated by commas"),
        (("--placements", "gpu"), 2, "--placements: expected some of device"),
        (("--sweep", "lookups=1", "--sweep", "lookups=2"), 2, "expected two different keys, got lookups again"),
        (("--preset", "rmc1", "--sweep", "mlp=64^100000000"), 2, "mlp: expected up to 64 layers"),
        (("--preset", "rmc1", "--sweep", "mlp=64^0"), 2, "mlp: expected up to 64 layers"),
        (("--measure", "--placements", "remote"), 2, "--measure: expected one of device, host"),
        (("--measure", "--out", "file"), 6, "folder file cannot be created"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_before_reading(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, needed: str
) -> None:
    monkeypatch.setattr("adaptive.training.components.open_data", lambda *_: pytest.fail("data are read"))
    Path("file").touch()
    result = cli("placements", *words)
    assert result.code == code and result.out == "" and needed in " ".join(result.err.split()), result.err


@pytest.mark.nightly
def test_measured_sweeps_train_at_each_point(cli: Cli, tmp_path: Path) -> None:
    result = cli(
        "placements", *SMALL, "--machine", "here", "--placements", "host", "--measure", "--time-steps", "5",
        "--sweep", "num_dense=4,8", "--sweep", "mlp=8^1,16^2", "--json",
    )  # fmt: skip
    assert result.code == 0, result.err
    report = json.loads(result.out)
    points = [("4", "8^1"), ("4", "16^2"), ("8", "8^1"), ("8", "16^2")]
    assert [(entry["point"]["num_dense"], entry["point"]["mlp"]) for entry in report["measured"]] == points
    assert all(entry["fits"] and entry["modelled_ms"] > 0 for entry in report["measured"])
    (tmp_path / "a.csv").write_text("click,a,b\n1,2,2\n0,3,4\n")
    (tmp_path / "a.toml").write_text(
        'label = { column = "click" }\ncategorical = [{ columns = ["a", "b"], hash_rows = 9 }]\n'
    )
    bad = cli(
        "placements", "--data", "csv:a.csv", "--schema", "a.toml", "--machine", "h200", "--measure",
        "--sweep", "num_dense=4,8", "--time-steps", "5", "--set", "batch_size=2",
    )  # fmt: skip
    assert (
        bad.code == 2
        and "expected batch_size or mlp for data csv:a.csv, got num_dense" in bad.err
        and "measuring" not in bad.err
    ), bad.err


def test_a_stop_keeps_measured_placements(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*arguments: Any) -> SimpleNamespace:
        signal.raise_signal(signal.SIGINT)
        return SimpleNamespace(device_share=0.5, step_ms=2.0)

    monkeypatch.setattr("adaptive.studies.placements.placement_study.measure", measure)
    monkeypatch.setattr(
        "adaptive.studies.placements.placement_study.measure_machine", lambda *_, **more: load_machine("h200")
    )
    result = cli(
        "placements", *SMALL, "--machine", "h200", "--placements", "device,host", "--measure",
        "--sweep", "num_dense=4,8", "--out", "found",
    )  # fmt: skip
    assert result.code == 130 and "Stopped early" in result.out and "interrupted" in result.err, result.err
    record = json.loads((tmp_path / "found/placements.json").read_text())
    assert [(entry["placement"], entry["point"]["num_dense"]) for entry in record["measured"]] == [("device", "4")]
    assert record["was_stopped"] and len((tmp_path / "found/measured.csv").read_text().splitlines()) == 2
    assert (tmp_path / "found/placements.png").exists()


def test_missing_matplotlib_is_reported_before_the_work(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if matplotlib were not installed
    for words in (("placements", "--out", "found"), ("reproduce", "zion", "--out", "found")):
        result = cli(*words)
        assert result.code == 2 and "expected matplotlib, which is not installed" in result.err
        assert not (tmp_path / "found").exists() and "measuring" not in result.err
