"""Run directories that earlier versions wrote: they load, are evaluated, and go on as they would have.

Each archive in `golden/runs` holds the data, a run that was killed after its second checkpoint (`interrupted`), and the
same run from beginning to end (`whole`), both trained by the commit in its name.
"""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive.runs import evaluate_run, resume_run
from adaptive.storage.checkpoint import load_checkpoint

ARCHIVES = sorted((Path(__file__).parents[1] / "golden/runs").glob("*.zip"))
SHARES = ("skipped_update_share", "deferred_update_share", "skipped_lookup_share", "steps", "samples")


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.stem)
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with zipfile.ZipFile(request.param) as archive:
        archive.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)  # the runs name their data by relative paths
    return tmp_path


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "run.json").read_text())["summary"]
    return summary


def test_a_killed_run_goes_on_to_what_it_would_have_become(old: Path) -> None:
    """Exactly what is counted; values to rounding, as the dense part is another processor's."""
    resume_run("interrupted")
    found, expected = summary_of(old / "interrupted"), summary_of(old / "whole")
    assert {name: found[name] for name in SHARES} == {name: expected[name] for name in SHARES}
    assert found["auc"] == pytest.approx(expected["auc"], abs=1e-3)
    mine, theirs = (load_checkpoint(old / run / "weights") for run in ("interrupted", "whole"))
    assert mine.rows.keys() >= theirs.rows.keys() and mine.dense.keys() == theirs.dense.keys()
    for name, array in theirs.rows.items():
        np.testing.assert_allclose(mine.rows[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    for name, weight in theirs.dense.items():
        np.testing.assert_allclose(mine.dense[name].numpy(), weight.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_finished_run_is_evaluated(old: Path) -> None:
    found = evaluate_run("whole")
    assert found["auc"] == pytest.approx(summary_of(old / "whole")["auc"], abs=1e-3)


def test_there_is_one() -> None:
    assert ARCHIVES
