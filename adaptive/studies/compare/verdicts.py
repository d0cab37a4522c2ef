"""What the runs of a comparison say: means over seeds, paired differences, and a verdict on each policy.

The *control* is the first policy of the list that skipped nothing and trained the batches as they came; without one,
the first that skipped nothing. All policies of the former kind must have trained the same weights, bit for bit:
placement never changes the numbers. What the others differ by is what skipping (or another order of inputs) cost, seed
by seed. A policy that dropped inputs is also compared with its own control, which dropped as many at random: a rule
that is worth anything beats it. Where settings are swept, all of this is done within each combination of their values,
each with a control of its own.

Differences have two intervals. That over seeds says what another course of training would change; that over samples,
of pairs of models that have predicted the same evaluation samples, what other samples of the same kind would. Each
leaves the other's chance out; a difference to be believed holds in both.
"""

import math
import re
import statistics
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.studies.compare import ComparedPolicy, ComparedRun, Comparison, Control, Interval, SampleTest
from adaptive.studies.compare.comparison_runs import Outcome
from adaptive.studies.compare.contenders import SweepPoint, title, values
from adaptive.training.guard.judge import interval as normal_interval
from adaptive.training.quality import PairedDifference, paired_difference

SCHEMA: Final = 1
CONFIDENCE: Final = 0.95
MOST_SEEDS: Final = 100  # that anybody may be asked to train
SKIPPED: Final = ("skipped_update_share", "skipped_lookup_share", "skipped_input_share")
_POLICY: Final = re.compile(r" \(policy \w+\)")  # in an error that any policy may meet

Pairs = Sequence[tuple[Outcome, Outcome]]
"""Runs of a policy and of the control, of one seed each, that came to their end."""
Scores = NDArray[np.float32]
"""(2, n): logits and labels."""


def judge(outcomes: Sequence[Outcome], *, auc_budget: float) -> Comparison:
    """The comparison of all runs of every policy and seed, in the order of the list."""
    groups: dict[SweepPoint, dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.swept, {}).setdefault(outcome.policy, []).append(outcome)
    controls, policies, problems = [], [], _failures(outcomes)
    for point, runs in groups.items():
        exact = [label for label in runs if is_exact(runs[label])]
        unskipped = [label for label in runs if runs[label][0].beside is None and skips_nothing(runs[label])]
        control = next(iter(exact + unskipped), None)
        controls.append(Control(values(point), control))
        random = {mine[0].beside: mine for mine in runs.values() if mine[0].beside is not None}
        for label, mine in runs.items():
            pairs = _pairs(mine, runs.get(control or "", []))
            against_random = _values_less("auc", _pairs(mine, random.get(label, [])))
            policy, wrong = _compared(mine, pairs, against_random, auc_budget)
            policies.append(policy)
            problems += [f"{_who(mine[0])}: {problem}" for problem in wrong]
    is_swept = any(point for point in groups)
    return Comparison(
        schema=SCHEMA,
        control=controls[0].control if controls and not is_swept else None,
        values=controls if is_swept else [],
        seeds=list(dict.fromkeys(outcome.seed for outcome in outcomes)),
        auc_of=next((outcome.summary["auc_of"] for outcome in outcomes if outcome.summary), None),
        auc_budget=auc_budget,
        confidence=CONFIDENCE,
        problems=problems,
        policies=policies,
    )


def _pairs(mine: Sequence[Outcome], others: Sequence[Outcome]) -> Pairs:
    by_seed = {outcome.seed: outcome for outcome in ended(others)}
    return [(outcome, by_seed[outcome.seed]) for outcome in ended(mine) if outcome.seed in by_seed]


