"""`--plot FILE` of `compare` and `simulate`: figures as PNG or SVG. matplotlib is imported with the first."""

import importlib
import io
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from adaptive.errors import ConfigError, OutputError, printable
from adaptive.storage.durable import write_atomic
from adaptive.studies.compare import ComparedPolicy, Comparison
from adaptive.studies.compare.comparison_report import busy_shares
from adaptive.studies.compare.verdicts import CONFIDENCE
from adaptive.studies.simulation import Simulation
from adaptive.training.telemetry.record import LOOK_AHEAD_STAGES, STAGES

SUFFIXES: Final = (".png", ".svg")
DPI: Final = 120  # of PNG files
MAX_NAME: Final = 38  # characters of a policy next to an axis
MIB: Final = 1024 * 1024
INTERVAL: Final = f"{CONFIDENCE:.0%} interval over seeds"
PALETTE: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#7f7f7f")
"""Okabe and Ito's colors, which people with any color vision tell apart."""
STAGE_COLORS: Final = dict(zip((stage for stage in STAGES if stage not in LOOK_AHEAD_STAGES), PALETTE, strict=False))
_STYLE: Final[dict[Any, Any]] = {
    **{"svg.fonttype": "none", "text.parse_math": False, "font.size": 9, "axes.titlesize": 10},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.edgecolor": "#888888"},
    **{
        "axes.grid": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "legend.fontsize": 8,
        "legend.frameon": False,
    },
}
_WITHOUT_DATE: Final = {".png": {}, ".svg": {"Date": None}}  # the same numbers give the same file


