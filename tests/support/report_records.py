"""Handwritten records of commands: run directories, a comparison; and a browser."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from adaptive.storage.run_directory import SCHEMA
from adaptive.studies.compare import Comparison
from adaptive.studies.compare.comparison_runs import Outcome
from adaptive.studies.compare.verdicts import judge
from adaptive.training.telemetry.jsonl import MetricsFile
from adaptive.training.telemetry.record import (
    EvalRecord,
    IntervalRecord,
    RunRecord,
    RunTotals,
    TableCounts,
)
from adaptive.training.telemetry.report import RunSummary
from support.manifests import write_record

HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "a\x00b\x1b[31m", "\u202eexe.gpj")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def interval(
    number: int, tables: Sequence[str] = ("user", "item"), *, steps: int = 10, skips: bool = False
) -> IntervalRecord:
    """Interval `number` (1, 2, ...) of a run, of `steps` steps of 100 samples; its counts follow from the number."""
    counts = TableCounts(
        **{"lookups": 100 * number, "unique_rows": 50 * number, "lookup_hits": 90 * number, "row_hits": 40 * number},
        **{"resident_rows": 10 * number, "admitted": 7 * number, "evicted": 3 * number, "fetched": 7 * number},
        **{"written_back": 2 * number, "bytes_h2d": 1024 * number, "bytes_d2h": 512 * number},
        **({"hot_rows": 20, "saturated_rows": number, "skipped_updates": number} if skips else {}),
    )
    return IntervalRecord(
        step=steps * number,
        samples=100 * steps * number,
        loss=1 / number,
        auc=0.5 + 0.1 * number / (number + 1),
        log_loss=0.7 - 0.1 * number / (number + 1),
        samples_per_s=1000.0,
        time_ms={"plan": 1.0, "wait": 0.5, "forward": 2.0, "backward": 3.0, "other": 0.25},
        hit_rate=0.9,
        row_hit_rate=0.8,
        tables=dict.fromkeys(tables, counts),
        policy={"rate": float(number), "fixed": 1.0},
        device_rows=1000,
    )


def write_run(
    path: Path,
    *,
    intervals: int = 4,
    tables: Sequence[str] = ("user", "item"),
    policy: str = "lfu",
    skips: bool = False,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """A run directory as training leaves it; returns `path`. `more`: entries of its summary and of run.json."""
    path.mkdir(parents=True)
    totals, file = RunTotals(), MetricsFile(path / "metrics.jsonl")
    file.write(RunRecord(policy=policy, table_rows=dict.fromkeys(tables, 1000)))
    for number in range(1, intervals + 1):
        means = interval(number, tables, skips=skips)
        file.write(means)
        totals.add(means)
        file.write(EvalRecord(step=means.step, samples=500, auc=0.7 + number / 100, log_loss=0.4))
    file.close()
    summary = _ended(totals, policy, 0.7654)
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "status": "finished",
        "versions": {"torch": "2.0"},
        "config": {
            "policy": policy,
            "seed": 3,
            "tier": {"host": "memory"},
        },
        "data": {"source": "by hand"},
        "summary": summary,
    }
    for name, value in (more or {}).items():
        record[name] = {**record.get(name, {}), **value} if isinstance(value, Mapping) else value
    write_record(path, record)
    return path


def comparison(policies: Sequence[str] = ("hybrid", "lfu"), seeds: int = 2) -> Comparison:
    """A comparison whose runs differ a little in AUC."""
    totals = RunTotals()
    totals.add(interval(1))
    outcomes = [
        Outcome(
            policy, seed, f"seed-{seed}/{policy}", summary=_ended(totals, policy, 0.7 + 0.001 * place + 0.01 * seed)
        )
        for seed in range(seeds)
        for place, policy in enumerate(policies)
    ]
    return judge(outcomes, auc_budget=0.0005)


def _ended(totals: RunTotals, policy: str, auc: float) -> dict[str, Any]:
    quality = {"auc": auc, "log_loss": 0.5, "accuracy": None, "auc_of": "evaluation", "eval_samples": 500}
    return RunSummary.of(policy, totals, quality, skipped_input_share=0.0).to_json()


def browser() -> str:
    """Return the path of a browser; skip the test with a reason if none is installed."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    return path


def browse(url: str, folder: Path, *, size: str = "1400,1000", options: Sequence[str] = ()) -> tuple[str, str]:
    """Open a page without a window; returns its DOM at the end and what the browser's console said."""
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
    command = [
        *(browser(), "--headless", "--no-sandbox", "--disable-gpu", *quiet, "--enable-logging=stderr"),
        *(f"--user-data-dir={folder}", f"--window-size={size}", *options, "--dump-dom", url),
    ]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    log = done.stderr.decode(errors="replace").splitlines()
    return done.stdout.decode(errors="replace"), "\n".join(line for line in log if "CONSOLE" in line)
