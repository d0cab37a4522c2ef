"""Numbers as people read them, for the progress line and the end of a run. A number that is None is a dash."""

import math

from adaptive.policy import Policy, drops_inputs
from adaptive.training.telemetry.record import GuardRecord


def count_text(number: float | None) -> str:
    """`1,234,567`"""
    return "-" if number is None or not math.isfinite(number) else f"{number:,.0f}"


def score_text(number: float | None) -> str:
    """Four decimals: `0.7312`"""
    return "-" if number is None else f"{number:.4f}"


def accuracy_text(share: float | None) -> str:
    """`78.86 %`, with the two decimals that papers give."""
    return "-" if share is None else f"{100 * share:.2f} %"


def percent_text(share: float | None) -> str:
    """A share between 0 and 1: `91.2 %`. What is not nothing (or not all) never reads as if it were."""
    if share is None:
        return "-"
    if 0 < share < 0.0005:
        return "<0.1 %"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    return f"{100 * share:.1f} %"


def number_text(name: str, number: float | None) -> str:
    """A number that a policy reports: a `..._share` in per cent, `..._bytes` in units, others with up to four digits
    behind the point."""
    if number is None or not math.isfinite(number):
        return "-"
    if name.endswith("_share"):
        return percent_text(number)
    if name.endswith("_bytes"):
        return bytes_text(number)
    return f"{number:,.4f}".rstrip("0").rstrip(".")


def short_text(number: float) -> str:
    """Four digits that count, and all of those before the point: `0.07213`, `17,790`; never 1.779e+04."""
    return f"{number:,.0f}" if 1000 <= abs(number) < 1e15 else f"{number:.4g}"


def bytes_text(size: float | None) -> str:
    """`12.3 MiB`"""
    if size is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1023.95:  # what would read as 1024.0 is the next unit's 1.0
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def duration_text(seconds: float | None) -> str:
    """`0:03:12`"""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def guard_text(record: GuardRecord) -> str:
    """`reduce skipping to 25.0 % from batch 850 on: ...`"""
    what = {
        "keep": f"keep skipping at {percent_text(record.allowance)} of what the policy asks for",
        "reduce": f"reduce skipping to {percent_text(record.allowance)} from batch {record.from_step} on",
        "stop": f"stop skipping from batch {record.from_step} on",
    }
    return f"{what.get(record.verdict, record.verdict)}: {record.reason}"


def policy_text(spec: str, policy: Policy, *, defers: bool, drops_updates: bool) -> str:
    """What a run begins with: `policy lru: missed rows are fetched ahead; skips nothing`.

    Args:
        spec: the policy as it was asked for.
        policy: as it was made.
        defers, drops_updates: as in `TieredEmbeddingBag`: whether the policy is let do so.
    """
    misses = "are fetched ahead" if policy.misses == "prefetch" else "stay on the host"
    rule = skip_text(policy, defers=defers, drops_updates=drops_updates)
    return f"policy {spec}: missed rows {misses}; {rule}"


def skip_text(policy: Policy, *, defers: bool, drops_updates: bool) -> str:
    """The skip rule with its mode: `skip rule defer: ...`, or as far as the policy tells `skip=defer: defers ...`."""
    if (rule := policy.rule) is not None and (defers or drops_updates or rule.drops_inputs):
        waits = f"gradients wait for up to {rule.at_most} visits"
        done = "leaves updates out" if rule.leaves_out else "leaves inputs out" if rule.drops_inputs else waits
        name = " ".join(filter(None, (type(rule).__name__.lower(), rule.mode)))
        return f"skip rule {name}: {done}"
    rules = []
    if policy.drops_inputs:
        rules.append("drops inputs" + (", chosen by how rows move" if drops_updates else ""))
    elif drops_updates:
        rules.append("drops updates of rows that it finds saturated")
    if defers and policy.deferral is not None:
        most = "auto" if policy.deferral.at_most is None else policy.deferral.at_most
        rules.append(f"defers updates of popular rows (every={policy.deferral.every}, at_most={most})")
    mode = getattr(policy, "skip", None)
    by_rule = isinstance(mode, str) and mode != "off" and policy.rule is None
    by_itself = policy.deferral is not None or (policy.watches and type(policy).saturated is not Policy.saturated)
    wanted = by_rule or by_itself
    if wanted and not (defers or drops_updates or drops_inputs(policy)):
        return "skips nothing: what the policy would skip is switched off"
    named = f"skip={mode}: " if isinstance(mode, str) else ""
    return named + (" and ".join(rules) or "skips nothing")