def _compared(
    mine: Sequence[Outcome], pairs: Pairs, against_random: Sequence[float], budget: float
) -> tuple[ComparedPolicy, list[str]]:
    """A policy, and what is wrong with it."""
    finished = ended(mine)
    must_be_equal = is_exact(mine) and all(is_exact([control]) for _, control in pairs)
    unequal = [policy.seed for policy, control in pairs if policy.bits != control.bits] if must_be_equal else []
    differences = {name: _values_less(name, pairs) for name in ("auc", "log_loss", "accuracy")}
    word, reason = verdict(mine, pairs, differences["auc"], unequal, budget)
    exact = (is_exact(mine) or (bool(pairs) and is_equal(pairs))) and not unequal
    aucs, losses, accuracies = (_values(name, finished) for name in differences)
    auc, log_loss, accuracy = differences.values()

    def mean(name: str) -> float | None:
        return _mean(_values(name, finished))

    targets = [run.summary["stop_at"] for run in finished if "stop_at" in run.summary]
    reached = [target for target in targets if target["reached"]]
    # The first interval of a run, in which kernels are compiled, counts for no speed if there are others
    speeds = [run.summary.get("samples_per_s_later") or run.summary["samples_per_s"] for run in finished]
    policy = ComparedPolicy(
        policy=mine[0].policy,
        swept=values(mine[0].swept),
        beside=mine[0].beside,
        auc=_mean(aucs),
        auc_std=_spread(aucs),
        auc_difference=_mean(auc),
        auc_difference_ci=interval(auc),
        log_loss=_mean(losses),
        log_loss_std=_spread(losses),
        log_loss_difference=_mean(log_loss),
        log_loss_difference_ci=interval(log_loss),
        accuracy=_mean(accuracies),
        accuracy_std=_spread(accuracies),
        accuracy_difference=_mean(accuracy),
        accuracy_difference_ci=interval(accuracy),
        auc_difference_to_random=_mean(against_random),
        auc_difference_to_random_ci=interval(against_random),
        target=f"{targets[0]['metric']} {targets[0]['target']:g}" if targets else None,
        target_reached=len(reached),
        target_step=_mean([target["step"] for target in reached]),
        target_samples=_mean([target["samples"] for target in reached]),
        target_seconds=_median([target["seconds"] for target in reached]),
        hit_rate=mean("hit_rate"),
        row_hit_rate=mean("row_hit_rate"),
        bytes_h2d=mean("bytes_h2d"),
        bytes_d2h=mean("bytes_d2h"),
        fetched_rows=mean("fetched_rows"),
        written_back_rows=mean("written_back_rows"),
        steps=mean("steps"),
        samples=mean("samples"),
        host_bytes_read=mean("host_bytes_read"),
        host_bytes_written=mean("host_bytes_written"),
        skipped_update_share=mean("skipped_update_share"),
        skipped_lookup_share=mean("skipped_lookup_share"),
        skipped_input_share=mean("skipped_input_share"),
        deferred_update_share=mean("deferred_update_share"),
        samples_per_s=_median(speeds),
        time_ms=_times(finished),
        policy_numbers=_reported(finished),
        over_samples=None if exact else over_samples(pairs, budget),
        exact=exact,
        verdict=word,
        reason=reason,
        seeds=[run.seed for run in finished],
        runs=list(map(_run, mine)),
    )
    return policy, [*([reason] if unequal else []), *other_samples(pairs)]


def _times(finished: Sequence[Outcome]) -> dict[str, float]:
    """Milliseconds of a step by stage, medians."""
    runs = [run.summary["time_ms"] for run in finished]
    stages = dict.fromkeys(stage for times in runs for stage in times)
    return {stage: statistics.median(times[stage] for times in runs if stage in times) for stage in stages}


def _reported(finished: Sequence[Outcome]) -> dict[str, float | None]:
    """What policies report, means."""
    runs = [run.summary.get("policy_numbers", {}) for run in finished]
    return {name: _mean([numbers.get(name) for numbers in runs]) for name in dict.fromkeys(n for r in runs for n in r)}


def _run(outcome: Outcome) -> ComparedRun:
    summary = outcome.summary
    return ComparedRun(
        outcome.seed,
        outcome.run_dir,
        auc=summary.get("auc"),
        log_loss=summary.get("log_loss"),
        accuracy=summary.get("accuracy"),
        samples_per_s=summary.get("samples_per_s"),
        stop_at=summary.get("stop_at"),
        others_cpu_share=outcome.others_cpu_share,
        error=None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}",
    )


