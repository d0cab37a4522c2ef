"""Moving rows between the tiers, by themselves, and the memory of a device tier."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from adaptive.config import parse_size
from adaptive.embeddings.planning.plan import Moves
from benchmarks.gpu.accelerator import Accelerator
from benchmarks.gpu.variants import Spec, Tiers, Transfer
from benchmarks.gpu.workloads import Workload


@dataclass(frozen=True)
class Moved:
    """Times until all rows have arrived."""

    num_bytes: int  # each way
    fetch_ms: float
    write_back_ms: float
    fetch_host_ms: float  # until the look-ahead thread may go on: lists are made, copies are asked for


def time_moves(accelerator: Accelerator, workload: Workload, rows: int, transfer: Transfer, *, rounds: int) -> Moved:
    """Fetch and write back `rows` random rows, as many as the device tier has slots, without planning them."""
    rows = min(rows, workload.num_rows // 2)
    tiers = Tiers(workload.setup(), Spec("lru", transfer=transfer), accelerator, device_rows=str(rows))
    try:
        tier = tiers.bag._pipeline.lanes[0].device

        def write_back(moves: Moves) -> None:
            tier.write_back(moves)
            accelerator.synchronize()
            tier.land()

        rng = np.random.default_rng(0)
        choices = [rng.choice(workload.num_rows, rows, replace=False) for _ in range(rounds + 1)]
        slots = rng.permutation(rows)
        fetches = [Moves(fetch_slots=slots, fetch_rows=one, fetch_initial=np.zeros(rows, np.bool_)) for one in choices]
        backs = [Moves(back_slots=slots, back_rows=one) for one in choices]
        fetch_ms, back_ms, host_ms = [], [], []
        for fetch, back in zip(fetches, backs, strict=True):
            took, asked = _ms(accelerator, lambda fetch=fetch: tier.fetch(fetch))  # type: ignore[misc]
            fetch_ms.append(took)
            host_ms.append(asked)
            back_ms.append(_ms(accelerator, lambda back=back: write_back(back))[0])  # type: ignore[misc]
    finally:
        tiers.close()
    return Moved(rows * workload.row_bytes, median(fetch_ms[1:]), median(back_ms[1:]), median(host_ms[1:]))


def _ms(accelerator: Accelerator, work: Callable[[], object]) -> tuple[float, float]:
    """Until it is done, and until the host has asked for it."""
    accelerator.synchronize()
    start = time.perf_counter()
    work()
    asked = time.perf_counter()
    accelerator.synchronize()
    return (time.perf_counter() - start) * 1e3, (asked - start) * 1e3


def tier_memory(accelerator: Accelerator, workload: Workload, size: str) -> tuple[int, int]:
    """(configured, taken) bytes of device memory of a tier of a `size` in bytes; on the CPU what its arrays hold."""
    configured = workload.row_bytes * parse_size(size, row_bytes=workload.row_bytes, num_rows=workload.num_rows)
    gc.collect()
    before = accelerator.allocated_bytes()
    tiers = Tiers(workload.setup(), Spec("lru"), accelerator, device_rows=size)
    try:
        if accelerator.is_gpu:
            return configured, accelerator.allocated_bytes() - before
        memory = tiers.bag.memory()
        return configured, memory["device_weights"] + memory["device_state"]
    finally:
        tiers.close()
