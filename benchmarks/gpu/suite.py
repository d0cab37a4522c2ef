"""The tests in `tests/gpu`, run on this machine: timing wrong results is useless."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ending import ROOT, wait
from benchmarks.harness import Report

NO_TESTS = 5  # what pytest ends with where it finds none
# In parallel: on a new machine most of their time goes into compiling kernels, on one core for each process.
PROCESSES = (("contract",), ("invariance",), ("bf16", "determinism", "examples", "lookups", "ranks", "saving", "waits"))
# Tests that point to a wrong kernel, on a GPU.
KERNELS = (
    "tests/kernels/rows", "tests/kernels/gpu",
    "tests/embeddings/tiers/gpu/test_torch_device_gpu.py", "tests/embeddings/tiers/gpu/test_pinned.py",
)  # fmt: skip
OF_A_GPU = "triton or gpu or pinned"


def run_suite(tier: str, seconds: float) -> Report:
    """Return passed, failed and skipped tests; tier `cpu-torch` is a rehearsal on the CPU."""
    shares = [[f"tests/gpu/test_gpu_{name}.py" for name in names] for names in PROCESSES]
    if tier == "cuda":
        shares = [[*share, "-m", "gpu"] for share in shares]
        return run_tests([[*KERNELS, "-k", OF_A_GPU], *shares], tier, seconds, {"GPU_SUITE_EXAMPLES": "200"})
    # Without a GPU one process rehearses the suite; kernels are interpreted by their own tests there.
    share = [file for share in shares for file in share]
    return run_tests([[*share, "-m", "gpu"]], tier, seconds, {"GPU_SUITE_EXAMPLES": "10"})


def run_tests(shares: Sequence[Sequence[str]], tier: str, seconds: float, environment: dict[str, str]) -> Report:
    """Return passed, failed and skipped tests of pytest with these arguments, each in a process."""
    variables = os.environ | {"GPU_SUITE_DEVICE": tier} | environment
    with tempfile.TemporaryDirectory() as folder:
        results = [Path(folder) / f"results{number}.xml" for number in range(len(shares))]
        outputs = [path.with_suffix(".txt") for path in results]
        processes = []
        for arguments, path, output in zip(shares, results, outputs, strict=True):
            command = [sys.executable, "-m", "pytest", *arguments, "-q", "-p", "no:cacheprovider"]
            # Other versions of torch, Triton and pytest have other warnings.
            command += ["-o", "filterwarnings=default", f"--junitxml={path}", "--durations=5"]
            print(f"\n=== {shlex.join(command[1:])}", flush=True)
            with output.open("wb") as file:
                processes.append(subprocess.Popen(command, cwd=ROOT, env=variables, stdout=file, stderr=file))
        ended = wait(processes, seconds, signal.SIGINT)  # upon which pytest writes what it has
        for output in outputs:
            print(output.read_text(errors="replace"), flush=True)
        report = _report([path for path in results if path.is_file()], tier)
        codes = [process.returncode for process in processes]
    if not ended:
        report.absent["bench_gpu_suite"] = f"the tests did not end within {seconds:.0f} s"
    elif not set(codes) <= {0, 1, NO_TESTS}:  # 1: some tests failed
        report.absent["bench_gpu_suite"] = f"pytest ended with codes {codes}; its message is above"
    if report.absent and not report.ratios["gpu_tests_failed"]:
        del report.ratios["gpu_tests_failed"]  # unknown
    return report


def _report(results: Sequence[Path], tier: str) -> Report:
    report = Report()
    table = report.table(f"tests on {tier}", "file", "passed", "failed", "skipped", "seconds")
    cases = [case for path in results for case in ET.parse(path).getroot().iter("testcase")]
    all_failed = [case for case in cases if _has(case, "failure") or _has(case, "error")]
    all_passed = [case for case in cases if case not in all_failed and not _has(case, "skipped")]
    for name in sorted({str(case.get("classname")) for case in cases}):
        of_file, failed, passed = (
            [c for c in some if c.get("classname") == name] for some in (cases, all_failed, all_passed)
        )
        seconds = sum(float(case.get("time", 0)) for case in of_file)
        table.add(name, len(passed), len(failed), len(of_file) - len(passed) - len(failed), seconds)
    report.notes += [f"FAILED: {case.get('classname')}::{case.get('name')}" for case in all_failed]
    report.ratios["gpu_tests_failed"] = float(len(all_failed))
    report.figures["gpu_tests_passed"] = float(len(all_passed))
    if not cases:
        report.absent["bench_gpu_suite"] = "no test was found"
    return report


def _has(case: ET.Element, what: str) -> bool:
    return case.find(what) is not None
