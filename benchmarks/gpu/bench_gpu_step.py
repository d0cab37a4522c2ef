"""The whole training step with rows in two tiers, against one tier and other libraries.

    python -m benchmarks.gpu.bench_gpu_step [--smoke] [--set gigabytes=10 shares=1,25 seconds=500]
    python -m benchmarks.gpu.bench_gpu_step --set variants=device,lru:10,lru:10:trainer=1 precisions=tf32 batches=16384

One base case (`dlrm`, 10 GB, width 64, row-wise Adagrad, batch 16384, 10% of the rows on the device, `lru`,
look-ahead 4), and one dimension varied at a time. `speed` is the time of all rows on the device over the variant's, in
the same turn; `busy` is how long the GPU does anything but copies over the link, in steps under torch's profiler.
`floor` is the larger of what the device needs (bytes of the embeddings over memory bandwidth, plus the dense part
alone, measured) and what the link needs (`benchmarks/gpu/floors.py`).
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from adaptive.counters import Counter
from benchmarks import harness
from benchmarks.ending import kept_when_ended
from benchmarks.gpu.accelerator import Accelerator, open_accelerator
from benchmarks.gpu.comparison import Comparison, Effort
from benchmarks.gpu.floors import Rates, measure_rates
from benchmarks.gpu.parts import WholeStep
from benchmarks.gpu.turns import Point, Timing
from benchmarks.gpu.variants import DEVICE, Spec, Transfer
from benchmarks.gpu.workloads import ModelName, Precision, Workload
from benchmarks.harness import Report, Table
from benchmarks.variants import Optimizer

HYBRID, TORCH, TORCH_HOST = Spec("hybrid", 0), Spec("torch"), Spec("torch_host", 0)
Wanted = dict[Workload, dict[Spec, list[Point]]]
HEADER = (
    "workload", "batch", "variant", "depth", "step ms", "quartiles", "all on device ms", "its quartiles", "speed",
    "its quartiles", "busy ms", "step over busy", "floor ms", "over floor", "hit rate", "rows moved", "forward ms",
    "dense ms", "update ms", "wait ms", "read ms", "learn ms", "plan ms", "of which find", "write back ms", "fetch ms",
    "look-ahead ms",
)  # fmt: skip
LOOK_AHEAD = ("read", "learn", "plan", "find", "write_back", "fetch")  # stages of its thread; `find` is part of `plan`


@dataclass(frozen=True)
class Settings:
    device: str = "cuda"
    gigabytes: float = 10.0
    dim: int = 64
    optimizer: Optimizer = "rowwise_adagrad"
    batch: int = 16_384
    share: int = 10  # per cent of the rows on the device
    policy: str = "lru"
    depth: int = 4
    policies: tuple[str, ...] = ("lfu", "scratchpipe", "slipstream")
    depths: tuple[int, ...] = (0, 1, 2, 8)
    shares: tuple[int, ...] = (1, 5, 25, 100)
    batches: tuple[int, ...] = (2048, 4096, 8192, 32_768, 65_536)
    optimizers: tuple[Optimizer, ...] = (
        "sgd",
        "adam",
    )  # with variants of torch, which has no row-wise Adagrad
    dims: tuple[int, ...] = (128,)
    sizes: tuple[float, ...] = (1.0,)
    models: tuple[ModelName, ...] = ("heavy",)
    ways: tuple[Transfer, ...] = ("staged",)  # of rows over the link, besides the usual one
    lookups: int = 1  # 1: long bags, of the models above, with lookups found by the GPU, too
    precisions: tuple[Precision, ...] = ("float32", "tf32", "bf16")  # the first of the base case, the base in others
    trainer: int = 1  # 1: the base case, and the smallest batch, by `Trainer`, too
    variants: str = ""  # if given: these only (see `Spec.of`), at all `batches`, `precisions` and `ids`
    ids: tuple[int, ...] = (1,)  # of a bag, on average
    dtype: Literal["float32", "bfloat16"] = "float32"  # of rows
    copy_megabytes: int = 512
    rounds: int = 9
    steps: int = 20  # and the interval of records, by `Trainer`
    turn_seconds: float = 0.3
    check_samples: int = 2048
    seconds: float = 520.0


SETTINGS = {
    "full": Settings(),
    "quick": Settings(
        gigabytes=2.0, policies=("lfu",), depths=(0,), shares=(25,), batches=(2048,), optimizers=("sgd",), dims=(),
        sizes=(), models=(), ways=(), precisions=("float32",), trainer=0, rounds=3, seconds=180.0,
    ),
    "smoke": Settings(
        gigabytes=0.5, batch=4096, policies=(), depths=(), shares=(), batches=(), optimizers=("sgd",), dims=(),
        sizes=(), models=(), ways=(), precisions=("float32",), trainer=0, copy_megabytes=256, rounds=3, seconds=40.0,
    ),
}  # fmt: skip


def run(settings: Settings) -> Report:
    until = time.monotonic() + settings.seconds
    accelerator = open_accelerator(settings.device)
    report = Report()
    rates = measure_rates(accelerator, settings.copy_megabytes)
    table = report.table(f"whole step, {settings.steps} steps a turn at most, {settings.rounds} turns", *HEADER)
    effort = Effort(settings.rounds, settings.steps, settings.turn_seconds, settings.check_samples)
    with kept_when_ended(report):
        for workload, wanted in plan(settings).items():
            comparison = Comparison(accelerator, workload, effort, report)
            dense = DensePart(accelerator, workload)
            timings = []
            for timing in comparison.run(wanted, seconds=until - time.monotonic()):
                _add_row(table, workload, timing, rates, dense)
                timings.append(timing)
                _ratios(report, settings, workload, timings)
    return report


def plan(settings: Settings) -> Wanted:
    """The base case, and one dimension varied at a time."""
    base = Workload(
        "dlrm", settings.gigabytes, settings.dim, settings.optimizer, settings.precisions[0], dtype=settings.dtype
    )
    if settings.variants:
        specs = [Spec.of(one) for one in settings.variants.split(",")]
        points = [Point(batch, settings.depth) for batch in settings.batches]
        grid = itertools.product(settings.precisions, settings.ids)
        return {replace(base, precision=precision, ids=ids): dict.fromkeys(specs, points) for precision, ids in grid}
    staged, here = _staged(settings), Point(settings.batch, settings.depth)
    wanted: Wanted = defaultdict(lambda: defaultdict(list))
    for spec in (DEVICE, staged, HYBRID):
        wanted[base][spec] = [here, *(Point(batch, settings.depth) for batch in settings.batches)]
    wanted[base][staged] += [Point(settings.batch, depth) for depth in settings.depths]
    for way in settings.ways:
        wanted[base][replace(staged, transfer=way)] = [here]
    if settings.trainer:
        least = Point(min((settings.batch, *settings.batches)), settings.depth)
        wanted[base][replace(staged, trainer=1)] = list(dict.fromkeys([here, least]))
    for policy in settings.policies:
        wanted[base][Spec(policy, settings.share)] = [here]
    for share in settings.shares:
        wanted[base][Spec(settings.policy, share)] = [here]
    for workload in _other_workloads(base, settings):
        peers = (TORCH, TORCH_HOST) if workload.optimizer != "rowwise_adagrad" else ()
        by_device = [replace(staged, lookups="device")] if settings.lookups and workload.ids > 1 else []
        by_trainer = [replace(staged, trainer=1)] if settings.trainer and workload.precision != base.precision else []
        for spec in (DEVICE, staged, HYBRID, *by_device, *by_trainer, *peers):
            wanted[workload][spec] = [here]
    return wanted


def _other_workloads(base: Workload, settings: Settings) -> Iterator[Workload]:
    yield from (replace(base, optimizer=name) for name in settings.optimizers)
    yield from (replace(base, dim=dim) for dim in settings.dims)
    yield from (replace(base, model=name, ids=10) for name in settings.models)
    yield from (replace(base, gigabytes=size) for size in settings.sizes)
    yield from (replace(base, precision=precision) for precision in settings.precisions[1:])


def _staged(settings: Settings) -> Spec:
    return Spec(settings.policy, settings.share)


class DensePart:
    """The time of the dense part alone, for each batch size once."""

    def __init__(self, accelerator: Accelerator, workload: Workload) -> None:
        self._accelerator, self._workload = accelerator, workload
        self._ms: dict[int, float] = {}

    def ms(self, samples: int) -> float:
        if samples not in self._ms:
            (batch,) = self._workload.batches(1, samples, seed=0)
            work = WholeStep(self._workload, self._accelerator).dense_alone(batch)
            self._ms[samples] = median(self._accelerator.times_ms(work, rounds=7, warm_up=3))
        return self._ms[samples]


def _add_row(table: Table, workload: Workload, timing: Timing, rates: Rates, dense: DensePart) -> None:
    point, it = timing.point, timing.it
    ours = it if it.statistics is not None else timing.reference
    traffic = ours.traffic(workload, point.batch)
    if it.statistics is None:  # the bytes of the link are those of our own tiers
        traffic = replace(traffic, fetched=0, written_back=0)
    floor = traffic.step_ms(rates, dense.ms(point.batch))
    moved = it.per_step(Counter.FETCHED, Counter.WRITTEN_BACK) if it.statistics else None
    hits = None if it.hit_rate is None else f"{it.hit_rate:.1%}"
    ahead = {stage: it.host_ms(stage) for stage in LOOK_AHEAD}
    table.add(
        workload.title, point.batch, timing.spec.title, point.depth, it.ms, it.quartiles, timing.reference.ms,
        timing.reference.quartiles, timing.speed, timing.speeds, it.busy_ms,
        None if it.busy_ms is None else it.ms / it.busy_ms, floor, it.ms / floor, hits, moved,
        *(it.phases.get(name) for name in WholeStep.phases), it.host_ms("wait"), *ahead.values(),
        sum(ms or 0.0 for stage, ms in ahead.items() if stage != "find") if it.statistics else None,
    )  # fmt: skip


def _ratios(report: Report, settings: Settings, workload: Workload, timings: list[Timing]) -> None:
    """Of the points at the base's batch and depth."""
    at_base = {timing.spec: timing for timing in timings if timing.point == Point(settings.batch, settings.depth)}
    suffix = _suffix(settings, workload)
    staged = at_base.get(_staged(settings))
    for spec, timing in at_base.items():
        if spec.is_staged:
            name = "" if spec == _staged(settings) else f"_{spec.kind}_{spec.share}pct"
            name += "".join(f"_{field}_{value}" for field, value in spec.changes.items())
            report.ratios[f"gpu_staged_vs_device{name}{suffix}"] = timing.speed
            if (busy := timing.it.busy_ms) is not None:
                report.ratios[f"gpu_step_over_busy{name}{suffix}"] = timing.it.ms / busy
        elif spec.kind != "device" and staged is not None:
            # Each was measured in turns with the reference, not with the other.
            report.ratios[f"gpu_staged_vs_{spec.kind}{suffix}"] = timing.over_reference * staged.speed


def _suffix(settings: Settings, workload: Workload) -> str:
    """Return the end of a ratio's name; empty for the base case."""
    parts = (
        (f"_{workload.optimizer}", workload.optimizer != settings.optimizer),
        (f"_d{workload.dim}", workload.dim != settings.dim),
        (f"_{workload.model}", workload.model != "dlrm"),
        (f"_{workload.ids}ids", workload.ids != (10 if workload.model == "heavy" else 1)),
        (f"_{workload.gigabytes:g}gb", workload.gigabytes != SETTINGS["full"].gigabytes),
        (f"_{workload.dtype}", workload.dtype != "float32"),
        (f"_{workload.precision}", workload.precision != "float32"),
    )
    return "".join(text for text, wanted in parts if wanted)


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
