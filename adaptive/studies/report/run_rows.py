"""Rows of runs on a page: their tiers, traffic between tiers and ranks, skipped updates."""

from collections.abc import Sequence
from typing import Final, cast

from adaptive.embeddings.ranks.traffic import KINDS
from adaptive.studies.charts import areas
from adaptive.studies.report.run_view import RunView, Stretch, Value, charts, per_step, run_legend
from adaptive.training.telemetry.document import (
    COLORS,
    Blocks,
    Figure,
    Folded,
    Gallery,
    Heading,
    Legend,
    Note,
    Table,
)
from adaptive.training.telemetry.formatting import bytes_text, count_text, percent_text
from adaptive.training.telemetry.record import TableCounts, sum_tables
from adaptive.training.telemetry.report import (
    KEY_COLUMNS,
    SPARED,
    RunSummary,
    crossed_numbers,
    key_cells,
    skipping_lines,
)

LAYERS: Final = COLORS - 1  # tables with a separate layer; the others share one
KIB: Final = 1024


def rows_in_tiers(runs: Sequence[RunView]) -> Blocks:
    """Rows on the device by table over time, and rows promoted and demoted."""
    runs = [run for run in runs if run.stretches]
    if not runs:
        return []
    by_tables: dict[frozenset[str], list[RunView]] = {}  # so that each legend fits all pictures below it
    for run in runs:
        by_tables.setdefault(frozenset(run.totals.tables), []).append(run)
    blocks: Blocks = [Heading("Tier movement")]
    for same_tables in by_tables.values():
        names = _largest(same_tables)
        figures = [_resident(run, names) for run in same_tables if any(s.whole.resident_rows for s in run.stretches)]
        others = ["other tables"] if len(same_tables[0].totals.tables) > len(names) else []
        blocks += [Legend([*names, *others]), Gallery(figures, wide=True)] if figures else []
    moves = charts(
        runs,
        ("Rows promoted to the device, per step", per_step("promoted")),
        ("Rows demoted to the host, per step", per_step("demoted")),
    )
    hits = charts(runs, ("Hit rate of lookups", lambda stretch: stretch.whole.hit_rate), zero=False)
    return [*blocks, *map(_place, runs), run_legend(runs), Gallery([*hits.figures, *moves.figures])]


def _largest(runs: Sequence[RunView]) -> list[str]:
    """Tables with the most rows on the device at the end, in all runs together."""
    ends = [run.stretches[-1].totals.tables for run in runs]
    rows = {name: sum(end[name].resident_rows for end in ends) for name in ends[0]}
    return sorted(rows, key=lambda name: (-rows[name], name))[:LAYERS]


def _resident(run: RunView, names: Sequence[str]) -> Figure:
    tables, none = [stretch.totals.tables for stretch in run.stretches], TableCounts()
    layers = [(name, [float(counts.get(name, none).resident_rows) for counts in tables]) for name in names]
    rest = [
        sum_tables([table for name, table in counts.items() if name not in names]).resident_rows for counts in tables
    ]
    if any(rest):
        layers.append(("other tables", list(map(float, rest))))
    room = [stretch.last.device_rows for stretch in run.stretches]
    steps = [stretch.step for stretch in run.stretches]
    return areas(f"{run.name}: rows on the device by table", steps, layers, room=room)


def _place(run: RunView) -> Note:
    resident, rows = run.stretches[-1].whole.resident_rows, sum(run.table_rows.values())
    host = str((run.config.get("tier") or {}).get("host", "memory"))
    where = f"files in {host.removeprefix('mmap:')}" if host.startswith("mmap:") else "host memory"
    share = f" ({percent_text(resident / rows)} of {count_text(rows)})" if rows else ""
    room = run.stretches[-1].last.device_rows
    line = "" if room is None else f" (dashed: its capacity, {count_text(room)} rows)"
    at_end = f"{count_text(resident)} rows{share} are on the device at the end{line}"
    return Note(f"{run.name}: {at_end}; all others are in {where}.")


def rows_moved(runs: Sequence[RunView]) -> Blocks:
    """Bytes between the tiers over time and by table."""
    runs = [run for run in runs if run.stretches]
    if not runs:
        return []
    curves = charts(
        runs,
        ("KiB to the device, per step", per_step("bytes_h2d", KIB)),
        ("KiB to the host, per step", per_step("bytes_d2h", KIB)),
        ("Wait for rows, ms per step", lambda stretch: stretch.totals.time_ms.get("wait")),
    )
    whole = [sum_tables(list(run.totals.tables.values())) for run in runs]
    rows = [
        ["", *(run.name for run in runs)],
        ["rows to the device", *(count_text(counts.fetched) for counts in whole)],
        ["rows to the host", *(count_text(counts.written_back) for counts in whole)],
        ["bytes to the device", *(bytes_text(counts.bytes_h2d) for counts in whole)],
        ["bytes to the host", *(bytes_text(counts.bytes_d2h) for counts in whole)],
    ]
    for name, title in (("host_bytes_read", "bytes read from files"), ("host_bytes_written", "bytes written to files")):
        if any(name in run.summary for run in runs):
            rows.append([title, *(bytes_text(run.summary.get(name)) for run in runs)])
    if any(counts.index_places for counts in whole):
        rows.append(["places of the index of keys that are taken", *(percent_text(c.index_load) for c in whole)])
    tables = [Folded(f"Tables of {run.name}", [_by_table(run)]) for run in runs]
    return [Heading("Traffic"), run_legend(runs), curves, Table(rows), *tables]


