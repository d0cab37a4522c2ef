"""A comparison as a document, for the terminal, Markdown and the page, and its numbers as CSV.

Where settings are swept, the tables come once for each combination of values, under its name, and then one over all.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

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

Row = list[str]

NOTE = (
    "difference: AUC minus the control's, mean of the seeds and {confidence:.0%} interval (Student's t, paired by "
    "seed); to device, to host{files}: per step; ±: standard deviation over seeds; speed (without the first "
    "interval, which compiles) and times: median; skipped updates: not written, dropped or deferred."
)
OVER_SAMPLES = (
    " Over samples: {confidence:.0%} interval of that difference were other samples evaluated (DeLong, paired by "
    "sample), the models as they are."
)
RANDOM = (
    " Against random: AUC minus that of the line below, which drops as many inputs at random; a rule that does not "
    "beat it chooses no better than chance."
)


TARGET = (
    " Target: runs that reached it, out of those that ended; steps and samples until then: means; seconds of training, "
    "evaluations apart: median. A run stops there, so a difference of AUC may be between runs of unlike lengths."
)


def comparison_document(result: Mapping[str, Any]) -> Document:
    """What came out in a sentence, tables, a verdict for each policy, and what went wrong; that alone if no run
    finished."""
    problems = [Items([f"problem: {problem}" for problem in result["problems"]])] if result["problems"] else []
    if not any(one["seeds"] for one in result["policies"]):
        return Document([Note("No run came to its end."), *problems])
    blocks: list[DocumentBlock] = []
    for name, part in _parts(result):
        blocks += [Heading(name)] if name else []
        blocks += [Note(outcome_sentence(part)), *map(Table, _tables(part)), Items(_verdicts(part))]
    if "values" in result:
        rows = _value_rows(result)
        blocks += [Heading("All values"), Table(rows, keys=rows[0].index("policy") + 1)]
    busy = [Note(text)] if (text := _busy_text(result)) else []
    return Document([*blocks, *busy, Note(_note(result)), *problems])


def outcome_sentence(result: Mapping[str, Any]) -> str:
    """Who has the best AUC and who is fastest, by how much over the control."""
    done = [one for one in result["policies"] if one["seeds"]]
    control = next((one for one in done if one["reason"] == "the control"), None)
    told = [_best(done, control, "auc", "highest AUC", score_text, lambda a, b: f"{a - b:+.5f} against")]
    told.append(_best(done, control, "samples_per_s", "most samples/s", count_text, lambda a, b: f"{a / b:.2f} times"))
    found = "; ".join(filter(None, told))
    return f"{found[:1].upper()}{found[1:]}." if found else "Nothing was measured that could be compared."


def _best(
    done: Sequence[Mapping[str, Any]],
    control: Mapping[str, Any] | None,
    name: str,
    what: str,
    text: Callable[[float], str],
    against: Callable[[float, float], str],
) -> str:
    """`highest AUC: slipstream, 0.7512 (+0.00040 against lru, undecided)`; all of those that share it are named."""
    known = [one for one in done if one[name] is not None]
    if not known:
        return ""
    most = max(one[name] for one in known)
    winners = [one["policy"] for one in known if one[name] == most]
    base = None if control is None or control["policy"] in winners else control[name]
    more = [f"{against(most, base)} {control['policy']}"] if control is not None and base else []
    more += dict.fromkeys(one["verdict"] for one in known if one["policy"] in winners and one["verdict"] != "within")
    return f"{what}: {', '.join(winners)}, {text(most)}" + (f" ({', '.join(more)})" if more else "")


def _busy_text(result: Mapping[str, Any]) -> str:
    """A warning where other processes used the cores while runs were timed."""
    shares = [run.get("others_cpu_share") for one in result["policies"] for run in one["runs"]]
    busy = [share for share in shares if share is not None and share > BUSY_SHARE]
    if not busy:
        return ""
    return (
        f"warning: other processes used up to {percent_text(max(busy))} of the cores during {len(busy)} of "
        f"{len(shares)} runs, so samples/s and times cannot be compared. Quality is not affected. Repeat the "
        "comparison on a machine that does nothing else."
    )


def _parts(result: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What is compared: all of it, without a name, or the policies of each combination of values."""
    if "values" not in result:
        return [("", result)]
    names = [one["swept"] for one in result["values"]]
    mine = [[one for one in result["policies"] if one["swept"] == name] for name in names]
    return [(_title(name), {**result, "policies": own}) for name, own in zip(names, mine, strict=True)]


def _title(swept: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_value_text(value)}" for key, value in swept.items())


