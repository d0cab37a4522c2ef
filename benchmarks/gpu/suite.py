"""The tests in `tests/gpu`, run on this machine: a benchmark of something that is wrong is worth nothing."""

import os
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from benchmarks.harness import Report

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {"full": 200, "quick": 40, "smoke": 10}  # drawn trainings of the invariance suite


def run_suite(tier: str, size: str, seconds: float, *, only: str = "") -> Report:
    """What passed, failed and was skipped. `tier` is `cuda`, or `cpu-torch` for a rehearsal on the CPU."""
    environment = os.environ | {"GPU_SUITE_DEVICE": tier, "GPU_SUITE_EXAMPLES": str(EXAMPLES[size])}
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-k", only]
        # Elsewhere torch, Triton and pytest have other versions, and other things to warn of.
        command += ["-o", "filterwarnings=default", f"--junitxml={results}", "--durations=5"]
        print(f"\n=== {shlex.join(command[1:])}", flush=True)
        try:
            code = subprocess.run(command, cwd=ROOT, env=environment, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            return Report(absent={"bench_gpu_suite": f"the tests did not end within {seconds:.0f} s"})
        if code not in (0, 1) or not results.is_file():  # 1: some tests failed
            return Report(absent={"bench_gpu_suite": f"pytest ended with code {code}; its message stands above"})
        return _report(results, tier)


def _report(results: Path, tier: str) -> Report:
    report = Report()
    table = report.table(f"tests on {tier}", "file", "passed", "failed", "skipped", "seconds")
    cases = list(ET.parse(results).getroot().iter("testcase"))
    all_failed = [case for case in cases if _has(case, "failure") or _has(case, "error")]
    all_passed = [case for case in cases if case not in all_failed and not _has(case, "skipped")]
    for name in sorted({str(case.get("classname")) for case in cases}):
        mine, failed, passed = (
            [c for c in some if c.get("classname") == name] for some in (cases, all_failed, all_passed)
        )
        seconds = sum(float(case.get("time", 0)) for case in mine)
        table.add(name, len(passed), len(failed), len(mine) - len(passed) - len(failed), seconds)
    report.notes += [f"FAILED: {case.get('classname')}::{case.get('name')}" for case in all_failed]
    report.ratios["gpu_tests_failed"] = float(len(all_failed))
    report.figures["gpu_tests_passed"] = float(len(all_passed))
    if not cases:
        report.absent["bench_gpu_suite"] = "no test was found"
    return report


def _has(case: ET.Element, what: str) -> bool:
    return case.find(what) is not None
