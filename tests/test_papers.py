"""`examples/papers/`: every script with --quick, its claims, and how claims are judged."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAPERS = Path(__file__).parent.parent / "examples/papers"
HOLDS = {
    # claims that follow from the built-in stream, the counts or the model on any machine; not those by measured times
    "dlrm_xdl": ["hybrid is DLRM", "session 1", "session 3: with hot rows"],
    "fae": ["the hottest 6.8%", "mini-batches of 1,024", "with one home", "FAE moves a 4.06th"],
    "hotline": ["the larger the logger", "AUC is DLRM's"],
    "scratchpipe": ["knowing the next", "and no more than", "batches share rows", "no row is out of date"],
    "slipstream": [],
    "slipstream_rule": [],
    "zion": ["samples per second of M3 on", "samples per second of M3 in", "larger batches:",
             "wider MLPs", "larger batches learn"],
}  # fmt: skip


def test_every_script_is_run_here() -> None:
    assert {path.stem for path in PAPERS.glob("*.py")} == {"common", *HOLDS}


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(HOLDS))
def test_a_paper_is_repeated_in_little_time(name: str, tmp_path: Path) -> None:
    words = [sys.executable, str(PAPERS / f"{name}.py"), "--quick"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "paper says" in done.stdout and not list(tmp_path.iterdir())
    assert ("not here: " in done.stdout) == (name != "slipstream_rule")  # its own loop, without a table of claims
    for beginning in HOLDS[name]:
        (line,) = re.findall(rf"^{re.escape(beginning)}.*$", done.stdout, re.M)
        assert line.endswith("  yes"), done.stdout
    for _ in range(done.stdout.count("  no\n")):
        assert "    why: " in done.stdout


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(PAPERS))
    return runpy.run_path(str(PAPERS / "common.py"))


@pytest.mark.parametrize(
    ("paper", "here", "comes_out"),
    [(1.2, 1.073, False), (1.175, 0.999, False), (1.2, 1.171, True), (1.2, 1.168, False), (2.4, 3.1, True)],
)
def test_a_ratio_is_judged_by_its_gain(common: dict[str, Any], paper: float, here: float, comes_out: bool) -> None:
    assert common["Claim"]("faster", paper, here, "gain").comes_out is comes_out


def test_a_model_of_other_machines_may_not_be_far_above(common: dict[str, Any]) -> None:
    assert not common["Claim"]("faster", 1.92, 33.6, "modeled").comes_out
    assert common["Claim"]("faster", 1.92, 2.04, "modeled").comes_out


def test_without_all_rows_some_inputs_are_cold(common: dict[str, Any]) -> None:
    rows, num_rows = common["read_rows"](True)
    assert rows.shape == (60_000, 26) and rows.max() < num_rows == 100_000
    counts = np.bincount(rows.ravel(), minlength=num_rows)
    assert 0.2 < common["hottest"](counts, 0.07)[rows].all(axis=1).mean() < 0.8


STEPS = {
    # milliseconds of a step as `placements` modeled them before it became this script
    ("M1", "big-basin"): (3.758, 30.52, 25.56, 3.758),
    ("M1", "zion"): (8.035, 10.87, 10.96, 8.035),
    ("M1", "dual-cpu"): (None, 134.1, 213.4, None),
    ("M2", "big-basin"): (10.24, 25.06, 28.36, 10.24),
    ("M2", "zion"): (14.55, 15.41, 16.46, 14.55),
    ("M2", "dual-cpu"): (None, 409.7, 478.4, None),
    ("M3", "big-basin"): (None, None, 60.17, None),
    ("M3", "zion"): (None, 34.55, 29.70, 25.02),
    ("M3", "dual-cpu"): (None, None, 510.1, None),
}


def test_zions_step_times_are_those_of_the_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PAPERS))
    zion = runpy.run_path(str(PAPERS / "zion.py"), run_name="zion")
    distinct = ([256, 1024, 4096, 16384], [0.4727, 0.3566, 0.2565, 0.1738])  # of 200,000 samples of the stream
    for (shape, machine), steps in STEPS.items():
        model = zion["Model"](zion["SHAPES"][shape], zion["MACHINES"][machine], distinct)
        placed = [model.placed(name) for name in ("device", "host", "remote", "tables")]
        assert placed == [step and pytest.approx(step, rel=0.005) for step in steps], (shape, machine)
