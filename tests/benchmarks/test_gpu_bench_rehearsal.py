"""Plans for a GPU, rehearsed on the CPU: every stage is a process, and the whole suite of `tests/gpu` runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import plans
from benchmarks.gpu.suite import run_suite

pytestmark = pytest.mark.nightly  # several processes each
ROOT = Path(__file__).resolve().parents[2]
GPU_ONLY = {"ncu", "compute-sanitizer"}


def test_the_whole_suite_on_the_cpu() -> None:
    report = run_suite("cpu-torch", 600)
    assert report.absent == {} and report.ratios["gpu_tests_failed"] == 0, report.notes
    assert report.figures["gpu_tests_passed"] > 60


@pytest.mark.parametrize("plan", sorted(set(plans.PLANS) - {"everything"}))
def test_a_plan_on_the_cpu(plan: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.plans", plan, "--device", "cpu-torch", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    absent = json.loads((tmp_path / "results.json").read_text())["absent"]
    assert not [name for name in absent if name not in GPU_ONLY and "FBGEMM" not in name], absent
    assert (tmp_path / "tables.md").read_text().count("\n| ") > 5
