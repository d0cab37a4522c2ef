"""Processes that end in time, with what they have found by then: GPU time is dear, and whoever lends it may end it."""

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
GRACE_SECONDS = 30  # from being asked to end until being killed: tables of 60 GB are let go


def wait(processes: Sequence[subprocess.Popen[bytes]], limit: float, ask: signal.Signals) -> bool:
    """Return when all have ended; whether they did so by themselves, within `limit` seconds.

    Those that did not are asked by a signal, and later killed.
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
    """The report of a benchmark in a process of its own; if it fails or takes more than `limit` seconds, what it has
    found by then."""
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
        report.absent[name] = f"ended with code {process.returncode}; its message stands above"
    return report


@contextlib.contextmanager
def kept_when_ended(report: Report) -> Iterator[None]:
    """Whoever waits for this process may ask it to end: what it has found by then is its report."""
    try:
        yield
    except SystemExit:
        report.notes.append("Ended from outside before everything was measured.")