def _value_text(value: Any) -> str:
    """As --set takes it."""
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _tables(result: Mapping[str, Any]) -> list[list[Row]]:
    reported = _reported_rows(result)
    return [_quality_rows(result), _time_rows(result), *([reported] if reported else [])]


Column = tuple[str, Callable[[Mapping[str, Any]], str]]


def _quality_rows(result: Mapping[str, Any]) -> list[Row]:
    columns = _columns(result["policies"])
    return [[title for title, _ in columns], *([text(one) for _, text in columns] for one in result["policies"])]


def _columns(policies: Sequence[Mapping[str, Any]]) -> list[Column]:
    columns: list[Column] = [
        ("policy", lambda one: one["policy"]),
        ("AUC", lambda one: _with_spread(one["auc"], one["auc_std"])),
        ("difference", _difference),
        ("verdict", lambda one: one["verdict"]),
        ("samples/s", lambda one: count_text(one["samples_per_s"])),
        ("hit rate", lambda one: percent_text(one["hit_rate"])),
        *([("over samples", _over_samples)] if any(one.get("over_samples") for one in policies) else []),
        ("log loss", lambda one: _with_spread(one["log_loss"], one["log_loss_std"])),
        ("accuracy", _accuracy),
        *(_target_columns() if any("target" in one for one in policies) else []),
        ("to device", lambda one: bytes_text(_per_step(one, "bytes_h2d"))),
        ("to host", lambda one: bytes_text(_per_step(one, "bytes_d2h"))),
    ]
    if any("host_bytes_read" in one for one in policies):
        columns.append(("from files", lambda one: bytes_text(_per_step(one, "host_bytes_read"))))
    if any("host_bytes_written" in one for one in policies):
        columns.append(("to files", lambda one: bytes_text(_per_step(one, "host_bytes_written"))))
    shares = dict.fromkeys(
        name for one in policies for name in one if _is_share(name) and (one[name] or name == ALWAYS)
    )
    columns += map(_share_column, shares)
    if _has_random(policies):
        columns.append(("against random", lambda one: _signed(one, "auc_difference_to_random")))
    return columns


TARGET_COLUMNS = ("target", "reached", "at step", "after samples", "after s")
OF_ALL_VALUES = (
    *("policy", "AUC", "difference", "over samples", "log loss", "accuracy"),
    *TARGET_COLUMNS,
    *("samples/s", "hit rate", "verdict"),
)


def _target_columns() -> list[Column]:
    """Of policies none of whose runs ended there is a dash."""
    texts: list[Callable[[Mapping[str, Any]], str]] = [
        lambda one: one.get("target", "-"),
        lambda one: f"{one['target_reached']} of {len(one['seeds'])}" if "target" in one else "-",
        lambda one: count_text(one.get("target_step")),
        lambda one: count_text(one.get("target_samples")),
        lambda one: "-" if one.get("target_seconds") is None else f"{one['target_seconds']:.1f}",
    ]
    return list(zip(TARGET_COLUMNS, texts, strict=True))


def _value_rows(result: Mapping[str, Any]) -> list[Row]:
    """A line for each combination of values and policy, with what is looked at first."""
    keys = list(result["values"][0]["swept"])
    columns = [(title, text) for title, text in _columns(result["policies"]) if title in OF_ALL_VALUES]
    rows = [
        [*(_value_text(one["swept"][key]) for key in keys), *(text(one) for _, text in columns)]
        for one in result["policies"]
    ]
    return [[*keys, *(title for title, _ in columns)], *rows]


ALWAYS: Final = "skipped_update_share"  # shown where nothing is skipped, too


def _is_share(name: str) -> bool:
    return name.endswith("_share")


def _has_random(policies: Sequence[Mapping[str, Any]]) -> bool:
    return any(one["auc_difference_to_random"] is not None for one in policies)


def _share_column(name: str) -> Column:
    """`skipped_lookup_share` is titled "skipped look-ups"."""
    title = name.removesuffix("_share").replace("_", " ").replace("lookup", "look-up")
    return f"{title}s", lambda one: percent_text(one.get(name))


def _per_step(one: Mapping[str, Any], name: str) -> float | None:
    return one[name] / one["steps"] if one["steps"] and one.get(name) is not None else None


def _time_rows(result: Mapping[str, Any]) -> list[Row]:
    stages = list(dict.fromkeys(stage for one in result["policies"] for stage in one["time_ms"]))
    rows = [
        [one["policy"], *(f"{one['time_ms'][s]:.2f}" if s in one["time_ms"] else "-" for s in stages)]
        for one in result["policies"]
    ]
    return [["ms per step", *stages], *rows]


