"""What `placements` found as a document, and its pictures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from adaptive.studies.charts import write_png
from adaptive.training.telemetry.document import Document, DocumentBlock, Items, Note, Table
from adaptive.training.telemetry.formatting import bytes_text, count_text, percent_text

Found = Mapping[str, Any]
Rows = list[list[str]]
LEGEND = (
    "of host: throughput over that of all tables in main memory on the same machine; limited by: the largest "
    "part of the step; samples/s/W: for the watts of the whole machine, as given. Modelled: from peaks and "
    "assumed shares of them, which orders placements and predicts no milliseconds. With --measure, measured "
    "stands beside it, with the model's error."
)

STOPPED: Final = "Stopped on the way: placements that are not among the measured ones were not trained."


def placements_document(result: Found) -> Document:
    """Shapes, modelled lines, what was measured next to them, notes and where the machines' numbers come from."""
    measured = result.get("measured")
    blocks: list[DocumentBlock] = [
        Items(_shapes(result)),
        Table(lines_table(result), keys=_keys(result), name="placements"),
    ]
    blocks += [Table(measured_table(result), name="measured")] if measured else []
    blocks += [Note(STOPPED)] if result.get("was_stopped") else []
    machines = [f"{one['name']}: {_told(one)}" for one in result["machines"]]
    return Document([*blocks, Items(_notes(result["lines"])), Note(LEGEND), Items(machines)])


def _keys(result: Found) -> int:
    """Leading columns of the modelled lines that say what a line is."""
    return 2 + (len(result["shapes"]) > 1) + len(result["sweep"])


def _told(machine: Found) -> str:
    """Where its numbers come from, and which are not from there."""
    return "; ".join(text for text in (machine["source"] or "no source given", machine.get("note")) if text)


def _shapes(result: Found) -> list[str]:
    shapes = [
        f"{one['name']}: {count_text(one['num_sparse'])} tables of {count_text(one['hash_size'])} rows on average, "
        f"{bytes_text(one['table_bytes'])}; {one['num_dense']} dense inputs, {one['lookups']} look-ups a bag, "
        f"{one['bottom_mlp']} / {one['top_mlp']}"
        + (f" ({one['source']}" + (f"; ours: {one['ours']}" if one["ours"] else "") + ")" if one["source"] else "")
        for one in result["shapes"]
    ]
    return [*shapes, f"hot rows and inputs as in {result['locality']} (measured)"]


def lines_table(result: Found) -> Rows:
    """The modelled lines, head first."""
    swept = list(result["sweep"])
    several = len(result["shapes"]) > 1
    head = [*(["shape"] if several else []), "machine", "placement", *swept, "fits", "ms/step", "samples/s", "of host"]
    rows = [[*head, "limited by", "samples/s/W", "kind"]]
    for one in result["lines"]:
        watt = one["samples_per_s_per_watt"]
        rows.append(
            [
                *([one["shape"]] if several else []),
                one["machine"],
                one["placement"],
                *(str(one[key]) for key in swept),
                "yes" if one["fits"] else "no",
                "-" if one["ms"] is None else f"{one['ms']:.3g}",
                count_text(one["samples_per_s"]),
                "-" if one["of_host"] is None else f"{one['of_host']:.2f}x",
                one["limited_by"],
                "-" if watt is None else f"{watt:.1f}",
                one["kind"],
            ]
        )
    return rows


def measured_table(result: Found) -> Rows:
    """What was trained here beside the model, head first."""
    swept = [key for key in result["sweep"] if any(key in one for one in result["measured"])]
    rows = [["placement", *swept, "measured ms", "modelled ms", "error", "samples/s", "rows on the device", "note"]]
    for one in result["measured"]:
        where = [one["placement"], *(str(one.get(key, "-")) for key in swept)]
        if not one["fits"]:
            rows.append([*where, "-", "-", "-", "-", "-", one["note"]])
            continue
        rows.append(
            [
                *where,
                f"{one['ms']:.2f}",
                "-" if one["modelled_ms"] is None else f"{one['modelled_ms']:.2f}",
                "-" if one["error"] is None else f"{100 * one['error']:+.0f} %",
                count_text(one["samples_per_s"]),
                percent_text(one["device_share"]),
                one["note"],
            ]
        )
    return rows


