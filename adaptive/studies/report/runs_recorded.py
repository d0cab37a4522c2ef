"""What runs recorded beside their numbers: reports of policies, decisions of the guard, bad lines, settings, origin."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from adaptive.studies.charts import intervals
from adaptive.studies.report.blocks import Block, Folded, Gallery, Section
from adaptive.studies.report.runs import RunView, chart, run_legend
from adaptive.training.telemetry.document import Note, Table
from adaptive.training.telemetry.formatting import count_text, guard_text, number_text, percent_text
from adaptive.training.telemetry.record import GuardRecord

MOST_REPORTED: Final = 9  # numbers of policies with a curve
MOST_CHARACTERS: Final = 2000  # of a setting


def reported(runs: Sequence[RunView]) -> Section | None:
    """Numbers that policies and skip rules report, the latest and over time."""
    latest = {run.name: run.summary.get("policy_numbers") or run.totals.policy for run in runs}
    names = list(dict.fromkeys(name for own in latest.values() for name in own))
    if not names:
        return None
    rows = [[name, *(number_text(name, latest[run.name].get(name)) for run in runs)] for name in names]
    moving = [name for name in names if any(_varies(run, name) for run in runs)]
    pictures = [chart(name, runs, _reported(name)) for name in moving[:MOST_REPORTED]]
    blocks: list[Block] = [Table([["latest", *(run.name for run in runs)], *rows])]
    if moving:
        blocks += [run_legend(runs), Gallery([one for one in pictures if one is not None])]
    return Section("What the policy reports", blocks)


def _reported(name: str) -> Any:
    return lambda one: one.last.policy.get(name)


def _varies(run: RunView, name: str) -> bool:
    return len({one.last.policy.get(name) for one in run.stretches} - {None}) > 1


def guard(runs: Sequence[RunView]) -> Section | None:
    """Decisions with their evidence."""
    blocks: list[Block] = []
    for run in runs:
        if not run.guards:
            continue
        budget = run.guards[-1].budget
        caption = f"{run.name}: budget {budget:g} of AUC"
        blocks.append(Table([_GUARD_HEAD, *map(_decision, run.guards)], caption, numbers=False))
        measured = [one for one in run.guards if one.auc_change is not None]
        if measured:
            names = [f"step {count_text(one.step)}, {one.verdict}" for one in measured]
            points = [(one.auc_change, one.auc_change_ci) for one in measured]
            title = f"{run.name}: change of AUC by the end, as expected"
            picture = intervals(title, names, points, x="AUC (dotted: none, and the budget)", marks=(0.0, -budget))
            blocks.append(Gallery([picture], wide=True))
    quiet = [run.name for run in runs if run.config.get("guard") and not run.guards]
    blocks += [Note(f"{name}: the guard has decided nothing.") for name in quiet]
    return Section("The guard's decisions", blocks) if blocks else None


_GUARD_HEAD: Final = [
    *("at step", "decision", "skipping allowed", "skipped", "AUC, run less fork", "on samples", "looked at because")
]


def _decision(one: GuardRecord) -> list[str]:
    return [
        count_text(one.step),
        guard_text(one),
        f"{percent_text(one.allowance_before)} to {percent_text(one.allowance)}",
        percent_text(one.skipped_share),
        _with_interval(one.auc_difference, one.auc_difference_ci),
        count_text(one.samples or None),
        one.trigger,
    ]


def _with_interval(value: float | None, bounds: tuple[float, float] | None) -> str:
    if value is None:
        return "-"
    return f"{value:+.5f}" + ("" if bounds is None else f" [{bounds[0]:+.5f}, {bounds[1]:+.5f}]")


def bad_lines(runs: Sequence[RunView]) -> Section | None:
    """How many by cause, and the first ones as they stood."""
    blocks: list[Block] = []
    for run in runs:
        counts = run.summary.get("rejected_lines") or {}
        outside = run.summary.get("out_of_range_ids") or {}
        if counts:
            rows = [["cause", "lines"], *([cause, count_text(lines)] for cause, lines in counts.items())]
            blocks.append(Table(rows, caption=f"{run.name}: lines rejected"))
        if outside:
            rows = [["feature", "look-ups"], *([name, count_text(ids)] for name, ids in outside.items())]
            blocks.append(Table(rows, caption=f"{run.name}: ids beyond the table, sent to the row for unknown ones"))
        if run.rejects:
            shown = [["where", "cause", "column", "text"], *map(_bad_line, run.rejects)]
            title = f"The first of {run.name}, as they stood ({len(run.rejects)})"
            blocks.append(Folded(title, [Table(shown, numbers=False)]))
    return Section("Bad lines", blocks or [Note("None.")])


def _bad_line(one: Mapping[str, Any]) -> list[str]:
    return [f"{one.get('file')}:{one.get('line')}", *(str(one.get(name, "")) for name in ("cause", "column", "text"))]


def settings(runs: Sequence[RunView]) -> Section:
    """Every setting; of several runs first those in which they differ."""
    flat = [_flat(run.config) for run in runs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    head = ["setting", *(run.name for run in runs)]
    rows = [[key, *(one.get(key, "-") for one in flat)] for key in keys]
    everything = Folded(f"All {len(keys)} settings", [Table([head, *rows], numbers=False)])
    if len(runs) == 1:
        return Section("Settings", [everything])
    other = [row for row in rows if len(set(row[1:])) > 1]
    if not other:
        return Section("Settings", [Note("The runs have the same settings."), everything])
    return Section("Settings", [Table([head, *other], "where the runs differ", numbers=False), everything])


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Key with dots -> value as JSON, texts as they are."""
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = _text(value)
    return found


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ... ({len(text):,} characters)"


def origin(runs: Sequence[RunView]) -> Section:
    """Data, versions, machine and times."""
    facts = [_origin(run) for run in runs]
    keys = list(dict.fromkeys(key for one in facts for key in one))
    rows = [["", *(run.name for run in runs)], *([key, *(one.get(key, "-") for one in facts)] for key in keys)]
    return Section("Data, versions and machine", [Table(rows, numbers=False)])


def _origin(run: RunView) -> dict[str, str]:
    facts = {name: str(run.record[name]) for name in ("start", "end", "host", "device", "folder") if name in run.record}
    data = run.record.get("data")
    tables = {"tables": count_text(len(run.table_rows)), "rows of all tables": count_text(sum(run.table_rows.values()))}
    return {
        **facts,
        **(_flat(run.record.get("versions") or {}, "version of ")),
        **(tables if run.table_rows else {}),
        **(_flat(data, "data: ") if isinstance(data, dict) else {}),
    }
