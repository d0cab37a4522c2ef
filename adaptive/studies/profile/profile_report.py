"""A profile as a document for the terminal, CSV files and the page, and its pictures."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from adaptive.studies.plots import write_plot
from adaptive.studies.profile import DataProfile, MovementProfile, Profile, SkewCurve, StepProfile
from adaptive.studies.profile.movement import BANDS, QUANTILES
from adaptive.studies.profile.step_profile import LOOK_AHEAD, TRAINING
from adaptive.training.telemetry.document import Document, DocumentBlock, Heading, Note, Table
from adaptive.training.telemetry.formatting import bytes_text, count_text, percent_text

Rows = list[list[str]]

MAX_CURVES: Final = 8  # tables in a picture, those with the most rows
MAX_NAMES: Final = 60  # tables named in a picture
STAGES: Final = {
    "embedding": "embeddings",
    "mlp_forward": "MLPs forward",
    "mlp_backward": "MLPs backward",
    "check": "check",
    "row_update": "row update",
    "dense_update": "dense update",
    "read": "read",
    "plan": "plan",
    "move": "move rows",
}
PARTS: Final = {
    "read": "read the data",
    "count": "count all lookups",
    "count_sample": "count lookups of the sample",
    "sort": "sort rows by lookups",
    "estimate": "estimate hot rows from chunks, all budgets",
    "mark": "mark hot rows, all thresholds and budgets",
    "classify": "classify inputs, all thresholds and budgets",
    "reuse": "follow rows from batch to batch",
}
TITLES: Final = {
    "tables": "Rows and lookups by table",
    "collisions": "Hashed ids that share a row",
    "reuse": "Row reuse between batches",
    "hot": "Hot rows and inputs by memory",
    "times": "Counting time",
    "step": "Milliseconds per step",
    "movement": "Movement of hot rows",
}
LEGENDS: Final = {
    "tables": "seen: rows that were looked up. 50% in, 90% in: smallest number of rows with that share of the lookups. "
    "hottest/median: of the rows seen. once: share of the rows seen that were looked up once. Measured (counted).",
    "collisions": "ids: expected number of distinct ids, from the rows that they fill. shared: expected share of the "
    "ids, and of the lookups, whose row has other ids, too. Vocabularies and live ids (keys) share no rows.",
    "hot": "hot rows: rows with at least the share t of their table's lookups, and all rows of tables below 1 MB. hot "
    "inputs: inputs that look up hot rows only. batches: mini-batches of consecutive inputs that are all hot. from a "
    "sample: hot inputs if a random sample of the inputs chooses the rows for the same memory; same rows: share of the "
    "hot rows that it also chooses. estimated rows: FAE's estimate of their number (99.9%); truly: their number. "
    "Measured, except for the estimate.",
    "reuse": "n before: share of a batch's distinct rows that one of the n batches before also looked up (measured).",
    "times": "On one core (measured).",
    "step": "Stages run one after another, without look-ahead; medians, measured. step: the same with look-ahead, "
    "which runs read, plan and move rows next to training. hidden: share of the shorter of the two sides that this "
    "hides. row update includes summing the rows' gradients; MLPs include the interaction. to device, to host: bytes "
    "per step.",
    "movement": "moved <: share of the judged rows that moved less than this share of their length since the line "
    "before. dropped: at 2%, share of the inputs that would be dropped if all, 75% or any of their lookups are of "
    "stale rows (hot only: 75%, and all rows watched), and share of row updates that would be left out. Measured.",
}


def profile_document(result: Profile) -> Document:
    """The size of the data and a suggested device size first, then a heading per table."""
    blocks: list[DocumentBlock] = []
    if (data := result.data) is not None:
        blocks += [Note(_data_head(data)), Note(suggestion(data))]
    notes = {"step": _step_notes(result.step)}
    if (moved := result.movement) is not None:
        notes["movement"] = [_movement_note(moved)]
    for name, rows in _profile_tables(result).items():
        blocks += [Heading(TITLES[name]), Table(rows, name=name), Note(LEGENDS[name])]
        blocks += map(Note, notes.pop(name, []))
    return Document([*blocks, *(Note(line) for lines in notes.values() for line in lines)])


def suggestion(data: DataProfile) -> str:
    """The suggested number of device rows, with the reason."""
    size = data.suggested
    share = f"{percent_text(size.device_rows / data.rows)} of the rows, {bytes_text(size.bytes)}"
    return (
        f"suggested: --device-rows {size.device_rows} ({share}). {count_text(size.rows_for_90)} rows have 90% of the "
        f"lookups, and batches in flight at depth {size.depth} hold about {count_text(size.rows_in_flight)} rows. Run "
        "simulate for the hit rate of each policy at this and other sizes."
    )


def _profile_tables(result: Profile) -> dict[str, Rows]:
    """Name -> table, head first, of the profiled sections."""
    tables: dict[str, Rows] = {}
    if (data := result.data) is not None:
        tables["tables"] = _tables(data)
        if data.collisions:
            tables["collisions"] = _collisions(data)
        tables |= {"reuse": _reuse(data), "hot": _hot(data), "times": _times(data)}
    if result.step:
        tables["step"] = _step(result.step)
    if (moved := result.movement) is not None and moved.points:
        tables["movement"] = _movement(moved)
    return tables


def _data_head(data: DataProfile) -> str:
    stopped = ". Stopped early, so only these samples were counted" if data.was_stopped else ""
    return (
        f"{count_text(data.samples)} samples, {count_text(data.lookups)} lookups, "
        f"{count_text(data.rows)} rows of {data.row_bytes} bytes with state ({bytes_text(data.table_bytes)}); counted "
        f"at {count_text(data.lookups_per_s)} lookups/s on one core, plus {data.seconds['read']:.1f} s of reading"
        f"{stopped}"
    )


def _tables(data: DataProfile) -> Rows:
    head = ["table", "rows", "lookups/sample", "seen", "top row", "50% in", "90% in", "hottest/median", "once"]
    return [
        head,
        *(
            [
                table.table,
                count_text(table.rows),
                f"{table.lookups_per_sample:.2f}",
                count_text(table.seen),
                percent_text(table.top_share),
                count_text(table.rows_for_half),
                count_text(table.rows_for_90),
                "-" if table.hottest_over_median is None else f"{count_text(table.hottest_over_median)}x",
                percent_text(table.seen_once_share),
            ]
            for table in data.tables
        ),
    ]


def _collisions(data: DataProfile) -> Rows:
    rows = [["table", "rows", "seen", "ids", "shared"]]
    for table in data.collisions:
        ids = "unknown" if table.ids is None else count_text(round(table.ids))
        seen, shared = count_text(table.seen), percent_text(table.shared_share)
        rows.append([table.table, count_text(table.rows), seen, ids, shared])
    return rows


def _hot(data: DataProfile) -> Rows:
    head = ["memory", "t", "hot rows", "lookups", "hot inputs", "batches of 64", "of 1024"]
    head += [f"from {percent_text(data.sample_share)}: hot inputs", "same rows", "estimated rows", "truly"]
    rows = [head]
    for hot in data.hot:
        sampled = hot.sampled
        rows.append(
            [
                f"{hot.memory} ({bytes_text(hot.bytes)})" if hot.memory.endswith("%") else hot.memory,
                "-" if hot.threshold is None else f"{100 * hot.threshold:.2g}%",
                count_text(hot.hot_rows),
                percent_text(hot.lookup_share),
                percent_text(hot.hot_input_share),
                percent_text(hot.hot_batch_share["64"]),
                percent_text(hot.hot_batch_share["1024"]),
                percent_text(sampled.hot_input_share),
                percent_text(sampled.same_rows_share),
                f"{count_text(sampled.estimated_rows)} ± {count_text(sampled.estimated_margin)}",
                count_text(sampled.hot_rows),
            ]
        )
    return rows


def _reuse(data: DataProfile) -> Rows:
    reuse = data.reuse
    head = [f"batches of {reuse.batch_size}", *(f"{n} before" for n in reuse.reused_from)]
    sizes = reuse.distinct_by_batch_size
    return [
        head,
        ["rows of a batch", *(percent_text(share) for share in reuse.reused_from.values())],
        *([f"distinct rows at {size}", count_text(number)] + [""] * (len(head) - 2) for size, number in sizes.items()),
    ]


def _times(data: DataProfile) -> Rows:
    seconds = data.seconds
    return [["", "ms", "ns per lookup"]] + [
        [PARTS[name], f"{1e3 * seconds[name]:.1f}", f"{1e9 * seconds[name] / data.lookups:.1f}"]
        for name in PARTS
        if name in seconds
    ]


def _step(steps: Sequence[StepProfile]) -> Rows:
    names = [name for name in (*TRAINING, *LOOK_AHEAD) if name in steps[0].stages_ms]
    head = ["policy", "device rows", *(STAGES[name] for name in names), "other", "serial", "step", "hidden"]
    head += ["to device", "to host"]
    return [
        head,
        *(
            [
                step.policy,
                percent_text(step.device_share),
                *(f"{step.stages_ms[name]:.2f}" for name in names),
                f"{step.other_ms:.2f}",
                f"{step.serial_ms:.2f}",
                f"{step.step_ms:.2f}",
                percent_text(step.hidden_share),
                bytes_text(step.bytes_h2d),
                bytes_text(step.bytes_d2h),
            ]
            for step in steps
        ),
    ]


def _step_notes(steps: Sequence[StepProfile]) -> list[str]:
    """For each policy, its largest stage, time of embeddings, and wait for look-ahead."""
    lines = []
    for step in steps:
        stages = step.stages_ms
        largest = max(stages, key=stages.__getitem__)
        share = percent_text(stages[largest] / step.serial_ms)
        embeddings = stages["embedding"] + stages["row_update"]
        lines.append(
            f"{step.policy}: the largest stage is {STAGES[largest]} ({share}); "
            f"embeddings take {percent_text(embeddings / step.serial_ms)} in all. Look-ahead takes "
            f"{sum(step.look_ahead_ms.values()):.2f} ms ({stages['plan']:.2f} ms of planning), of which training waits "
            f"{step.wait_ms:.2f} ms at depth {step.depth}."
        )
    return lines


def _movement(moved: MovementProfile) -> Rows:
    at = moved.thresholds.index(0.02)
    head = ["after", "rows judged", *(f"moved < {100 * t:g}%" for t in moved.thresholds)]
    head += ["dropped: all", "75%", "any", "hot only", "updates"]
    return [
        head,
        *(
            [
                f"{count_text(point.steps)} steps",
                count_text(point.judged_rows),
                *(percent_text(share) for share in point.below),
                *(percent_text(getattr(point.dropped[at], name)) for name in ("all", "most", "any", "hot", "updates")),
            ]
            for point in moved.points
        ),
    ]


def _movement_note(moved: MovementProfile) -> str:
    stopped = ". Stopped early" if moved.was_stopped else ""
    return (
        f"{moved.optimizer} at a learning rate of {moved.lr:g}, batches of {moved.batch_size}: "
        f"{count_text(moved.watched_rows)} rows watched; a row is judged from {moved.judged_from} lookups in "
        f"{moved.every} steps on{stopped}"
    )


# --- pictures ---------------------------------------------------------------------------------------------------------


def draw_profile(result: Profile, folder: Path) -> list[Path]:
    """Write the pictures of the profiled sections; return their paths.

    Args:
        result: as in `profile.json`.
        folder: an existing folder.

    Raises:
        OutputError: if a picture cannot be written.
    """
    written = []
    for name, (section, draw) in PICTURES.items():
        if has_section(result, section):
            picture = partial(draw, getattr(result, section))
            written.append(write_plot(folder / f"{name}.png", picture, size=(9, 5)))
    return written


def has_section(result: Profile, section: str) -> bool:
    """True if the section was profiled, so that its pictures can be drawn."""
    if section == "movement":
        return result.movement is not None and bool(result.movement.points)
    return bool(getattr(result, section))


def _draw_skew(data: DataProfile, figure: Any) -> None:
    """Sorted counts on log axes: all lookups, and the sample (dashed)."""
    axes = figure.subplots()
    for curve in _largest(data):
        (line,) = axes.loglog(*zip(*curve.full, strict=True), label=curve.table)
        if curve.sampled:
            axes.loglog(*zip(*curve.sampled, strict=True), "--", color=line.get_color())
    axes.set(
        xlabel="row, most frequent first",
        ylabel="lookups (measured)",
        title=f"Skew of the largest tables; dashed: a sample of {100 * data.sample_share:g}%",
    )
    _finish(axes)


def _largest(data: DataProfile) -> list[SkewCurve]:
    rows = {table.table: table.rows for table in data.tables}
    curves = [curve for curve in data.curves if curve.full]
    return sorted(curves, key=lambda curve: -rows[curve.table])[:MAX_CURVES]


def _draw_hot(data: DataProfile, figure: Any) -> None:
    """Hot bytes (left) and hot inputs (right) over the threshold, with the budgets marked."""
    from matplotlib.ticker import LogLocator

    size, inputs = figure.subplots(1, 2)
    shares = [100 * point.threshold for point in data.thresholds]
    size.loglog(shares, [point.bytes / 2**20 for point in data.thresholds], "o-")
    for key, label in (("hot_input_share", "hot inputs"), ("lookup_share", "lookups of hot rows")):
        inputs.semilogx(shares, [100 * (getattr(point, key) or 0.0) for point in data.thresholds], "o-", label=label)
    for number, budget in enumerate(data.hot):
        size.axhline(budget.bytes / 2**20, color="0.6", linestyle=":", label="_" if number else "--memory")
        if budget.threshold:
            for axes in (size, inputs):
                axes.axvline(100 * budget.threshold, color="0.6", linestyle=":")
    size.set(ylabel="hot rows (MiB)")
    inputs.set(ylabel="share (%, measured)", ylim=(0, 100))
    for axes in (size, inputs):
        axes.set(xlabel="threshold: share of a table's lookups (%)")
        axes.invert_xaxis()
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        _finish(axes)


def _draw_tables(data: DataProfile, figure: Any) -> None:
    """Rows against lookups per sample; the area of a point is proportional to its bytes."""
    axes = figure.subplots()
    tables = [table for table in data.tables if table.lookups and table.table != "all"]
    rows, lookups = [table.rows for table in tables], [table.lookups_per_sample for table in tables]
    axes.scatter(rows, lookups, s=[30 + 700 * size / max(rows) for size in rows], alpha=0.5)
    for table in tables[:MAX_NAMES]:
        axes.annotate(table.table, (table.rows, table.lookups_per_sample), fontsize="x-small")
    axes.set(xscale="log", xlabel="rows", ylabel="lookups per sample", title="Tables; area: bytes")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _draw_reuse(data: DataProfile, figure: Any) -> None:
    """Rows shared with batches before (left), distinct rows by batch size (right)."""
    reuse = data.reuse
    shared, distinct = figure.subplots(1, 2)
    shares = [100 * share for share in reuse.reused_from.values() if share is not None]
    if len(shares) == len(reuse.reused_from):  # None for a single batch
        shared.semilogx([int(n) for n in reuse.reused_from], shares, "o-", base=2)
    shared.set(
        xlabel=f"batches of {reuse.batch_size} before",
        ylabel="rows that one of them also looked up (%)",
        ylim=(0, 100),
    )
    sizes = reuse.distinct_by_batch_size
    distinct.loglog([int(size) for size in sizes], list(sizes.values()), "o-")
    distinct.set(xlabel="samples per batch", ylabel="distinct rows")
    for axes in (shared, distinct):
        axes.grid(alpha=0.3)


def _draw_step(steps: Sequence[StepProfile], figure: Any) -> None:
    """Stacked stages, modeled transfers hatched, a mark for the step with look-ahead."""
    axes = figure.subplots()
    names = [step.policy for step in steps]
    bottom = [0.0] * len(steps)

    def stack(times: list[float], label: str, **look: Any) -> None:
        axes.bar(names, times, bottom=bottom, label=label, width=0.6, **look)
        bottom[:] = [low + time for low, time in zip(bottom, times, strict=True)]

    for stage in TRAINING:
        stack([step.stages_ms.get(stage, 0.0) for step in steps], STAGES[stage], alpha=0.95)
    for stage in LOOK_AHEAD:
        times = [step.stages_ms.get(stage, 0.0) for step in steps]
        stack(times, f"{STAGES[stage]} (look-ahead)", alpha=0.55, hatch="//", edgecolor="0.6")
    stack([step.other_ms for step in steps], "other", alpha=0.95, color="0.6")
    axes.plot(names, [step.step_ms for step in steps], "kD", label="step with look-ahead")
    axes.set(ylabel="ms per step (measured)", title="Stages one after another")
    axes.grid(axis="y", alpha=0.3)
    figure.legend(fontsize="small", loc="outside right upper")


def _draw_movement(moved: MovementProfile, figure: Any) -> None:
    """Bands between quantiles of relative movement of the hottest, hot and warm rows."""
    axes = figure.subplots()
    middle = len(QUANTILES) // 2
    for number, (name, _, _) in enumerate(BANDS):
        points = [(point.steps, band) for point in moved.points if (band := point.bands[name])]
        if not points:
            continue
        steps, values = [at for at, _ in points], [[100 * value for value in values] for _, values in points]
        color = f"C{number}"
        axes.plot(steps, [v[middle] for v in values], "o-", color=color, label=f"{name} rows: median, 10 to 90%")
        axes.fill_between(steps, [v[0] for v in values], [v[-1] for v in values], color=color, alpha=0.15)
    axes.set(
        xlabel="steps",
        ylabel=f"movement in {moved.every} steps (% of length)",
        yscale="log",
        title=f"{moved.optimizer}, {moved.watched_rows:,} rows (measured)",
    )
    _finish(axes)


def _draw_drop(moved: MovementProfile, figure: Any) -> None:
    """Inputs and updates that a threshold would leave out, at the last reading."""
    axes = figure.subplots()
    last = moved.points[-1].dropped
    labels = {
        "updates": "row updates",
        "any": "inputs: any row is stale",
        "most": "inputs: 75%",
        "all": "inputs: all",
        "hot": "inputs: 75%, all rows watched",
    }
    thresholds = [100 * t for t in moved.thresholds]
    for name, label in labels.items():
        axes.semilogx(thresholds, [100 * (getattr(left_out, name) or 0.0) for left_out in last], "o-", label=label)
    axes.set(xlabel="threshold of movement (%)", ylabel="left out (%, measured)", ylim=(0, 100))
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")


PICTURES: Final[dict[str, tuple[str, Callable[..., None]]]] = {
    "skew": ("data", _draw_skew),
    "hot": ("data", _draw_hot),
    "tables": ("data", _draw_tables),
    "reuse": ("data", _draw_reuse),
    "step": ("step", _draw_step),
    "movement": ("movement", _draw_movement),
    "drop": ("movement", _draw_drop),
}
"""Name of a picture -> the section of a `Profile` that it needs, and the function that draws it."""
