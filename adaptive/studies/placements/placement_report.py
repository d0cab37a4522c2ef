"""A placement study as a document, and its picture."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from adaptive.studies.placements.placement_study import PlacedShape, PlacementStudy
from adaptive.studies.plots import write_plot
from adaptive.training.telemetry.document import Document, DocumentBlock, Items, Note, Table
from adaptive.training.telemetry.formatting import bytes_text, count_text, percent_text

Rows = list[list[str]]
LEGEND: Final = (
    "of host: throughput over that of all tables in main memory on the same machine. limited by: the largest part of "
    "the step. samples/s/W: per watt of the whole machine, as given. Modelled from peak rates and assumed shares of "
    "them: rely on the order of placements, not on the milliseconds. With --measure, placements trained here appear "
    "next to the model, with its error."
)
STOPPED: Final = "Stopped early: only the placements under measured were trained."


def placements_document(result: PlacementStudy) -> Document:
    """Shapes, modeled and measured placements, notes, and sources."""
    notes = dict.fromkeys(
        f"{line.shape} on {line.machine}, {line.placement}: {line.note}" for line in result.lines if line.note
    )
    keys = 2 + (len(result.shapes) > 1) + len(result.sweep)
    blocks: list[DocumentBlock] = [
        Items([*map(_shape_text, result.shapes), f"hot rows and inputs are those of {result.locality} (measured)"]),
        Table(lines_table(result), keys=keys, name="placements"),
    ]
    blocks += [Table(measured_table(result), name="measured")] if result.measured else []
    blocks += [Note(STOPPED)] if result.was_stopped else []
    sources = [
        f"{machine.name}: {'; '.join(filter(None, (machine.source or 'no source', machine.note)))}"
        for machine in result.machines
    ]
    return Document([*blocks, Items(list(notes)[:24]), Note(LEGEND), Items(sources)])


def _shape_text(shape: PlacedShape) -> str:
    source = f" ({shape.source}{f'; ours: {shape.ours}' if shape.ours else ''})" if shape.source else ""
    return (
        f"{shape.name}: {count_text(shape.num_sparse)} tables of {count_text(shape.hash_size)} rows on average, "
        f"{bytes_text(shape.table_bytes)}; {shape.num_dense} dense inputs, {shape.lookups} lookups per bag, "
        f"{shape.bottom_mlp} / {shape.top_mlp}{source}"
    )


def lines_table(result: PlacementStudy) -> Rows:
    """Table of the modeled placements, head first."""
    several = len(result.shapes) > 1
    head = [*(["shape"] if several else []), "machine", "placement", *result.sweep, "fits", "ms/step", "samples/s"]
    rows = [[*head, "of host", "limited by", "samples/s/W", "kind"]]
    rows += [
        [
            *([line.shape] if several else []),
            line.machine,
            line.placement,
            *(line.point[key] for key in result.sweep),
            "yes" if line.fits else "no",
            _text(line.step_ms, "{:.3g}"),
            count_text(line.samples_per_s),
            _text(line.of_host, "{:.2f}x"),
            line.limited_by,
            _text(line.samples_per_s_per_watt, "{:.1f}"),
            "modeled",
        ]
        for line in result.lines
    ]
    return rows


def measured_table(result: PlacementStudy) -> Rows:
    """Table of the placements trained here, next to the model, head first."""
    swept = [key for key in result.sweep if any(key in line.point for line in result.measured)]
    rows = [["placement", *swept, "measured ms", "modeled ms", "error", "samples/s", "rows on the device", "note"]]
    rows += [
        [
            line.placement,
            *(line.point.get(key, "-") for key in swept),
            _text(line.step_ms, "{:.2f}"),
            _text(line.modelled_ms, "{:.2f}"),
            _text(None if line.error_share is None else 100 * line.error_share, "{:+.0f}%"),
            count_text(line.samples_per_s),
            percent_text(line.device_share),
            line.note,
        ]
        for line in result.measured
    ]
    return rows


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def draw_placements(result: PlacementStudy, folder: Path) -> Path:
    """Write placements.png: bars, lines for one swept key, or a heat map for two.

    Raises:
        OutputError: if it cannot be written.
    """
    draw = DRAW[len(result.sweep)]
    return write_plot(folder / "placements.png", lambda figure: draw(figure, result), size=(9, 5.5))


def _bars(figure: Any, result: PlacementStudy) -> None:
    axes = figure.subplots()
    lines = [line for line in result.lines if line.samples_per_s]
    names = [f"{line.shape}, {line.machine}, {line.placement}" for line in lines]
    machines = [machine.name for machine in result.machines]
    colors = [f"C{machines.index(line.machine)}" for line in lines]
    axes.barh(names, [line.samples_per_s for line in lines], color=colors)
    axes.set(xlabel="samples/s (modeled)", xscale="log")
    axes.tick_params(axis="y", labelsize="x-small" if len(lines) > 12 else "small")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)


def _lines(figure: Any, result: PlacementStudy) -> None:
    axes = figure.subplots()
    (key,) = result.sweep
    curves: dict[str, list[tuple[str, float]]] = {}
    for line in result.lines:
        if line.samples_per_s:
            curves.setdefault(f"{line.machine}, {line.placement}", []).append((line.point[key], line.samples_per_s))
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), "o-", label=name)
    axes.set(xlabel=key, ylabel="samples/s (modeled)", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")


SPEED, PER_WATT = "samples_per_s", "samples_per_s_per_watt"
LIGHT: Final = 0.65  # share of the color range from which colors are light


def heat_map(result: PlacementStudy, field: str = SPEED) -> tuple[list[str], list[str], list[list[float | None]], str]:
    """Return the values of both keys, a number for each pair, and what the numbers are.

    A number is the throughput (or throughput per watt) of the first machine's best placement, over that of the last
    machine if there are several.
    """
    first, second = result.sweep
    best: dict[tuple[str, str, str], float] = {}
    for line in result.lines:
        if value := getattr(line, field):
            place = line.point[first], line.point[second], line.machine
            best[place] = max(value, best.get(place, 0.0))
    top, base = result.machines[0].name, result.machines[-1].name

    def number(row: str, column: str) -> float | None:
        if (value := best.get((row, column, top))) is None or len(result.machines) < 2:
            return value
        return value / best[row, column, base] if (row, column, base) in best else None

    rows = list(dict.fromkeys(line.point[first] for line in result.lines))
    columns = list(dict.fromkeys(line.point[second] for line in result.lines))
    unit = "samples/s" if field == SPEED else "samples/s/W"
    label = f"{unit} of {top}" + (f" over {base}" if len(result.machines) > 1 else "")
    return rows, columns, [[number(row, column) for column in columns] for row in rows], label


def _heat(figure: Any, result: PlacementStudy) -> None:
    powered = all(machine.watts for machine in result.machines)
    panels = figure.subplots(1, 1 + powered, squeeze=False)[0]
    for axes, field in zip(panels, (SPEED, PER_WATT), strict=False):
        _panel(axes, result, field)


def _panel(axes: Any, result: PlacementStudy, field: str) -> None:
    rows, columns, numbers, label = heat_map(result, field)
    values = [[value or 0.0 for value in line] for line in numbers]
    axes.pcolormesh(values, cmap="viridis", edgecolors="none")  # vector cells, as a page takes no image
    low, high = min(map(min, values)), max(map(max, values))
    for y, line in enumerate(numbers):
        for x, value in enumerate(line):
            light = (value or 0.0) - low > LIGHT * (high - low)
            text = "-" if value is None else f"{value:.3g}"
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color="#111111" if light else "#ffffff")
    axes.set_xticks([x + 0.5 for x in range(len(columns))], columns)
    axes.set_yticks([y + 0.5 for y in range(len(rows))], rows)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set(xlabel=result.sweep[1], ylabel=result.sweep[0], title=f"{label},\nbest placement (modeled)")


DRAW: Final[tuple[Callable[[Any, PlacementStudy], None], ...]] = (_bars, _lines, _heat)
"""Drawing functions by the number of swept keys."""
