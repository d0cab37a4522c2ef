"""What the runs of a comparison say: means over seeds, paired differences, and a verdict on each policy.

The *control* is the first policy of the list that skipped nothing and trained the batches as they came; without one,
the first that skipped nothing. All policies of the former kind must have trained the same weights, bit for bit:
placement never changes the numbers. What the others differ by is what skipping (or another order of inputs) cost, seed
by seed, and over the samples that both have predicted (`paired`). A policy that dropped inputs is also compared with
its own control, which dropped as many at random: a rule that is worth anything beats it.

Where settings are swept, all of this is done within each combination of their values, each with a control of its own.

One word for each policy, and why: whether it skipped, whether it equals the control, how sure a difference is.

The test over samples: two models have predicted the same evaluation samples, and by chance of these they differ.

Beside the interval over seeds, which says what another course of training would change, this one says what other
samples of the same kind would. Each leaves the other's chance out; a difference to be believed stands before both.
"""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.studies.compare.comparison_runs import Outcome
from adaptive.studies.compare.contenders import SweepPoint, title, values
from adaptive.training.guard.judge import interval as normal_interval
from adaptive.training.quality import PairedDifference, paired_difference

SCHEMA: Final = 1
COUNTS: Final = ("bytes_h2d", "bytes_d2h", "fetched_rows", "written_back_rows", "steps", "samples")
FILES: Final = ("host_bytes_read", "host_bytes_written")  # of a host tier in files
_POLICY: Final = re.compile(r" \(policy \w+\)")  # in an error that any policy may meet
RATES: Final = ("hit_rate", "row_hit_rate")


def judge(outcomes: Sequence[Outcome], *, auc_budget: float) -> dict[str, Any]:
    """What `adaptive-train compare --json` prints.

    Args:
        outcomes: of every policy and seed, in the order of the list.
        auc_budget: loss of AUC against the control that a policy may cause.

    Returns:
        Facts of each policy; `problems` says what no comparison should have: runs that failed, and policies that
        skipped nothing and still differ from the control. Where settings are swept, a policy has facts for each
        combination of values, `swept`, and `values` holds these with their controls in the place of `control`.
    """
    groups: dict[SweepPoint, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.swept, []).append(outcome)
    found = [_judge_group(swept, mine, auc_budget) for swept, mine in groups.items()]
    policies = [one for _, facts in found for one in facts]
    return {
        "schema": SCHEMA,
        **_controls([(swept, control) for swept, (control, _) in zip(groups, found, strict=True)]),
        "seeds": list(dict.fromkeys(outcome.seed for outcome in outcomes)),
        "auc_of": next((outcome.summary["auc_of"] for outcome in outcomes if outcome.summary), None),
        "auc_budget": auc_budget,
        "confidence": CONFIDENCE,
        "problems": [*_failures(outcomes), *(problem for one in policies for problem in one.pop("problems"))],
        "policies": policies,
    }


def _controls(found: Sequence[tuple[SweepPoint, str | None]]) -> dict[str, Any]:
    if not any(swept for swept, _ in found):
        return {"control": found[0][1] if found else None}
    return {"values": [{"swept": values(swept), "control": control} for swept, control in found]}


def _judge_group(
    swept: SweepPoint, outcomes: Sequence[Outcome], budget: float
) -> tuple[str | None, list[dict[str, Any]]]:
    """The control of the runs with one combination of values, and the facts of each policy."""
    labels = list(dict.fromkeys(outcome.policy for outcome in outcomes))
    mine = {label: [outcome for outcome in outcomes if outcome.policy == label] for label in labels}
    exact = [label for label in labels if is_exact(mine[label])]
    unskipped = [label for label in labels if mine[label][0].beside is None and skips_nothing(mine[label])]
    control = next(iter(exact + unskipped), None)
    random = {runs[0].beside: runs for runs in mine.values() if runs[0].beside is not None}
    policies = [
        _facts(mine[label], mine.get(control or "", []), budget) | _against(mine[label], random.get(label, []))
        for label in labels
    ]
    return control, [{"swept": values(swept), **one} for one in policies] if swept else policies


def _against(mine: Sequence[Outcome], random: Sequence[Outcome]) -> dict[str, Any]:
    """How a policy that dropped inputs compares with dropping as many at random."""
    twins = {outcome.seed: outcome for outcome in ended(random)}
    pairs = [(outcome, twins[outcome.seed]) for outcome in ended(mine) if outcome.seed in twins]
    difference = _differences("auc", pairs)
    return {
        "beside": mine[0].beside,
        "auc_difference_to_random": _mean(difference),
        "auc_difference_to_random_ci": interval(difference),
    }


