"""Cost of row statistics and deferred updates in a DLRM step, in one process.

    python -m benchmarks.bench_overhead [--quick] [--set dims=16 rounds=15]

Three trainings of the same batches, 10% of the rows on the device, look-ahead 4, in blocks of steps that take turns:

`defer`  policy `lfu` with the rule `defer`: popular rows are watched, their gradients summed, the sums applied when due
`off`    the same policy without a rule: the same rows move, every update is written
`bare`   the answers of the policy recorded beforehand: the same rows move, no statistics are gathered or taken in

`deferral_overhead` is `defer` over `off`, `tracker_overhead` is `off` over `bare`, `tracker_and_deferral_overhead` is
`defer` over `bare`; all less 1.

Before anything is timed, rows trained by `off` and by `bare` must agree bit by bit, and so must those of `defer` with
sums of one gradient each, which is the plain update.
"""

import gc
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import SkipConfig
from adaptive.counters import Counter
from adaptive.policies.lfu import LFU
from adaptive.policies.rules.defer import Defer
from adaptive.policy import Policy, RowStats
from benchmarks import harness
from benchmarks.harness import Report, median_ms, paired, timed
from benchmarks.streams import kaggle_tables, make_batches, one_each
from benchmarks.variants import CHECK_STEPS, Case, Optimizer, Ours, Setup, fixed_gradient, hit_rate
from benchmarks.whole_step import Whole, our_model

DEVICE_ROWS, DEPTH = "10%", 4


@dataclass(frozen=True)
class Settings:
    rows: int = 10_000_000
    batch: int = 2048
    dims: tuple[int, ...] = (16, 64)
    optimizer: str = "rowwise_adagrad"
    fill: int = 600  # batches before timing: rows become popular and stale
    steps: int = 4  # of a block
    rounds: int = 31
    warm_up: int = 3


SETTINGS = {
    "full": Settings(),
    "quick": Settings(rows=1_500_000, dims=(16,), fill=200, steps=2, rounds=9, warm_up=2),
    "smoke": Settings(rows=20_000, batch=64, dims=(16,), fill=70, steps=1, rounds=2, warm_up=1),
}


