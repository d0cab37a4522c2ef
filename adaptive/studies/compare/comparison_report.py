"""A comparison as a document, for the terminal, Markdown and the page, and its numbers as CSV.

Where settings are swept, the tables come once for each combination of values, under its name, and then one over all.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from adaptive.studies.compare import ComparedPolicy, Comparison, Interval
from adaptive.system import BUSY_SHARE
from adaptive.training.telemetry.document import Document, DocumentBlock, Heading, Items, Note, Table, csv_text
from adaptive.training.telemetry.formatting import (
    accuracy_text,
    bytes_text,
    count_text,
    number_text,
    percent_text,
    score_text,
)

NOTE: Final = (
    "difference: AUC minus the control's, mean of the seeds and {confidence:.0%} interval (Student's t, paired by "
    "seed); to device, to host{files}: per step; ±: standard deviation over seeds; speed (without the first "
    "interval, which compiles) and times: median; skipped updates: not written, dropped or deferred."
)
OVER_SAMPLES: Final = (
    " Over samples: {confidence:.0%} interval of that difference were other samples evaluated (DeLong, paired by "
    "sample), the models as they are."
)
RANDOM: Final = (
    " Against random: AUC minus that of the line below, which drops as many inputs at random; a rule that does not "
    "beat it chooses no better than chance."
)
TARGET: Final = (
    " Target: runs that reached it, out of those that ended; steps and samples until then: means; seconds of training, "
    "evaluations apart: median. A run stops there, so a difference of AUC may be between runs of unlike lengths."
)
OF_ALL_VALUES: Final = (
    *("policy", "AUC", "difference", "over samples", "log loss", "accuracy"),
    *("target", "reached", "at step", "after samples", "after s", "samples/s", "hit rate", "verdict"),
)
"""Columns of the table over all values."""

Policies = Sequence[ComparedPolicy]
Column = tuple[str, Callable[[ComparedPolicy], str]]


def comparison_document(result: Comparison) -> Document:
    """What came out in a sentence, tables, a verdict for each policy, and what went wrong; that alone if no run
    finished."""
    problems = [Items([f"problem: {problem}" for problem in result.problems])] if result.problems else []
    if not any(policy.seeds for policy in result.policies):
        return Document([Note("No run came to its end."), *problems])
    blocks: list[DocumentBlock] = []
    for point in result.values:
        policies = [policy for policy in result.policies if policy.swept == point.swept]
        name = ", ".join(f"{key}={_value_text(value)}" for key, value in point.swept.items())
        blocks += [Heading(name), *_blocks(replace(result, policies=policies))]
    if result.values:
        keys = list(result.values[0].swept)
        columns = [column for column in _columns(result.policies) if column[0] in OF_ALL_VALUES]
        columns = [*((key, _swept(key)) for key in keys), *columns]
        blocks += [Heading("All values"), _table(columns, result.policies, keys=len(keys) + 1)]
    else:
        blocks = _blocks(result)
    busy = [Note(text)] if (text := _busy_text(result.policies)) else []
    return Document([*blocks, *busy, Note(_note(result)), *problems])


def _blocks(result: Comparison) -> list[DocumentBlock]:
    """The policies of one combination of values."""
    policies = result.policies
    reporting = [policy for policy in policies if policy.policy_numbers]
    times: list[Column] = [("ms per step", _name)]
    times += [
        (stage, _time(stage)) for stage in dict.fromkeys(stage for policy in policies for stage in policy.time_ms)
    ]
    reports: list[Column] = [("policy reports", _name)]
    reports += [
        (name, _number(name)) for name in dict.fromkeys(name for one in reporting for name in one.policy_numbers)
    ]
    return [
        Note(outcome_sentence(policies)),
        _table(_columns(policies), policies),
        _table(times, policies),
        *([_table(reports, reporting)] if reporting else []),
        Items([_verdict_line(policy, result) for policy in policies]),
    ]


def _table(columns: Sequence[Column], policies: Policies, *, keys: int = 1) -> Table:
    titles = [title for title, _ in columns]
    return Table([titles, *([text(policy) for _, text in columns] for policy in policies)], keys=keys)


def _columns(policies: Policies) -> list[Column]:
    """Columns of quality, speed and traffic; those that no policy has are left out."""

    def any_has(name: str) -> bool:
        return any(getattr(policy, name) not in (None, 0) for policy in policies)

    columns: list[tuple[str, Callable[[ComparedPolicy], str], bool]] = [
        ("policy", _name, True),
        ("AUC", lambda policy: _with_spread(policy.auc, policy.auc_std), True),
        ("difference", _difference, True),
        ("verdict", lambda policy: policy.verdict, True),
        ("samples/s", lambda policy: count_text(policy.samples_per_s), True),
        ("hit rate", lambda policy: percent_text(policy.hit_rate), True),
        ("over samples", _over_samples, any_has("over_samples")),
        ("log loss", lambda policy: _with_spread(policy.log_loss, policy.log_loss_std), True),
        ("accuracy", _accuracy, True),
        ("target", lambda policy: policy.target or "-", any_has("target")),
        ("reached", _reached, any_has("target")),
        ("at step", lambda policy: count_text(policy.target_step), any_has("target")),
        ("after samples", lambda policy: count_text(policy.target_samples), any_has("target")),
        ("after s", lambda policy: _fixed(policy.target_seconds, 1), any_has("target")),
        ("to device", _per_step("bytes_h2d"), True),
        ("to host", _per_step("bytes_d2h"), True),
        ("from files", _per_step("host_bytes_read"), _uses_files(policies)),
        ("to files", _per_step("host_bytes_written"), _uses_files(policies)),
        ("skipped updates", lambda policy: percent_text(policy.skipped_update_share), True),
        (
            "deferred updates",
            lambda policy: percent_text(policy.deferred_update_share),
            any_has("deferred_update_share"),
        ),
        ("skipped lookups", lambda policy: percent_text(policy.skipped_lookup_share), any_has("skipped_lookup_share")),
        ("skipped inputs", lambda policy: percent_text(policy.skipped_input_share), any_has("skipped_input_share")),
        (
            "against random",
            lambda policy: _signed(policy.auc_difference_to_random, policy.auc_difference_to_random_ci),
            any_has("auc_difference_to_random_ci") or _has_random(policies),
        ),
    ]
    return [(title, text) for title, text, is_shown in columns if is_shown]


def _name(policy: ComparedPolicy) -> str:
    return policy.policy


def _swept(key: str) -> Callable[[ComparedPolicy], str]:
    return lambda policy: _value_text(policy.swept[key])


def _time(stage: str) -> Callable[[ComparedPolicy], str]:
    return lambda policy: _fixed(policy.time_ms.get(stage), 2)


def _number(name: str) -> Callable[[ComparedPolicy], str]:
    return lambda policy: number_text(name, policy.policy_numbers.get(name))


def _per_step(name: str) -> Callable[[ComparedPolicy], str]:
    def text(policy: ComparedPolicy) -> str:
        size = getattr(policy, name)
        return bytes_text(size / policy.steps if policy.steps and size is not None else None)

    return text


def _value_text(value: Any) -> str:
    """As --set takes it."""
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _fixed(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _reached(policy: ComparedPolicy) -> str:
    return f"{policy.target_reached} of {len(policy.seeds)}" if policy.target else "-"


def _with_spread(mean: float | None, spread: float | None) -> str:
    return score_text(mean) if spread is None else f"{score_text(mean)} ± {score_text(spread)}"


def _accuracy(policy: ComparedPolicy) -> str:
    mean, spread = policy.accuracy, policy.accuracy_std
    return accuracy_text(mean) if mean is None or spread is None else f"{100 * mean:.2f} ± {accuracy_text(spread)}"


def _difference(policy: ComparedPolicy) -> str:
    is_none = policy.exact and policy.auc_difference is not None
    return "none" if is_none else _signed(policy.auc_difference, policy.auc_difference_ci)


def _over_samples(policy: ComparedPolicy) -> str:
    if policy.over_samples is None:
        return "none" if policy.exact else "-"
    return "[{:+.5f}, {:+.5f}]".format(*policy.over_samples.auc_difference_ci)


def _signed(mean: float | None, bounds: Interval | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:+.5f}" if bounds is None else f"{mean:+.5f} [{bounds[0]:+.5f}, {bounds[1]:+.5f}]"


def _uses_files(policies: Policies) -> bool:
    return any(policy.host_bytes_read is not None for policy in policies)


def _has_random(policies: Policies) -> bool:
    return any(policy.auc_difference_to_random is not None for policy in policies)


def outcome_sentence(policies: Policies) -> str:
    """Who has the best AUC and who is fastest, by how much over the control."""
    aucs = {policy.policy: policy.auc for policy in policies if policy.auc is not None}
    speeds = {policy.policy: policy.samples_per_s for policy in policies if policy.samples_per_s is not None}
    best = [
        _best("highest AUC", policies, aucs, score_text, lambda most, base: f"{most - base:+.5f} against"),
        _best("most samples/s", policies, speeds, count_text, lambda most, base: f"{most / base:.2f} times"),
    ]
    text = "; ".join(filter(None, best))
    return f"{text[:1].upper()}{text[1:]}." if text else "Nothing was measured that could be compared."


def _best(
    what: str,
    policies: Policies,
    values: dict[str, float],
    text: Callable[[float], str],
    against: Callable[[float, float], str],
) -> str:
    """`highest AUC: slipstream, 0.7512 (+0.00040 against lru, undecided)`; all of those that share it are named."""
    if not values:
        return ""
    most = max(values.values())
    winners = [name for name, value in values.items() if value == most]
    control = next((policy.policy for policy in policies if policy.reason == "the control"), None)
    base = None if control in winners else values.get(control or "")
    remarks = [f"{against(most, base)} {control}"] if base else []
    remarks += dict.fromkeys(one.verdict for one in policies if one.policy in winners and one.verdict != "within")
    return f"{what}: {', '.join(winners)}, {text(most)}" + (f" ({', '.join(remarks)})" if remarks else "")


def _verdict_line(policy: ComparedPolicy, result: Comparison) -> str:
    budget = f"{result.auc_budget:g}"
    words = {
        "within": f"within the AUC budget of {budget}",
        "outside": f"outside the AUC budget of {budget}",
        "differs": "not exact",
        "unskipped": "skips nothing",
    }
    judged_by = ", by training's own predictions" if result.auc_of == "training" and not policy.exact else ""
    by_samples = ""
    if (test := policy.over_samples) is not None:
        by_word = {
            "within": f"within the budget of {budget}",
            "outside": f"outside the budget of {budget}",
            "undecided": f"straddling a loss of {budget}",
        }[test.verdict]
        by_samples = f"; over the samples {by_word}, p = {test.p_value:.2g} for no difference"
    word = words.get(policy.verdict, policy.verdict)
    return f"{policy.policy}: {word}{judged_by} ({policy.reason}{by_samples})"


def _busy_text(policies: Policies) -> str:
    """A warning where other processes used the cores while runs were timed."""
    shares = [run.others_cpu_share for policy in policies for run in policy.runs]
    busy = [share for share in shares if share is not None and share > BUSY_SHARE]
    if not busy:
        return ""
    return (
        f"warning: other processes used up to {percent_text(max(busy))} of the cores during {len(busy)} of "
        f"{len(shares)} runs, so samples/s and times cannot be compared. Quality is not affected. Repeat the "
        "comparison on a machine that does nothing else."
    )


def _note(result: Comparison) -> str:
    seeds, policies = len(result.seeds), result.policies
    files = ", from files, to files (-: rows used in place, not counted)" if _uses_files(policies) else ""
    parts = [
        f"AUC, log loss and accuracy of the {result.auc_of} samples, {seeds} seed{'s' if seeds > 1 else ''}; ",
        NOTE.format(confidence=result.confidence, files=files),
        OVER_SAMPLES.format(confidence=result.confidence) if any(one.over_samples for one in policies) else "",
        RANDOM if _has_random(policies) else "",
        TARGET if any(policy.target for policy in policies) else "",
        "" if seeds > 1 else " With one seed there are no intervals over seeds.",
    ]
    return "".join(parts)


def comparison_csv(result: Comparison) -> str:
    """A line for each policy; numbers as they are, times as `time_ms.STAGE`, what it reports as `policy_numbers.NAME`,
    what is swept as `swept.KEY`, the test over samples as `over_samples.NAME`, intervals as two columns."""
    lines = [_flat(asdict(policy)) for policy in result.policies]
    names = list(dict.fromkeys(name for line in lines for name in line))
    return csv_text([names, *([line.get(name) for name in names] for line in lines)])


def _flat(fields: dict[str, Any]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": number for key, number in _flat(value).items()}
        elif name.endswith("_ci"):
            flat[f"{name}_low"], flat[f"{name}_high"] = value or (None, None)
        elif name == "seeds" and isinstance(value, list):
            flat[name] = " ".join(map(str, value))
        elif name not in ("runs", "over_samples"):  # None, where it is no dict
            flat[name] = value
    return flat
