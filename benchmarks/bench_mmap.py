"""Tables larger than the memory given: `host = "mmap:DIR"` beside np.memmap with torch's index_select and index_add_.

    python -m benchmarks.bench_mmap [--quick] [--set folder=/fast/disk]

Embedding part only, SGD, Kaggle-like tables, Zipf ids. Each variant is a process in a memory control group of its
own, which counts the page cache too: beyond what it needs before any table is made, it gets `table bytes / times`.
Every row lies in the file before the clock starts. Blocks of steps take turns; each starts with steps that are not
timed, so that the look-ahead runs as it would in a long training, and nothing runs while the other's turn is.

`mmap_vs_memory_fitting` is the speed with a file over the speed with everything in memory, when the rows in use fit
the device tier and memory is plenty.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adaptive.batch import Batch
from benchmarks import harness
from benchmarks.harness import Report, check_equal, median_ms, paired
from benchmarks.memory_group import MemoryGroup
from benchmarks.mmap_worker import WEIGHTS, Task, train
from benchmarks.streams import kaggle_tables, make_batches, one_each
from benchmarks.variants import NotAvailable, Ours, Setup, hit_rate


@dataclass(frozen=True)
class Settings:
    folder: str = ""  # of the files; default: the folder for temporary files, which must lie on a disk
    rows: int = 6_000_000
    dim: int = 64
    batch: int = 512
    fill: int = 400  # batches planned before the first is trained
    times: float = 3.0  # table bytes over the memory given
    device_rows: str = "15%"
    depth: int = 4
    exponent: float = 1.05
    lead_in: int = 6
    steps: int = 6
    rounds: int = 5
    warm_up: int = 1
    slack_mb: int = 128  # buffers of batches in flight
    fitting_rounds: int = 15


SETTINGS = {
    "full": Settings(),
    "quick": Settings(rows=1_000_000, batch=128, fill=150, lead_in=4, steps=2, rounds=3, fitting_rounds=7),
    "smoke": Settings(rows=60_000, dim=16, batch=64, fill=5, device_rows="20%", lead_in=1, steps=2, rounds=2,
                      fitting_rounds=2),
}  # fmt: skip


def run(settings: Settings) -> Report:
    report = Report()
    with tempfile.TemporaryDirectory(dir=settings.folder or None) as folder:
        try:
            _larger_than_memory(report, settings, Path(folder))
        except NotAvailable as error:
            report.absent["mmap_vs_memmap"] = str(error)
        _fitting(report, settings, Path(folder))
    return report


# --- larger than memory ----------------------------------------------------------------------------------------------


class Child:
    """One worker process in its own memory group."""

    def __init__(self, task: Task, group: MemoryGroup) -> None:
        self.group = group
        command = [sys.executable, "-m", "benchmarks.mmap_worker", task.json()]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            group.enter(self._process.pid)
            self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, what: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with code {self._process.wait()}; its message stands above")
        found: dict[str, Any] = json.loads(line)
        return found

    def anonymous_bytes(self) -> int:
        """Memory of the process that is no file."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon in /proc/PID/status")

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _task(settings: Settings, kind: Any, folder: Path) -> Task:
    folder.mkdir()
    return Task(
        kind=kind,
        folder=str(folder),
        rows=settings.rows,
        dim=settings.dim,
        batch=settings.batch,
        device_rows=settings.device_rows,
        depth=settings.depth,
        lead_in=settings.lead_in if kind == "tiered" else 0,
        steps=settings.steps,
        blocks=settings.rounds + settings.warm_up,
        exponent=settings.exponent,
        fill=settings.fill,
    )


def _write_initial(setup: Setup, path: Path) -> None:
    """The file of the peer, out of the page cache: what is cached on our account would be free for the child."""
    ours = Ours(setup)
    with path.open("wb") as file:
        for table in ours.weights():
            file.write(table.tobytes())
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    ours.close()