def _facts(mine: Sequence[Outcome], control: Sequence[Outcome], budget: float) -> dict[str, Any]:
    finished = ended(mine)
    reference = {outcome.seed: outcome for outcome in ended(control)}
    pairs = [(outcome, reference[outcome.seed]) for outcome in finished if outcome.seed in reference]
    difference, losses = _differences("auc", pairs), _differences("log_loss", pairs)
    accuracies = _differences("accuracy", pairs)
    unequal = [o.seed for o, r in pairs if o.bits != r.bits] if is_exact(mine) and is_exact(control) else []
    word, reason = verdict(mine, pairs, difference, unequal, budget)
    exact = (is_exact(mine) or (bool(pairs) and is_equal(pairs))) and not unequal
    who, samples = _who(mine[0]), None if exact else over_samples(pairs, budget)
    return {
        "policy": mine[0].policy,
        "auc": _mean([o.summary["auc"] for o in finished]),
        "auc_std": _spread([o.summary["auc"] for o in finished]),
        "auc_difference": _mean(difference),
        "auc_difference_ci": interval(difference),
        "log_loss": _mean([o.summary["log_loss"] for o in finished]),
        "log_loss_std": _spread([o.summary["log_loss"] for o in finished]),
        "log_loss_difference": _mean(losses),
        "log_loss_difference_ci": interval(losses),
        "accuracy": _mean([o.summary.get("accuracy") for o in finished]),
        "accuracy_std": _spread([o.summary.get("accuracy") for o in finished]),
        "accuracy_difference": _mean(accuracies),
        "accuracy_difference_ci": interval(accuracies),
        **_target(finished),
        **_measured(finished),
        "over_samples": samples,
        "exact": exact,
        "verdict": word,
        "reason": reason,
        "seeds": [outcome.seed for outcome in finished],
        "runs": [_run(outcome) for outcome in mine],
        "problems": [f"{who}: {text}" for text in (*([reason] if unequal else []), *other_samples(pairs))],
    }


def _target(finished: Sequence[Outcome]) -> dict[str, Any]:
    """When runs reached the target at which they were to stop; nothing without one. Steps and samples are means,
    seconds of training the median, of those that did."""
    found = [outcome.summary["stop_at"] for outcome in finished if "stop_at" in outcome.summary]
    if not found:
        return {}
    reached = [one for one in found if one["reached"]]
    return {
        "target": f"{found[0]['metric']} {found[0]['target']:g}",
        "target_reached": len(reached),
        "target_step": _mean([one["step"] for one in reached]),
        "target_samples": _mean([one["samples"] for one in reached]),
        "target_seconds": _median([one["seconds"] for one in reached]),
    }


def _measured(finished: Sequence[Outcome]) -> dict[str, Any]:
    """Shares and what policies report are means over seeds. Speed and times are medians: the first run of all also
    warms the caches up. The first interval of a run, in which kernels are compiled, counts for no speed if there are
    others."""
    summaries = [outcome.summary for outcome in finished]
    shares = ["skipped_update_share", "deferred_update_share", "skipped_lookup_share"]
    shares += [name for summary in summaries for name in share_names(summary)]
    files = FILES if any(name in summary for summary in summaries for name in FILES) else ()
    reported = [summary.get("policy_numbers", {}) for summary in summaries]
    names = dict.fromkeys(name for own in reported for name in own)
    stages = dict.fromkeys(stage for summary in summaries for stage in summary["time_ms"])
    return {
        **{name: _mean([summary[name] for summary in summaries]) for name in (*RATES, *COUNTS)},
        **{name: _mean([summary.get(name) for summary in summaries]) for name in files},
        "samples_per_s": _median([s.get("samples_per_s_later") or s["samples_per_s"] for s in summaries]),
        **{name: _mean([summary.get(name) for summary in summaries]) for name in dict.fromkeys(shares)},
        "time_ms": {stage: _median([s["time_ms"].get(stage) for s in summaries]) for stage in stages},
        "policy_numbers": {name: _mean([own.get(name) for own in reported]) for name in names},
    }


