"""Work until an evaluation first reached an AUC: time to quality, seed by seed.

Time is that of training: evaluations do not count, nor does the first interval of a run, which compiles kernels.
Samples are those that were read, whether a rule skipped them or not.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from adaptive.studies.compare import TimeToAuc
from adaptive.studies.compare.comparison_runs import Outcome

ToAuc = float | Literal["auto"]
LEAD: Final = 0.0005  # `auto` is the control's final AUC less this


def time_to_auc(runs: Sequence[Outcome], controls: Sequence[Outcome], to_auc: ToAuc) -> TimeToAuc | None:
    """Return the work of a policy's runs until they reached an AUC, next to the control's runs of the same seeds.

    Args:
        runs, controls: finished runs.
        to_auc: the AUC, or `auto`: the final AUC of the control's run of the same seed, less `LEAD`.

    Returns:
        None if no run has a target and an evaluation.
    """
    of_seed = {run.seed: run.summary for run in controls}
    targets = {run.seed: _target(of_seed.get(run.seed, {}), to_auc) for run in runs}
    pairs = [(run.summary, targets[run.seed], of_seed.get(run.seed, {})) for run in runs]
    judged = [(summary, target, control) for summary, target, control in pairs if target is not None and _aucs(summary)]
    if not judged:
        return None
    reached = [(_work(summary, target), _work(control, target)) for summary, target, control in judged]
    works = [work for work, _ in reached if work]
    both = [(work, control) for work, control in reached if work and control]

    def median(name: str) -> float | None:
        return statistics.median(work[name] for work in works) if works else None

    def ratio(name: str) -> float | None:
        ratios = [work[name] / control[name] for work, control in both if control[name]]
        return statistics.median(ratios) if ratios else None

    return TimeToAuc(
        target=statistics.fmean(target for _, target, _ in judged),
        runs=len(judged),
        reached=len(works),
        seconds=median("seconds"),
        seconds_ratio=ratio("seconds"),
        cpu_seconds=median("cpu_seconds"),
        cpu_seconds_ratio=ratio("cpu_seconds"),
        samples_read=median("samples_read"),
        samples_read_ratio=ratio("samples_read"),
        best=statistics.fmean(max(_aucs(summary)) for summary, _, _ in judged),
    )


def _target(control: Mapping[str, Any], to_auc: ToAuc) -> float | None:
    if to_auc != "auto":
        return to_auc
    aucs = _aucs(control)
    return aucs[-1] - LEAD if aucs else None


def _aucs(summary: Mapping[str, Any]) -> list[float]:
    """AUCs of the evaluations in which both classes occur, in order."""
    return [point["auc"] for point in summary.get("evaluations", []) if point["auc"] is not None]


def _work(summary: Mapping[str, Any], target: float) -> Mapping[str, float] | None:
    """Return the work until the first evaluation that reached the target, if one did and the work is known."""
    points = zip(summary.get("evaluations", []), summary.get("evaluation_work", []), strict=False)
    work = next((work for point, work in points if point["auc"] is not None and point["auc"] >= target), None)
    return None if work is None or None in work.values() else work
