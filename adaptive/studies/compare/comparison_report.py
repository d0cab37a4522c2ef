"""A comparison as a document and as CSV."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from adaptive.studies.compare import ComparedPolicy, Comparison, Interval
from adaptive.system import BUSY_SHARE
from adaptive.training.telemetry.formatting import (
    Document,
    DocumentBlock,
    Items,
    Note,
    Table,
    accuracy_text,
    bytes_text,
    count_text,
    csv_text,
    number_text,
    percent_text,
    score_text,
)

NOTE: Final = (
    "difference: AUC minus the control's, averaged over seeds, with a {confidence:.0%} interval (Student's t, paired "
    "by seed). ±: standard deviation over seeds. to device, to host{files}: per step. Speeds and times are medians; "
    "the first interval of a run, which compiles, does not count for speed. skipped updates: not written, whether "
    "dropped or deferred."
)
RANDOM: Final = (
    " against random: AUC minus that of the line below, which drops as many inputs at random. A rule that does not "
    "beat it chooses no better than chance."
)
TIME_TO_AUC: Final = (
    " time to AUC: training until an evaluation first reached it, without evaluations and the first interval; medians "
    "over the runs that reached it. of control: the median over seeds of the ratio to the control's. read: samples "
    "read, skipped or not."
)
Policies = Sequence[ComparedPolicy]
Column = tuple[str, Callable[[ComparedPolicy], str]]


def comparison_document(result: Comparison) -> Document:
    """Tables, verdicts and problems."""
    problems = [Items([f"problem: {problem}" for problem in result.problems])] if result.problems else []
    if not any(policy.seeds for policy in result.policies):
        return Document([Note("No run finished."), *problems])
    busy = [Note(text)] if (text := _busy_text(result.policies)) else []
    return Document([*_blocks(result), *busy, Note(_note(result)), *problems])


def _blocks(result: Comparison) -> list[DocumentBlock]:
    policies = result.policies
    reporting = [policy for policy in policies if policy.policy_numbers]
    stages = dict.fromkeys(stage for policy in policies for stage in policy.time_ms)
    names = dict.fromkeys(name for policy in reporting for name in policy.policy_numbers)
    times = [(stage, _entry(_hundredths, "time_ms", stage)) for stage in stages]
    reports = [(name, _entry(partial(number_text, name), "policy_numbers", name)) for name in names]
    return [
        _table(_columns(policies), policies),
        _table([("ms per step", _name), *times], policies),
        *([_table(TO_AUC, policies)] if any(policy.to_auc for policy in policies) else []),
        *([_table([("policy reports", _name), *reports], reporting)] if reporting else []),
        Items([_verdict_line(policy, result) for policy in policies]),
    ]


def _table(columns: Sequence[Column], policies: Policies) -> Table:
    titles = [title for title, _ in columns]
    return Table([titles, *([text(policy) for _, text in columns] for policy in policies)], keys=1)


def _columns(policies: Policies) -> list[Column]:
    """Columns of quality, speed and traffic, without those that are empty."""

    def optional(title: str, name: str, text: Callable[[Any], str]) -> list[Column]:
        has_value = any(getattr(policy, name) not in (None, 0) for policy in policies)
        return [(title, _field(text, name))] if has_value else []

    files: list[Column] = [("from files", _per_step("host_bytes_read")), ("to files", _per_step("host_bytes_written"))]
    inputs: list[Column] = [
        ("read", _field(count_text, "samples_read")),
        ("trained", _field(count_text, "samples")),
        ("effective", _field(count_text, "effective_samples")),
        ("weight spread", _field(_hundredths, "weight_spread")),
    ]
    random: list[Column] = [
        ("against random", lambda p: _signed(p.auc_difference_to_random, p.auc_difference_to_random_ci))
    ]
    return [
        ("policy", _name),
        ("AUC", lambda policy: _with_spread(policy.auc, policy.auc_std)),
        ("difference", _difference),
        ("verdict", lambda policy: policy.verdict),
        ("samples/s", _field(count_text, "samples_per_s")),
        ("hit rate", _field(percent_text, "hit_rate")),
        ("log loss", lambda policy: _with_spread(policy.log_loss, policy.log_loss_std)),
        ("accuracy", _accuracy),
        ("to device", _per_step("bytes_h2d")),
        ("to host", _per_step("bytes_d2h")),
        *(files if _uses_files(policies) else []),
        ("skipped updates", _field(percent_text, "skipped_update_share")),
        *optional("deferred updates", "deferred_update_share", percent_text),
        *optional("skipped lookups", "skipped_lookup_share", percent_text),
        *optional("skipped inputs", "skipped_input_share", percent_text),
        *(inputs if any(policy.skipped_input_share for policy in policies) else []),
        *(random if _has_random(policies) else []),
    ]


def _name(policy: ComparedPolicy) -> str:
    return policy.policy


def _field(text: Callable[[Any], str], name: str) -> Callable[[ComparedPolicy], str]:
    return lambda policy: text(getattr(policy, name))


def _entry(text: Callable[[Any], str], name: str, key: str) -> Callable[[ComparedPolicy], str]:
    """Text of an entry of a mapping, such as `time_ms`."""
    return lambda policy: text(getattr(policy, name).get(key))


def _per_step(name: str) -> Callable[[ComparedPolicy], str]:
    def text(policy: ComparedPolicy) -> str:
        size = getattr(policy, name)
        return bytes_text(size / policy.steps if policy.steps and size is not None else None)

    return text


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _hundredths(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _to_auc(name: str, text: Callable[[Any], str]) -> Callable[[ComparedPolicy], str]:
    return lambda policy: "-" if policy.to_auc is None else text(getattr(policy.to_auc, name))


def _time_reached(policy: ComparedPolicy) -> str:
    work = policy.to_auc
    if work is None:
        return "no evaluation"
    return f"{work.reached} of {work.runs}" if work.reached else f"not reached, best {score_text(work.best)}"


TO_AUC: Final[Sequence[Column]] = (
    ("time to AUC", _name),
    ("AUC", _to_auc("target", score_text)),
    ("reached", _time_reached),
    ("seconds", _to_auc("seconds", _seconds)),
    ("of control", _to_auc("seconds_ratio", _hundredths)),
    ("processor s", _to_auc("cpu_seconds", _seconds)),
    ("of control", _to_auc("cpu_seconds_ratio", _hundredths)),
    ("read", _to_auc("samples_read", count_text)),
    ("of control", _to_auc("samples_read_ratio", _hundredths)),
)


def _with_spread(mean: float | None, spread: float | None) -> str:
    return score_text(mean) if spread is None else f"{score_text(mean)} ± {score_text(spread)}"


def _accuracy(policy: ComparedPolicy) -> str:
    mean, spread = policy.accuracy, policy.accuracy_std
    return accuracy_text(mean) if mean is None or spread is None else f"{100 * mean:.2f} ± {accuracy_text(spread)}"


def _difference(policy: ComparedPolicy) -> str:
    is_none = policy.exact and policy.auc_difference is not None
    return "none" if is_none else _signed(policy.auc_difference, policy.auc_difference_ci)


def _signed(mean: float | None, bounds: Interval | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:+.5f}" if bounds is None else f"{mean:+.5f} [{bounds[0]:+.5f}, {bounds[1]:+.5f}]"


def _uses_files(policies: Policies) -> bool:
    return any(policy.host_bytes_read is not None for policy in policies)


def _has_random(policies: Policies) -> bool:
    return any(policy.auc_difference_to_random is not None for policy in policies)


def _verdict_line(policy: ComparedPolicy, result: Comparison) -> str:
    budget = f"{result.auc_budget:g}"
    words = {
        "within": f"within the AUC budget of {budget}",
        "outside": f"outside the AUC budget of {budget}",
        "differs": "not exact",
        "unskipped": "skips nothing",
    }
    judged_by = ", judged by predictions during training" if result.auc_of == "training" and not policy.exact else ""
    judged_by += "" if policy.same_samples else ", judged by other samples than the control"
    word = words.get(policy.verdict, policy.verdict)
    return f"{policy.policy}: {word}{judged_by} ({policy.reason})"


def busy_shares(policies: Policies) -> list[float]:
    """The shares of the cores that other processes used, of the runs that they may have slowed."""
    shares = [run.others_cpu_share for policy in policies for run in policy.runs]
    return [share for share in shares if share is not None and share > BUSY_SHARE]


def _busy_text(policies: Policies) -> str:
    """A warning if other processes used the cores while runs were timed."""
    if not (busy := busy_shares(policies)):
        return ""
    return (
        f"warning: other processes used up to {percent_text(max(busy))} of the cores during {len(busy)} of "
        f"{sum(len(policy.runs) for policy in policies)} runs, so samples/s and times cannot be compared. Quality is "
        "not affected. Repeat the comparison on an idle machine, or start the other processes with GOMP_SPINCOUNT=1000 "
        "in their environment: by default, threads that wait take cores."
    )


def _note(result: Comparison) -> str:
    seeds, policies = len(result.seeds), result.policies
    files = ", from files, to files (-: rows used in place, not counted)" if _uses_files(policies) else ""
    parts = [
        f"AUC, log loss and accuracy are of the {result.auc_of} samples, over {seeds} seed{'s' if seeds > 1 else ''}. ",
        NOTE.format(confidence=result.confidence, files=files),
        RANDOM if _has_random(policies) else "",
        TIME_TO_AUC if any(policy.to_auc for policy in policies) else "",
        "" if seeds > 1 else " With one seed there are no intervals over seeds.",
    ]
    return "".join(parts)


def comparison_csv(result: Comparison) -> str:
    """One line per policy.

    Columns have the names of `ComparedPolicy`, nested values as `time_ms.STAGE` and `policy_numbers.NAME`; an interval
    has two columns, `_low` and `_high`.
    """
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
        elif name not in ("runs", "to_auc"):  # None, where it is no dict
            flat[name] = value
    return flat
