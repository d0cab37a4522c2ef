"""The first run on a GPU, rehearsed on the CPU: the tests in `tests/gpu`, the one command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.suite import run_suite

pytestmark = pytest.mark.nightly  # several processes each
ROOT = Path(__file__).resolve().parents[2]


def test_the_whole_suite_on_the_cpu() -> None:
    report = run_suite("cpu-torch", "smoke", 600)
    assert report.absent == {} and report.ratios["gpu_tests_failed"] == 0, report.notes
    assert report.figures["gpu_tests_passed"] > 60


def test_the_one_command_on_the_cpu(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.gpu.run_all", "--smoke", "--device", "cpu-torch"]
    subprocess.run([*command, "--json", str(results), "--only", "probe", "step"], cwd=ROOT, check=True, timeout=900)
    result = json.loads(results.read_text())
    assert not [name for name in result["absent"] if name.startswith("bench_")]
    assert result["ratios"]["gpu_staged_vs_device_0.0008gb"] > 0
