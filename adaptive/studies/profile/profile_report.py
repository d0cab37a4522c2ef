"""A profile as a document, for the terminal, CSV files and the page; its pictures, one PNG each, under the names of
`PICTURES`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from adaptive.studies.charts import write_png
from adaptive.studies.profile import DataProfile, MovementProfile, Profile, SkewCurve, StepProfile
from adaptive.studies.profile.movement import BANDS, QUANTILES
from adaptive.studies.profile.step_profile import BESIDE, TRAINING
from adaptive.training.telemetry.document import Document, DocumentBlock, Heading, Note, Table
from adaptive.training.telemetry.formatting import bytes_text, count_text, percent_text

Rows = list[list[str]]

STAGES = {
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
TITLES = {
    "tables": "Rows and lookups by table",
    "reuse": "Rows that come again",
    "hot": "Hot rows and inputs by memory",
    "times": "How long counting takes",
    "step": "Milliseconds of a step",
    "movement": "How far hot rows move",
}
LEGENDS = {
    "tables": "50 %, 90 % in: the least number of rows with that share of the lookups; hottest/median: of the "
    "rows that came; once: of the rows that came, those that came once. All numbers are measured "
    "(counted).",
    "hot": "hot rows: those with at least the share t of their table's lookups, and tables below 1 MB; hot "
    "inputs: those all of whose rows are hot; batches: mini-batches of consecutive inputs all of which "
    "are hot. from a sample: what a random sample of the inputs chooses for the same memory, and FAE's "
    "estimate of its number of rows (99.9 %), next to how many they truly are. Measured, but for the "
    "estimate.",
    "reuse": "Of a batch's distinct rows, those that one of so many batches before had looked up, too (measured).",
    "times": "On one core (measured).",
    "step": "Stages one after another, without look-ahead: milliseconds of a step, medians, measured. step: the "
    "same with look-ahead, which runs read, plan and move rows next to training; hidden: how much of "
    "the shorter of the two sides that hides. row update includes the sums of the rows' gradients, MLPs "
    "the interaction. Bytes are of a step.",
    "movement": "moved <: share of the judged rows that moved by less than that share of their length since the "
    "line before; then, at 2 %, inputs that would be dropped if all, 75 % or any of their lookups rest "
    "(hot only: 75 %, and all rows watched), and row updates that would be left out. Measured.",
}


def profile_document(result: Profile) -> Document:
    """All parts that were profiled: the size of the data and of a device tier first, then a heading for each table."""
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
    """How many rows the device tier should have, and why."""
    one = data.suggested
    size = f"{percent_text(one.device_rows / data.rows)} of the rows, {bytes_text(one.bytes)}"
    return (
        f"suggested: --device-rows {one.device_rows} ({size}). {count_text(one.rows_for_90)} rows take 90 % of "
        f"the lookups, and the batches in flight at depth {one.depth} hold about "
        f"{count_text(one.rows_in_flight)}. simulate shows the hit rate of each policy at this and other sizes."
    )


def _profile_tables(result: Profile) -> dict[str, Rows]:
    """Name -> table, its head first; those of parts that were profiled."""
    tables: dict[str, Rows] = {}
    if (data := result.data) is not None:
        tables |= {"tables": _tables(data), "reuse": _reuse(data), "hot": _hot(data), "times": _times(data)}
    if result.step:
        tables["step"] = _step(result.step)
    if (moved := result.movement) is not None and moved.points:
        tables["movement"] = _movement(moved)
    return tables


def _data_head(data: DataProfile) -> str:
    seconds = data.seconds
    counted = data.lookups_per_s
    stopped = "; stopped on the way, so of these samples only" if data.was_stopped else ""
    return (
        f"{count_text(data.samples)} samples, {count_text(data.lookups)} lookups, "
        f"{count_text(data.rows)} rows of {data.row_bytes} bytes with state ({bytes_text(data.table_bytes)}); "
        f"counted at {count_text(counted)} lookups/s on one core, beside {seconds['read']:.1f} s of reading{stopped}"
    )


def _tables(data: DataProfile) -> Rows:
    head = ["table", "rows", "lookups/sample", "seen", "top row", "50 % in", "90 % in", "hottest/median", "once"]
    return [
        head,
        *(
            [
                one.table,
                count_text(one.rows),
                f"{one.lookups_per_sample:.2f}",
                count_text(one.seen),
                percent_text(one.top_share),
                count_text(one.rows_for_half),
                count_text(one.rows_for_90),
                "-" if one.hottest_over_median is None else f"{count_text(one.hottest_over_median)}x",
                percent_text(one.seen_once_share),
            ]
            for one in data.tables
        ),
    ]


def _hot(data: DataProfile) -> Rows:
    head = ["memory", "t", "hot rows", "lookups", "hot inputs", "batches of 64", "of 1024"]
    sample = percent_text(data.sample_share)
    head += [f"from {sample}: hot inputs", "same rows", "estimated rows", "truly"]
    rows = [head]
    for one in data.hot:
        sampled = one.sampled
        rows.append(
            [
                f"{one.memory} ({bytes_text(one.bytes)})" if one.memory.endswith("%") else one.memory,
                "-" if one.threshold is None else f"{100 * one.threshold:.2g} %",
                count_text(one.hot_rows),
                percent_text(one.lookup_share),
                percent_text(one.hot_input_share),
                percent_text(one.hot_batch_share["64"]),
                percent_text(one.hot_batch_share["1024"]),
                percent_text(sampled.hot_input_share),
                percent_text(sampled.same_rows_share),
                f"{count_text(sampled.estimated_rows)} +- {count_text(sampled.estimated_margin)}",
                count_text(sampled.hot_rows),
            ]
        )
    return rows


def _reuse(data: DataProfile) -> Rows:
    again = data.reuse
    head = [f"batches of {again.batch_size}", *(f"{n} before" for n in again.known_from)]
    sizes = again.distinct_by_batch_size
    return [
        head,
        ["rows of a batch", *(percent_text(share) for share in again.known_from.values())],
        *([f"distinct rows at {size}", count_text(number)] + [""] * (len(head) - 2) for size, number in sizes.items()),
    ]


PARTS = {
    "read": "read the data",
    "count": "count all lookups",
    "count_sample": "count those of the sample",
    "sort": "sort rows by lookups",
    "estimate": "estimate hot rows from chunks, all budgets",
    "mark": "mark hot rows, all thresholds and budgets",
    "classify": "classify inputs, all thresholds and budgets",
    "reuse": "follow rows from batch to batch",
}


def _times(data: DataProfile) -> Rows:
    seconds = {name: ms for name, ms in data.seconds.items() if name in PARTS}
    return [["", "ms", "ns a lookup"]] + [
        [PARTS[name], f"{1e3 * seconds[name]:.1f}", f"{1e9 * seconds[name] / data.lookups:.1f}"]
        for name in PARTS
        if name in seconds
    ]


def _step(step: Sequence[StepProfile]) -> Rows:
    names = [name for name in (*TRAINING, *BESIDE) if name in step[0].stages_ms]
    head = ["policy", "device rows", *(STAGES[name] for name in names), "other", "serial", "step", "hidden"]
    head += ["to device", "to host"]
    return [
        head,
        *(
            [
                one.policy,
                percent_text(one.device_share),
                *(f"{one.stages_ms[name]:.2f}" for name in names),
                f"{one.other_ms:.2f}",
                f"{one.serial_ms:.2f}",
                f"{one.step_ms:.2f}",
                percent_text(one.hidden_share),
                bytes_text(one.bytes_h2d),
                bytes_text(one.bytes_d2h),
            ]
            for one in step
        ),
    ]


def _step_notes(step: Sequence[StepProfile]) -> list[str]:
    """For each policy: its largest stage, what embeddings cost together, what planning costs beside."""
    lines = []
    for one in step:
        stages = one.stages_ms
        whole = one.serial_ms
        largest = max(stages, key=stages.__getitem__)
        together = stages["embedding"] + stages["row_update"]
        lines.append(
            f"{one.policy}: largest {STAGES[largest]}, {percent_text(stages[largest] / whole)}; embeddings together "
            f"{percent_text(together / whole)}; of {stages['plan']:.2f} ms for classifying and planning, with reading"
            f" and moving {sum(one.beside_ms.values()):.2f} ms, {one.wait_ms:.2f} ms are waited for at depth "
            f"{one.depth}"
        )
    return lines


def _movement(moved: MovementProfile) -> Rows:
    at = moved.thresholds.index(0.02)
    head = ["after", "rows judged", *(f"moved < {100 * t:g} %" for t in moved.thresholds)]
    head += ["dropped: all", "75 %", "any", "hot only", "updates"]
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
    stopped = "; stopped on the way" if moved.was_stopped else ""
    return (
        f"{moved.optimizer} at a rate of {moved.lr:g}, batches of {moved.batch_size}: "
        f"{count_text(moved.watched_rows)} rows watched, judged from {moved.judged_from} lookups in "
        f"{moved.every} steps on{stopped}"
    )


MOST_CURVES: Final = 8  # tables in a picture, those with the most rows


def draw_profile(result: Profile, folder: Path, *, link: float | None = None) -> list[Path]:
    """Write the pictures of the parts that were profiled; returns their paths.

    Args:
        result: as `profile.json` holds it.
        folder: which is there.
        link: bytes per second with which what crosses is modelled where there is no GPU; None: not drawn.

    Raises:
        OutputError: if one cannot be written.
    """
    written = []
    for name, (section, draw) in PICTURES.items():
        if has_section(result, section):
            picture = partial(draw, result, link)
            written.append(write_png(folder / f"{name}.png", picture, size=(9, 5)))
    return written


def has_section(result: Profile, section: str) -> bool:
    """The section was profiled, so that its pictures can be drawn."""
    if section == "movement":
        return result.movement is not None and bool(result.movement.points)
    return bool(getattr(result, section))


def _draw_skew(profile: Profile, link: float | None, figure: Any) -> None:
    """Sorted counts, log-log: all lookups, and the sample (dashed)."""
    axes = figure.subplots()
    data = profile.data
    assert data is not None  # or `has_section`
    for curve in _largest(data):
        ranks, counts = zip(*curve.full, strict=True)
        (line,) = axes.loglog(ranks, counts, label=curve.table)
        if curve.sampled:
            axes.loglog(*zip(*curve.sampled, strict=True), "--", color=line.get_color())
    axes.set(
        xlabel="row, most frequent first",
        ylabel="lookups (measured)",
        title=f"Skew of the largest tables; dashed: a sample of {100 * data.sample_share:g} %",
    )
    _finish(axes)


def _largest(data: DataProfile) -> list[SkewCurve]:
    rows = {one.table: one.rows for one in data.tables}
    curves = [curve for curve in data.curves if curve.full]
    return sorted(curves, key=lambda curve: -rows[curve.table])[:MOST_CURVES]


def _draw_hot(profile: Profile, link: float | None, figure: Any) -> None:
    """Hot bytes (left) and hot inputs (right) over the threshold, with the budgets marked."""
    data = profile.data
    assert data is not None  # or `has_section`
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
    inputs.set(ylabel="per cent (measured)", ylim=(0, 100))
    for axes in (size, inputs):
        axes.set(xlabel="threshold: share of a table's lookups (%)")
        axes.invert_xaxis()
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        _finish(axes)


def _draw_tables(profile: Profile, link: float | None, figure: Any) -> None:
    """Rows against lookups a sample; the area of a point goes by its bytes."""
    axes = figure.subplots()
    data = profile.data
    assert data is not None  # or `has_section`
    tables = [one for one in data.tables if one.lookups and one.table != "all"]
    largest = max(one.rows for one in tables)
    areas = [30 + 700 * one.rows / largest for one in tables]
    axes.scatter([one.rows for one in tables], [one.lookups_per_sample for one in tables], s=areas, alpha=0.5)
    for one in tables[:60]:
        axes.annotate(one.table, (one.rows, one.lookups_per_sample), fontsize="x-small")
    axes.set(xscale="log", xlabel="rows", ylabel="lookups a sample", title="Tables; area: bytes")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _draw_reuse(profile: Profile, link: float | None, figure: Any) -> None:
    """Rows known from so many batches before (left), distinct rows by batch size (right)."""
    assert profile.data is not None  # or `has_section`
    again = profile.data.reuse
    known, distinct = figure.subplots(1, 2)
    if None not in again.known_from.values():  # of several batches
        known.semilogx(
            [int(n) for n in again.known_from], [100 * (v or 0.0) for v in again.known_from.values()], "o-", base=2
        )
    known.set(
        xlabel=f"batches of {again.batch_size} before",
        ylabel="rows looked up by one of them, too (%)",
        ylim=(0, 100),
    )
    sizes = again.distinct_by_batch_size
    distinct.loglog([int(size) for size in sizes], list(sizes.values()), "o-")
    distinct.set(xlabel="samples of a batch", ylabel="distinct rows")
    for axes in (known, distinct):
        axes.grid(alpha=0.3)


def _draw_step(profile: Profile, link: float | None, figure: Any) -> None:
    """Stages stacked; hatched what crosses, modelled; a mark where the step with look-ahead ends."""
    axes = figure.subplots()
    step = profile.step
    names = [one.policy for one in step]
    bottom = [0.0] * len(step)
    for stage in (*TRAINING, *BESIDE, "other"):
        times = [{**one.stages_ms, "other": one.other_ms}.get(stage, 0.0) for one in step]
        beside = stage in BESIDE
        label = STAGES.get(stage, stage) + (" (beside)" if beside else "")
        look: dict[str, Any] = {"alpha": 0.55, "hatch": "//", "edgecolor": "0.6"} if beside else {"alpha": 0.95}
        look |= {"color": "0.6"} if stage == "other" else {}
        axes.bar(names, times, bottom=bottom, label=label, width=0.6, **look)
        bottom = [low + time for low, time in zip(bottom, times, strict=True)]
    if link and all(one.device == "cpu" for one in step):
        times = [1e3 * max(one.bytes_h2d, one.bytes_d2h) / link for one in step]
        label = f"link at {link / 1e9:g} GB/s (modelled)"
        axes.bar(names, times, bottom=bottom, label=label, color="none", edgecolor="0.3", hatch="//", width=0.6)
    axes.plot(names, [one.step_ms for one in step], "kD", label="step with look-ahead")
    axes.set(ylabel="ms a step (measured)", title="Stages one after another")
    axes.grid(axis="y", alpha=0.3)
    figure.legend(fontsize="small", loc="outside right upper")


def _draw_movement(profile: Profile, link: float | None, figure: Any) -> None:
    """Bands between quantiles of relative movement, hottest, hot and warm rows apart."""
    moved = profile.movement
    assert moved is not None  # or `has_section`
    axes = figure.subplots()
    for number, (name, _, _) in enumerate(BANDS):
        points = [(point.steps, band) for point in moved.points if (band := point.bands[name])]
        if not points:
            continue
        steps, values = [at for at, _ in points], [[100 * value for value in values] for _, values in points]
        colour = f"C{number}"
        middle = len(QUANTILES) // 2
        axes.plot(steps, [v[middle] for v in values], "o-", color=colour, label=f"{name} rows: median, 10 to 90 %")
        axes.fill_between(steps, [v[0] for v in values], [v[-1] for v in values], color=colour, alpha=0.15)
    axes.set(
        xlabel="steps", ylabel=f"movement in {moved.every} steps (% of length)", yscale="log",
        title=f"{moved.optimizer}, {moved.watched_rows:,} rows (measured)",
    )  # fmt: skip
    _finish(axes)


def _draw_drop(profile: Profile, link: float | None, figure: Any) -> None:
    """Inputs and updates that a threshold would leave out, at the last reading."""
    moved = profile.movement
    assert moved is not None  # or `has_section`
    axes = figure.subplots()
    last = moved.points[-1].dropped
    labels = {
        "updates": "row updates", "any": "inputs: any row rests", "most": "inputs: 75 %", "all": "inputs: all",
        "hot": "inputs: 75 %, all rows watched",
    }  # fmt: skip
    thresholds = [100 * t for t in moved.thresholds]
    for name, label in labels.items():
        axes.semilogx(thresholds, [100 * (getattr(left_out, name) or 0.0) for left_out in last], "o-", label=label)
    axes.set(xlabel="threshold of movement (%)", ylabel="left out (%, measured)", ylim=(0, 100))
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")


PICTURES: Final[dict[str, tuple[str, Callable[[Profile, float | None, Any], None]]]] = {
    "skew": ("data", _draw_skew),
    "hot": ("data", _draw_hot),
    "tables": ("data", _draw_tables),
    "reuse": ("data", _draw_reuse),
    "step": ("step", _draw_step),
    "movement": ("movement", _draw_movement),
    "drop": ("movement", _draw_drop),
}
