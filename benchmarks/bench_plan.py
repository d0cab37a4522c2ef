"""Speed of planning: lookups a second on one core, and with helpers.

    python -m benchmarks.bench_plan [--quick]

Planning is what the look-ahead thread computes before rows move: distinct rows, slots, the policy's scores, bags and
updates described to the kernels. The time of moving rows is in another column. Plans are compared with numpy's before
anything is timed. Then how much helpers take off the look-ahead thread (`tier.plan_threads`): a batch may train no
longer than planning takes, or planning limits it. Last what is left to that thread for a GPU, by the GPU's code on CPU
tensors, whose kernels and copies are left out.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from adaptive.batch import Batch
from adaptive.config import TableConfig
from adaptive.embeddings.planning.lookups import Lookups, LookupsAhead
from adaptive.embeddings.planning.plan import Feedback
from adaptive.kernels.rows.choose import RowKernels
from benchmarks import harness
from benchmarks.harness import Report, paired
from benchmarks.streams import kaggle_tables, make_batches
from benchmarks.variants import Ours, Setup, hit_rate


@dataclass(frozen=True)
class Settings:
    rows: int = 10_000_000
    dim: int = 16
    batches: tuple[int, ...] = (2048, 16384)  # with one id a bag
    multihot: tuple[int, ...] = (2048,)  # batches with 20 ids a bag on average, 10% device rows
    shares: tuple[int, ...] = (1, 5, 10, 20)
    policies: tuple[str, ...] = ("lru", "lfu")
    fill_lookups: int = 16_000_000
    rounds: int = 15


SETTINGS = {
    "full": Settings(),
    "quick": Settings(rows=1_500_000, batches=(2048,), shares=(10,), fill_lookups=2_000_000, rounds=7),
    "smoke": Settings(
        rows=20_000, batches=(64,), multihot=(4,), shares=(10,), policies=("lru",), fill_lookups=5_000, rounds=2
    ),
}
STAGES = ("plan", "policy", "write_back", "fetch")
GPU_STAGES = ("learn", "plan", "write_back", "fetch")
THREADS = (1, 2, 3)
ENOUGH, KEYS = "enough", "keys"
PER_ROUND = 8  # batches
MANY = 20  # ids a bag
Case = tuple[int, int]  # samples, mean ids a bag


def run(settings: Settings) -> Report:
    report = Report()
    table = report.table(
        f"planning on one core, {settings.rows:,} rows, medians of {settings.rounds} batches (ms)",
        "batch", "ids a bag", "device rows", "policy", *STAGES, "mean plan", "million lookups/s", "by the mean",
        "hit rate",
    )  # fmt: skip
    for case in _cases(settings):
        setup, num_fill, batches = _make(settings, case, settings.rounds)
        shares = settings.shares if case[1] == 1 else (10,)
        points = [(f"{share}%", policy) for share in shares for policy in settings.policies]
        for share, policy in [*points, ("100%", "device")]:
            ours = Ours(setup, device_rows=share, policy=policy)
            speed, cells = _plan(ours, batches[:num_fill], batches[num_fill:])
            table.add(*case, share, policy, *cells)
            report.figures[f"plan_million_lookups_per_s_{policy}_{share[:-1]}pct_{_suffix(case)}"] = speed
            ours.close()
    report.merge(_helpers(settings))
    report.merge(_for_gpu(settings))
    return report


def _cases(settings: Settings) -> list[Case]:
    return [*((batch, 1) for batch in settings.batches), *((batch, MANY) for batch in settings.multihot)]


def _suffix(case: Case) -> str:
    return f"b{case[0]}" + ("_multihot" if case[1] > 1 else "")


def _make(settings: Settings, case: Case, num_timed: int) -> tuple[Setup, int, list[Batch]]:
    """The tables, how many batches come before those that are timed, and all batches."""
    batch, mean_hot = case
    setup = Setup(kaggle_tables(settings.rows, settings.dim), "sgd", mean_hot == 1)
    num_fill = max(1, settings.fill_lookups // (batch * mean_hot * len(setup.tables)))
    return setup, num_fill, make_batches(setup.tables, num_fill + num_timed, batch, mean_hot=mean_hot)


def _plan(ours: Ours, fill: Sequence[Batch], timed: Sequence[Batch]) -> tuple[float, list[object]]:
    """Return million lookups planned a second, by the median, and the row of the table.

    Slots are freed for several batches at once, so most batches ask the policy for nothing: the mean has its share.
    """
    for _ in ours.stream(fill):
        pass
    _check(ours, timed[0])
    ours.statistics()
    spent: dict[str, list[float]] = {stage: [] for stage in STAGES}
    before = dict.fromkeys(STAGES, 0.0)
    for _ in ours.stream(timed):
        found = ours.bag.runtime.pipeline.stopwatch.total_ms() | {
            "policy": ours.bag.runtime.pipeline.policy_caller.seconds * 1e3
        }
        for stage in STAGES:
            spent[stage].append(found.get(stage, 0.0) - before[stage])
            before[stage] = found.get(stage, 0.0)
    for stage in STAGES:
        spent[stage] = spent[stage][1:]  # the first holds all that was before
    medians = [statistics.median(spent[stage]) for stage in STAGES]
    lookups, mean = statistics.mean(len(batch.ids) for batch in timed[1:]), statistics.mean(spent["plan"])
    speed = lookups / medians[0] / 1e3
    return speed, [*medians, mean, speed, lookups / mean / 1e3, f"{hit_rate(ours.statistics()):.1%}"]


def _check(ours: Ours, batch: Batch) -> None:
    """Check that a plan has every distinct row once and every lookup at its row."""
    (planned,) = list(ours.bag.look_ahead([batch], depth=0))
    plan: Any = planned.works[0].plan
    rows, counts = np.unique(ours.bag.runtime.view.rows(batch), return_counts=True)
    order = np.argsort(plan.row_updates.rows)
    if not (
        np.array_equal(plan.row_updates.rows[order], rows)
        and np.array_equal(np.diff(plan.row_updates.segments)[order], counts)
        and np.array_equal(np.unique(plan.pooling.locations), np.sort(plan.row_updates.locations))
    ):
        raise harness.NotEqual("a plan does not hold the rows that numpy finds in its batch")


def _helpers(settings: Settings) -> Report:
    """Plan and move batches, train none, with and without helpers of the look-ahead thread."""
    report = Report()
    table = report.table(
        "planning ahead, ms a batch (median): all, and what the look-ahead thread spends on planning",
        "batch", "ids a bag", "threads or keys", "all", "plan", "plan of one thread over this",
        "million lookups/s planned",
    )  # fmt: skip
    for case in _cases(settings):
        rounds = settings.rounds if case[1] == 1 else max(2, settings.rounds // 4)
        setup, num_fill, batches = _make(settings, case, rounds * PER_ROUND)
        ahead = {"device_rows": "10%", "policy": settings.policies[-1], "depth": 4}
        variants = {str(number): Ours(setup, **ahead, plan_threads=number) for number in THREADS}
        variants[ENOUGH] = Ours(setup, **ahead)
        variants[KEYS] = Ours(replace(setup, tables=_with_keys(setup.tables)), **ahead, plan_threads=1)
        walls: harness.Times = {name: [] for name in variants}
        plans: harness.Times = {name: [] for name in variants}
        for ours in variants.values():
            _all(ours, batches[:num_fill])
        for first in range(num_fill, len(batches), PER_ROUND):
            round_batches = batches[first : first + PER_ROUND]
            variants[ENOUGH].bag.runtime.pipeline.lookups_ahead = _Made(variants[ENOUGH], round_batches)
            for name, ours in variants.items():
                wall, plan = _all(ours, round_batches)
                walls[name].append(wall)
                plans[name].append(plan)
        known: harness.Times = {"1": [], KEYS: []}  # the same batches again: all their keys have rows
        for first in range(num_fill, len(batches), PER_ROUND):
            for name, spent in known.items():
                spent.append(_all(variants[name], batches[first : first + PER_ROUND])[1])
        for name, ours in variants.items():
            gain, spent = paired(plans["1"], plans[name]), statistics.median(plans[name])
            table.add(*case, name, statistics.median(walls[name]), spent, gain, len(batches[0].ids) / spent / 1e3)
            report.figures[f"plan_ms_{name}_threads_{_suffix(case)}"] = spent
            ours.close()
        report.ratios[f"plan_serial_share_{_suffix(case)}"] = paired(plans[ENOUGH], plans["1"])
        report.ratios[f"plan_keys_vs_rows_{_suffix(case)}"] = paired(plans["1"], plans[KEYS])
        report.ratios[f"plan_known_keys_vs_rows_{_suffix(case)}"] = paired(known["1"], known[KEYS])
    return report


def _with_keys(tables: Sequence[TableConfig]) -> tuple[TableConfig, ...]:
    """Tables that take the same ids as 64-bit keys."""
    return tuple(TableConfig.model_validate(table.model_dump() | {"keys": "int64"}) for table in tables)


class _Made(LookupsAhead):
    """Time the look-ahead thread if helpers have enough cores: lookups are found before."""

    def __init__(self, ours: Ours, batches: Sequence[Batch]) -> None:
        tiered_groups = ours.bag.runtime.pipeline.tiered_groups
        super().__init__(
            [tiered.group for tiered in tiered_groups], 0, [tiered.device.searcher for tiered in tiered_groups]
        )
        self._made = itertools.cycle([super(_Made, self).start(batch) for batch in batches])  # every round the same

    def begin(self) -> None:
        """Leave searches as they are: they have begun."""

    def start(self, batch: Batch) -> Callable[[], list[Lookups]]:
        return next(self._made)


def _for_gpu(settings: Settings) -> Report:
    """Time the look-ahead thread, with a GPU that takes no time and helpers that have enough cores."""
    report = Report()
    table = report.table(
        "look-ahead thread for a GPU, 10% `lru`, moves in place, ms a batch (median)",
        "batch", "skip rule", *GPU_STAGES, "all",
    )  # fmt: skip
    for batch, rule in itertools.product(settings.batches, (None, "defer")):
        setup, num_fill, batches = _make(settings, (batch, 1), settings.rounds * PER_ROUND)
        ours = Ours(setup, device_rows="10%", policy="lru", skip=rule, device="cpu-torch", transfer="direct")
        pipeline, spent = ours.bag.runtime.pipeline, []
        pipeline.mover.copying.copy = _nothing  # type: ignore[method-assign]
        for tiered in pipeline.tiered_groups:
            tiered.device._kernels = tiered.device._transfer._kernels = RowKernels(
                *[_nothing] * len(fields(RowKernels))
            )  # type: ignore[attr-defined]
        norms = np.random.default_rng(0).random(batch * len(setup.tables), np.float32)
        for first in range(0, len(batches), PER_ROUND):
            part = batches[first : first + PER_ROUND]
            pipeline.mover.begin(pipeline.next_number - 1)
            pipeline.lookups_ahead, before = _Made(ours, part), pipeline.stopwatch.total_ms()
            for planned in ours.stream(part):
                rows = planned.works[0].plan.row_updates.rows  # type: ignore[union-attr]
                if rule is not None:  # else nobody reads norms
                    pipeline.feedback.report(planned.number, [partial(Feedback, rows, norms[None, : len(rows)])])
            after = pipeline.stopwatch.total_ms()
            if first >= num_fill:
                spent.append([(after[stage] - before[stage]) / len(part) for stage in GPU_STAGES])
        total = statistics.median(map(sum, spent))
        table.add(batch, rule or "none", *map(statistics.median, zip(*spent, strict=True)), total)
        report.figures[f"look_ahead_for_gpu_ms_{rule or 'none'}_b{batch}"] = total
        ours.close()
    return report


def _nothing(*_: object, **__: object) -> None:
    return


def _all(ours: Ours, batches: Sequence[Batch]) -> tuple[float, float]:
    """Milliseconds a batch: all, and planning."""
    watch = ours.bag.runtime.pipeline.stopwatch
    before, start = watch.total_ms().get("plan", 0.0), time.perf_counter()
    for _ in ours.stream(batches):
        pass
    wall = (time.perf_counter() - start) * 1e3
    return wall / len(batches), (watch.total_ms()["plan"] - before) / len(batches)


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
