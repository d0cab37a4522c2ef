"""Numbers as text for progress lines and reports. None is shown as a dash."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy, which `--help` need not wait for
    from adaptive.policy import Policy, SkipRule


def count_text(number: float | None) -> str:
    """`1,234,567`"""
    return "-" if number is None or not math.isfinite(number) else f"{number:,.0f}"


def score_text(number: float | None) -> str:
    """Four decimals: `0.7312`"""
    return "-" if number is None else f"{number:.4f}"


def accuracy_text(share: float | None) -> str:
    """`78.86%`, with the two decimals that papers give."""
    return "-" if share is None else f"{100 * share:.2f}%"


def percent_text(share: float | None) -> str:
    """A share between 0 and 1: `91.2%`. Only exactly 0 and 1 read as `0.0%` and `100.0%`."""
    if share is None:
        return "-"
    if 0 < share < 0.0005:
        return "<0.1%"
    if 0.9995 <= share < 1:
        return ">99.9%"
    return f"{100 * share:.1f}%"


def number_text(name: str, number: float | None) -> str:
    """A policy's number: `..._share` in percent, `..._bytes` in units, else 4 decimals."""
    if number is None or not math.isfinite(number):
        return "-"
    if name.endswith("_share"):
        return percent_text(number)
    if name.endswith("_bytes"):
        return bytes_text(number)
    return f"{number:,.4f}".rstrip("0").rstrip(".")


def bytes_text(size: float | None) -> str:
    """`12.3 MiB`"""
    if size is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1023.95:  # rounded, more would read as 1024.0
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def duration_text(seconds: float | None) -> str:
    """`0:03:12`"""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def policy_text(spec: str, policy: "Policy", rule: "SkipRule | None") -> str:
    """The first line of a run: `policy lru: prefetches missed rows; skips no updates`.

    Args:
        spec: the policy as the user named it.
        policy: the instance.
        rule: the skip rule in this run.
    """
    misses = "prefetches missed rows" if policy.misses == "prefetch" else "leaves missed rows on the host"
    return f"policy {spec}: {misses}; {skip_text(rule)}"


def skip_text(rule: "SkipRule | None") -> str:
    """`skip rule Defer accumulates updates for up to 16 visits of a row`"""
    from adaptive.policy import InputRule

    drops_inputs = isinstance(rule, InputRule)
    if rule is None or not (rule.least == 0 or drops_inputs or rule.most > 1):
        return "skips no updates"
    effects = {
        "drops updates": rule.least == 0,
        f"accumulates updates for up to {rule.most} visits of a row": rule.most > 1,
        "drops inputs": drops_inputs,
    }
    effect = " and ".join(text for text, has_effect in effects.items() if has_effect)
    return f"skip rule {type(rule).__name__} {effect}"
