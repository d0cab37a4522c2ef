"""Processes that end in time, with their results so far: GPU time is scarce."""

import contextlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import Report

ROOT = Path(__file__).resolve().parents[1]
GRACE_SECONDS = 30  # from SIGTERM to SIGKILL: freeing tables of 60 GB takes time


def wait(processes: Sequence[subprocess.Popen[bytes]], limit: float, ask: signal.Signals) -> bool:
    """Wait until all have ended; return True if all did so within `limit` seconds.

    The others get the signal `ask`, and are killed later.
    """
    until, by_themselves = time.monotonic() + limit, True
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        late = [process for process in processes if process.poll() is None]
        for process in late:
            by_themselves = False
            process.send_signal(ask)
        until = time.monotonic() + GRACE_SECONDS
        for process in late:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    return by_themselves


def run_module(module: str, *arguments: str, limit: float) -> Report:
    """Run a benchmark in a separate process and return its report.

    If it fails or takes more than `limit` seconds, the report has the results until then.
    """
    name = module.rpartition(".")[2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", module, *arguments]
        print(f"\n=== {shlex.join(command[1:])}", flush=True)
        start = time.perf_counter()
        process = subprocess.Popen([*command, "--report", str(path)], cwd=ROOT)
        ended = wait([process], limit, signal.SIGTERM)
        print(f"({time.perf_counter() - start:.0f} s)", flush=True)
        report = Report.load(path) if path.is_file() else Report()
    if not ended:
        report.absent[f"{name}: the rest"] = f"did not end within {limit:.0f} s"
    elif process.returncode:
        report.absent[name] = f"ended with code {process.returncode}; its message is above"
    return report


@contextlib.contextmanager
def kept_when_ended(report: Report) -> Iterator[None]:
    """Keep the report's results so far if the parent process ends this one with SIGTERM."""
    try:
        yield
    except SystemExit:
        report.notes.append("Ended from outside before everything was measured.")
