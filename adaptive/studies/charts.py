"""Draw PNG files, and inline SVG for pages. matplotlib is imported with the first picture.

SVG is drawn in placeholder colors, which become variables of the page's style at the end, so that one picture works in
light and dark mode. Text stays text; numbers are rounded to what a screen shows.
"""

import importlib
import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from adaptive.errors import ConfigError, OutputError
from adaptive.storage.durable import write_atomic
from adaptive.training.telemetry.document import COLORS, Figure, visible

DPI: Final = 110  # of PNG files
MAX_CHARACTERS: Final = 22  # of a name next to an axis
MAX_MARKS: Final = 40  # points of a curve that get a marker
MAX_WIDTHS: Final = 4  # curves with different line widths
_INK, _SOFT, _GRID, _PAPER = "#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04"
_SERIES: Final = tuple(f"#0a0b{number:02x}" for number in range(COLORS))
_VARIABLES: Final = {
    **{_INK: "currentColor", _SOFT: "var(--soft)", _GRID: "var(--grid)", _PAPER: "var(--paper)"},
    **{"#000000": "currentColor", "#999999": "var(--soft)", "#4d4d4d": "var(--soft)", "#4c4c4c": "var(--soft)"},
    **{color: f"var(--s{number})" for number, color in enumerate(_SERIES)},
}
_RC: Final[dict[Any, Any]] = {
    **{"svg.fonttype": "none", "text.parse_math": False, "font.size": 9, "axes.titlesize": 9},
    **{"axes.edgecolor": _GRID, "axes.labelcolor": _SOFT, "text.color": _INK, "xtick.color": _SOFT},
    **{"ytick.color": _SOFT, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True},
    **{"grid.color": _GRID, "grid.linewidth": 0.5, "axes.axisbelow": True, "lines.linewidth": 1.4},
    **{
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "legend.facecolor": _PAPER,
        "legend.edgecolor": _GRID,
        "axes.formatter.limits": (-5, 7),
    },
}
_TAG: Final = re.compile(r"<[^>]+>")
_ID: Final = re.compile(r' id="[a-zA-Z.]+_\d+"')  # numbered by picture, so they repeat on a page with several
_FONTS: Final = re.compile(r"font-family: [^;\"]*")
_LONG: Final = re.compile(r"-?\d+\.\d{3,}")


