"""What the runs of a comparison say: means over seeds, paired differences, and a verdict on each policy.

The *control* is the first policy of the list that skipped nothing and trained the batches as they came; without one,
the first that skipped nothing. All policies of the former kind must have trained the same weights, bit for bit:
placement never changes the numbers. What the others differ by is what skipping (or another order of inputs) cost, seed
by seed, and over the samples that both have predicted (`paired`). A policy that dropped inputs is also compared with
its own control, which dropped as many at random: a rule that is worth anything beats it.

Where settings are varied, all of this is done within each combination of their values, each with a control of its own.
"""

import re
import statistics
from collections.abc import Sequence
from typing import Any, Final

from adaptive.studies.compare.paired import other_samples, over_samples
from adaptive.studies.compare.runs import Outcome
from adaptive.studies.compare.variations import Variation, title, values
from adaptive.studies.compare.verdict import (
    CONFIDENCE,
    ended,
    interval,
    is_equal,
    is_exact,
    share_names,
    skips_nothing,
    verdict,
)

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
        skipped nothing and still differ from the control. Where settings are varied, a policy has facts for each
        combination of values, `varied`, and `values` holds these with their controls in the place of `control`.
    """
    groups: dict[Variation, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.varied, []).append(outcome)
    found = [_judge_group(varied, mine, auc_budget) for varied, mine in groups.items()]
    policies = [one for _, facts in found for one in facts]
    return {
        "schema": SCHEMA,
        **_controls([(varied, control) for varied, (control, _) in zip(groups, found, strict=True)]),
        "seeds": list(dict.fromkeys(outcome.seed for outcome in outcomes)),
        "auc_of": next((outcome.summary["auc_of"] for outcome in outcomes if outcome.summary), None),
        "auc_budget": auc_budget,
        "confidence": CONFIDENCE,
        "problems": [*_failures(outcomes), *(problem for one in policies for problem in one.pop("problems"))],
        "policies": policies,
    }


def _controls(found: Sequence[tuple[Variation, str | None]]) -> dict[str, Any]:
    if not any(varied for varied, _ in found):
        return {"control": found[0][1] if found else None}
    return {"values": [{"varied": values(varied), "control": control} for varied, control in found]}


def _judge_group(
    varied: Variation, outcomes: Sequence[Outcome], budget: float
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
    return control, [{"varied": values(varied), **one} for one in policies] if varied else policies


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
    return f"{outcome.policy} with {title(outcome.varied)}" if outcome.varied else outcome.policy


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
