"""What leaving saturated look-ups out saves: update and plan at 0, 50, 85 and 95 % of them, at three widths.

    python -m benchmarks.bench_backward [--quick] [--set shares=85 dims=64]

Look-ups of saturated rows are left out when a batch is planned, so that their gradients are neither expanded nor
summed. Here the most popular rows are saturated from the start, as many as make up the wanted share of the look-ups.
Each variant is a single tier of its own and is fed a fixed gradient; blocks of batches take turns. The variant "off"
watches no row; at 0 % all of the 5 % most popular rows are watched and none is saturated. The first look-up of a row
in every `SkipConfig.interval` batches also measures its drift; so does some of the update time here.

Before anything is timed, all variants train some batches: rows that are not saturated must end bit for bit as without
skipping, saturated rows as they were.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch
from adaptive.config import SkipConfig
from adaptive.counters import Counter
from adaptive.policy import Policy, RowStats
from benchmarks import harness
from benchmarks.harness import Report, median_ms, paired, timed
from benchmarks.skipping import Line, close_all, fixed_gradient, values_of
from benchmarks.step_cases import CHECK_STEPS
from benchmarks.streams import kaggle_tables, make_batches
from benchmarks.variants import Optimizer, Ours, Setup

WATCHED = 0.05  # of the rows, where none is saturated; the default of `SkipConfig`
OFF = "off"
Saturated = dict[str, NDArray[np.int64]]  # variant -> its saturated rows


@dataclass(frozen=True)
class Settings:
    rows: int = 1_000_000
    batch: int = 2048
    optimizer: str = "rowwise_adagrad"
    dims: tuple[int, ...] = (16, 64, 128)
    shares: tuple[int, ...] = (0, 50, 85, 95)  # per cent of the look-ups
    fill: int = 70  # batches trained before the clock starts: every watched row has met its first snapshot
    steps: int = 4  # of a block
    rounds: int = 15
    warm_up: int = 2


SETTINGS = {
    "full": Settings(),
    "quick": Settings(rows=300_000, shares=(0, 85, 95), fill=20, steps=2, rounds=7, warm_up=1),
    "smoke": Settings(rows=20_000, batch=64, dims=(16,), shares=(0, 85), fill=2, steps=1, rounds=2, warm_up=1),
}


class Popular(Policy):
    """Every watched row is saturated, or none is."""

    def __init__(self, saturated: bool) -> None:
        self._saturated = saturated

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.accesses

    def saturated(self, rows: RowStats) -> NDArray[np.bool_]:
        return np.full(len(rows), self._saturated)


def run(settings: Settings) -> Report:
    report = Report()
    for dim in settings.dims:
        optimizer: Optimizer = settings.optimizer  # type: ignore[assignment]
        _compare(report, Setup(kaggle_tables(settings.rows, dim), optimizer), settings)
    return report


def _compare(report: Report, setup: Setup, settings: Settings) -> None:
    steps = (settings.rounds + settings.warm_up) * settings.steps
    batches = make_batches(setup.tables, CHECK_STEPS + settings.fill + steps, settings.batch)
    lines, saturated = _lines(setup, settings, batches)
    check(lines, saturated, batches[:CHECK_STEPS])
    for line in lines.values():
        line.start(batches[CHECK_STEPS:])
        line.block(settings.fill)
        line.ours.statistics()
    cases = {name: timed(lambda line=line: line.block(settings.steps)) for name, line in lines.items()}  # type: ignore[misc]
    harness.take_turns(cases, rounds=settings.rounds, warm_up=settings.warm_up)
    _tell(report, setup, settings, lines)
    close_all(lines)


def _lines(setup: Setup, settings: Settings, batches: Sequence[Batch]) -> tuple[dict[str, Line], Saturated]:
    gradient = fixed_gradient(setup, settings.batch)
    off = Ours(setup)
    popular, share = by_popularity(off, batches)
    lines, saturated = {OFF: Line(off, gradient)}, {OFF: popular[:0]}
    for wanted in settings.shares:
        count = int(np.searchsorted(share, wanted / 100)) + 1 if wanted else int(WATCHED * setup.num_rows)
        name = f"{wanted} %"
        lines[name] = _skipping(setup, gradient, popular[:count], saturated=wanted > 0)
        saturated[name] = popular[: count if wanted else 0]
    return lines, saturated


def by_popularity(ours: Ours, batches: Sequence[Batch]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows that the batches look up, the most popular first, and the share of the look-ups up to each."""
    counts = np.bincount(np.concatenate([ours.bag.view.rows(batch) for batch in batches]))
    popular = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    return popular, np.cumsum(counts[popular]) / counts.sum()


