"""Random rows of a file larger than memory: the host tier on disk beside a memory map and threads that read.

    python -m benchmarks.bench_host_file            # writes 2 GiB, then half a minute
    python -m benchmarks.bench_host_file --quick
    python -m benchmarks.bench_host_file --directory /mnt/disk  # not in memory (tmpfs): nothing would be cold

A record holds a row of width 32 with row-wise Adagrad's state (132 bytes). Before each cold turn the system is told to
forget the file, so every row is read from the disk, as if the file were much larger than memory; warm turns read rows
that are in the page cache. All cases read the same values before any is timed. "CPU" is the processor time of all
threads; the rest is waiting for the disk.
"""

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptive.config import TableConfig
from adaptive.kernels.files.posix import pread_rows, pwrite_rows
from adaptive.kernels.jit import kernel
from adaptive.optim import RowwiseAdagrad
from adaptive.planning.layout import make_groups
from adaptive.tiers.host import Floats, Int64s
from adaptive.tiers.host_file import FileHost
from benchmarks import harness
from benchmarks.harness import NotEqual, Report, median_ms, take_turns

WIDTH, RECORD = 32, 33  # float32 values
BLOCK = 4096  # bytes; what O_DIRECT reads

Read = Callable[[Int64s], Floats]


@dataclass(frozen=True)
class Settings:
    """Sizes of the file and of one read."""

    megabytes: int
    rows: int
    rounds: int
    threads: tuple[int, ...]
    directory: str = tempfile.gettempdir()


SETTINGS = {
    "full": Settings(megabytes=2048, rows=3000, rounds=12, threads=(1, 8, 16, 32, 64)),
    "quick": Settings(megabytes=512, rows=3000, rounds=6, threads=(1, 16, 64)),
    "smoke": Settings(megabytes=4, rows=100, rounds=2, threads=(1, 4)),
}


def run(settings: Settings) -> Report:
    """Cold and warm reads, then cold writes."""
    report = Report()
    with ExitStack() as stack:
        file = stack.enter_context(_File(settings))
        cases = file.cases(settings.threads, stack)
        rng = np.random.default_rng(1)
        file.check(cases, rng)
        _reads(report, settings, file, cases, rng)
        _writes(report, settings, file, rng)
    return report


def _reads(report: Report, settings: Settings, file: "_File", cases: dict[str, Read], rng: np.random.Generator) -> None:
    table = report.table(
        f"{settings.rows:,} random rows of {4 * RECORD} bytes, sorted, of {settings.megabytes:,} MiB",
        "read by", "cold ms", "rows/s", "CPU ms", "warm ms",
    )  # fmt: skip
    cold, warm = _Turns(settings, file, rng, cold=True), _Turns(settings, file, rng, cold=False)
    for turns in (cold, warm):
        turns.take(cases)
    for name in cases:
        ms = median_ms(cold.times[name])
        cpu = 1e3 * float(np.median(cold.cpu[name]))
        table.add(name, ms, settings.rows / ms * 1e3, cpu, median_ms(warm.times[name]))
    report.ratios["host_file_vs_map"] = harness.paired(cold.times["memory map"], cold.times["FileHost"])
    report.ratios["host_file_vs_one_pread"] = harness.paired(cold.times["pread, 1 threads"], cold.times["FileHost"])


def _writes(report: Report, settings: Settings, file: "_File", rng: np.random.Generator) -> None:
    table = report.table("The same rows written, pages not in memory", "written by", "cold ms", "rows/s", "CPU ms")
    values = rng.random((settings.rows, RECORD), np.float32)
    weights, state = values[:, :WIDTH].copy(), values[:, WIDTH:].copy()
    cases: dict[str, Callable[[Int64s], object]] = {
        "pwrite, one by one": lambda rows: write_each(file.fd, rows, values),
        "FileHost": lambda rows: file.host.write(rows, weights, state),
    }
    turns = _Turns(settings, file, rng, cold=True)
    turns.take(cases)
    for name in cases:
        ms = median_ms(turns.times[name])
        table.add(name, ms, settings.rows / ms * 1e3, 1e3 * float(np.median(turns.cpu[name])))
    report.ratios["host_file_write_vs_pwrite"] = harness.paired(
        turns.times["pwrite, one by one"], turns.times["FileHost"]
    )


class _Turns:
    """Times cases on rows of their own each."""

    def __init__(self, settings: Settings, file: "_File", rng: np.random.Generator, *, cold: bool) -> None:
        self._settings, self._file, self._rng, self._cold = settings, file, rng, cold
        self.times: harness.Times = {}
        self.cpu: harness.Times = {}

    def take(self, cases: dict[str, Read] | dict[str, Callable[[Int64s], object]]) -> None:
        turns = {name: self._turn(name, case) for name, case in cases.items()}
        self.times = take_turns(turns, rounds=self._settings.rounds, warm_up=1)

    def _turn(self, name: str, case: Callable[[Int64s], object]) -> Callable[[], float]:
        def turn() -> float:
            rows = np.sort(self._rng.choice(self._file.num_rows, self._settings.rows, replace=False))
            if self._cold:
                self._file.forget()
            else:
                self._file.host.read(rows)
            started, used = time.perf_counter(), time.process_time()
            case(rows)
            spent = time.perf_counter() - started
            self.cpu.setdefault(name, []).append(time.process_time() - used)
            return spent

        return turn