class Recorder(LFU):
    """Keeps its answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: deque[NDArray[np.float64]] = deque()

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        answer = super().score(rows)
        self.answers.append(answer.astype(np.float64))
        return answer


class Replay(Policy):
    """Gives the answers another policy gave: the same rows move, nothing is computed."""

    def __init__(self, answers: deque[NDArray[np.float64]]) -> None:
        self._answers = answers

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return self._answers.popleft()


def switch_tracking_off(ours: Ours) -> None:
    """No statistics are gathered for the policy, no update norms taken in."""

    def no_stats(rows: NDArray[np.int64], number: int, *rest: Any, **named: Any) -> RowStats:
        nothing: Any = np.broadcast_to(np.int64(0), len(rows))
        return RowStats(number, rows, *[nothing] * 13)

    for lane in ours.bag.runtime.pipeline.lanes:
        planner: Any = lane.planner
        planner._stats.of, planner.learn = no_stats, lambda feedback: None


def run(settings: Settings) -> Report:
    report = Report()
    for dim in settings.dims:
        optimizer: Optimizer = settings.optimizer  # type: ignore[assignment]
        _compare(report, Setup(kaggle_tables(settings.rows, dim), optimizer), settings)
    return report


def _compare(report: Report, setup: Setup, settings: Settings) -> None:
    steps = (settings.rounds + settings.warm_up) * settings.steps
    batches = make_batches(setup.tables, settings.fill + CHECK_STEPS + steps, settings.batch)
    parts = batches[: settings.fill], batches[settings.fill : settings.fill + CHECK_STEPS], batches[-steps:]
    variants = {"defer": _ours(setup, "defer"), "off": _ours(setup, "off"), "bare": _bare(setup, parts)}
    case = Case(settings.batch, setup.dim, setup.optimizer)
    wholes = {key: our_model(key, variant, case) for key, variant in variants.items()}
    for variant in variants.values():
        fill(setup, variant, parts[0])
    _check(case, setup, parts, {key: wholes[key] for key in ("off", "bare")}, variants)
    _train(wholes["defer"], parts[1])
    for key, whole in wholes.items():
        variants[key].statistics()
        whole.start(parts[2])
    cases = {key: timed(lambda whole=whole: _block(whole, settings.steps)) for key, whole in wholes.items()}  # type: ignore[misc]
    times = harness.take_turns(cases, rounds=settings.rounds, warm_up=settings.warm_up)
    _tell(report, setup, settings, variants, times)
    for variant in variants.values():
        variant.close()
    wholes.clear()
    variants.clear()
    gc.collect()


def _ours(setup: Setup, skip: str, at_most: int | None = None) -> Ours:
    policy = LFU()
    policy.rule = None if skip == "off" else Defer(warmup=0, at_most=at_most)
    return Ours(setup, policy=policy, device_rows=DEVICE_ROWS, depth=DEPTH, skip=SkipConfig())


def _bare(setup: Setup, parts: Sequence[Sequence[Batch]]) -> Ours:
    """Rows move as under `lfu`, without row statistics."""
    recorder = Recorder()
    recorded = Ours(setup, device_rows=DEVICE_ROWS, policy=recorder, depth=DEPTH)
    fill(setup, recorded, parts[0])
    for part in parts[1:]:
        for _ in recorded.stream(part):
            pass
    recorded.close()
    bare = Ours(setup, device_rows=DEVICE_ROWS, policy=Replay(recorder.answers), depth=DEPTH)
    switch_tracking_off(bare)
    return bare


def fill(setup: Setup, ours: Ours, batches: Sequence[Batch]) -> None:
    """Let rows reach the device, become popular and stale: each moves back and forth a little."""
    gradient = fixed_gradient(setup, batches[0].num_samples)
    for planned in ours.stream(batches):
        torch.autograd.backward(ours.pool(planned), [gradient if planned.number % 2 else -gradient])
        ours.update()


def _check(
    case: Case, setup: Setup, parts: Sequence[Sequence[Batch]], wholes: dict[str, Whole], variants: dict[str, Ours]
) -> None:
    once = _ours(setup, "defer", at_most=1)
    fill(setup, once, parts[0])
    ids, found = one_each(setup.tables, parts[1]), {}
    for key, whole in {**wholes, "sums of one gradient": our_model("once", once, case)}.items():
        _train(whole, parts[1])
        found[key] = variants.get(key, once).rows(ids)
    once.close()
    for key, rows in found.items():
        if not np.array_equal(rows, found["off"]):
            raise harness.NotEqual(f"rows trained as off and as {key} differ")


def _train(whole: Whole, batches: Sequence[Batch]) -> None:
    whole.start(batches)
    _block(whole, len(batches))
    whole.finish()


def _block(whole: Whole, steps: int) -> None:
    for _ in range(steps):
        whole.step()


def _tell(report: Report, setup: Setup, settings: Settings, variants: dict[str, Ours], times: harness.Times) -> None:
    table = report.table(
        f"a DLRM step, batch {settings.batch}, width {setup.dim}, {setup.optimizer}, {setup.num_rows:,} rows, "
        f"{DEVICE_ROWS} on the device, depth {DEPTH}, {settings.rounds} rounds",
        "variant", "step ms", "over bare", "plan ms", "policy ms", "update ms", "wait ms", "hit rate", "not written",
    )  # fmt: skip
    for key, variant in variants.items():
        variant.stop()
        statistics = variant.statistics()
        spent = {name: total / max(statistics.batches, 1) for name, total in statistics.times_ms.items()}
        counts = statistics.counts.sum(axis=0)
        skipped = counts[Counter.SKIPPED_UPDATES] / max(counts[Counter.UNIQUE_ROWS], 1)
        table.add(
            key, median_ms(times[key]) / settings.steps, paired(times[key], times["bare"]),
            *(spent.get(name, 0.0) for name in ("plan", "policy", "row_update", "wait")),
            f"{hit_rate(statistics):.1%}", f"{skipped:.1%}",
        )  # fmt: skip
    suffix = "" if setup.dim == 16 else f"_d{setup.dim}"
    report.ratios[f"deferral_overhead{suffix}"] = paired(times["defer"], times["off"]) - 1
    report.ratios[f"tracker_overhead{suffix}"] = paired(times["off"], times["bare"]) - 1
    report.ratios[f"tracker_and_deferral_overhead{suffix}"] = paired(times["defer"], times["bare"]) - 1


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
