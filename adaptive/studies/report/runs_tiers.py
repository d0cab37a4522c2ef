"""What rows did in runs: where they lay, what crossed between the tiers, whose updates were left out."""

from collections.abc import Sequence
from typing import Any, Final, cast

from adaptive.embeddings.ranks.traffic import KINDS
from adaptive.studies.charts import areas
from adaptive.studies.report.blocks import Block, Folded, Gallery, Legend, Picture, Section
from adaptive.studies.report.runs import RunView, Stretch, chart, per_step, run_legend
from adaptive.studies.report.style import COLOURS
from adaptive.training.telemetry.document import Note, Table
from adaptive.training.telemetry.formatting import bytes_text, count_text, percent_text
from adaptive.training.telemetry.record import TableCounts, sum_tables
from adaptive.training.telemetry.report import SPARED, RunSummary, crossed_numbers, skipping_lines

LAYERS: Final = COLOURS - 1  # tables with a layer of their own; the others are one more
KIB: Final = 1024


def tiers(runs: Sequence[RunView]) -> Section | None:
    """Rows on the device by table over time, and how many came and went."""
    shown = [run for run in runs if run.stretches]
    if not shown:
        return None
    blocks: list[Block] = []
    for mine in _same_tables(shown):
        names = _largest(mine)
        others = len(mine[0].totals.tables) > len(names)
        pictures = [_resident(run, names) for run in mine if any(one.whole.resident_rows for one in run.stretches)]
        if not pictures:
            continue
        blocks += [Legend([*names, *(["other tables"] if others else [])]), Gallery(pictures, wide=True)]
    blocks += [Note(_place(run)) for run in shown]
    moves = [
        chart("Hit rate of look-ups", shown, lambda one: one.whole.hit_rate),
        chart("Rows promoted to the device, per step", shown, per_step("promoted"), zero=True),
        chart("Rows demoted to the host, per step", shown, per_step("demoted"), zero=True),
    ]
    blocks += [run_legend(shown), Gallery([one for one in moves if one is not None])]
    return Section("Tier movement", blocks)


def _same_tables(runs: Sequence[RunView]) -> list[list[RunView]]:
    """The runs by the names of their tables, so that a colour is one table in all pictures under a legend."""
    found: dict[frozenset[str], list[RunView]] = {}
    for run in runs:
        found.setdefault(frozenset(run.totals.tables), []).append(run)
    return list(found.values())


def _largest(runs: Sequence[RunView]) -> list[str]:
    """The tables of which most rows were on the device at the end, in all these runs together."""
    ends = [run.stretches[-1].totals.tables for run in runs]
    rows = {name: sum(end[name].resident_rows for end in ends) for name in ends[0]}
    return sorted(rows, key=lambda name: (-rows[name], name))[:LAYERS]


def _resident(run: RunView, names: Sequence[str]) -> Picture:
    tables = [one.totals.tables for one in run.stretches]
    none = TableCounts()
    layers = [(name, [float(one.get(name, none).resident_rows) for one in tables]) for name in names]
    rest = [sum_tables([counts for name, counts in one.items() if name not in names]).resident_rows for one in tables]
    if any(rest):
        layers.append(("other tables", [float(rows) for rows in rest]))
    room = [one.last.device_rows for one in run.stretches]
    return areas(f"{run.name}: rows on the device by table", [one.step for one in run.stretches], layers, room=room)


def _place(run: RunView) -> str:
    resident, rows = run.stretches[-1].whole.resident_rows, sum(run.table_rows.values())
    host = str((run.config.get("tier") or {}).get("host", "memory"))
    where = f"files in {host.removeprefix('mmap:')}" if host.startswith("mmap:") else "host memory"
    share = f", {percent_text(resident / rows)} of {count_text(rows)}" if rows else ""
    room = run.stretches[-1].last.device_rows
    line = "" if room is None else f" (dashed: room for {count_text(room)})"
    return f"{run.name}: {count_text(resident)} rows{share} lie on the device at the end{line}; all others in {where}."


def traffic(runs: Sequence[RunView]) -> Section | None:
    """Bytes between the tiers, over time and by table."""
    shown = [run for run in runs if run.stretches]
    if not shown:
        return None
    pictures = [
        chart("KiB to the device, per step", shown, _kib("bytes_h2d"), zero=True),
        chart("KiB to the host, per step", shown, _kib("bytes_d2h"), zero=True),
        chart("Waiting for rows, ms per step", shown, lambda one: one.totals.time_ms.get("wait"), zero=True),
    ]
    rows = [["", *(run.name for run in shown)], *_totals(shown)]
    tables = [Folded(f"Tables of {run.name}", [Table(_table_rows(run))]) for run in shown]
    drawn = [one for one in pictures if one is not None]
    return Section("Traffic", [run_legend(shown), Gallery(drawn), Table(rows), *tables])


