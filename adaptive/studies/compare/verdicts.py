"""Judge the runs of a comparison: means, paired differences, verdicts.

The *control* is the first policy of the list that skips nothing and trains the batches as they come; if there is none,
the first that skips nothing. Policies that do both must train the same weights as the control, bit for bit: placement
never changes the numbers. For the others, the difference is what skipping (or another order of inputs) cost, seed by
seed. A policy that drops inputs is also compared with a control that drops as many at random.

Intervals of differences are over seeds: they cover other training runs, not other evaluation samples.

Time to an AUC is that of training: evaluations do not count, nor does the first interval of a run, which compiles
kernels. Samples are those that were read, whether a rule skipped them or not.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from adaptive.studies.compare import ComparedPolicy, ComparedRun, Comparison, Interval, TimeToAuc
from adaptive.studies.compare.comparison_runs import Outcome

ToAuc = float | Literal["auto"]
SCHEMA: Final = 1
LEAD: Final = 0.0005  # the AUC `auto` is the control's final one less this
CONFIDENCE: Final = 0.95
SCORES: Final = ("auc", "log_loss", "accuracy")
JUDGED: Final = ("auc_of", "eval_samples")
SKIPPED: Final = ("skipped_update_share", "skipped_lookup_share", "skipped_input_share")
MEANS: Final = (
    *("hit_rate", "row_hit_rate", "bytes_h2d", "bytes_d2h", "fetched_rows", "written_back_rows", "steps", "samples"),
    *("host_bytes_read", "host_bytes_written", *SKIPPED, "deferred_update_share"),
    *("samples_read", "effective_samples", "weight_spread"),
)
"""Numbers of a run's summary whose mean over seeds a `ComparedPolicy` has under the same name."""

Pairs = Sequence[tuple[Outcome, Outcome]]
"""Finished runs of a policy and of the control, one pair per seed."""


def judge(outcomes: Sequence[Outcome], *, auc_budget: float, to_auc: ToAuc | None = None) -> Comparison:
    """Compare all runs of every policy and seed, in the order of the list; `to_auc`: and their time to this AUC."""
    by_policy: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_policy.setdefault(outcome.policy, []).append(outcome)
    exact = [label for label, runs in by_policy.items() if is_exact(runs)]
    unskipped = [label for label, runs in by_policy.items() if not runs[0].control_of and skips_nothing(runs)]
    control = next(iter(exact + unskipped), None)
    of_control = by_policy.get(control or "", [])
    random = {runs[0].control_of: runs for runs in by_policy.values() if runs[0].control_by == "chance"}
    policies, problems = [], _failures(outcomes)
    for label, runs in by_policy.items():
        against_random = _differences("auc", _pairs(runs, random.get(label, [])))
        policy, faults = _compared(runs, _pairs(runs, of_control), against_random, auc_budget)
        if to_auc is not None:
            policy = replace(policy, to_auc=time_to_auc(finished(runs), finished(of_control), to_auc))
        policies.append(policy)
        problems += [f"{label}: {fault}" for fault in faults]
    return Comparison(
        schema=SCHEMA,
        control=control,
        seeds=list(dict.fromkeys(outcome.seed for outcome in outcomes)),
        auc_of=next((outcome.summary["auc_of"] for outcome in outcomes if outcome.summary), None),
        auc_budget=auc_budget,
        confidence=CONFIDENCE,
        problems=problems,
        policies=policies,
    )


def _pairs(runs: Sequence[Outcome], others: Sequence[Outcome]) -> Pairs:
    by_seed = {outcome.seed: outcome for outcome in finished(others)}
    return [(outcome, by_seed[outcome.seed]) for outcome in finished(runs) if outcome.seed in by_seed]


