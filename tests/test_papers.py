"""`examples/papers/`: every script with --quick, its claims, and how claims are judged."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAPERS = Path(__file__).parent.parent / "examples/papers"
HOLDS = {
    # claims that follow from the built-in stream, the counts or the model on any machine; not those by measured times
    "dlrm_xdl": ["hybrid is DLRM", "session 1", "session 3: with hot rows"],
    "fae": ["the hottest 6.8%", "mini-batches of 1,024", "with one home", "FAE moves a 4.06th"],
    "hotline": ["the larger the logger"],
    "scratchpipe": ["knowing the next", "and no more than", "batches share rows", "no row is out of date"],
    "slipstream": [],
    "slipstream_rule": [],
    "zion": ["samples per second of M3 on", "samples per second of M3 in", "larger batches:",
             "wider MLPs", "larger batches learn"],
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted({path.stem for path in PAPERS.glob("*.py")} - {"common"}))
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
