"""What crossed between ranks, as records have it, and the numbers and words that are made of it.

A record has for each rank the fields of `RankTraffic`, sums over its interval.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from adaptive.embeddings.ranks.traffic import KINDS
from adaptive.training.telemetry.formatting import bytes_text, percent_text

Crossed = Sequence[Mapping[str, float]]  # of each rank
SPARED: Final = ("vectors", "gradients")


def crossed_numbers(crossed: Crossed, steps: int) -> dict[str, float]:
    """Means over ranks and steps: bytes by kind; what was spared; who was waited for; the load of owners. Nothing
    without ranks."""
    if not crossed or not steps:
        return {}
    each = len(crossed) * steps
    numbers = {f"bytes_{kind}": _sum(crossed, kind) / each for kind in KINDS}
    numbers["bytes"] = sum(numbers.values())
    for kind in SPARED:
        spared, sent = _sum(crossed, f"{kind}_spared"), _sum(crossed, kind)
        numbers[f"{kind}_spared_share"] = spared / (spared + sent) if spared else 0.0
    waits = [one.get("wait_ms", 0.0) / steps for one in crossed]
    numbers["wait_ms"] = sum(waits) / len(waits)
    numbers["slowest"] = waits.index(min(waits))  # it comes last to exchanges, so it waits least
    numbers["waited_for_slowest_ms"] = (sum(waits) - len(waits) * min(waits)) / max(len(waits) - 1, 1)
    served = [one.get("rows_served", 0.0) for one in crossed]
    numbers["owner_load"] = max(served) * len(served) / sum(served) if sum(served) else 1.0
    return numbers


def add_crossed(before: Crossed, after: Crossed) -> list[dict[str, float]]:
    """Of two intervals of as many ranks, rank by rank."""
    return [
        {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}
        for one, other in zip(before, after, strict=True)
    ]


def crossed_lines(summary: Mapping[str, Any]) -> list[str]:
    """What a report says of ranks; nothing of a process alone."""
    found = summary.get("ranks")
    if not found or found["number"] == 1 or "bytes" not in found:
        return []
    sent = ", ".join(f"{kind} {bytes_text(found[f'bytes_{kind}'])}" for kind in KINDS if found[f"bytes_{kind}"])
    spared = [
        f"{percent_text(found[f'{kind}_spared_share'])} of {kind} needed not cross"
        for kind in SPARED
        if found[f"{kind}_spared_share"]
    ]
    text = "" if found["waited_share"] is None else f" {percent_text(found['waited_share'])} of the others' time was"
    return [
        f"ranks: {found['number']} on {_hosts(found)}, {found['blocks']} blocks; slowest was rank "
        f"{found['slowest']:.0f}:{text} waiting for it ({found['waited_for_slowest_ms']:.2f} ms a step)",
        f"sent by each rank a step: {bytes_text(found['bytes'])}: {sent}" + "".join(f"; {one}" for one in spared),
        f"owners: the most asked one was asked for {found['owner_load']:.2f} of the mean",
        *(["watched rows: the set of some rank is full, so verdicts may differ on another number of ranks: raise "
           "skip.hot_rows"] if found["full_hot_set"] else []),
    ]  # fmt: skip


def _hosts(found: Mapping[str, Any]) -> str:
    return "1 host" if found["hosts"] == 1 else f"{found['hosts']} hosts"


def _sum(crossed: Crossed, name: str) -> float:
    return sum(one.get(name, 0.0) for one in crossed)