def _compared(
    runs: Sequence[Outcome], pairs: Pairs, against_random: Sequence[float], budget: float
) -> tuple[ComparedPolicy, list[str]]:
    """Return a policy's numbers and verdict, and the problems with it."""
    ended = finished(runs)
    must_be_equal = is_exact(runs) and all(is_exact([control]) for _, control in pairs)
    unequal = [run.seed for run, control in pairs if run.bits != control.bits] if must_be_equal else []
    word, reason = verdict(runs, pairs, _differences("auc", pairs), unequal, budget)
    exact = (is_exact(runs) or (bool(pairs) and is_equal(pairs))) and not unequal
    numbers: dict[str, Any] = {name: _mean(_values(name, ended)) for name in (*SCORES, *MEANS)}
    for name in SCORES:
        scores, differences = _values(name, ended), _differences(name, pairs)
        numbers[f"{name}_std"] = statistics.stdev(scores) if len(scores) > 1 else None
        numbers |= {f"{name}_difference": _mean(differences), f"{name}_difference_ci": interval(differences)}
    # Kernels are compiled in the first interval of a run, which counts for its speed only if there is no other
    speeds = [run.summary.get("samples_per_s_later") or run.summary["samples_per_s"] for run in ended]
    policy = ComparedPolicy(
        policy=runs[0].policy,
        control_of=runs[0].control_of,
        control_by=runs[0].control_by,
        auc_difference_to_random=_mean(against_random),
        auc_difference_to_random_ci=interval(against_random),
        samples_per_s=_median(speeds),
        time_ms=_by_name([run.summary["time_ms"] for run in ended], _median),
        policy_numbers=_by_name([run.summary.get("policy_numbers", {}) for run in ended], _mean),
        to_auc=None,
        same_samples=_is_judged_alike(ended, pairs),
        exact=exact,
        verdict=word,
        reason=reason,
        seeds=[run.seed for run in ended],
        runs=list(map(_run, runs)),
        **numbers,
    )
    return policy, [reason] if unequal else []


def _is_judged_alike(runs: Sequence[Outcome], pairs: Pairs) -> bool:
    """True if the AUC of each run is of the samples of its control's.

    Runs without evaluation samples are judged by predictions during training, which omit the inputs that they skipped.
    """
    same = all(run.summary.get(name) == control.summary.get(name) for run, control in pairs for name in JUDGED)
    return same and not any(run.summary["auc_of"] == "training" and any(_values(SKIPPED[-1], [run])) for run in runs)


def _by_name(runs: Sequence[dict[str, float | None]], average: Callable[..., float | None]) -> dict[str, float | None]:
    """Average each number of the runs that have it."""
    names = dict.fromkeys(name for numbers in runs for name in numbers)
    return {name: average(numbers.get(name) for numbers in runs) for name in names}


def _run(outcome: Outcome) -> ComparedRun:
    summary = outcome.summary
    return ComparedRun(
        outcome.seed,
        outcome.run_dir,
        auc=summary.get("auc"),
        log_loss=summary.get("log_loss"),
        accuracy=summary.get("accuracy"),
        samples_per_s=summary.get("samples_per_s"),
        others_cpu_share=outcome.others_cpu_share,
        error=None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}",
    )


def _failures(outcomes: Sequence[Outcome]) -> list[str]:
    """One line per run that failed."""
    return [
        f"{outcome.policy}, seed {outcome.seed}: {type(outcome.error).__name__}: {outcome.error}"
        for outcome in outcomes
        if outcome.error is not None
    ]


def _values(name: str, runs: Sequence[Outcome]) -> list[float]:
    """A number from each summary that has it."""
    numbers = (dict(run.summary).get(name) for run in runs)
    return [number for number in numbers if isinstance(number, int | float)]


def _differences(name: str, pairs: Pairs) -> list[float]:
    return [a - b for run, control in pairs for a in _values(name, [run]) for b in _values(name, [control])]


def _mean(numbers: Iterable[float | None], average: Callable[[list[float]], float] = statistics.fmean) -> float | None:
    """Return the mean, or another average, of the numbers that are not None."""
    present = [number for number in numbers if number is not None]
    return average(present) if present else None


