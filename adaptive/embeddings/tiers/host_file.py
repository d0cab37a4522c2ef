"""`FileHost`: rows in one sparse file of records, weights and state of a row side by side.

Rows are moved by reading and writing, not through a memory map. All reads of a batch are in flight at once, while page
faults would wait one after the other; and a full disk is an error message, while a map would end the process with
SIGBUS. The file is also mapped for policies that compute on host rows in place (`misses = "host"`). Those rows are
written before their first use, so their blocks exist; a disk that fails to read them still ends the process.
"""

import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np

from adaptive.arrays import Floats, Int64s, Rows
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.plan import GroupPlan
from adaptive.embeddings.tiers.host import HostTier
from adaptive.errors import ConfigError, StorageError
from adaptive.kernels import file_records as records
from adaptive.kernels.rows.cpu import move
from adaptive.optim import RowOptimizer

STAGING_BYTES = 4 << 20


class FileHost(HostTier):
    """A host tier on disk: a sparse file of records, weights and state of a row side by side.

    The file has no name: it overwrites no other file, and its space is freed however the process ends. The system's
    page cache is between the file and the disk.

    Moving rows raises `StorageError` when the file cannot be written or read. Rows may be lost then, so every later
    move raises it again. Any thread may move rows; a lock serializes them.
    """

    def __init__(self, group: Group, optimizer: RowOptimizer, directory: Path, *, in_place: bool = False) -> None:
        """Raises ConfigError if no such file can be made in `directory`, created if missing."""
        super().__init__(group, optimizer)
        self._directory = directory
        self._state_at = -(-group.vector_bytes // 4)  # in words: state is aligned to them
        record_width = self._state_at + -(-optimizer.state_bytes(self._width) // 4)
        self._row_bytes = 4 * record_width
        self._failure: StorageError | None = None
        self._lock = threading.Lock()
        self._staging = _Staging(record_width)
        self._staged = self._split(self._staging.records)
        self._takes_blocks = False
        self._size = size = self._row_bytes * group.num_rows
        try:
            self._fd = _unnamed_file(directory, size)
            self._close = weakref.finalize(self, os.close, self._fd)
            self.weights, self.state = self._map(size) if in_place else self._empty(0)
        except OSError as error:
            raise ConfigError(
                f"tier.host: expected room for a file of {size:,} bytes in {directory}, got {error}. Choose another "
                f"folder with tier.host=mmap:DIR"
            ) from error

    def _map(self, size: int) -> tuple[Rows, Rows]:
        mapped = mmap.mmap(self._fd, size)
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)  # a page fault reads one page, not 32
        # If a page has several blocks, its first change through the map allocates the missing ones.
        self._takes_blocks = os.fstatvfs(self._fd).f_frsize < mmap.PAGESIZE and hasattr(os, "posix_fallocate")
        return self._split(np.frombuffer(mapped, np.float32).reshape(self.group.num_rows, -1))

    def _split(self, records: Floats) -> tuple[Rows, Rows]:
        """Return views of the weights and of the state in records."""
        state = records[:, self._state_at :].view(np.float32)
        return records.view(self.dtype)[:, : self._width], state[:, : self._state_width]

    # --- moving rows -----------------------------------------------------------------------------------------

    def copy_out(self, rows: Int64s, weights: Rows, state: Rows, to_rows: Int64s) -> None:
        order = np.argsort(rows, kind="stable")
        rows, to_rows = rows[order], to_rows[order]
        max_gap = (records.PAGE - 1) // self._row_bytes  # do not read whole pages in between
        done = 0
        with self._lock:
            self._must_work()
            while done < len(rows):
                staged = self._staging.plan(rows[done:], max_gap)
                self._read_runs()
                places = self._staging.places[:staged]
                move.copy_rows(weights, state, to_rows[done : done + staged], *self._staged, places)
                done += staged

    def copy_in(self, rows: Int64s, weights: Rows, state: Rows, from_rows: Int64s) -> None:
        order = np.argsort(rows, kind="stable")
        rows, from_rows = rows[order], from_rows[order]
        done = 0
        with self._lock:
            self._must_work()
            while done < len(rows):
                staged = self._staging.plan(rows[done:], 0)
                places = self._staging.places[:staged]
                move.copy_rows(*self._staged, places, weights, state, from_rows[done : done + staged])
                self._write_runs()
                done += staged

    def expect(self, plan: GroupPlan) -> None:
        if len(self.weights):
            rows = np.sort(plan.written_rows[plan.written_locations < 0])
            with self._lock:
                self._must_work()
                records.expect(self._fd, rows, self._row_bytes)

    def _read_runs(self) -> None:
        runs = self._staging
        left = records.read_runs(
            self._fd, runs.first_rows, runs.starts, runs.num_runs, runs.records, runs.unfinished, runs.vector
        )
        self._finish(left, lambda part, offset: os.preadv(self._fd, [part], offset), "read")
        self.io.reads += runs.num_runs
        self.io.bytes_read += runs.num_rows * self._row_bytes

    def _write_runs(self) -> None:
        runs = self._staging
        if self._takes_blocks:
            self._take_blocks()
        left = records.write_runs(self._fd, runs.first_rows, runs.starts, runs.num_runs, runs.records, runs.unfinished)
        self._finish(left, lambda part, offset: os.pwrite(self._fd, part, offset), "write")
        self.io.writes += runs.num_runs
        self.io.bytes_written += runs.num_rows * self._row_bytes

    def _take_blocks(self) -> None:
        """Allocate disk for whole pages, so that later changes through the map cannot fail."""
        page, runs = mmap.PAGESIZE, self._staging
        for first, num in zip(runs.first_rows[: runs.num_runs], np.diff(runs.starts[: runs.num_runs + 1]), strict=True):
            begin, end = int(first) * self._row_bytes, int(first + num) * self._row_bytes
            begin, end = begin // page * page, min(-(-end // page) * page, self._size)
            try:
                os.posix_fallocate(self._fd, begin, end - begin)
            except OSError as error:
                self._fail("write", error)

    def _finish(self, left: int, move: Callable[[memoryview, int], int], what: str) -> None:
        """Move the runs that were cut short, interrupted or failed in kernels, or fail."""
        for run in self._staging.unfinished[:left]:
            offset = int(self._staging.first_rows[run]) * self._row_bytes
            part = self._staging.bytes_of(run)
            try:
                while len(part):
                    moved = move(part, offset)
                    if moved == 0:
                        raise OSError(f"the file ends at byte {offset}")
                    part, offset = part[moved:], offset + moved
            except OSError as error:
                self._fail(what, error)

    # --- failure ---------------------------------------------------------------------------------------------

    def _fail(self, what: str, error: OSError) -> NoReturn:
        self._failure = StorageError(
            f"tier.host: cannot {what} rows in {self._directory}: {error}. Changed rows may be lost: resume from the "
            f"last checkpoint. The rows' file takes {self.disk_bytes:,} bytes now, and up to {sum(self.num_bytes):,}. "
            f"Free space, or choose another folder with tier.host=mmap:DIR"
        )
        raise self._failure from error

    def _must_work(self) -> None:
        if self._failure is not None:
            raise StorageError(str(self._failure))

    # --- the tier as a whole ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until all stored rows are on the disk; raise if some were lost."""
        with self._lock:
            if self._close.alive:
                self._must_work()
                try:
                    os.fsync(self._fd)
                except OSError as error:
                    self._fail("write", error)

    def close(self) -> None:
        """Free the file's space; for a mapped file, when the last array over it is gone."""
        with self._lock:
            self._failure = StorageError(f"tier.host: the rows in {self._directory} are gone: their tables were closed")
            self._close()

    @property
    def disk_bytes(self) -> int:
        return os.fstat(self._fd).st_blocks * 512 if self._close.alive else 0


def _unnamed_file(directory: Path, size: int) -> int:
    """Return the descriptor of a new file that has no name."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory) as file:
        os.ftruncate(file.fileno(), size)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        return os.dup(file.fileno())


class _Staging:
    """A block of records in flight, cut into runs; see `records.plan_runs`."""

    def __init__(self, record_width: int) -> None:
        self._capacity = max(1, STAGING_BYTES // (4 * record_width))
        self.records = np.empty((self._capacity, record_width), np.float32)
        self.first_rows = np.empty(self._capacity, np.int64)
        self.starts = np.empty(self._capacity + 1, np.int64)
        self.unfinished = np.empty(self._capacity, np.int64)
        self.places = np.empty(0, np.int64)
        self.vector = np.empty(2, np.int64)
        self.num_runs = 0

    @property
    def num_rows(self) -> int:
        return int(self.starts[self.num_runs])

    def plan(self, rows: Int64s, max_gap: int) -> int:
        """Make runs of the first of these ascending rows; return how many were taken."""
        rows = rows[: self._capacity]
        self.places = np.empty(len(rows), np.int64)
        planned, self.num_runs = records.plan_runs(
            rows, max_gap, self._capacity, self.first_rows, self.starts, self.places
        )
        return int(planned)

    def bytes_of(self, run: int) -> memoryview:
        """Return the staged bytes of a run."""
        return self.records[self.starts[run] : self.starts[run + 1]].data.cast("B")