def _run(outcome: Outcome) -> dict[str, Any]:
    error = None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}"
    names = ("auc", "log_loss", "accuracy", "samples_per_s")
    found = {name: outcome.summary.get(name) for name in names}
    target = {name: outcome.summary[name] for name in ("stop_at",) if name in outcome.summary}
    others = {"others_cpu_share": outcome.others_cpu_share}
    return {"seed": outcome.seed, "run_dir": outcome.run_dir, **found, **target, **others, "error": error}


def _failures(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each cause, which is often the same for several runs."""
    found: dict[str, dict[str, list[str]]] = {}
    for one in outcomes:
        if one.error is not None:
            cause = _POLICY.sub("", f"{type(one.error).__name__}: {one.error}")
            found.setdefault(cause, {}).setdefault(_who(one), []).append(str(one.seed))
    which = {
        cause: [f"{policy}, seed {', '.join(seeds)}" for policy, seeds in runs.items()] for cause, runs in found.items()
    }
    return [f"{'; '.join(runs)}: {cause}" for cause, runs in which.items()]


def _who(outcome: Outcome) -> str:
    return f"{outcome.policy} with {title(outcome.swept)}" if outcome.swept else outcome.policy


def _differences(name: str, pairs: Sequence[tuple[Outcome, Outcome]]) -> list[float]:
    found = [(mine.summary.get(name), control.summary.get(name)) for mine, control in pairs]
    return [a - b for a, b in found if a is not None and b is not None]


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return statistics.fmean(known) if known else None


def _median(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return statistics.median(known) if known else None


def _spread(values: Sequence[float | None]) -> float | None:
    """Standard deviation over seeds."""
    known = _known(values)
    return statistics.stdev(known) if len(known) > 1 else None


CONFIDENCE: Final = 0.95
MOST_SEEDS: Final = 100  # that anybody may be told to train


def is_exact(mine: Sequence[Outcome]) -> bool:
    """At least one run came to its end, and none skipped anything or arranged its inputs."""
    return skips_nothing(mine) and not any(outcome.arranges for outcome in ended(mine))


def skips_nothing(mine: Sequence[Outcome]) -> bool:
    """At least one run came to its end, and none skipped anything; inputs may have been regrouped."""
    runs = ended(mine)
    return bool(runs) and not any(skipped(outcome.summary) for outcome in runs)


def is_equal(pairs: Sequence[tuple[Outcome, Outcome]]) -> bool:
    """A policy that may regroup or skip inputs did nothing of the kind."""
    return all(mine.bits == control.bits and not skipped(mine.summary) for mine, control in pairs)


def ended(mine: Sequence[Outcome]) -> list[Outcome]:
    """The runs that came to their end."""
    return [outcome for outcome in mine if outcome.error is None]


def skipped(summary: Mapping[str, Any]) -> bool:
    """A run left something out."""
    return any(summary[name] for name in share_names(summary))


def share_names(summary: Mapping[str, Any]) -> list[str]:
    """What a summary tells that was skipped."""
    return [name for name in summary if name.startswith("skipped_") and name.endswith("_share")]


def verdict(
    mine: Sequence[Outcome],
    pairs: Sequence[tuple[Outcome, Outcome]],
    difference: Sequence[float],
    unequal: Sequence[int],
    budget: float,
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
    word, reason = _of_differences(difference, budget) if pairs else ("undecided", _without_control(mine))
    if word == "undecided" and skips_nothing(mine):
        return "unskipped", f"nothing is left out, its batches are others; {reason}" if pairs else reason
    return word, reason


def _without_control(mine: Sequence[Outcome]) -> str:
    if skips_nothing(mine):
        return "nothing is left out; the control ended with none of its seeds, so its numbers were not checked"
    return "no un-skipped run to compare with: add a policy that skips nothing, such as lru"


def _of_differences(difference: Sequence[float], budget: float) -> tuple[str, str]:
    if not difference:
        return "undecided", "no AUC to compare: the labels are of one class"
    bounds = interval(difference)
    if bounds is None:
        return "undecided", "one seed gives no confidence interval: raise --seeds"
    return _against_budget(bounds, budget, seeds_to_decide(difference, budget))


def _against_budget(bounds: Sequence[float], budget: float, seeds: int | None) -> tuple[str, str]:
    word = word_of(bounds, budget)
    if word == "within":
        return word, f"the AUC falls by at most {budget:g}, with {CONFIDENCE:.0%} confidence"
    if word == "outside":
        return word, f"the AUC falls by more than {budget:g}, with {CONFIDENCE:.0%} confidence"
    more = f"about {seeds} seeds would decide" if seeds else f"more than {MOST_SEEDS} seeds would be needed"
    return word, f"the interval straddles a loss of {budget:g}; if it stays as it is, {more} (--seeds, --auto-resume)"


def word_of(bounds: Sequence[float], budget: float) -> str:
    """Where an interval of a difference of AUC lies against a budget of loss."""
    low, high = bounds
    return "within" if low >= -budget else "outside" if high < -budget else "undecided"


def seeds_to_decide(differences: Sequence[float], budget: float) -> int | None:
    """How many seeds would put the whole interval on one side of a loss of `budget`, if mean and spread stayed as they
    are; None for more than `MOST_SEEDS`."""
    from scipy.stats import t

    distance, spread = abs(statistics.fmean(differences) + budget), statistics.stdev(differences)
    for seeds in range(len(differences) + 1, MOST_SEEDS + 1):
        if spread * float(t.ppf((1 + CONFIDENCE) / 2, seeds - 1)) / math.sqrt(seeds) < distance:
            return seeds
    return None


def interval(differences: Sequence[float]) -> list[float] | None:
    """Student's t interval of the mean of paired differences, at `CONFIDENCE`; None for fewer than two."""
    if len(differences) < 2:
        return None
    from scipy.stats import t

    mean, error = statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    reach = error * float(t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1))
    return [mean - reach, mean + reach]