def _failures(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each cause, which is often the same for several runs."""
    causes: dict[str, dict[str, list[str]]] = {}
    for outcome in outcomes:
        if outcome.error is not None:
            cause = _POLICY.sub("", f"{type(outcome.error).__name__}: {outcome.error}")
            causes.setdefault(cause, {}).setdefault(_who(outcome), []).append(str(outcome.seed))
    lines = []
    for cause, runs in causes.items():
        which = "; ".join(f"{policy}, seed {', '.join(seeds)}" for policy, seeds in runs.items())
        lines.append(f"{which}: {cause}")
    return lines


def _who(outcome: Outcome) -> str:
    return f"{outcome.policy} with {title(outcome.swept)}" if outcome.swept else outcome.policy


def _values(name: str, runs: Sequence[Outcome]) -> list[float]:
    """A number of the summaries that have it."""
    numbers = (dict(run.summary).get(name) for run in runs)
    return [number for number in numbers if isinstance(number, int | float)]


def _values_less(name: str, pairs: Pairs) -> list[float]:
    return [a - b for mine, control in pairs for a in _values(name, [mine]) for b in _values(name, [control])]


def _mean(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return statistics.fmean(known) if known else None


def _median(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return statistics.median(known) if known else None


def _spread(numbers: Sequence[float]) -> float | None:
    """Standard deviation over seeds."""
    return statistics.stdev(numbers) if len(numbers) > 1 else None


# --- verdicts ---------------------------------------------------------------------------------------------------------


def is_exact(mine: Sequence[Outcome]) -> bool:
    """At least one run came to its end, and none skipped anything or arranged its inputs."""
    return skips_nothing(mine) and not any(outcome.arranges for outcome in ended(mine))


def skips_nothing(mine: Sequence[Outcome]) -> bool:
    """At least one run came to its end, and none skipped anything; inputs may have been regrouped."""
    runs = ended(mine)
    return bool(runs) and not any(map(_skipped, runs))


def is_equal(pairs: Pairs) -> bool:
    """A policy that may regroup or skip inputs did nothing of the kind."""
    return all(mine.bits == control.bits and not _skipped(mine) for mine, control in pairs)


def ended(mine: Sequence[Outcome]) -> list[Outcome]:
    """The runs that came to their end."""
    return [outcome for outcome in mine if outcome.error is None]


def _skipped(run: Outcome) -> bool:
    return any(any(_values(name, [run])) for name in SKIPPED)


def verdict(
    mine: Sequence[Outcome], pairs: Pairs, difference: Sequence[float], unequal: Sequence[int], budget: float
) -> tuple[str, str]:
    """One word, and why: `failed`, `differs` (was to be equal to the control and is not), `within` or `outside` the
    budget, `undecided`; in the place of this `unskipped` for a policy that skips nothing. `unskipped` is also a policy
    whose skip rule watched rows and skipped nothing yet.

    Args:
        mine: runs of a policy.
        pairs: those that ended, with the control's of the same seed.
        difference: of their AUC.
        unequal: seeds with other bits than the control, where they must be equal.
    """
    if not ended(mine):
        return "failed", "no run came to its end"
    if unequal:
        return "differs", (
            f"skipped nothing and still trained other numbers than {pairs[0][1].policy}, with seed "
            f"{', '.join(map(str, unequal))}; on a GPU set deterministic=true, else a policy changes what it is handed"
        )
    if pairs and pairs[0][0].policy == pairs[0][1].policy:
        return "within", "the control"
    if pairs and (is_exact(mine) or is_equal(pairs)):
        if any(outcome.summary.get("watched_rows") for outcome in ended(mine)):
            steps = max(outcome.summary["steps"] for outcome in ended(mine))
            return "unskipped", (
                f"its rule skipped nothing in {steps:,} steps, so the weights are the control's and say nothing about "
                "skipping; train more steps"
            )
        return "within", "equal to the control bit for bit"
    if pairs:
        word, reason = _of_differences(difference, budget)
        is_unskipped = word == "undecided" and skips_nothing(mine)
        return (
            ("unskipped", f"nothing is left out, its batches are others; {reason}") if is_unskipped else (word, reason)
        )
    if skips_nothing(mine):
        numbers = "the control ended with none of its seeds, so its numbers were not checked"
        return "unskipped", f"nothing is left out; {numbers}"
    return "undecided", "no un-skipped run to compare with: add a policy that skips nothing, such as lru"


def _of_differences(difference: Sequence[float], budget: float) -> tuple[str, str]:
    if not difference:
        return "undecided", "no AUC to compare: the labels are of one class"
    if (bounds := interval(difference)) is None:
        return "undecided", "one seed gives no confidence interval: raise --seeds"
    match word := word_of(bounds, budget):
        case "within":
            return word, f"the AUC falls by at most {budget:g}, with {CONFIDENCE:.0%} confidence"
        case "outside":
            return word, f"the AUC falls by more than {budget:g}, with {CONFIDENCE:.0%} confidence"
    seeds = seeds_to_decide(difference, budget)
    more = f"about {seeds} seeds would decide" if seeds else f"more than {MOST_SEEDS} seeds would be needed"
    return word, f"the interval straddles a loss of {budget:g}; if it stays as it is, {more} (--seeds, --auto-resume)"


def word_of(bounds: Interval, budget: float) -> str:
    """Where an interval of a difference of AUC lies against a budget of loss."""
    low, high = bounds
    return "within" if low >= -budget else "outside" if high < -budget else "undecided"


def seeds_to_decide(differences: Sequence[float], budget: float) -> int | None:
    """How many seeds would put the whole interval on one side of a loss of `budget`, if mean and spread stayed as they
    are; None for more than `MOST_SEEDS`."""
    distance, spread = abs(statistics.fmean(differences) + budget), statistics.stdev(differences)
    seeds = range(len(differences) + 1, MOST_SEEDS + 1)
    return next((number for number in seeds if spread * _student(number) / math.sqrt(number) < distance), None)


def interval(differences: Sequence[float]) -> Interval | None:
    """Student's t interval of the mean of paired differences, at `CONFIDENCE`; None for fewer than two."""
    number = len(differences)
    if number < 2:
        return None
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(number)
    reach = error * _student(number)
    return mean - reach, mean + reach


def _student(number: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, number - 1))


