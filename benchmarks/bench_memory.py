"""Peak memory of training over the bytes of tables and optimizer state, every row trained.

    python -m benchmarks.bench_memory [--quick]

Each case trains in a separate process. What the process holds once everything is imported and compiled is taken
off the peak; both are shown.
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from adaptive.batch import Batch, one_hot_batch
from adaptive.config import TableConfig
from benchmarks import harness
from benchmarks.harness import Report
from benchmarks.variants import Optimizer, Ours, Setup, row_optimizer

LOOKUPS = 32_768  # of a batch


@dataclass(frozen=True)
class MemoryCase:
    dim: int
    optimizer: Optimizer
    device_rows: str
    ratio: str  # name


CASES = (
    MemoryCase(64, "adagrad", "10%", "peak_memory_ratio"),
    MemoryCase(64, "adagrad", "100%", "peak_memory_ratio_single_tier"),
    MemoryCase(16, "adagrad", "10%", "peak_memory_ratio_d16"),
    MemoryCase(16, "adagrad", "100%", "peak_memory_ratio_d16_single_tier"),
    MemoryCase(16, "rowwise_adagrad", "10%", "peak_memory_ratio_d16_rowwise_adagrad"),
    MemoryCase(128, "sgd", "10%", "peak_memory_ratio_d128_sgd"),
)


@dataclass(frozen=True)
class Settings:
    table_bytes: int = 2_000_000_000  # tables and state together
    num_cases: int = len(CASES)


SETTINGS = {"full": Settings(), "quick": Settings(500_000_000, 2), "smoke": Settings(60_000_000, 1)}


def run(settings: Settings) -> Report:
    report = Report()
    table = report.table(
        "peak memory of training every row (MB)",
        "width", "optimizer", "device rows", "tables and state", "records and slots", "before", "peak", "ratio",
        "ratio with the process itself",
    )  # fmt: skip
    for case in CASES[: settings.num_cases]:
        measured = _measure(case, settings.table_bytes)
        ratio = (measured["peak"] - measured["before"]) / measured["tables"]
        report.ratios[case.ratio] = ratio
        sizes = [round(measured[name] / 1e6) for name in ("tables", "bookkeeping", "before", "peak")]
        table.add(case.dim, case.optimizer, case.device_rows, *sizes, ratio, measured["peak"] / measured["tables"])
    return report


def _measure(case: MemoryCase, table_bytes: int) -> dict[str, float]:
    task = json.dumps({**asdict(case), "table_bytes": table_bytes})
    command = [sys.executable, "-m", "benchmarks.bench_memory", "--child", task]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


# --- in the child ------------------------------------------------------------------------------------------------


def _child(task: dict[str, str | int]) -> dict[str, int]:
    optimizer: Optimizer = task["optimizer"]  # type: ignore[assignment]
    dim = int(task["dim"])
    row_bytes = 4 * (dim + row_optimizer(optimizer).state_width(dim))
    rows = int(task["table_bytes"]) // row_bytes
    _train_all(1000, dim, optimizer, str(task["device_rows"]))  # compiles, or loads, every kernel
    before = _status("VmRSS")
    bookkeeping = _train_all(rows, dim, optimizer, str(task["device_rows"]))
    return {"tables": rows * row_bytes, "before": before, "peak": _status("VmHWM"), "bookkeeping": bookkeeping}


def _train_all(rows: int, dim: int, optimizer: Optimizer, device_rows: str) -> int:
    """Train every row once, then the first ones again; return bytes of bookkeeping.

    A small device tier has evicted the first rows by then.
    """
    setup = Setup((TableConfig(name="t", num_embeddings=rows, embedding_dim=dim),), optimizer)
    ours = Ours(setup, device_rows=device_rows, policy="lru")
    size = min(LOOKUPS, max(1, rows // 50))
    batches = (_batch(first, size, rows) for first in range(0, rows + size, size))
    for planned in ours.bag.look_ahead(batches, depth=0):
        pooled = ours.pool(planned)
        pooled.backward(torch.full_like(pooled, 0.01))  # type: ignore[no-untyped-call]
        ours.update()
    bookkeeping = ours.bag.statistics.memory()["bookkeeping"]
    ours.close()
    return bookkeeping


def _batch(first: int, size: int, rows: int) -> Batch:
    ids = (np.arange(first, first + size) % rows)[:, None]
    return one_hot_batch(np.zeros((size, 0), np.float32), ids, np.zeros(size, np.float32))


def _status(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(_child(json.loads(sys.argv[2]))))
    else:
        harness.main(__doc__, run, SETTINGS)