def _skipping(setup: Setup, gradient: Tensor, watched: NDArray[np.int64], *, saturated: bool) -> Line:
    """A variant that watches these rows, all of them saturated or none."""
    skip = SkipConfig(hot_rows=str(len(watched)), min_accesses=1)
    ours = Ours(setup, policy=Popular(saturated), device_rows="100%", skip=skip)
    (lane,) = ours.bag._pipeline.lanes
    assert lane.planner.skipper is not None
    lane.planner.skipper.hot.admit(watched, np.ones(setup.num_rows, np.uint32))  # which fills it: no others come
    lane.planner.skipper.ask(0)
    return Line(ours, gradient)


def check(lines: dict[str, Line], saturated: Saturated, batches: Sequence[Batch]) -> None:
    """Train on these batches: rows must end as without skipping, and saturated rows as they were.

    Raises:
        NotEqual: if a row does not.
    """
    off = lines[OFF].ours
    rows = np.unique(np.concatenate([off.bag.view.rows(batch) for batch in batches]))
    before = values_of(off, rows)
    for line in lines.values():
        line.start(batches)
        line.block(len(batches))
    trained = values_of(off, rows)
    if np.array_equal(before, trained):
        raise harness.NotEqual("training has changed nothing")
    for name, line in lines.items():
        left_out = np.isin(rows, saturated[name])[:, None]
        if not np.array_equal(values_of(line.ours, rows), np.where(left_out, before, trained)):
            raise harness.NotEqual(f"{name} saturated: some row is neither as trained without skipping nor as it was")


def _tell(report: Report, setup: Setup, settings: Settings, lines: dict[str, Line]) -> None:
    table = report.table(
        f"look-ups left out, batch {settings.batch}, width {setup.dim}, {setup.optimizer}, {setup.num_rows:,} rows, "
        f"{settings.rounds} rounds",
        "saturated", "look-ups left out", "updates left out", "update ms", "off over it", "plan ms", "off over it",
        "both, off over it",
    )  # fmt: skip
    spent = {name: _timed_part(line, settings.rounds) for name, line in lines.items()}
    for name, line in lines.items():
        counts = line.ours.statistics().counts.sum(axis=0)
        lookups = counts[Counter.SKIPPED_LOOKUPS] / counts[Counter.LOOKUPS]
        updates = counts[Counter.SKIPPED_UPDATES] / counts[Counter.UNIQUE_ROWS]
        over = {part: paired(spent[OFF][part], spent[name][part]) for part in spent[name]}
        update, plan = (median_ms(spent[name][part]) / settings.steps for part in ("update", "plan"))
        table.add(name, f"{lookups:.1%}", f"{updates:.1%}", update, over["update"], plan, over["plan"], over["both"])
        if name != OFF:
            suffix = f"skip{name.split()[0]}_d{setup.dim}"
            report.ratios[f"update_{suffix}"] = over["update"]
            report.ratios[f"update_and_plan_{suffix}"] = over["both"]


def _timed_part(line: Line, rounds: int) -> dict[str, list[float]]:
    update, plan = line.spent["update"][-rounds:], line.spent["plan"][-rounds:]
    return {"update": update, "plan": plan, "both": [a + b for a, b in zip(update, plan, strict=True)]}


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