# --- the test over samples --------------------------------------------------------------------------------------------


def over_samples(pairs: Pairs, budget: float) -> SampleTest | None:
    """Differences of AUC and log loss of a policy and its control; None where no pair has kept the scores of the same
    samples, of two in each class.

    Where seeds have the same evaluation samples, what a sample contributes is averaged over them; samples of different
    seeds are independent, and the variances of their means add up.
    """
    groups: list[tuple[list[tuple[Scores, Scores]], Scores]] = []  # logits of models of the same labels, these
    for mine, control in pairs:
        if mine.scores is None or control.scores is None or not _same(mine.scores, control.scores):
            continue
        models = next((models for models, labels in groups if np.array_equal(labels, mine.scores[1])), None)
        if models is None:
            groups.append((models := [], mine.scores[1]))
        models.append((mine.scores[0], control.scores[0]))
    compared = [(len(models), paired_difference(models, labels), len(labels)) for models, labels in groups]
    parts = [(seeds, difference, samples) for seeds, difference, samples in compared if difference is not None]
    if not parts:
        return None
    total = _mean_of_seeds([(seeds, difference) for seeds, difference, _ in parts])
    auc = normal_interval(total.auc, total.auc_error)
    return SampleTest(
        auc_difference=total.auc,
        auc_difference_ci=auc,
        log_loss_difference=total.log_loss,
        log_loss_difference_ci=normal_interval(total.log_loss, total.log_loss_error),
        p_value=p_value(total.auc, total.auc_error),
        samples=sum(samples for _, _, samples in parts),
        seeds=sum(seeds for seeds, _, _ in parts),
        verdict=word_of(auc, budget),
    )


def other_samples(pairs: Pairs) -> list[str]:
    """A line for each run whose evaluation samples were not the control's: none of its differences mean anything."""
    return [
        f"seed {mine.seed}: evaluated on other samples than {control.policy}, as labels differ; evaluate all "
        "policies on the same ones"
        for mine, control in pairs
        if mine.scores is not None and control.scores is not None and not _same(mine.scores, control.scores)
    ]


def p_value(difference: float, error: float) -> float:
    """The probability of a difference at least as large, to either side, where there is none: that of the normal
    distribution."""
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return math.erfc(abs(difference) / error / math.sqrt(2))


def _same(mine: Scores, control: Scores) -> bool:
    return np.array_equal(mine[1], control[1])


def _mean_of_seeds(parts: Sequence[tuple[int, PairedDifference]]) -> PairedDifference:
    """Of means over some seeds each, whose errors are independent."""
    shares = [(number / sum(seeds for seeds, _ in parts), part) for number, part in parts]
    return PairedDifference(
        auc=sum(share * part.auc for share, part in shares),
        auc_error=math.hypot(*(share * part.auc_error for share, part in shares)),
        log_loss=sum(share * part.log_loss for share, part in shares),
        log_loss_error=math.hypot(*(share * part.log_loss_error for share, part in shares)),
    )
