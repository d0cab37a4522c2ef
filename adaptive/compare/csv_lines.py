"""A comparison as CSV."""

from collections.abc import Mapping
from typing import Any

from adaptive.telemetry.document import csv_text


def comparison_csv(result: Mapping[str, Any]) -> str:
    """A line for each policy; numbers as they are, times as `time_ms.STAGE`, what it reports as `policy_numbers.NAME`,
    what is varied as `varied.KEY`, the test over samples as `over_samples.NAME`, intervals as two columns."""
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
        elif name in ("time_ms", "policy_numbers", "varied"):
            flat |= {f"{name}.{what}": number for what, number in value.items()}
        elif name == "seeds" and isinstance(value, list):
            flat[name] = " ".join(map(str, value))
        elif name != "runs":
            flat[name] = value
    return flat
