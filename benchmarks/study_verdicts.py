"""Tests of the study's lines against their bars, and numbers of single runs.

A line has one difference to the control per seed, for better above 0. One-sided t tests decide (of Schuirmann's two,
1987, a bar for losses needs one side): *shown* if a loss as large as the bar is rejected, *refuted* if a smaller one
is, else *not shown*. Over the lines of a table, Holm's method keeps the chance of one wrong word of a kind at 5%.
"""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from scipy import stats

from adaptive.storage.durable import write_atomic
from benchmarks.study_cells import Block, Setting
from benchmarks.study_runs import Run, Runs

Pairs = list[tuple[Run, Run]]  # of one way: its run and the control's, seed by seed

LEVEL: Final = 0.05
PUBLISHED: Final = ("auc", "log_loss", "calibration", "skipped_input_share", "skipped_update_share")


def outcomes(lines: Sequence[Sequence[float]], bar: float) -> list[str]:
    """Return `shown`, `refuted` or `not shown` for the differences of each line; one seed shows nothing."""
    losses = [_loss_probability(differences, bar) for differences in lines]
    shown, refuted = holm(losses), holm([1 - p for p in losses])
    return [
        "not shown" if len(differences) < 2 else "shown" if low < LEVEL else "refuted" if high < LEVEL else "not shown"
        for differences, low, high in zip(lines, shown, refuted, strict=True)
    ]


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return Holm's adjusted probabilities (Scandinavian Journal of Statistics 6, 1979), in the given order."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    adjusted, least = [1.0] * len(order), 0.0
    for place, index in enumerate(order):
        least = max(least, min(1.0, (len(order) - place) * probabilities[index]))
        adjusted[index] = least
    return adjusted


def _loss_probability(differences: Sequence[float], bar: float) -> float:
    """Return the probability of such differences, or better ones, if the mean were -bar."""
    if len(differences) < 2:
        return 0.5
    distance, spread = statistics.fmean(differences) + bar, statistics.stdev(differences)
    if spread == 0:
        return 0.5 if distance == 0 else float(distance < 0)
    return float(stats.t.sf(distance * math.sqrt(len(differences)) / spread, len(differences) - 1))


# --- numbers of single runs ----------------------------------------------------------------------------------------


def pairs_of(block: Block, setting: Setting, label: str, runs: Runs) -> Pairs:
    """Return the runs of a way with the control's of the same seed, without those that failed."""
    by_key = {run.key: run for run in runs if not run.error}
    seeds = range(block.first_seed, block.first_seed + block.seeds)
    pairs = ((by_key.get((setting.name, label, seed)), by_key.get((setting.name, "off", seed))) for seed in seeds)
    return [(run, control) for run, control in pairs if run and control]


def changes_of(pairs: Pairs, score: str) -> list[float]:
    """Return the difference of a score to the control, seed by seed."""
    return [run.summary[score] - control.summary[score] for run, control in pairs]


def calibration_of(pairs: Pairs) -> float | None:
    """Return the mean of predictions over labels."""
    values = [value for run, _ in pairs if (value := run.summary.get("calibration")) is not None]
    return statistics.fmean(values) if values else None


def speed_of(pairs: Pairs) -> float | None:
    """Return samples read per second of processor time over the control's: the median over seeds."""
    ratios = [rate / other for run, control in pairs if (rate := _rate(run)) and (other := _rate(control))]
    return statistics.median(ratios) if ratios else None


def _rate(run: Run) -> float | None:
    """Return the samples read per processor second from the first evaluation to the last, or until the only one."""
    works = [work for work in run.summary.get("evaluation_work") or [] if work["cpu_seconds"] and work["samples_read"]]
    if not works:
        return None
    first = works[0] if len(works) > 1 else {"cpu_seconds": 0.0, "samples_read": 0}
    seconds = works[-1]["cpu_seconds"] - first["cpu_seconds"]
    return float((works[-1]["samples_read"] - first["samples_read"]) / seconds) if seconds else None


def publish(runs: Iterable[Run], path: Path) -> None:
    """Write one short line per run: what the tables were computed from, for others to check."""
    lines = []
    for run in runs:
        numbers = {name: value for name in PUBLISHED if (value := run.summary.get(name))}
        work = (run.summary.get("evaluation_work") or [{}])[-1]
        numbers |= {name: value for name in ("cpu_seconds", "samples_read") if (value := work.get(name))}
        short = {name: float(f"{value:.6g}") for name, value in numbers.items()}
        lines.append(json.dumps([run.setting, run.label, run.seed, short], separators=(",", ":")))
    write_atomic(path, "".join(f"{line}\n" for line in lines).encode())