def _by_table(run: RunView) -> Table:
    head = ["table", "rows", "on the device", "lookups", "hit rate", "promoted", "demoted", "to device", "to host"]
    skips = any(map(_skips, run.totals.tables.values()))
    keyed = any(counts.has_keys for counts in run.totals.tables.values())
    head += ["watched", "waiting", "at rest", "saturated", "not written"] if skips else []
    rows = [head + ([*KEY_COLUMNS] if keyed else [])]
    for name, counts in run.totals.tables.items():
        states = (counts.watched_rows, counts.waiting_rows, counts.at_rest_rows, counts.saturated_rows)
        skipped = [*map(count_text, states)]
        skipped.append(percent_text(counts.skipped_update_share))
        rows.append([
            *(name, count_text(run.table_rows.get(name)), count_text(counts.resident_rows), count_text(counts.lookups)),
            *(percent_text(counts.hit_rate), count_text(counts.promoted), count_text(counts.demoted)),
            *(bytes_text(counts.bytes_h2d), bytes_text(counts.bytes_d2h)),
            *(skipped if skips else []),
        ])  # fmt: skip
        if keyed:
            rows[-1] += key_cells(counts, run.table_rows.get(name))
    return Table(rows)


def _skips(counts: TableCounts) -> bool:
    return bool(counts.watched_rows or counts.skipped_updates)


def rows_between_ranks(runs: Sequence[RunView]) -> Blocks:
    """Bytes between ranks, waits, and the load of owners; empty for single processes."""
    runs = [run for run in runs if run.stretches and len(run.totals.ranks) > 1]
    if not runs:
        return []
    numbers = [crossed_numbers(run.totals.ranks, run.totals.ranks_steps) for run in runs]
    sent = {"bytes": "sent by a rank per step", **{f"bytes_{kind}": kind for kind in KINDS}}
    spared = {f"{kind}_spared_share": f"{kind} that were not sent" for kind in SPARED}
    rows = [["", *(run.name for run in runs)], ["ranks", *(str(len(run.totals.ranks)) for run in runs)]]
    for titles, text in ((sent, bytes_text), (spared, percent_text)):
        for name, title in titles.items():
            if any(of_run[name] for of_run in numbers):
                rows.append([title, *(text(of_run[name]) for of_run in numbers)])
    rows.append(["slowest rank", *(f"{of_run['slowest']:.0f}" for of_run in numbers)])
    rows.append(["wait for it, ms per step", *(f"{of_run['waited_for_slowest_ms']:.2f}" for of_run in numbers)])
    rows.append(["busiest owner over the mean", *(f"{of_run['owner_load']:.2f}" for of_run in numbers)])
    curves = charts(
        runs,
        ("KiB sent by a rank, per step", _crossed("bytes", KIB)),
        ("Wait for other ranks, ms per step", _crossed("wait_ms", 1)),
    )
    return [Heading("Between ranks"), run_legend(runs), curves, Table(rows)]


def _crossed(name: str, unit: float) -> Value:
    def value(stretch: Stretch) -> float | None:
        numbers = crossed_numbers(stretch.totals.ranks, stretch.totals.ranks_steps)
        return numbers[name] / unit if numbers else None

    return value


def rows_skipped(runs: Sequence[RunView]) -> Blocks:
    """Skipped and deferred updates; runs that skip nothing get a line, too."""
    blocks: Blocks = [Heading("Skipped updates")]
    for run in runs:
        lines = skipping_lines(cast(RunSummary, run.summary)) if "skipped_update_share" in run.summary else []
        skipped = "; ".join(lines) or "nothing was skipped, dropped or deferred"
        blocks.append(Note(f"{run.name}: {skipped if run.summary else 'no record of skipped updates'}."))
    runs = [run for run in runs if any(_skips(stretch.whole) for stretch in run.stretches)]
    if not runs:
        return blocks
    defers = any(counts.deferred_updates for run in runs for counts in run.totals.tables.values())
    skips = any(stretch.whole.saturated_rows for run in runs for stretch in run.stretches)
    saturated: list[tuple[str, Value]] = [("Rows saturated: updates are skipped", lambda s: s.whole.saturated_rows)]
    deferred: list[tuple[str, Value]] = [("Share of row updates deferred", lambda s: s.whole.deferred_update_share)]
    curves = charts(
        runs,
        ("Share of row updates not written", lambda stretch: stretch.whole.skipped_update_share),
        ("Rows watched", lambda stretch: stretch.whole.watched_rows),
        ("Rows waiting: gradients accumulate", lambda stretch: stretch.whole.waiting_rows),
        ("Judged rows at rest: moved by less than 5%", lambda stretch: stretch.whole.at_rest_row_share),
        *(saturated if skips else []),
        *(deferred if defers else []),
    )
    return [*blocks, run_legend(runs), curves]
