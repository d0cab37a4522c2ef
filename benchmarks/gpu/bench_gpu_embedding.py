"""The embeddings alone, all rows in device memory: forward, backward and update, beside torch's sparse tables.

    python -m benchmarks.gpu.bench_gpu_embedding [--smoke] [--set gigabytes=4 seconds=240]

`kernels over floor` is the device's time in kernels, as torch's profiler sees it, over the time in which the device's
memory moves the bytes that a step cannot avoid (`benchmarks/gpu/floors.py`); `link ms` is what plans take to cross,
beside the kernels. The phases are times of the current stream, launches included. The last parts
report what moving rows takes over a plain copy of as many bytes, and how much device memory a tier of a given size
takes.
"""

import time
from dataclasses import dataclass
from itertools import product

from benchmarks import harness
from benchmarks.gpu.accelerator import Accelerator, open_accelerator
from benchmarks.gpu.comparison import Comparison, Effort
from benchmarks.gpu.ending import kept_when_ended
from benchmarks.gpu.floors import Rates, measure_rates
from benchmarks.gpu.moving import tier_memory, time_moves
from benchmarks.gpu.timing import Point, Timing
from benchmarks.gpu.variants import DEVICE, Spec, Transfer
from benchmarks.gpu.workloads import Workload
from benchmarks.harness import Report, Table
from benchmarks.variants import Optimizer

