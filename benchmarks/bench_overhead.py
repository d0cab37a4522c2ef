"""Cost of hot rows in a DLRM step: row statistics, and the rule `defer`, in long turns in one process.

    python -m benchmarks.bench_overhead [--quick] [--set optimizers=sgd rounds=7 dim=64]

Trainings of the same batches, 10% of the rows on the device, 4 batches ahead, planned as `threads` says. A turn is
`steps` batches of one variant alone, from an empty look-ahead until the last one is trained:

`lru`         no rule: every update is written
`defer`       `lru` with the rule `defer`: popular rows are hot, their gradients summed, the sums applied when
applied `slipstream`  the policy `slipstream` with the rule `defer` alone; `bench_rules` measures it with dropped inputs
`bare`        `lru` without feedback: no norms of updates are taken in

Before anything is timed, rows trained by `lru` and by `bare` must agree bit by bit, and so must those of `defer` with
sums of one gradient each, which is the plain update.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adaptive.batch import Batch
from adaptive.config import SkipConfig
from adaptive.counters import Counter
from adaptive.policies.lru import LRU
from adaptive.policies.rules.defer import Defer
from adaptive.policies.slipstream import Slipstream
from benchmarks import harness
from benchmarks.bench_turns import turn
from benchmarks.harness import Report, median_ms, paired
from benchmarks.streams import kaggle_tables, make_batches, one_each
from benchmarks.variants import CHECK_STEPS, Case, Optimizer, Ours, Setup, fixed_gradient, hit_rate
from benchmarks.whole_step import our_model

DEVICE_ROWS, DEPTH = "10%", 4
STAGES = ("learn", "plan", "row_update")


@dataclass(frozen=True)
class Settings:
    rows: int = 3_000_000
    batch: int = 2048
    dim: int = 16
    optimizers: tuple[Optimizer, ...] = ("sgd", "rowwise_adagrad", "adagrad", "adam")
    mlps: str = "small"  # or large
    fill: int = 200  # batches before timing: rows become popular
    steps: int = 50  # of a turn
    rounds: int = 9
    threads: str = "auto"  # that plan: a number or auto


SETTINGS = {
    "full": Settings(),
    "quick": Settings(rows=1_500_000, optimizers=("rowwise_adagrad",), steps=20, rounds=5),
    "smoke": Settings(rows=20_000, batch=64, optimizers=("sgd", "adam"), fill=70, steps=2, rounds=2),
}


def run(settings: Settings) -> Report:
    report = Report()
    for optimizer in settings.optimizers:
        _compare(report, Setup(kaggle_tables(settings.rows, settings.dim), optimizer), settings)
        gc.collect()
    return report


def switch_feedback_off(ours: Ours) -> None:
    """Take in no norms of updates."""
    for tiered in ours.bag.runtime.pipeline.tiered_groups:
        planner: Any = tiered.planner
        planner.learn = lambda feedback: None


def _compare(report: Report, setup: Setup, settings: Settings) -> None:
    case, small = Case(settings.batch, setup.dim, setup.optimizer), settings.mlps == "small"
    variants = {
        "lru": _ours(setup, settings, LRU()),
        "defer": _ours(setup, settings, LRU(), Defer(warmup=0)),
        "slipstream": _ours(setup, settings, Slipstream(), Defer(warmup=0)),
        "bare": _ours(setup, settings, LRU()),
    }
    once = _ours(setup, settings, LRU(), Defer(warmup=0, at_most=1))
    switch_feedback_off(variants["bare"])
    before = make_batches(setup.tables, settings.fill + CHECK_STEPS, settings.batch)
    _check(setup, {"lru": variants["lru"], "bare": variants["bare"], "sums of one gradient": once}, before, settings)
    once.close()
    fill(setup, variants["defer"], before)
    fill(setup, variants["slipstream"], before)
    wholes = {key: our_model(key, variant, case, small=small) for key, variant in variants.items()}
    made = [
        make_batches(setup.tables, settings.steps, settings.batch, seed=100 + number)
        for number in range(settings.rounds + 1)
    ]
    for key, whole in wholes.items():
        turn(whole, made[0])  # warms up
        variants[key].statistics()
    turns = {key: iter(made[1:]) for key in wholes}
    cases: Any = {key: lambda key=key, whole=whole: turn(whole, next(turns[key])) for key, whole in wholes.items()}
    times = harness.take_turns(cases, rounds=settings.rounds, warm_up=0)
    _tell(report, setup, settings, variants, times)
    for whole in wholes.values():
        whole.close()


def _ours(setup: Setup, settings: Settings, policy: LRU | Slipstream, rule: Defer | None = None) -> Ours:
    policy.rule = rule
    return Ours(
        setup, policy=policy, device_rows=DEVICE_ROWS, depth=DEPTH, skip=SkipConfig(), plan_threads=settings.threads
    )


def fill(setup: Setup, ours: Ours, batches: Sequence[Batch]) -> None:
    """Let rows reach the device, become popular and stale: each moves back and forth a little."""
    gradient = fixed_gradient(setup, batches[0].num_samples)
    for planned in ours.stream(batches):
        torch.autograd.backward(ours.pool(planned), [gradient if planned.number % 2 else -gradient])
        ours.update()


def _check(setup: Setup, variants: dict[str, Ours], batches: Sequence[Batch], settings: Settings) -> None:
    """Train all on these batches; the rows of the latest ones are equal."""
    ids, results = one_each(setup.tables, batches[settings.fill :]), {}
    for key, variant in variants.items():
        fill(setup, variant, batches)
        results[key] = variant.rows(ids)
    for key, rows in results.items():
        if not np.array_equal(rows, results["lru"]):
            raise harness.NotEqual(f"rows trained as lru and as {key} differ")


def _tell(report: Report, setup: Setup, settings: Settings, variants: dict[str, Ours], times: harness.Times) -> None:
    table = report.table(
        f"whole steps in turns of {settings.steps}, {settings.mlps} MLPs, batch {settings.batch}, width {setup.dim}, "
        f"{setup.optimizer}, {setup.num_rows:,} rows, {DEVICE_ROWS} on the device, {settings.rounds} turns",
        "variant", "ms a step", "speed over lru", *(f"{stage} ms" for stage in STAGES), "hit rate", "not written",
    )  # fmt: skip
    for key, variant in variants.items():
        statistics = variant.statistics()
        counts = statistics.counts.sum(axis=0)
        skipped = counts[Counter.SKIPPED_UPDATES] / max(counts[Counter.UNIQUE_ROWS], 1)
        table.add(
            key, median_ms(times[key]) / settings.steps, paired(times["lru"], times[key]),
            *(statistics.times_ms.get(stage, 0.0) / statistics.batches for stage in STAGES),
            f"{hit_rate(statistics):.1%}", f"{skipped:.1%}",
        )  # fmt: skip
    suffix = Case(settings.batch, setup.dim, setup.optimizer).suffix
    for key in ("defer", "slipstream"):
        report.ratios[f"rule_speed_{key}_vs_lru_{suffix}"] = paired(times["lru"], times[key])
    report.ratios[f"tracker_overhead_{suffix}"] = paired(times["lru"], times["bare"]) - 1


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