# --- the file, and ways to read it -----------------------------------------------------------------------------------


class _File:
    """A file tier with every row stored."""

    def __init__(self, settings: Settings) -> None:
        self.num_rows = (settings.megabytes << 20) // (4 * RECORD)
        table = TableConfig(name="t", num_embeddings=self.num_rows, embedding_dim=WIDTH)
        self.host = FileHost(make_groups([table], 0)[0], RowwiseAdagrad(), Path(settings.directory))
        self.fd = self.host._fd
        self._map = mmap.mmap(self.fd, 4 * RECORD * self.num_rows)
        self._store()

    def _store(self) -> None:
        values = np.random.default_rng(0).random((1 << 16, RECORD), np.float32)
        weights, state = values[:, :WIDTH].copy(), values[:, WIDTH:].copy()
        for first in range(0, self.num_rows, len(values)):
            rows = np.arange(first, min(first + len(values), self.num_rows))
            state[:, 0] = np.arange(first, first + len(values))  # rows differ
            self.host.write(rows, weights[: len(rows)], state[: len(rows)])
        self.host.flush()

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self.host.close()

    def forget(self) -> None:
        """Nothing of the file stays in memory."""
        os.fsync(self.fd)
        self._map.madvise(mmap.MADV_DONTNEED)  # pages that are mapped would be kept
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def cases(self, threads: tuple[int, ...], stack: ExitStack) -> dict[str, Read]:
        mapped = np.frombuffer(self._map, np.float32).reshape(-1, RECORD)

        def by_map(advice: int) -> Read:
            def read(rows: Int64s) -> Floats:
                self._map.madvise(advice)
                found: Floats = gather(mapped, rows)
                return found

            return read

        pools = {num: stack.enter_context(ThreadPoolExecutor(num)) for num in threads}
        cases = {"memory map": by_map(mmap.MADV_NORMAL), "memory map, MADV_RANDOM": by_map(mmap.MADV_RANDOM)}
        cases |= {f"pread, {num} threads": self._by_threads(pools[num], num) for num in threads}
        cases[f"pread, {threads[-1]} threads, O_DIRECT"] = self._direct(pools[threads[-1]], threads[-1], stack)
        cases["FileHost"] = lambda rows: np.hstack(self.host.read(rows))
        return cases

    def _by_threads(self, pool: ThreadPoolExecutor, num: int) -> Read:
        def read(rows: Int64s) -> Floats:
            out = np.empty((len(rows), RECORD), np.float32)
            bounds = np.arange(num + 1) * len(rows) // num
            list(pool.map(lambda k: read_each(self.fd, 4 * RECORD * rows, out, bounds[k], bounds[k + 1]), range(num)))
            return out

        return read

    def _direct(self, pool: ThreadPoolExecutor, num: int, stack: ExitStack) -> Read:
        fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_DIRECT)
        stack.callback(os.close, fd)

        def read(rows: Int64s) -> Floats:
            """Two blocks for each row, into memory that begins at a page."""
            blocks = np.frombuffer(mmap.mmap(-1, 2 * BLOCK * len(rows)), np.float32).reshape(len(rows), -1)
            starts = 4 * RECORD * rows // BLOCK * BLOCK
            bounds = np.arange(num + 1) * len(rows) // num
            list(pool.map(lambda k: read_each(fd, starts, blocks, bounds[k], bounds[k + 1]), range(num)))
            columns = RECORD * rows - starts // 4
            found: Floats = blocks[np.arange(len(rows))[:, None], columns[:, None] + np.arange(RECORD)]
            return found

        return read

    def check(self, cases: dict[str, Read], rng: np.random.Generator) -> None:
        rows = np.sort(rng.choice(self.num_rows - 64, 100, replace=False))
        for name, case in cases.items():
            self.forget()
            found = case(rows)
            named = np.array_equal(found[:, WIDTH], rows.astype(np.float32))
            if not (named and np.array_equal(found, cases["FileHost"](rows))):
                raise NotEqual(f"{name} read other rows")


@kernel(makes_arrays=True)
def gather(rows: Any, wanted: Any) -> Any:
    out = np.empty((wanted.size, rows.shape[1]), np.float32)
    for i in range(wanted.size):
        out[i] = rows[wanted[i]]
    return out


@kernel()
def read_each(fd: Any, offsets: Any, out: Any, first: Any, last: Any) -> None:
    for i in range(first, last):
        pread_rows(fd, out, i, i + 1, offsets[i])


@kernel()
def write_each(fd: Any, rows: Any, values: Any) -> None:
    for i in range(rows.size):
        pwrite_rows(fd, values, i, i + 1, rows[i] * values.strides[0])


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS, "directory")
