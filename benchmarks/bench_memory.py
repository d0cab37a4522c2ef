"""Peak memory of training over the bytes of tables and optimizer state, every row trained.

    python -m benchmarks.bench_memory [--quick]

Each case trains in a separate process. What that holds once all is compiled is taken off the peak; both are shown.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
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
    keys: bool = False  # ids are 64-bit keys


CASES = (
    MemoryCase(64, "adagrad", "10%", "peak_memory_ratio"),
    MemoryCase(64, "adagrad", "100%", "peak_memory_ratio_single_tier"),
    MemoryCase(16, "adagrad", "10%", "peak_memory_ratio_d16"),
    MemoryCase(16, "adagrad", "100%", "peak_memory_ratio_d16_single_tier"),
    MemoryCase(16, "rowwise_adagrad", "10%", "peak_memory_ratio_d16_rowwise_adagrad"),
    MemoryCase(128, "sgd", "10%", "peak_memory_ratio_d128_sgd"),
    MemoryCase(16, "rowwise_adagrad", "10%", "peak_memory_ratio_d16_keys", keys=True),
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
        "ratio with the process itself", "keys, bytes a row",
    )  # fmt: skip
    for case in CASES[: settings.num_cases]:
        measured = measure(case, settings.table_bytes)
        report.ratios[case.ratio] = ratio = (measured["peak"] - measured["before"]) / measured["tables"]
        sizes = [round(measured[name] / 1e6) for name in ("tables", "bookkeeping", "before", "peak")]
        shares = ratio, measured["peak"] / measured["tables"], measured["key_bytes"] if case.keys else "-"
        table.add(case.dim, case.optimizer, case.device_rows, *sizes, *shares)
        if case.keys:
            report.figures |= {"key_bytes_per_row": measured["key_bytes"], "keys_made_s": measured["made_s"]}
    return report


def measure(case: MemoryCase, table_bytes: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.bench_memory", "--child", json.dumps([asdict(case), table_bytes])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


# --- in the child ------------------------------------------------------------------------------------------------


def _child(case: MemoryCase, table_bytes: int) -> dict[str, float]:
    row_bytes = 4 * (case.dim + row_optimizer(case.optimizer).state_width(case.dim))
    rows = table_bytes // row_bytes
    _train_all(case, 1000)  # compiles, or loads, every kernel
    began = time.perf_counter()
    _make(replace(case, keys=True, device_rows="1000"), 10**9).close()
    made_s, before = time.perf_counter() - began, _status("VmRSS")
    bookkeeping, key_bytes = _train_all(case, rows)
    sizes = {"tables": rows * row_bytes, "before": before, "peak": _status("VmHWM"), "bookkeeping": bookkeeping}
    return {**sizes, "key_bytes": key_bytes / rows, "made_s": made_s}


def _make(case: MemoryCase, rows: int) -> Ours:
    table = TableConfig(name="t", num_embeddings=rows, embedding_dim=case.dim, keys="int64" if case.keys else None)
    return Ours(Setup((table,), case.optimizer), device_rows=case.device_rows, policy="lru")


def _train_all(case: MemoryCase, rows: int) -> tuple[int, int]:
    """Train all rows, then the first ones, which a small device tier has evicted; return bytes of books, of keys."""
    ours, size = _make(case, rows), min(LOOKUPS, max(1, rows // 50))
    batches = (_batch(first, size, rows) for first in range(0, rows + size, size))
    for planned in ours.bag.look_ahead(batches, depth=0):
        pooled = ours.pool(planned)
        pooled.backward(torch.full_like(pooled, 0.01))  # type: ignore[no-untyped-call]
        ours.update()
    (tiered,) = ours.bag.runtime.pipeline.tiered_groups
    sizes = (
        ours.bag.statistics.memory()["bookkeeping"],
        tiered.keys.books.bytes_in_use if tiered.keys is not None else 0,
    )
    ours.close()
    return sizes


def _batch(first: int, size: int, rows: int) -> Batch:
    ids = (np.arange(first, first + size) % rows)[:, None]
    return one_hot_batch(np.zeros((size, 0), np.float32), ids, np.zeros(size, np.float32))


def _status(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        settings, size = json.loads(sys.argv[2])
        print(json.dumps(_child(MemoryCase(**settings), size)))
    else:
        harness.main(__doc__, run, SETTINGS)
