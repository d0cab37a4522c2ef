"""How fast batches are planned: look-ups a second on one core, by policy, device rows and batch; and on two cores.

    python -m benchmarks.bench_plan [--quick]

Planning is what the look-ahead thread computes before rows move: distinct rows, slots, the policy's scores, bags and
updates described to the kernels. Moving rows is shown beside it. Plans are compared with numpy's before anything is
timed. One look-ahead is one thread; how planning would scale over cores is measured with two embeddings that hold
half of the look-ups each, planned in two threads at once.
"""

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptive.batch import Batch
from adaptive.config import TableConfig
from benchmarks import harness
from benchmarks.harness import Report, paired
from benchmarks.streams import kaggle_tables, make_batches
from benchmarks.variants import Ours, Setup, hit_rate


@dataclass(frozen=True)
class Settings:
    rows: int = 10_000_000
    dim: int = 16
    batches: tuple[int, ...] = (2048, 16384)
    shares: tuple[int, ...] = (1, 5, 10, 20)
    policies: tuple[str, ...] = ("lru", "lfu")
    fill_lookups: int = 16_000_000
    rounds: int = 15


SETTINGS = {
    "full": Settings(),
    "quick": Settings(rows=1_500_000, batches=(2048,), shares=(10,), fill_lookups=2_000_000, rounds=7),
    "smoke": Settings(rows=20_000, batches=(64,), shares=(10,), policies=("lru",), fill_lookups=5_000, rounds=2),
}
STAGES = ("plan", "policy", "write_back", "fetch")


def run(settings: Settings) -> Report:
    report = Report()
    table = report.table(
        f"planning on one core, {settings.rows:,} rows, medians of {settings.rounds} batches (ms)",
        "batch", "device rows", "policy", *STAGES, "million look-ups/s", "hit rate",
    )  # fmt: skip
    for batch in settings.batches:
        setup = Setup(kaggle_tables(settings.rows, settings.dim), "sgd")
        num_fill = max(1, settings.fill_lookups // (batch * len(setup.tables)))
        batches = make_batches(setup.tables, num_fill + settings.rounds, batch)
        points = [(f"{share}%", policy) for share in settings.shares for policy in settings.policies]
        for share, policy in [*points, ("100%", "device")]:
            ours = Ours(setup, device_rows=share, policy=policy)
            speed, cells = _plan(ours, batches[:num_fill], batches[num_fill:])
            table.add(batch, share, policy, *cells)
            report.figures[f"plan_million_lookups_per_s_{policy}_{share[:-1]}pct_b{batch}"] = speed
            ours.close()
    report.merge(_two_threads(settings))
    return report


def _plan(ours: Ours, fill: Sequence[Batch], timed: Sequence[Batch]) -> tuple[float, list[object]]:
    """Million look-ups planned a second, and the row of the table."""
    for _ in ours.stream(fill):
        pass
    _check(ours, timed[0])
    ours.statistics()
    spent: dict[str, list[float]] = {stage: [] for stage in STAGES}
    before = dict.fromkeys(STAGES, 0.0)
    for _ in ours.stream(timed):
        found = ours.bag._pipeline.watch.total_ms() | {"policy": ours.bag._pipeline.referee.seconds * 1e3}
        for stage in STAGES:
            spent[stage].append(found.get(stage, 0.0) - before[stage])
            before[stage] = found.get(stage, 0.0)
    for stage in STAGES:
        spent[stage] = spent[stage][1:]  # the first holds all that was before
    medians = [statistics.median(spent[stage]) for stage in STAGES]
    speed = len(timed[0].ids) / medians[0] / 1e3
    return speed, [*medians, speed, f"{hit_rate(ours.statistics()):.1%}"]


def _check(ours: Ours, batch: Batch) -> None:
    """A plan holds every distinct row once and every look-up where its row lies."""
    (planned,) = list(ours.bag.look_ahead([batch], depth=0))
    plan: Any = planned.works[0].plan
    rows, counts = np.unique(ours.bag.view.rows(batch), return_counts=True)
    order = np.argsort(plan.grouping.rows)
    if not (
        np.array_equal(plan.grouping.rows[order], rows)
        and np.array_equal(np.diff(plan.grouping.segments)[order], counts)
        and np.array_equal(np.unique(plan.pooling.locations), np.sort(plan.grouping.locations))
    ):
        raise harness.NotEqual("a plan does not hold the rows that numpy finds in its batch")


def _two_threads(settings: Settings) -> Report:
    """Look-ups planned a second by two threads at once, over one thread's."""
    report = Report()
    batch = settings.batches[0]
    tables = kaggle_tables(settings.rows, settings.dim)
    halves = (tables[0::2], tables[1::2])
    num_fill = max(1, settings.fill_lookups // (batch * len(tables)))
    repeats = 4
    streams = [
        make_batches(half, num_fill + 2 * repeats * settings.rounds, batch, seed=i) for i, half in enumerate(halves)
    ]
    bags = [_half(half, settings) for half in halves]
    for ours, stream in zip(bags, streams, strict=True):
        for _ in ours.stream(stream[:num_fill]):
            pass
    times: harness.Times = {"in turn": [], "at once": []}
    for number in range(2 * settings.rounds):
        first = num_fill + number * repeats
        parts = [stream[first : first + repeats] for stream in streams]
        kind = "at once" if number % 2 else "in turn"
        times[kind].append(_run_both(bags, parts, at_once=number % 2 == 1))
    report.figures["plan_scaling_two_threads"] = paired(times["in turn"], times["at once"])
    for ours in bags:
        ours.close()
    return report


def _half(tables: tuple[TableConfig, ...], settings: Settings) -> Ours:
    return Ours(Setup(tables, "sgd"), device_rows=f"{settings.shares[-1]}%", policy=settings.policies[0])


def _run_both(bags: Sequence[Ours], parts: Sequence[Sequence[Batch]], *, at_once: bool) -> float:
    def plan(ours: Ours, batches: Sequence[Batch]) -> None:
        for _ in ours.stream(batches):
            pass

    threads = [threading.Thread(target=plan, args=pair) for pair in zip(bags, parts, strict=True)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
        if not at_once:
            thread.join()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
