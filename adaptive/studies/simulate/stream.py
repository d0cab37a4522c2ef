"""`SharedTrace`: runs that plan the same batches, in chunks, with the trace of those batches."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.embeddings.planning.lookups import Distinct, DistinctFinder, check_batch
from adaptive.embeddings.planning.use_trace import Trace
from adaptive.errors import DeviceMemoryError, InputError, PolicyError
from adaptive.studies.simulate.run import Setup, SimulatedRun
from adaptive.system import StopRequest

CHUNK: Final = 32  # batches that one run plans before the next run does: its books stay in the processor's cache

Told = Callable[[int, int | None], None]  # how many batches have been planned, of how many if that is known


def least_device_rows(streams: "Sequence[SharedTrace]") -> int | None:
    """Device rows that are enough for all batches of all streams that tell."""
    known = [rows for stream in streams if (rows := stream.least_device_rows) is not None]
    return max(known, default=None)


def total_batches(config: TrainConfig, dataset: Dataset) -> int | None:
    """Batches of all epochs, as far as they are asked for; None if nobody knows before reading them."""
    samples = dataset.num_train_samples()
    if samples is None:
        return config.steps
    return min(config.epochs * -(-samples // config.batch_size), config.steps or sys.maxsize)


@dataclass
class SharedTrace:
    """Runs that see the same batches, and the trace of those."""

    runs: list[tuple[str, str, SimulatedRun]]  # policy and device size as written
    setup: Setup
    trace: Trace = field(init=False)
    total: int | None = None  # batches that were asked for; None: nobody knows
    lookups: int = 0
    batches: int = 0
    seconds: float = 0.0  # spent on distinct rows and the trace
    find_seconds: list[float] = field(default_factory=list)  # of each batch, spent on its distinct rows
    read_seconds: list[float] = field(default_factory=list)  # of each batch, spent reading it
    is_done: bool = False  # nothing is left to plan

    def __post_init__(self) -> None:
        self.trace = Trace(self.setup.group.num_rows)
        self._finder = DistinctFinder(self.setup.group)

    def read(self, dataset: Dataset, config: TrainConfig, told: Told, stop: StopRequest) -> None:
        """Plan the batches that training with `config` would train; after a stop only those that were read by then,
        which are a chunk at least."""
        self.total = total_batches(config, dataset)
        self.is_done = True
        for epoch in range(config.epochs):
            left = None if config.steps is None else config.steps - self.batches
            if left == 0 or self.is_over or not self.is_done:
                break
            self._read_epoch(self._timed(islice(dataset.train(config.batch_size, epoch=epoch), left)), told, stop)
            for _, _, run in self.runs:
                run.end_epoch()
        if not self.batches and not self.is_over:
            raise InputError(f"data {config.data}: no training samples")

    @property
    def is_over(self) -> bool:
        """No run can go on. Where all are too small the batches are read to their end, to tell how much is enough."""
        return all(run.error for _, _, run in self.runs) and not self.is_too_small

    @property
    def is_too_small(self) -> bool:
        """Every run was stopped by its device size."""
        errors = [run.error for _, _, run in self.runs]
        return all(isinstance(error, DeviceMemoryError) for error in errors) and not self.runs[0][2].arranges

    @property
    def least_device_rows(self) -> int | None:
        """Device rows that hold all that batches in flight ask for; None if not all batches were read, or no policy
        needs them there."""
        is_staged = any(run.staged for _, _, run in self.runs)
        return self.trace.most_held(self.setup.depth) if is_staged and not self.is_over else None

    def _read_epoch(self, batches: Iterator[Batch], told: Told, stop: StopRequest) -> None:
        (_, _, first), size = self.runs[0], CHUNK
        if first.arranges:  # it may ask where rows lie now, so it must not be ahead of the plan
            batches, size = first.arranged(batches), 1
        while not self.is_over:
            try:
                chunk = list(islice(batches, size))
            except PolicyError as error:  # of `arrange`, so of the only run of this stream
                first.error = error
                break
            if not chunk:
                break
            if stop and self.batches:
                self.is_done = False
                break
            self._plan(chunk)
            told(self.batches, self.total)

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches; how long each took to read is kept."""
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            self.read_seconds.append(time.perf_counter() - started)
            yield batch

    def _find(self, batch: Batch) -> Distinct:
        started = time.perf_counter()
        found = self._finder.find(check_batch(batch, [self.setup.group]))
        self.find_seconds.append(time.perf_counter() - started)
        return found

    def _plan(self, chunk: Sequence[Batch]) -> None:
        started = time.perf_counter()
        found = [self._find(batch) for batch in chunk]
        for distinct in found:
            self.trace.add(distinct.rows)
            self.lookups += len(distinct.inverse)
        self.batches += len(chunk)
        self.seconds += time.perf_counter() - started
        for _, _, run in self.runs:
            for batch, distinct in zip(chunk, found, strict=True):
                run.add(batch, distinct)