def check_plot(path: Path) -> None:
    """Check before long work that `--plot` can be drawn.

    Raises:
        ConfigError: for a file that is neither PNG nor SVG, or if matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot: expected a file ending in {' or '.join(SUFFIXES)}, got {path}")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigError(
            "--plot: expected matplotlib, which is not installed. Run pip install 'adaptive-train[plot]'"
        ) from error


def write_plot(path: Path, draw: Callable[[Any], None], *, size: tuple[float, float] = (9, 5)) -> Path:
    """Write a figure of `size` inches, drawn by `draw`, in the format of the file's suffix.

    Raises:
        OutputError: if the file cannot be written.
    """
    import matplotlib
    from cycler import cycler
    from matplotlib.figure import Figure

    content, suffix = io.BytesIO(), path.suffix.lower()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # names may be in any script
        matplotlib.rcdefaults()  # whatever the user's style says
        matplotlib.rcParams.update({**_STYLE, "axes.prop_cycle": cycler(color=PALETTE), "svg.hashsalt": "plot"})
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(content, format=suffix[1:], dpi=DPI, metadata=_WITHOUT_DATE[suffix])
    try:
        write_atomic(path, content.getvalue())
    except OSError as error:
        raise OutputError(f"figure {path} cannot be written: {error}") from error
    return path


# --- compare ----------------------------------------------------------------------------------------------------------


def plot_comparison(result: Comparison, path: Path) -> None:
    """Draw AUC differences with their intervals, speed, traffic and the stages of a step, by policy.

    Raises:
        OutputError: if the file cannot be written.
    """
    policies = [policy for policy in result.policies if policy.seeds]
    write_plot(path, partial(_draw_comparison, policies, result.auc_budget), size=(11, 3.4 + 0.5 * len(policies)))


def _draw_comparison(policies: Sequence[ComparedPolicy], budget: float, figure: Any) -> None:
    if not policies:
        figure.text(0.5, 0.5, "No run finished.", ha="center")
        return
    axes = figure.subplots(2, 2, sharey=True)
    axes[0, 0].set_yticks(range(len(policies)), [_short(policy.policy) for policy in policies])
    axes[0, 0].set_ylim(len(policies) - 0.5, -0.5)  # the first policy at the top
    _draw_differences(policies, budget, axes[0, 0])
    busy = "; other processes used the cores" if busy_shares(policies) else ""
    _draw_bars(
        axes[0, 1], f"Samples per second (median{busy})", {"": [policy.samples_per_s or 0.0 for policy in policies]}
    )
    stages = {stage: [policy.time_ms.get(stage) or 0.0 for policy in policies] for stage in STAGE_COLORS}
    _draw_bars(axes[1, 0], "Stages of a training step (ms)", stages, STAGE_COLORS.values())
    moved = {
        "to device": [(policy.bytes_h2d or 0.0) / (policy.steps or 1.0) / MIB for policy in policies],
        "to host": [(policy.bytes_d2h or 0.0) / (policy.steps or 1.0) / MIB for policy in policies],
    }
    _draw_bars(axes[1, 1], "Bytes moved per step (MiB)", moved)
    for panel in axes.flat:
        panel.grid(visible=False, axis="y")
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")


def _draw_differences(policies: Sequence[ComparedPolicy], budget: float, axes: Any) -> None:
    """Draw a point per policy with its interval over seeds, and the line of the budget."""
    axes.set_title("AUC minus the control's")
    axes.axvline(0, color="#444444", linewidth=0.8)
    axes.axvline(-budget, color=PALETTE[5], linewidth=1, linestyle="--", label=f"budget ({-budget:g})")
    for place, policy in enumerate(policies):
        if policy.auc_difference is None:
            axes.annotate("no AUC to compare", (0, place), (6, 0), textcoords="offset points", va="center")
            continue
        if policy.auc_difference_ci is not None:
            label = None if INTERVAL in axes.get_legend_handles_labels()[1] else INTERVAL
            axes.plot(policy.auc_difference_ci, [place, place], color=PALETTE[0], linewidth=2.5, label=label)
        axes.plot([policy.auc_difference], [place], "o", color=PALETTE[0], markersize=6)
    axes.locator_params(axis="x", nbins=5)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


def _draw_bars(axes: Any, title: str, parts: Mapping[str, Sequence[float]], colors: Iterable[str] = PALETTE) -> None:
    """Draw a stacked bar per policy; parts that are 0 for all are left out of the legend."""
    axes.set_title(title)
    left = [0.0] * max(map(len, parts.values()))
    for (name, values), color in zip(parts.items(), colors, strict=False):
        if any(values):
            axes.barh(range(len(values)), values, left=left, height=0.6, color=color, label=name)
            left = [start + value for start, value in zip(left, values, strict=True)]
    if len(parts) > 1:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)


# --- simulate ---------------------------------------------------------------------------------------------------------


def plot_simulation(result: Simulation, path: Path) -> None:
    """Draw row hit rates with Belady's bound, and the bytes moved per batch, by share of rows on the device.

    Raises:
        OutputError: if the file cannot be written.
    """
    write_plot(path, partial(_draw_simulation, result), size=(11, 4.5))


def _draw_simulation(result: Simulation, figure: Any) -> None:
    hits, moved = figure.subplots(1, 2)
    style: dict[str, Any] = {"marker": "o", "markersize": 4, "clip_on": False, "zorder": 3}  # whole points at 0
    bounds: dict[tuple[tuple[float, float], ...], None] = {}  # policies that treat misses the same share a bound
    for policy in dict.fromkeys(run.policy for run in result.runs):
        runs = sorted((run for run in result.runs if run.policy == policy), key=lambda run: run.device_share)
        shares = [100 * run.device_share for run in runs]
        hits.plot(shares, [100 * (run.row_hit_rate or 0.0) for run in runs], label=_short(policy), **style)
        moved.plot(shares, [(run.bytes_h2d + run.bytes_d2h) / result.batches / MIB for run in runs], **style)
        best = [(100 * run.device_share, 100 * run.belady_row_hit_rate) for run in runs if run.belady_row_hit_rate]
        bounds |= {tuple(best): None} if best else {}
    for number, points in enumerate(bounds):
        label = "_" if number else "Belady's bound for any policy"
        hits.plot(*zip(*points, strict=True), linestyle=":", color="#222222", marker=".", label=label)
    hits.set(title="Row hits: distinct rows of a batch that are on the device (%)")
    moved.set(title="Bytes moved between the tiers per batch (MiB)")
    for axes in (hits, moved):
        axes.set(xlabel="rows on the device (%)", xlim=(0, None), ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=5)


def _short(name: str) -> str:
    """Shorten a name but keep its end, as policies differ by their parameters."""
    text = printable(name)
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 15]}…{text[-14:]}"
