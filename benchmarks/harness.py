"""Parts of all benchmarks: turns, ratios paired by round, equality, machine, report.

Every benchmark first shows that all variants compute the same, then times them in turns: each round runs every
variant once, so that a busy machine slows all of them. Warm-up rounds are dropped. A ratio is the median over rounds
of the ratio within a round; absolute times are medians and do not travel between machines.
"""

import argparse
import gc
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive.system import BUSY_SHARE, OtherWork

PACKAGES = ("torch", "triton", "numba", "numpy", "fbgemm-gpu-cpu", "polars", "pyarrow")

Times = dict[str, list[float]]  # variant -> seconds per round
S = TypeVar("S")


class NotEqual(Exception):  # noqa: N818 (a statement about results)
    """Two variants computed different results: nothing is timed."""


@dataclass
class Table:
    """Rows of text under a title."""

    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        assert len(cells) == len(self.header)
        self.rows.append([cell_text(cell) for cell in cells])

    def markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join([f"**{self.title}**", "", *("| " + " | ".join(line) + " |" for line in lines)])

    def plain(self) -> str:
        columns = [[line[i] for line in (self.header, *self.rows)] for i in range(len(self.header))]
        widths = [max(map(len, column)) for column in columns]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                 for line in (self.header, *self.rows)]  # fmt: skip
        return "\n".join([f"\n{self.title}", *lines])


@dataclass
class Report:
    """The results of a benchmark.

    `ratios` have no unit (`benchmarks/bars.py` says which direction is good), `figures` carry theirs
    in their name, `absent` says why a ratio is missing.
    """

    tables: list[Table] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def merge(self, other: "Report") -> None:
        self.tables += other.tables
        self.notes += other.notes
        self.ratios |= other.ratios
        self.figures |= other.figures
        self.absent |= other.absent

    def table(self, title: str, *header: str) -> Table:
        self.tables.append(Table(title, list(header)))
        return self.tables[-1]

    def show(self) -> None:
        for table in self.tables:
            print(table.plain())
        for note in self.notes:
            print(f"note: {note}")
        for name, value in (self.ratios | self.figures).items():
            print(f"{name} = {value:.4g}")
        for name, reason in self.absent.items():
            print(f"{name} absent: {reason}")

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> "Report":
        values: dict[str, Any] = json.loads(path.read_text())
        return Report(**{**values, "tables": [Table(**table) for table in values["tables"]]})


def cell_text(cell: object) -> str:
    """A number with three or four significant digits, anything else as it is; None as a dash."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


# --- timing ------------------------------------------------------------------------------------------------------


def take_turns(cases: Mapping[str, Callable[[], float]], *, rounds: int, warm_up: int) -> Times:
    """Run every case once a round, starting with another each time; a case returns seconds."""
    names = list(cases)
    times: Times = {name: [] for name in names}
    gc.collect()
    gc.disable()  # a collection would slow the case that runs at that moment
    try:
        for number in range(warm_up + rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                seconds = cases[name]()
                if number >= warm_up:
                    times[name].append(seconds)
    finally:
        gc.enable()
    return times


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """`work`, returning the seconds it took."""

    def run() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


def median_ms(times: Sequence[float]) -> float:
    return statistics.median(times) * 1e3


def paired(over: Sequence[float], base: Sequence[float]) -> float:
    """Median of over / base by round."""
    return statistics.median(time / base_time for time, base_time in zip(over, base, strict=True))


def check_equal(
    title: str, result: NDArray[Any], expected: NDArray[Any], *, before: NDArray[Any], tolerance: float
) -> None:
    """Raise unless both changed alike, within `tolerance` of the change's norm.

    Raises:
        NotEqual: if they differ by more, or nothing has changed.
    """
    change = float(np.linalg.norm(expected - before))
    difference = float(np.linalg.norm(result - expected))
    if not (change > 0 and difference <= tolerance * change):
        raise NotEqual(f"{title}: results differ by {difference:.3g}, the change itself is {change:.3g}")


# --- the machine -------------------------------------------------------------------------------------------------


def hardware() -> str:
    """Processor, cores, memory and versions in one line each."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = [f"{name} {found}" for name in PACKAGES if (found := _version(name))]
    return (
        f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {gib:.0f} GiB, {platform.system()} "
        f"{platform.release()}; Python {platform.python_version()}, {', '.join(versions)}"
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def quietness() -> str:
    """Load average and the share of the cores that others use right now, in words."""
    others = OtherWork()
    time.sleep(1.0)
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"load average {load}; others use {_others(others.share(), 'now')}"


def _others(share: float | None, when: str) -> str:
    if share is None:
        return f"an unknown share of the cores {when}"
    return f"{share:.0%} of the cores {when} ({'quiet' if share <= BUSY_SHARE else 'BUSY: do not trust these times'})"


# --- command line ------------------------------------------------------------------------------------------------


def main(description: str | None, run: Callable[[S], Report], settings: Mapping[str, S], *paths: str) -> None:
    """Run one benchmark from the command line.

    `settings` has an entry for `full`, `quick` and `smoke`; `paths` are settings with their own option.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, size, text in SIZES:
        parser.add_argument(flag, action="store_const", const=size, dest="size", default="full", help=text)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="change settings: --set rounds=5")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the results as JSON")
    for name in paths:
        parser.add_argument(f"--{name}", metavar="PATH", help=f"short for --set {name}=PATH")
    options = parser.parse_args()
    path_changes = [f"{name}={getattr(options, name)}" for name in paths if getattr(options, name) is not None]
    wanted = changed(settings[options.size], [*options.set, *path_changes])
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that children end and files are removed, as with Ctrl-C
    print(hardware())
    print(quietness(), flush=True)
    others = OtherWork()
    report = run(wanted)
    report.show()
    print(f"while this ran, others used {_others(others.share(), 'on average')}", flush=True)
    if options.report is not None:
        report.save(options.report)


SIZES = (
    ("--quick", "quick", "small sizes, for a first impression"),
    ("--smoke", "smoke", "the smallest sizes, for tests"),
)


def changed(settings: S, changes: Sequence[str]) -> S:
    """Return the settings with changes `name=value`; commas separate a tuple's values.

    Raises:
        SystemExit: for a name that is no setting of this benchmark, or one that is no number, text or tuple of them.
    """
    base: Any = settings
    # An empty tuple takes values like those of the default.
    current = {setting.name: getattr(base, setting.name) or setting.default for setting in fields(base)}
    current = {name: value for name, value in current.items() if _is_plain(value)}
    values = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if name not in current or not equals:
            raise SystemExit(f"--set: expected NAME=VALUE with a name among {', '.join(current)}, got {change}")
        values[name] = _parsed(value, current[name])
    result: S = replace(base, **values)
    return result


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(isinstance(part, int | float | str) for part in value)
    return isinstance(value, int | float | str)


def _parsed(value: str, like: Any) -> Any:
    if isinstance(like, tuple):
        return tuple(_parsed(part, like[0]) for part in value.split(","))
    return type(like)(value)