def _larger_than_memory(report: Report, settings: Settings, folder: Path) -> None:
    tasks = {kind: _task(settings, kind, folder / kind) for kind in ("tiered", "memmap")}
    setup = tasks["memmap"].setup
    table_bytes = 4 * setup.num_rows * setup.dim
    given = int(table_bytes / settings.times)
    with ExitStack() as stack:
        groups = {kind: stack.enter_context(MemoryGroup(f"adaptive-{kind}")) for kind in tasks}
        _write_initial(setup, folder / "memmap" / WEIGHTS)
        children: dict[str, Child] = {}
        for kind, task in tasks.items():
            children[kind] = Child(task, groups[kind])
            stack.callback(children[kind].close)
        limits = {}
        for kind, child in children.items():
            limits[kind] = child.anonymous_bytes() + given + settings.slack_mb * 2**20
            child.group.limit(limits[kind])
            child.ask("start")
        children["tiered"].ask("touch")  # the other's file was written whole
        children["tiered"].ask("fill")
        _check_children(children)
        told: dict[str, list[dict[str, float]]] = {kind: [] for kind in children}

        def block(kind: str) -> float:
            told[kind].append(children[kind].ask("steps"))
            return told[kind][-1]["seconds"]

        cases = {kind: lambda kind=kind: block(kind) for kind in children}
        times = harness.take_turns(cases, rounds=settings.rounds, warm_up=settings.warm_up)
    report.ratios["mmap_vs_memmap"] = paired(times["memmap"], times["tiered"])
    table = report.table(
        f"tables of {table_bytes / 1e6:,.0f} MB with {given / 1e6:,.0f} MB of memory, batch {settings.batch}, width "
        f"{settings.dim}, device tier {settings.device_rows}, depth {settings.depth}",
        "variant", "step ms", "samples/s", "over ours", "hit rate", "rows fetched a step", "written back", "demoted",
    )  # fmt: skip
    for kind, spent in times.items():
        step = median_ms(spent) / settings.steps
        facts = told[kind][-1]
        hits = f"{facts['hit_rate']:.1%}" if "hit_rate" in facts else None
        moved = [facts.get(name) for name in ("fetched", "written_back", "demoted")]
        table.add(kind, step, settings.batch / step * 1e3, paired(spent, times["tiered"]), hits, *moved)


def _check_children(children: dict[str, Child]) -> None:
    found = {kind: np.load(child.ask("rows")["path"], allow_pickle=False) for kind, child in children.items()}
    before, expected = found["tiered"]
    check_equal("rows in files, before", found["memmap"][0], before, before=np.zeros_like(before), tolerance=1e-5)
    check_equal("rows in files", found["memmap"][1], expected, before=before, tolerance=2e-3)


# --- everything in use fits ------------------------------------------------------------------------------------------


def _fitting(report: Report, settings: Settings, folder: Path) -> None:
    setup = Setup(kaggle_tables(settings.rows, settings.dim), "sgd")
    block = settings.lead_in + settings.steps
    count = (settings.fitting_rounds + settings.warm_up) * block
    batches = _within(setup, make_batches(setup.tables, count, settings.batch), float(settings.device_rows[:-1]) / 200)
    (folder / "fitting").mkdir()
    variants = {
        host: Ours(setup, device_rows=settings.device_rows, policy="lru", depth=settings.depth, host=place)
        for host, place in (("file", f"mmap:{folder / 'fitting'}"), ("memory", "memory"))
    }
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn((settings.batch, len(setup.tables), setup.dim), generator=generator).mul_(0.01)
    _check_fitting(setup, variants, batches, gradient)
    for one in variants.values():
        for _ in one.bag.look_ahead(batches, depth=0):
            pass  # all rows in use come onto the device
        one.statistics()
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
    times = harness.take_turns(cases, rounds=settings.fitting_rounds, warm_up=settings.warm_up)
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


def _check_fitting(setup: Setup, variants: dict[str, Ours], batches: Sequence[Batch], gradient: torch.Tensor) -> None:
    found = []
    for ours in variants.values():
        stream = ours.stream(batches[:2])
        train(ours, stream, gradient, 2)
        ours.stop()
        found.append(ours.rows(one_each(setup.tables, batches[:2])))
    if not np.array_equal(found[0], found[1]):
        raise harness.NotEqual("rows trained with a file and in memory differ")


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