Scores = NDArray[np.float32]
"""(2, n): logits and labels."""


def over_samples(pairs: Sequence[tuple[Outcome, Outcome]], budget: float) -> dict[str, Any] | None:
    """Differences of AUC and log loss of a policy and its control, mean of the seeds, with intervals over samples.

    Where seeds have the same evaluation samples, what a sample contributes is averaged over them; samples of different
    seeds are independent, and the variances of their means add up.

    Args:
        pairs: runs of the policy and of the control, of one seed each.
        budget: loss of AUC.

    Returns:
        None where no pair has kept the scores of the same samples, of two in each class.
    """
    groups = _same_samples([found for mine, control in pairs if (found := _both(mine, control)) is not None])
    parts = [(len(models), paired_difference(models, labels), len(labels)) for models, labels in groups]
    known = [(seeds, found, samples) for seeds, found, samples in parts if found is not None]
    if not known:
        return None
    total = _mean_of_seeds([(seeds, found) for seeds, found, _ in known])
    auc = normal_interval(total.auc, total.auc_error)
    return {
        "auc_difference": total.auc,
        "auc_difference_ci": list(auc),
        "log_loss_difference": total.log_loss,
        "log_loss_difference_ci": list(normal_interval(total.log_loss, total.log_loss_error)),
        "p_value": p_value(total.auc, total.auc_error),
        "samples": sum(samples for _, _, samples in known),
        "seeds": sum(seeds for seeds, _, _ in known),
        "verdict": word_of(auc, budget),
    }


def other_samples(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[str]:
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


def _both(mine: Outcome, control: Outcome) -> tuple[Scores, Scores] | None:
    if mine.scores is None or control.scores is None or not _same(mine.scores, control.scores):
        return None
    return mine.scores, control.scores


def _same(mine: Scores, control: Scores) -> bool:
    return np.array_equal(mine[1], control[1])


def _same_samples(pairs: Sequence[tuple[Scores, Scores]]) -> list[tuple[list[tuple[Scores, Scores]], Scores]]:
    """Logits of the pairs that have the same samples, and the labels of these."""
    groups: list[tuple[list[tuple[Scores, Scores]], Scores]] = []
    for mine, control in pairs:
        models = next((models for models, labels in groups if np.array_equal(labels, mine[1])), None)
        if models is None:
            groups.append((models := [], mine[1]))
        models.append((mine[0], control[0]))
    return groups


def _mean_of_seeds(parts: Sequence[tuple[int, PairedDifference]]) -> PairedDifference:
    """Of means over some seeds each, whose errors are independent."""
    seeds = sum(number for number, _ in parts)

    def error(name: str) -> float:
        return math.sqrt(sum((number / seeds * getattr(found, name)) ** 2 for number, found in parts))

    return PairedDifference(
        auc=sum(number / seeds * found.auc for number, found in parts),
        auc_error=error("auc_error"),
        log_loss=sum(number / seeds * found.log_loss for number, found in parts),
        log_loss_error=error("log_loss_error"),
    )