def _reported_rows(result: Mapping[str, Any]) -> list[Row]:
    """What policies say of themselves; none if none does."""
    numbers = {one["policy"]: one["policy_numbers"] for one in result["policies"] if one["policy_numbers"]}
    names = list(dict.fromkeys(name for own in numbers.values() for name in own))
    rows = [[label, *(number_text(name, own.get(name)) for name in names)] for label, own in numbers.items()]
    return [["policy reports", *names], *rows] if rows else []


def _verdicts(result: Mapping[str, Any]) -> list[str]:
    judged_by = ", by training's own predictions" if result["auc_of"] == "training" else ""
    return [
        f"{one['policy']}: {_verdict_text(one, result['auc_budget'])}{'' if one['exact'] else judged_by} "
        f"({one['reason']}{_by_samples(one, result['auc_budget'])})"
        for one in result["policies"]
    ]


def _verdict_text(one: Mapping[str, Any], budget: float) -> str:
    verdict: str = one["verdict"]
    texts = {
        "within": f"within the AUC budget of {budget:g}",
        "outside": f"outside the AUC budget of {budget:g}",
        "differs": "not exact",
        "unskipped": "skips nothing",
    }
    return texts.get(verdict, verdict)


def _by_samples(one: Mapping[str, Any], budget: float) -> str:
    """What the test over samples says, if there was one."""
    found = one.get("over_samples")
    if not found:
        return ""
    texts = {
        "within": f"within the budget of {budget:g}",
        "outside": f"outside the budget of {budget:g}",
        "undecided": f"straddling a loss of {budget:g}",
    }
    return f"; over the samples {texts[found['verdict']]}, p = {found['p_value']:.2g} for no difference"


def _note(result: Mapping[str, Any]) -> str:
    seeds = len(result["seeds"])
    which = f"AUC, log loss and accuracy of the {result['auc_of']} samples, {seeds} seed{'s' if seeds > 1 else ''}; "
    alone = "" if seeds > 1 else " With one seed there are no intervals over seeds."
    random = RANDOM if _has_random(result["policies"]) else ""
    told = any(one.get("over_samples") for one in result["policies"])
    samples = OVER_SAMPLES.format(confidence=result["confidence"]) if told else ""
    files = (
        ", from files, to files (-: rows used in place, not counted)"
        if any("host_bytes_read" in one for one in result["policies"])
        else ""
    )
    target = TARGET if any("target" in one for one in result["policies"]) else ""
    return which + NOTE.format(confidence=result["confidence"], files=files) + samples + random + target + alone


def _with_spread(mean: float | None, spread: float | None) -> str:
    return score_text(mean) if spread is None else f"{score_text(mean)} ± {score_text(spread)}"


def _accuracy(one: Mapping[str, Any]) -> str:
    mean, spread = one["accuracy"], one["accuracy_std"]
    return accuracy_text(mean) if spread is None else f"{100 * mean:.2f} ± {accuracy_text(spread)}"


def _difference(one: Mapping[str, Any]) -> str:
    return "none" if one["exact"] and one["auc_difference"] is not None else _signed(one, "auc_difference")


def _over_samples(one: Mapping[str, Any]) -> str:
    found = one.get("over_samples")
    low, high = found["auc_difference_ci"] if found else (None, None)
    return "none" if one["exact"] else "-" if low is None else f"[{low:+.5f}, {high:+.5f}]"


def _signed(one: Mapping[str, Any], name: str) -> str:
    mean, bounds = one[name], one[f"{name}_ci"]
    if mean is None:
        return "-"
    return f"{mean:+.5f}" if bounds is None else f"{mean:+.5f} [{bounds[0]:+.5f}, {bounds[1]:+.5f}]"


def comparison_csv(result: Mapping[str, Any]) -> str:
    """A line for each policy; numbers as they are, times as `time_ms.STAGE`, what it reports as `policy_numbers.NAME`,
    what is swept as `swept.KEY`, the test over samples as `over_samples.NAME`, intervals as two columns."""
    lines = [_flat(one) for one in result["policies"]]
    names = list(dict.fromkeys(name for line in lines for name in line))
    return csv_text([names, *([line.get(name) for name in names] for line in lines)])


def _flat(one: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in one.items():
        if name == "over_samples":
            flat |= {f"{name}.{what}": number for what, number in _flat(value or {}).items()}
        elif name.endswith("_ci"):
            flat[f"{name}_low"], flat[f"{name}_high"] = value or (None, None)
        elif name in ("time_ms", "policy_numbers", "swept"):
            flat |= {f"{name}.{what}": number for what, number in value.items()}
        elif name == "seeds" and isinstance(value, list):
            flat[name] = " ".join(map(str, value))
        elif name != "runs":
            flat[name] = value
    return flat