_median = partial(_mean, average=statistics.median)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def is_exact(runs: Sequence[Outcome]) -> bool:
    """True if at least one run finished, and none skipped anything or arranged its inputs."""
    return skips_nothing(runs) and not any(outcome.arranges for outcome in finished(runs))


def skips_nothing(runs: Sequence[Outcome]) -> bool:
    """True if at least one run finished, and none skipped anything; inputs may be regrouped."""
    ended = finished(runs)
    return bool(ended) and not any(map(_skipped, ended))


def is_equal(pairs: Pairs) -> bool:
    """True if a policy that may regroup or skip inputs did neither."""
    return all(run.bits == control.bits and not _skipped(run) for run, control in pairs)


def finished(runs: Sequence[Outcome]) -> list[Outcome]:
    """Runs without an error."""
    return [outcome for outcome in runs if outcome.error is None]


def _skipped(run: Outcome) -> bool:
    return any(any(_values(name, [run])) for name in SKIPPED)


def verdict(
    runs: Sequence[Outcome], pairs: Pairs, difference: Sequence[float], unequal: Sequence[int], budget: float
) -> tuple[str, str]:
    """Return a verdict and the reason for it.

    Verdicts are `failed`, `differs` (must equal the control and does not), `within` or `outside` the budget, and
    `undecided`. `unskipped` replaces `undecided` for a policy that skips nothing, and stands for a skip rule that
    hot rows and has skipped nothing yet.

    Args:
        runs: of a policy.
        pairs: finished runs with the control's run of the same seed.
        difference: AUC minus the control's, per pair.
        unequal: seeds whose bits must equal the control's and do not.
    """
    if not finished(runs):
        return "failed", "no run finished"
    if unequal:
        return "differs", (
            f"skipped nothing but trained other numbers than {pairs[0][1].policy} (seed "
            f"{', '.join(map(str, unequal))}). On a GPU, set deterministic=true; otherwise the policy alters inputs"
        )
    if pairs and pairs[0][0].policy == pairs[0][1].policy:
        return "within", "the control"
    if pairs and (is_exact(runs) or is_equal(pairs)):
        if any(outcome.summary.get("hot_rows") for outcome in finished(runs)):
            steps = max(outcome.summary["steps"] for outcome in finished(runs))
            return "unskipped", (
                f"its rule skipped nothing in {steps:,} steps, so the weights equal the control's and say nothing "
                "about skipping. Train more steps"
            )
        return "within", "equal to the control bit for bit"
    if pairs:
        word, reason = _of_differences(difference, budget)
        is_unskipped = word == "undecided" and skips_nothing(runs)
        return ("unskipped", f"skips nothing, but trains other batches; {reason}") if is_unskipped else (word, reason)
    if skips_nothing(runs):
        return "unskipped", "skips nothing; no run of the control finished, so its numbers were not checked"
    return "undecided", "no un-skipped run to compare with. Add a policy that skips nothing, such as lru"


def _of_differences(difference: Sequence[float], budget: float) -> tuple[str, str]:
    if not difference:
        return "undecided", "no AUC to compare: all labels are of one class"
    if (bounds := interval(difference)) is None:
        return "undecided", "one seed gives no confidence interval. Raise --seeds"
    match word := word_of(bounds, budget):
        case "within":
            return word, f"the AUC falls by at most {budget:g}, with {CONFIDENCE:.0%} confidence"
        case "outside":
            return word, f"the AUC falls by more than {budget:g}, with {CONFIDENCE:.0%} confidence"
    return word, f"the interval includes a loss of {budget:g}. Add seeds: --seeds, --auto-resume"


def word_of(bounds: Interval, budget: float) -> str:
    """Compare an interval of AUC differences with a budget of loss."""
    low, high = bounds
    return "within" if low >= -budget else "outside" if high < -budget else "undecided"


def interval(differences: Sequence[float]) -> Interval | None:
    """Student's t interval of the mean of paired differences; None for fewer than two."""
    number = len(differences)
    if number < 2:
        return None
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(number)
    reach = error * _student(number)
    return mean - reach, mean + reach


def _student(number: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, number - 1))


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
