"""Rows in a file (`host = "mmap:DIR"`) against memory, if the rows in use fit in slots.

    python -m benchmarks.bench_mmap [--quick] [--set folder=/fast/disk]

Embedding part only, SGD, Kaggle-like tables, Zipf ids. Blocks of steps take turns; each starts with steps that are
not timed, so that the look-ahead runs as it would in a long training.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adaptive.batch import Batch
from adaptive.embeddings.planned_batch import Planned
from benchmarks import harness
from benchmarks.harness import Report, median_ms, paired
from benchmarks.streams import kaggle_tables, make_batches, one_each
from benchmarks.variants import Ours, Setup, fixed_gradient, hit_rate


@dataclass(frozen=True)
class Settings:
    folder: str = ""  # of the files; default: the folder for temporary files, which must lie on a disk
    rows: int = 6_000_000
    dim: int = 64
    batch: int = 512
    device_rows: str = "15%"
    depth: int = 4
    lead_in: int = 6
    steps: int = 6
    rounds: int = 15
    warm_up: int = 1


SETTINGS = {
    "full": Settings(),
    "quick": Settings(rows=1_000_000, batch=128, lead_in=4, steps=2, rounds=7),
    "smoke": Settings(rows=60_000, dim=16, batch=64, device_rows="20%", lead_in=1, steps=2, rounds=2),
}


def run(settings: Settings) -> Report:
    report = Report()
    with tempfile.TemporaryDirectory(dir=settings.folder or None) as folder:
        _fitting(report, settings, Path(folder))
    return report


def train(ours: Ours, stream: Iterator[Planned], gradient: Tensor, count: int) -> float:
    """Seconds of `count` steps."""
    start = time.perf_counter()
    for _ in range(count):
        pooled = ours.pool(next(stream))
        torch.autograd.backward(pooled, [gradient[: len(pooled)]])
        ours.update()
    return time.perf_counter() - start


def _fitting(report: Report, settings: Settings, folder: Path) -> None:
    setup = Setup(kaggle_tables(settings.rows, settings.dim), "sgd")
    block = settings.lead_in + settings.steps
    count = (settings.rounds + settings.warm_up) * block
    batches = _within(setup, make_batches(setup.tables, count, settings.batch), float(settings.device_rows[:-1]) / 200)
    (folder / "fitting").mkdir()
    variants = {
        host: Ours(setup, device_rows=settings.device_rows, policy="lru", depth=settings.depth, host=place)
        for host, place in (("file", f"mmap:{folder / 'fitting'}"), ("memory", "memory"))
    }
    gradient = fixed_gradient(setup, settings.batch)
    _check_fitting(setup, variants, batches, gradient)
    for variant in variants.values():
        for _ in variant.bag.look_ahead(batches, depth=0):
            pass  # all rows in use come onto the device
        variant.statistics()
    position = dict.fromkeys(variants, 0)

    def train_block(host: str) -> float:
        ours, first = variants[host], position[host]
        position[host] += block
        stream = ours.stream(batches[first : first + block])
        train(ours, stream, gradient, settings.lead_in)
        seconds = train(ours, stream, gradient, settings.steps)
        assert next(stream, None) is None, "batches are left"
        return seconds

    cases = {host: lambda host=host: train_block(host) for host in variants}
    times = harness.take_turns(cases, rounds=settings.rounds, warm_up=settings.warm_up)
    report.ratios["mmap_vs_memory_fitting"] = paired(times["memory"], times["file"])
    table = report.table("rows in use fit the device tier, memory is plenty", "host", "step ms", "hit rate")
    for host, spent in times.items():
        table.add(host, median_ms(spent) / settings.steps, f"{hit_rate(variants[host].statistics()):.1%}")
        variants[host].close()


def _within(setup: Setup, batches: Sequence[Batch], share: float) -> list[Batch]:
    """The batches with every table's ids folded into its first rows, `share` of them."""
    used = np.array([max(1, int(table.num_embeddings * share)) for table in setup.tables])
    return [
        Batch(
            dense=batch.dense,
            ids=batch.ids % np.repeat(used, batch.num_samples),
            offsets=batch.offsets,
            labels=batch.labels,
        )
        for batch in batches
    ]


def _check_fitting(setup: Setup, variants: dict[str, Ours], batches: Sequence[Batch], gradient: Tensor) -> None:
    results = []
    for ours in variants.values():
        stream = ours.stream(batches[:2])
        train(ours, stream, gradient, 2)
        ours.stop()
        results.append(ours.rows(one_each(setup.tables, batches[:2])))
    if not np.array_equal(results[0], results[1]):
        raise harness.NotEqual("rows trained with a file and in memory differ")


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
