"""A table three times as large as the memory there is: trained, evaluated, scored and exported, its rows in files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import limited

from adaptive.serving import scoring


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_commands_take_a_third_of_what_the_table_takes(tmp_path: Path) -> None:
    environ = {**os.environ, "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, limited.__file__]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "GiB of memory for" in done.stderr and "--set tier.host=mmap:DIR" in done.stderr  # with rows in memory
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["command"] for one in found] == 2 * ["run", "eval", "predict", "export"]
    trained, evaluated, predicted, exported = found[4:]
    assert (evaluated["auc"], evaluated["log_loss"]) == (trained["auc"], trained["log_loss"])
    assert predicted["samples"] == limited.SMALL
    assert exported["export_bytes"] > limited.TABLE_BYTES // 2
    scores = np.load(tmp_path / "large.npy")
    samples = [
        {"price": 1.5, "id": int(line.split(",")[2])} for line in (tmp_path / "small.csv").read_text().splitlines()[1:]
    ]
    np.testing.assert_allclose(scoring.load(tmp_path / "large-served").score(samples), scores, atol=1e-6)
