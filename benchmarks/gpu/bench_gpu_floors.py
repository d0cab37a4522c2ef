"""What the machine can do at best: device memory, link, launches. Everything else is stated over these.

    python -m benchmarks.gpu.bench_gpu_floors [--smoke] [--set megabytes=1024]

*Copies* are torch's, of one large block. *Rows* are `rows` random rows of a large table: gathered on the device, read
from pinned host memory by a kernel (no staging), written to it by a kernel, and gathered by the host into a pinned
buffer and copied. *Launch* is the time of the host and of the device for a kernel that has nothing to do.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.gpu.accelerator import Accelerator, open_accelerator
from benchmarks.gpu.floors import GB, measure_rates
from benchmarks.harness import Report
from benchmarks.variants import NotAvailable


@dataclass(frozen=True)
class Settings:
    device: str = "cuda"
    megabytes: int = 1024  # of a copy
    table_megabytes: int = 4096  # rows are read from
    rows: int = 65_536  # moved at once
    dims: tuple[int, ...] = (64, 128)
    launches: int = 2000
    rounds: int = 15


SETTINGS = {
    "full": Settings(),
    "quick": Settings(megabytes=512, table_megabytes=1024, rounds=9),
    "smoke": Settings(megabytes=256, table_megabytes=512, launches=500, rounds=5),
}


def run(settings: Settings) -> Report:
    accelerator = open_accelerator(settings.device)
    report = Report()
    _copies(report, accelerator, settings)
    for dim in settings.dims:
        _rows(report, accelerator, settings, dim)
    _launches(report, accelerator, settings)
    return report


def _copies(report: Report, accelerator: Accelerator, settings: Settings) -> None:
    rates = measure_rates(accelerator, settings.megabytes, settings.rounds)
    table = report.table(f"copies of {settings.megabytes} MB", "what", "GB/s")
    both = _both_ways(accelerator, settings)
    for name, what, rate in (
        ("memory", "device memory, bytes read and written", rates.memory),
        ("to_device", "pinned memory to device", rates.to_device),
        ("to_host", "device to pinned memory", rates.to_host),
        ("both_ways", "both at once, together", both),
    ):
        table.add(what, rate / GB)
        report.figures[f"gpu_{name}_gb_per_s"] = rate / GB


def _both_ways(accelerator: Accelerator, settings: Settings) -> float:
    """Bytes a second of a copy to the device and one from it at the same time."""
    size = settings.megabytes * 250_000
    down, up = accelerator.pinned(size), accelerator.pinned(size)
    here, there = (torch.ones(size, device=accelerator.device) for _ in range(2))
    seconds = []
    for _ in range(settings.rounds):
        accelerator.synchronize()
        start = time.perf_counter()
        with accelerator.side_stream():
            here.copy_(down, non_blocking=True)
        with accelerator.side_stream():
            up.copy_(there, non_blocking=True)
        accelerator.synchronize()
        seconds.append(time.perf_counter() - start)
    return 8 * size / median(seconds)


def _rows(report: Report, accelerator: Accelerator, settings: Settings, dim: int) -> None:
    num_rows = max(settings.table_megabytes * 250_000 // dim, settings.rows)
    rng = np.random.default_rng(dim)
    chosen = rng.choice(num_rows, settings.rows, replace=False)
    rows = torch.from_numpy(chosen).to(accelerator.device)
    in_order = torch.arange(settings.rows, device=accelerator.device)
    host = accelerator.pinned(num_rows, dim)
    here = torch.ones((num_rows, dim), device=accelerator.device)
    block = torch.empty((settings.rows, dim), device=accelerator.device)
    table = report.table(
        f"{settings.rows:,} random rows of width {dim}, of {num_rows:,}", "what", "ms", "GB/s over the link or read"
    )
    cases: dict[str, tuple[str, Callable[[], object]]] = {
        "gather": ("gathered on the device", lambda: torch.index_select(here, 0, rows, out=block)),
        "staged": ("gathered by the host, then copied", _staged(accelerator, host, rows.cpu(), block)),
    }
    try:
        copy_rows = _kernel(accelerator)
    except NotAvailable as reason:
        report.absent[f"gpu_kernel_read_d{dim}_gb_per_s"] = str(reason)
    else:
        cases["kernel_read"] = "pinned memory read by a kernel", lambda: copy_rows(host, rows, block, in_order)
        cases["kernel_write"] = "pinned memory written by a kernel", lambda: copy_rows(block, in_order, host, rows)
    for name, (what, work) in cases.items():
        ms = median(accelerator.times_ms(work, rounds=settings.rounds))
        rate = block.nbytes / ms * 1e3 / GB
        table.add(what, ms, rate)
        report.figures[f"gpu_{name}_d{dim}_gb_per_s"] = rate


def _kernel(accelerator: Accelerator) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
    if not accelerator.is_gpu and os.environ.get("TRITON_INTERPRET") != "1":
        raise NotAvailable("Triton's kernels need a GPU, or its interpreter (TRITON_INTERPRET=1)")
    try:
        from benchmarks.gpu.pinned_copy import copy_rows
    except ImportError as error:
        raise NotAvailable(f"Triton cannot be imported: {error}") from error
    return copy_rows


def _staged(accelerator: Accelerator, host: Tensor, rows: Tensor, block: Tensor) -> Callable[[], object]:
    buffer = accelerator.pinned(len(rows), host.shape[1])

    def work() -> None:
        torch.index_select(host, 0, rows, out=buffer)
        block.copy_(buffer, non_blocking=True)
        accelerator.synchronize()  # the buffer is used again

    return work


def _launches(report: Report, accelerator: Accelerator, settings: Settings) -> None:
    nothing = torch.ones(1, device=accelerator.device)

    def many() -> None:
        for _ in range(settings.launches):
            nothing.add_(1)

    many()
    accelerator.synchronize()
    first, start = accelerator.mark(), time.perf_counter()
    many()
    host_us = (time.perf_counter() - start) / settings.launches * 1e6
    last = accelerator.mark()
    accelerator.synchronize()
    device_us = accelerator.milliseconds(first, last) / settings.launches * 1e3
    table = report.table(f"{settings.launches:,} additions of one number", "what", "us each")
    for name, what, value in (
        ("host", "host, to launch", host_us),
        ("device", "device, one after the other", device_us),
    ):
        table.add(what, value)
        report.figures[f"gpu_launch_{name}_us"] = value


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
