"""Shared by studies that compare ways over seeds: the command, training what is missing, AUCs of equal seeds."""

import argparse
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import Table
from benchmarks.study_cells import Setting, Way
from benchmarks.study_runs import Runs, train

R = TypeVar("R")


def run_study(
    description: str | None,
    open_runs: Callable[[Path], R],
    train_missing: Callable[[R, range, str], None],
    report: Callable[[R, range], Table],
    *,
    first: int = 0,
) -> None:
    """The command of a study; `first`: its first seed. `train_missing` gets runs, seeds and `--only`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="settings whose name contains this")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    runs, seeds = open_runs(options.runs), range(first, first + options.seeds)
    if not options.report:
        train_missing(runs, seeds, options.only)
    print(report(runs, seeds).markdown())


def train_cells(runs: Runs, cells: Iterable[tuple[Setting, Way, int]], folder: str) -> None:
    """Train what is not in the file yet. Files that are made of real data stay in `folder`, next to the file."""
    for setting, way, seed in cells:
        if runs.get(setting, way, seed) is None:
            for run in train(setting, way, seed, folder=runs.path.parent / folder):
                runs.add(run)
                print(run.key, run.summary.get("auc"), run.error or "", flush=True)


def paired_aucs(
    runs: Runs, setting: Setting, ways: Sequence[Way], seeds: Iterable[int]
) -> tuple[list[tuple[float, ...]], list[list[float]]]:
    """AUCs of each way over the seeds that all ways have, and differences of each other way to the first."""
    of_seeds = (
        [run.summary["auc"] for way in ways if (run := runs.get(setting, way, seed)) is not None] for seed in seeds
    )
    columns = list(zip(*(aucs for aucs in of_seeds if len(aucs) == len(ways)), strict=True))
    return columns, [[a - b for a, b in zip(column, columns[0], strict=True)] for column in columns[1:]]


def spread_text(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    return f"{statistics.mean(values):.4f} ± {_deviation(values):.4f}"


def change_text(changes: Sequence[float], digits: int) -> str:
    """Mean, with its sign, ± its standard error."""
    return f"{statistics.mean(changes):+.{digits}f} ± {_deviation(changes) / len(changes) ** 0.5:.{digits}f}"


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else float("nan")