def _notes(lines: Sequence[Found]) -> list[str]:
    """What placements say of themselves, each once."""
    notes: dict[str, None] = {}
    for one in lines:
        if one["note"]:
            notes[f"{one['shape']} on {one['machine']}, {one['placement']}: {one['note']}"] = None
    return list(notes)[:24]


def draw_placements(result: Found, folder: Path) -> Path:
    """placements.png: bars; over one key lines on log axes; over two a heat map with numbers.

    Raises:
        OutputError: if it cannot be written.
    """
    draw = DRAW[len(result["sweep"])]
    return write_png(folder / "placements.png", lambda figure: draw(figure, result), size=(9, 5.5))


def _bars(figure: Any, result: Found) -> None:
    axes = figure.subplots()
    lines = [one for one in result["lines"] if one["samples_per_s"]]
    names = [f"{one['shape']}, {one['machine']}, {one['placement']}" for one in lines]
    machines = [one["name"] for one in result["machines"]]
    axes.barh(names, [one["samples_per_s"] for one in lines], color=[f"C{machines.index(m['machine'])}" for m in lines])
    axes.set(xlabel="samples/s (modelled)", xscale="log")
    axes.tick_params(axis="y", labelsize="x-small" if len(lines) > 12 else "small")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)


def _lines(figure: Any, result: Found) -> None:
    axes = figure.subplots()
    (key,) = result["sweep"]
    curves: dict[str, list[tuple[str, float]]] = {}
    for one in result["lines"]:
        if one["samples_per_s"]:
            name = f"{one['machine']}, {one['placement']}"
            curves.setdefault(name, []).append((str(one[key]), one["samples_per_s"]))
    for name, points in curves.items():
        axes.plot([at for at, _ in points], [speed for _, speed in points], "o-", label=name)
    axes.set(xlabel=key, ylabel="samples/s (modelled)", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")


SPEED, PER_WATT = "samples_per_s", "samples_per_s_per_watt"
LIGHT: Final = 0.65  # of the colours' range, from which on they are light


def heat_map(result: Found, what: str = SPEED) -> tuple[list[str], list[str], list[list[float | None]], str]:
    """Values of both keys, and a number for each pair: throughput (or that per watt) of the first machine's best
    placement, over that of the last machine's if there are several."""
    first, second = result["sweep"]
    rows = list(dict.fromkeys(str(one[first]) for one in result["lines"]))
    columns = list(dict.fromkeys(str(one[second]) for one in result["lines"]))
    machines = [one["name"] for one in result["machines"]]

    def best(row: str, column: str, machine: str) -> float | None:
        found = [
            one[what]
            for one in result["lines"]
            if (str(one[first]), str(one[second]), one["machine"]) == (row, column, machine) and one[what]
        ]
        return max(found, default=None)

    def number(row: str, column: str) -> float | None:
        top, base = best(row, column, machines[0]), best(row, column, machines[-1])
        if top is None or len(machines) < 2:
            return top
        return top / base if base else None

    unit = "samples/s" if what == SPEED else "samples/s/W"
    label = f"{unit} of {machines[0]}" + (f" over {machines[-1]}" if len(machines) > 1 else "")
    return rows, columns, [[number(row, column) for column in columns] for row in rows], label


def _heat(figure: Any, result: Found) -> None:
    powered = all(one["watts"] for one in result["machines"])
    panels = figure.subplots(1, 1 + powered, squeeze=False)[0]
    for axes, what in zip(panels, (SPEED, PER_WATT), strict=False):
        _panel(axes, result, what)


def _panel(axes: Any, result: Found, what: str) -> None:
    rows, columns, numbers, label = heat_map(result, what)
    values = [[value or 0.0 for value in line] for line in numbers]
    axes.pcolormesh(values, cmap="viridis", edgecolors="none")  # cells, no pixels: a page takes no image
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
    axes.set(xlabel=result["sweep"][1], ylabel=result["sweep"][0], title=f"{label},\nbest placement (modelled)")


DRAW: Final[tuple[Callable[[Any, Found], None], ...]] = (_bars, _lines, _heat)
"""By the number of keys that are swept."""