def between_ranks(runs: Sequence[RunView]) -> Section | None:
    """Bytes that ranks sent each other, whom they waited for, the load of owners; nothing of processes alone."""
    shown = [run for run in runs if run.stretches and len(run.totals.ranks) > 1]
    if not shown:
        return None
    found = [crossed_numbers(run.totals.ranks, run.totals.ranks_steps) for run in shown]
    rows = [["", *(run.name for run in shown)], ["ranks", *(str(len(run.totals.ranks)) for run in shown)]]
    for name, title in (("bytes", "sent by a rank a step"), *((f"bytes_{kind}", kind) for kind in KINDS)):
        if any(one[name] for one in found):
            rows.append([title, *(bytes_text(one[name]) for one in found)])
    for kind in SPARED:
        if any(one[f"{kind}_spared_share"] for one in found):
            rows.append(
                [f"{kind} that needed not cross", *(percent_text(one[f"{kind}_spared_share"]) for one in found)]
            )
    rows.append(["slowest rank", *(f"{one['slowest']:.0f}" for one in found)])
    rows.append(["waiting for it, ms a step", *(f"{one['waited_for_slowest_ms']:.2f}" for one in found)])
    rows.append(["most asked owner over the mean", *(f"{one['owner_load']:.2f}" for one in found)])
    pictures = [
        chart("KiB sent by a rank, per step", shown, _crossed("bytes", KIB), zero=True),
        chart("Waiting for other ranks, ms per step", shown, _crossed("wait_ms", 1), zero=True),
    ]
    return Section("Between ranks", [run_legend(shown), Gallery([one for one in pictures if one]), Table(rows)])


def _crossed(name: str, unit: float) -> Any:
    def value(one: Any) -> float | None:
        numbers = crossed_numbers(one.totals.ranks, one.totals.ranks_steps)
        return numbers[name] / unit if numbers else None

    return value


def _kib(name: str) -> Any:
    count = per_step(name)
    return lambda one: None if (size := count(one)) is None else size / KIB


def _totals(runs: Sequence[RunView]) -> list[list[str]]:
    whole = [sum_tables(list(run.totals.tables.values())) for run in runs]
    rows = [
        ["rows to the device", *(count_text(one.fetched) for one in whole)],
        ["rows to the host", *(count_text(one.written_back) for one in whole)],
        ["bytes to the device", *(bytes_text(one.bytes_h2d) for one in whole)],
        ["bytes to the host", *(bytes_text(one.bytes_d2h) for one in whole)],
    ]
    for name, title in (("host_bytes_read", "bytes read from files"), ("host_bytes_written", "bytes written to files")):
        if any(name in run.summary for run in runs):
            rows.append([title, *(bytes_text(run.summary.get(name)) for run in runs)])
    return rows


def _table_rows(run: RunView) -> list[list[str]]:
    head = ["table", "rows", "on the device", "look-ups", "hit rate", "promoted", "demoted", "to device", "to host"]
    skips = any(counts.watched_rows or counts.skipped_updates for counts in run.totals.tables.values())
    rows = [[*head, *(["watched", "saturated", "not written"] if skips else [])]]
    for name, counts in run.totals.tables.items():
        cells = [
            *(name, count_text(run.table_rows.get(name)), count_text(counts.resident_rows), count_text(counts.lookups)),
            *(percent_text(counts.hit_rate), count_text(counts.promoted), count_text(counts.demoted)),
            *(bytes_text(counts.bytes_h2d), bytes_text(counts.bytes_d2h)),
        ]
        if skips:
            cells += [count_text(counts.watched_rows), count_text(counts.saturated_rows)]
            cells.append(percent_text(counts.skipped_update_share))
        rows.append(cells)
    return rows


def skipping(runs: Sequence[RunView]) -> Section:
    """What was left out or put off; said of runs that skip nothing, too."""
    notes: list[Block] = []
    for run in runs:
        lines = skipping_lines(cast(RunSummary, run.summary)) if "skipped_update_share" in run.summary else []
        said = "; ".join(lines) or "nothing was skipped, dropped or deferred"
        notes.append(Note(f"{run.name}: {said}." if run.summary else f"{run.name}: no record says what was skipped."))
    skipping_runs = [run for run in runs if any(_skips(one.whole) for one in run.stretches)]
    if not skipping_runs:
        return Section("What was skipped", notes)
    pictures = [
        chart("Share of row updates not written", skipping_runs, lambda one: one.whole.skipped_update_share, zero=True),
        chart("Rows watched", skipping_runs, lambda one: one.whole.watched_rows, zero=True),
        chart("Rows saturated", skipping_runs, lambda one: one.whole.saturated_rows, zero=True),
    ]
    if any(run.totals.tables[name].deferred_updates for run in skipping_runs for name in run.totals.tables):
        pictures.append(chart("Share of row updates deferred", skipping_runs, _deferred, zero=True))
    shown = [one for one in pictures if one is not None]
    return Section("What was skipped", [*notes, run_legend(skipping_runs), Gallery(shown)])


def _deferred(one: Stretch) -> float | None:
    return one.whole.deferred_update_share


def _skips(counts: TableCounts) -> bool:
    return bool(counts.watched_rows or counts.skipped_updates)