LARGE_BATCH = 16_384  # from which on kernels and link are to reach their floors
HEADER = (
    "workload", "batch", "variant", "forward ms", "backward ms", "update ms", "step ms", "over ours", "floor ms",
    "kernels ms", "kernels over floor", "kernels a step", "link ms",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    device: str = "cuda"
    gigabytes: float = 4.0  # of weights
    dims: tuple[int, ...] = (64, 128)
    optimizers: tuple[str, ...] = ("sgd", "adam", "rowwise_adagrad")
    batch: int = 16_384
    batches: tuple[int, ...] = (2048, 65_536)
    peers: tuple[str, ...] = ("torch", "torch_joined")
    models: tuple[str, ...] = ("heavy",)
    moved_rows: int = 65_536
    tier: str = "1GB"  # whose memory is looked at
    copy_megabytes: int = 512
    rounds: int = 7
    steps: int = 16
    turn_seconds: float = 0.3
    check_samples: int = 2048
    seconds: float = 270.0


SETTINGS = {
    "full": Settings(),
    "quick": Settings(gigabytes=1.0, batches=(), models=(), rounds=5, seconds=120.0),
    "smoke": Settings(
        gigabytes=0.5, dims=(64,), optimizers=("sgd", "adam"), batches=(), peers=("torch",), models=(),
        copy_megabytes=256, rounds=3, seconds=30.0, tier="200MB",
    ),
}  # fmt: skip


def run(settings: Settings) -> Report:
    until = time.monotonic() + settings.seconds
    accelerator = open_accelerator(settings.device)
    report = Report()
    rates = measure_rates(accelerator, settings.copy_megabytes)
    table = report.table("embedding part, all rows in device memory", *HEADER)
    effort = Effort(settings.rounds, settings.steps, settings.turn_seconds, settings.check_samples)
    with kept_when_ended(report):
        for workload, wanted in plan(settings).items():
            comparison = Comparison(accelerator, workload, "embedding", effort, report)
            for timing in comparison.run(wanted, seconds=until - time.monotonic()):
                _tell(report, table, workload, timing, rates, settings)
                _worst(report)
        _move(report, accelerator, settings, rates)
    return report


def plan(settings: Settings) -> dict[Workload, dict[Spec, list[Point]]]:
    """The optimizers at one width with all peers; then other widths, and the heavy model, with all rows here only."""
    here, peers = Point(settings.batch, 4), [Spec(kind) for kind in settings.peers]
    wanted: dict[Workload, dict[Spec, list[Point]]] = {}
    for optimizer in settings.optimizers:
        workload = Workload(gigabytes=settings.gigabytes, dim=settings.dims[0], optimizer=_named(optimizer))
        points = [here, *(Point(batch, 4) for batch in settings.batches)]
        wanted[workload] = {DEVICE: points} | {peer: [here] for peer in peers}
    for dim in settings.dims[1:]:
        for optimizer in settings.optimizers:
            workload = Workload(gigabytes=settings.gigabytes, dim=dim, optimizer=_named(optimizer))
            wanted[workload] = {DEVICE: [here]}
    for model in settings.models:
        assert model == "heavy"
        workload = Workload("heavy", settings.gigabytes, settings.dims[0], _named(settings.optimizers[0]))
        wanted[workload] = {DEVICE: [here]} | {peer: [here] for peer in peers[:1]}
    return wanted


def _named(optimizer: str) -> Optimizer:
    return optimizer  # type: ignore[return-value]


def _tell(report: Report, table: Table, workload: Workload, timing: Timing, rates: Rates, settings: Settings) -> None:
    point, it = timing.point, timing.it
    own = timing.spec == DEVICE
    floor = timing.reference.traffic(workload, point.batch).memory_ms(rates)
    work = timing.work
    over = None if own else timing.over_reference
    cells = (floor, work.device_ms, work.device_ms / floor, work.kernels, work.link_ms) if work else (None,) * 5
    table.add(workload.title, point.batch, timing.spec.title, *it.phases.values(), it.ms, over, *cells)
    suffix = f"{workload.optimizer}{'_heavy' if workload.model == 'heavy' else ''}"
    if over is not None and not timing.spec.is_ours and point.batch == settings.batch:
        report.ratios[f"gpu_embedding_vs_{timing.spec.kind}_{suffix}"] = over
    if work:
        report.ratios[f"gpu_kernels_over_floor_{suffix}_d{workload.dim}_b{point.batch}"] = work.device_ms / floor


def _worst(report: Report) -> None:
    """The worst of all kernels at large batches."""
    found = [
        ratio
        for name, ratio in report.ratios.items()
        if name.startswith("gpu_kernels_over_floor_") and int(name.rpartition("_b")[2]) >= LARGE_BATCH
    ]
    if found:
        report.ratios["gpu_kernels_over_floor"] = max(found)


def _move(report: Report, accelerator: Accelerator, settings: Settings, rates: Rates) -> None:
    table = report.table(
        f"moving {settings.moved_rows:,} rows with their state", "width", "optimizer", "way", "MB", "fetch ms",
        "of it host ms", "fetch over floor", "write back ms", "write back over floor",
    )  # fmt: skip
    ways: tuple[Transfer, ...] = ("auto", "staged")
    both: list[float] = []
    for dim, optimizer, way in product(settings.dims, ("rowwise_adagrad", "adam"), ways):
        workload = Workload(gigabytes=min(settings.gigabytes, 1.0), dim=dim, optimizer=_named(optimizer))
        moved = time_moves(accelerator, workload, settings.moved_rows, way, rounds=settings.rounds)
        over = moved.fetch_ms / (moved.num_bytes / rates.to_device * 1e3)
        back = moved.write_back_ms / (moved.num_bytes / rates.to_host * 1e3)
        table.add(
            dim,
            optimizer,
            way,
            moved.num_bytes / 1e6,
            moved.fetch_ms,
            moved.fetch_host_ms,
            over,
            moved.write_back_ms,
            back,
        )
        name = f"{optimizer}_d{dim}{'' if way == 'auto' else f'_{way}'}"
        report.ratios[f"gpu_fetch_over_floor_{name}"] = over
        report.ratios[f"gpu_write_back_over_floor_{name}"] = back
        both += [over, back] if way == "auto" else []
    report.ratios["gpu_link_over_floor"] = max(both)
    workload = Workload(gigabytes=settings.gigabytes, dim=settings.dims[0])
    configured, taken = tier_memory(accelerator, workload, settings.tier)
    report.figures["gpu_tier_configured_bytes"], report.figures["gpu_tier_taken_bytes"] = configured, taken
    report.ratios["gpu_tier_memory_off"] = abs(taken / configured - 1)


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
