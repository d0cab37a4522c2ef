"""What a profile found, as pictures: one PNG each, under the names of `PICTURES`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from adaptive.studies.charts import write_figure
from adaptive.studies.profile.movement import BANDS, QUANTILES
from adaptive.studies.profile.report import STAGES
from adaptive.studies.profile.step import BESIDE, TRAINING

Found = Mapping[str, Any]
DPI: Final = 110
MOST_CURVES: Final = 8  # tables in a picture, those with the most rows


def draw_profile(result: Found, folder: Path, *, link: float | None = None) -> list[Path]:
    """Write the pictures of the parts that were profiled; returns their paths.

    Args:
        result: as `profile.json` holds it.
        folder: which is there.
        link: bytes per second with which what crosses is modelled where there is no GPU; None: not drawn.

    Raises:
        OutputError: if one cannot be written.
    """
    from matplotlib.figure import Figure

    written = []
    for name, (part, draw) in PICTURES.items():
        found = result.get(part)
        if not found or (part == "movement" and not found["points"]):
            continue
        figure = Figure(figsize=(9, 5), layout="constrained")
        draw(figure, {"found": found, "link": link})
        written.append(write_figure(figure, folder / f"{name}.png", dpi=DPI))
    return written


def _skew(figure: Any, what: Found) -> None:
    """Sorted counts, log-log: all look-ups, and the sample (dashed)."""
    axes = figure.subplots()
    data = what["found"]
    for curve in _largest(data):
        ranks, counts = zip(*curve["full"], strict=True)
        (line,) = axes.loglog(ranks, counts, label=curve["table"])
        if curve["sampled"]:
            axes.loglog(*zip(*curve["sampled"], strict=True), "--", color=line.get_color())
    axes.set(
        xlabel="row, most frequent first",
        ylabel="look-ups (measured)",
        title=f"Skew of the largest tables; dashed: a sample of {100 * data['sample_share']:g} %",
    )
    _finish(axes)


def _largest(data: Found) -> list[Found]:
    rows = {one["table"]: one["rows"] for one in data["tables"]}
    curves = [curve for curve in data["curves"] if curve["full"]]
    return sorted(curves, key=lambda curve: -rows[curve["table"]])[:MOST_CURVES]


def _hot(figure: Any, what: Found) -> None:
    """Hot bytes (left) and hot inputs (right) over the threshold, with the budgets marked."""
    data = what["found"]
    from matplotlib.ticker import LogLocator

    size, inputs = figure.subplots(1, 2)
    shares = [100 * point["threshold"] for point in data["thresholds"]]
    size.loglog(shares, [point["bytes"] / 2**20 for point in data["thresholds"]], "o-")
    for key, label in (("hot_input_share", "hot inputs"), ("lookup_share", "look-ups of hot rows")):
        inputs.semilogx(shares, [100 * (point[key] or 0.0) for point in data["thresholds"]], "o-", label=label)
    for number, budget in enumerate(data["hot"]):
        size.axhline(budget["bytes"] / 2**20, color="0.6", linestyle=":", label="_" if number else "--memory")
        if budget["threshold"]:
            for axes in (size, inputs):
                axes.axvline(100 * budget["threshold"], color="0.6", linestyle=":")
    size.set(ylabel="hot rows (MiB)")
    inputs.set(ylabel="per cent (measured)", ylim=(0, 100))
    for axes in (size, inputs):
        axes.set(xlabel="threshold: share of a table's look-ups (%)")
        axes.invert_xaxis()
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        _finish(axes)


def _tables(figure: Any, what: Found) -> None:
    """Rows against look-ups a sample; the area of a point goes by its bytes."""
    axes = figure.subplots()
    data = what["found"]
    tables = [one for one in data["tables"] if one["lookups"] and one["table"] != "all"]
    largest = max(one["rows"] for one in tables)
    areas = [30 + 700 * one["rows"] / largest for one in tables]
    axes.scatter([one["rows"] for one in tables], [one["lookups_per_sample"] for one in tables], s=areas, alpha=0.5)
    for one in tables[:60]:
        axes.annotate(one["table"], (one["rows"], one["lookups_per_sample"]), fontsize="x-small")
    axes.set(xscale="log", xlabel="rows", ylabel="look-ups a sample", title="Tables; area: bytes")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _reuse(figure: Any, what: Found) -> None:
    """Rows known from so many batches before (left), distinct rows by batch size (right)."""
    again = what["found"]["reuse"]
    known, distinct = figure.subplots(1, 2)
    if None not in again["known_from"].values():
        known.semilogx(
            [int(n) for n in again["known_from"]], [100 * v for v in again["known_from"].values()], "o-", base=2
        )
    known.set(
        xlabel=f"batches of {again['batch_size']} before",
        ylabel="rows looked up by one of them, too (%)",
        ylim=(0, 100),
    )
    sizes = again["distinct_by_batch_size"]
    distinct.loglog([int(size) for size in sizes], list(sizes.values()), "o-")
    distinct.set(xlabel="samples of a batch", ylabel="distinct rows")
    for axes in (known, distinct):
        axes.grid(alpha=0.3)


def _step(figure: Any, what: Found) -> None:
    """Stages stacked; hatched what crosses, modelled; a mark where the step with look-ahead ends."""
    axes = figure.subplots()
    step, link = what["found"], what["link"]
    names = [one["policy"] for one in step]
    bottom = [0.0] * len(step)
    for stage in (*TRAINING, *BESIDE, "other"):
        times = [(one["training_ms"] | one["beside_ms"] | {"other": one["other_ms"]}).get(stage, 0.0) for one in step]
        beside = stage in BESIDE
        label = STAGES.get(stage, stage) + (" (beside)" if beside else "")
        look: dict[str, Any] = {"alpha": 0.55, "hatch": "//", "edgecolor": "0.6"} if beside else {"alpha": 0.95}
        look |= {"color": "0.6"} if stage == "other" else {}
        axes.bar(names, times, bottom=bottom, label=label, width=0.6, **look)
        bottom = [low + time for low, time in zip(bottom, times, strict=True)]
    if link and all(one["device"] == "cpu" for one in step):
        times = [1e3 * max(one["bytes_h2d"], one["bytes_d2h"]) / link for one in step]
        label = f"link at {link / 1e9:g} GB/s (modelled)"
        axes.bar(names, times, bottom=bottom, label=label, color="none", edgecolor="0.3", hatch="//", width=0.6)
    axes.plot(names, [one["step_ms"] for one in step], "kD", label="step with look-ahead")
    axes.set(ylabel="ms a step (measured)", title="Stages one after another")
    axes.grid(axis="y", alpha=0.3)
    figure.legend(fontsize="small", loc="outside right upper")


def _movement(figure: Any, what: Found) -> None:
    """Bands between quantiles of relative movement, hottest, hot and warm rows apart."""
    moved = what["found"]
    axes = figure.subplots()
    for number, (name, _, _) in enumerate(BANDS):
        points = [(p["steps"], p["bands"][name]) for p in moved["points"] if p["bands"][name]]
        if not points:
            continue
        steps, values = [at for at, _ in points], [[100 * value for value in values] for _, values in points]
        colour = f"C{number}"
        middle = len(QUANTILES) // 2
        axes.plot(steps, [v[middle] for v in values], "o-", color=colour, label=f"{name} rows: median, 10 to 90 %")
        axes.fill_between(steps, [v[0] for v in values], [v[-1] for v in values], color=colour, alpha=0.15)
    axes.set(
        xlabel="steps", ylabel=f"movement in {moved['every']} steps (% of length)", yscale="log",
        title=f"{moved['optimizer']}, {moved['watched_rows']:,} rows (measured)",
    )  # fmt: skip
    _finish(axes)


def _drop(figure: Any, what: Found) -> None:
    """Inputs and updates that a threshold would leave out, at the last reading."""
    moved = what["found"]
    axes = figure.subplots()
    last = moved["points"][-1]["dropped"]
    labels = {
        "updates": "row updates", "any": "inputs: any row rests", "most": "inputs: 75 %", "all": "inputs: all",
        "hot": "inputs: 75 %, all rows watched",
    }  # fmt: skip
    thresholds = [100 * t for t in moved["thresholds"]]
    for name, label in labels.items():
        axes.semilogx(thresholds, [100 * (found[name] or 0.0) for found in last], "o-", label=label)
    axes.set(xlabel="threshold of movement (%)", ylabel="left out (%, measured)", ylim=(0, 100))
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")


PICTURES: Final[dict[str, tuple[str, Callable[[Any, Found], None]]]] = {
    "skew": ("data", _skew),
    "hot": ("data", _hot),
    "tables": ("data", _tables),
    "reuse": ("data", _reuse),
    "step": ("step", _step),
    "movement": ("movement", _movement),
    "drop": ("movement", _drop),
}