def need_matplotlib(feature: str) -> None:
    """Check before long work that pictures can be drawn; `feature` begins the message.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigError(
            f"{feature}: expected matplotlib, which is not installed. Run pip install 'adaptive-train[report]'"
        ) from error


def write_png(path: Path, draw: Callable[[Any], None], *, size: tuple[float, float] = (9, 5)) -> Path:
    """Write a figure of `size` inches, drawn by `draw` in matplotlib's default colors.

    Raises:
        OutputError: if the file cannot be written.
    """
    from matplotlib.figure import Figure as Canvas

    figure, picture = Canvas(figsize=size, layout="constrained"), io.BytesIO()
    draw(figure)
    figure.savefig(picture, format="png", dpi=DPI)
    try:
        write_atomic(path, picture.getvalue())
    except OSError as error:
        raise OutputError(f"picture {path} cannot be written: {error}") from error
    return path


@dataclass(frozen=True)
class Line:
    """A curve; `number` is its color. A y that is None or not finite is a gap."""

    number: int
    x: Sequence[float]
    y: Sequence[float | None]
    marked: bool = False  # markers joined by a thin line


def curves(title: str, lines: Sequence[Line], *, x: str = "step", y: str = "", zero: bool = False) -> Figure:
    """Draw curves over x; with `zero`, the y axis starts at 0."""

    def draw(axes: Any) -> None:
        for place, line in enumerate(lines):
            style = "--" if line.number >= COLORS else "-"
            marked = line.marked and len(line.x) <= MAX_MARKS
            marks: dict[str, Any] = {"marker": "o", "markersize": 3, "linewidth": 1.0} if marked else {}
            if not marks and len(lines) <= MAX_WIDTHS:
                marks = {
                    "linewidth": 1.3 + 1.1 * (len(lines) - 1 - place)
                }  # equal curves stay visible below each other
            if len(line.x) == 1:
                marks = {"marker": "o", "markersize": 4}
            axes.plot(line.x, list(map(_number, line.y)), style, color=_color(line.number), **marks)
        axes.set(xlabel=x, ylabel=y)
        if zero:
            axes.set_ylim(bottom=0)

    return _drawn(title, draw)


def areas(title: str, x: Sequence[float], layers: Sequence[tuple[str, Sequence[float]]], *, room: Any = ()) -> Figure:
    """Draw stacked layers, named at their right end; `room` is a dashed line."""

    def draw(axes: Any) -> None:
        at = list(x) if len(x) > 1 else [*x, *(value + 1 for value in x)]
        heights = [list(values) if len(x) > 1 else [*values, *values] for _, values in layers]
        colors = [_color(number) for number in range(len(layers))]
        axes.stackplot(at, heights, colors=colors, edgecolor=_PAPER, linewidth=0.4, alpha=0.85)
        top = sum(values[-1] for values in heights)
        if len(room) == len(x) and None not in room:
            axes.plot(at, list(room) if len(x) > 1 else [*room, *room], "--", color=_INK, linewidth=0.9)
            top = max(top, *room)
        _name_layers(axes, at[-1], layers, heights, top)
        axes.set(xlabel="step", ylabel="rows on the device")
        axes.margins(x=0)
        axes.set_ylim(bottom=0)

    return _drawn(title, draw, size=(5.6, 3.0))


def _name_layers(axes: Any, at: float, layers: Any, heights: Sequence[Sequence[float]], top: float) -> None:
    """Name layers next to their last value, except those lower than a line of text."""
    below = 0.0
    for (name, _), values in zip(layers, heights, strict=True):
        if top and values[-1] / top > 0.045:
            axes.annotate(_short(name), (at, below + values[-1] / 2), (4, 0), textcoords="offset points", va="center")
        below += values[-1]


def bars(
    title: str, names: Sequence[str], parts: Sequence[tuple[str, Sequence[float]]], *, x: str, first: int = 0
) -> Figure:
    """Draw a stacked bar per name, in colors from `first` on; several parts get a legend."""

    def draw(axes: Any) -> None:
        left = [0.0] * len(names)
        for number, (_, values) in enumerate(parts, start=first):
            hatch = {"hatch": "///"} if number >= COLORS else {}
            look = {"color": _color(number), "edgecolor": _PAPER, **hatch}
            axes.barh(range(len(names)), values, left=left, height=0.62, **look)
            left = [start + value for start, value in zip(left, values, strict=True)]
        axes.set_yticks(range(len(names)), list(map(_short, names)))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlabel=x)

    legend = [*[""] * first, *(label for label, _ in parts)] if len(parts) > 1 else []
    return replace(_drawn(title, draw, size=(5.6, 1.0 + 0.34 * len(names))), legend=legend)


def intervals(
    title: str, names: Sequence[str], points: Sequence[tuple[float | None, Any]], *, x: str, marks: Sequence[float] = ()
) -> Figure:
    """Draw a point per name with its interval (low, high) or None; dotted lines at `marks`."""

    def draw(axes: Any) -> None:
        for mark in marks:
            axes.axvline(mark, color=_INK, linewidth=0.8, linestyle=":")
        for place, (value, bounds) in enumerate(points):
            if value is None:
                continue
            low, high = bounds or (value, value)
            axes.plot([low, high], [place, place], color=_color(0), linewidth=2)
            axes.plot([value], [place], "o", color=_color(0), markersize=5)
        axes.set_yticks(range(len(names)), list(map(_short, names)))
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set(xlabel=x)
        axes.locator_params(axis="x", nbins=5)

    return _drawn(title, draw, size=(5.6, 1.0 + 0.34 * len(names)))


def _drawn(title: str, draw: Callable[[Any], None], *, size: tuple[float, float] = (4.4, 2.5)) -> Figure:
    return drawn_figure(title, lambda figure: draw(figure.subplots()), size=size)


def drawn_figure(title: str, draw: Callable[[Any], None], *, size: tuple[float, float]) -> Figure:
    """Draw a figure of `size` inches in the page's colors; all texts must be `visible`."""
    need_matplotlib("report")
    import matplotlib.figure
    from cycler import cycler

    text = io.StringIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has the glyphs
        matplotlib.rcdefaults()  # ignore the user's style, which would fix colors
        matplotlib.rcParams["axes.prop_cycle"] = cycler(color=_SERIES)
        matplotlib.rcParams.update({**_RC, "svg.hashsalt": visible(title)})
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        draw(figure)
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                _number_ticks(axis)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nothing)
    assert "<image" not in text.getvalue(), "a picture of pixels, which the page's security policy blocks"
    return Figure(title, _inline(text.getvalue()))


def _number_ticks(axis: Any) -> None:
    """Write plain numbers with thousands separators instead of matplotlib's formulas."""
    from matplotlib.ticker import LogFormatter, NullFormatter, ScalarFormatter

    if isinstance(axis.get_major_formatter(), ScalarFormatter | LogFormatter):
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    if isinstance(axis.get_minor_formatter(), LogFormatter):
        axis.set_minor_formatter(NullFormatter())


def _inline(svg: str) -> str:
    """Return the `svg` element for a page, with variables for colors."""
    body = svg[svg.index("<svg ") :]
    body = re.sub(r"<style.*?</style>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r' (?:width|height)="[\d.]+pt"', "", body, count=2)
    return _TAG.sub(lambda tag: _lean(tag[0]), body)


def _lean(tag: str) -> str:
    tag = _FONTS.sub("font-family: inherit", _ID.sub("", tag))
    for color, variable in _VARIABLES.items():
        if color in tag:
            tag = tag.replace(color, variable)
    return _LONG.sub(lambda number: f"{float(number[0]):.2f}", tag).replace("\n", "")


def _color(number: int) -> str:
    return _SERIES[number % COLORS]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _short(name: str) -> str:
    """Shorten a name but keep its end: policies differ by their parameters."""
    text = visible(name).replace("\n", " ")
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 13]}…{text[-12:]}"
