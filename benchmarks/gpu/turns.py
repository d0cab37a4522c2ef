"""A variant on a stream of batches, timed in turns.

A turn begins with steps that are not timed: as many as our look-ahead may have prepared while another variant had its
turn, and some more. Otherwise planning would seem free. A turn ends when the device has done everything.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from queue import SimpleQueue
from statistics import median, quantiles
from typing import Any

from adaptive.batch import Batch
from adaptive.counters import Counter
from adaptive.embeddings.engine.statistics import Statistics
from benchmarks.gpu.accelerator import Accelerator
from benchmarks.gpu.floors import Traffic, traffic
from benchmarks.gpu.parts import WholeStep
from benchmarks.gpu.torchrec_pipeline import TorchRecPipeline
from benchmarks.gpu.variants import Spec, Tiers
from benchmarks.gpu.workloads import NUM_TABLES, Workload
from benchmarks.harness import cell_text, paired
from benchmarks.variants import Embeddings, hit_rate


@dataclass(frozen=True)
class Point:
    """Samples of a batch, and how far ours looks ahead."""

    batch: int
    depth: int


@dataclass(frozen=True)
class Measured:
    """One variant at one point."""

    seconds: list[float]  # of a step, per round
    phases: dict[str, float]  # ms of the current stream
    statistics: Statistics | None  # of our own tiers
    busy_ms: float | None = None  # of a step: the device had something to do, as the profiler saw it

    @property
    def ms(self) -> float:
        """Of a step."""
        return median(self.seconds) * 1e3

    @property
    def quartiles(self) -> str:
        """Of the milliseconds of a step, over the rounds."""
        return quartiles([seconds * 1e3 for seconds in self.seconds])

    @property
    def hit_rate(self) -> float | None:
        return None if self.statistics is None else hit_rate(self.statistics)

    def per_step(self, *counters: Counter) -> float:
        """Of our own tiers: counters added up, over the number of trained batches."""
        assert self.statistics is not None
        return float(self.statistics.counts.sum(axis=0)[list(counters)].sum() / max(self.statistics.batches, 1))

    def host_ms(self, stage: str) -> float | None:
        """Of our own tiers: the host's time in a stage, a step."""
        if self.statistics is None:
            return None
        return self.statistics.times_ms.get(stage, 0.0) / max(self.statistics.batches, 1)

    def traffic(self, workload: Workload, samples: int) -> Traffic:
        """Of our own tiers: what a step had to move."""
        row, back = workload.row_bytes, self.per_step(Counter.BYTES_D2H)
        fetched = row * (self.per_step(Counter.FETCHED) - self.per_step(Counter.WRITTEN_BACK))
        moved = back + fetched, back  # rows and vectors: plans, which BYTES_H2D counts too, are no part of a floor
        distinct = self.per_step(Counter.UNIQUE_ROWS)
        shape = NUM_TABLES, workload.dim, workload.state_width
        return traffic(distinct, samples, *shape, moved, value_bytes=workload.value_bytes)


@dataclass(frozen=True)
class Timing:
    """A variant and the reference, timed in turns."""

    spec: Spec
    point: Point
    it: Measured
    reference: Measured

    @property
    def speed(self) -> float:
        """The reference's time over the variant's."""
        return paired(self.reference.seconds, self.it.seconds)

    @property
    def speeds(self) -> str:
        """Quartiles of the speed over the rounds."""
        both = zip(self.reference.seconds, self.it.seconds, strict=True)
        return quartiles([reference / seconds for reference, seconds in both])

    @property
    def over_reference(self) -> float:
        """The variant's time over the reference's."""
        return paired(self.it.seconds, self.reference.seconds)

    @property
    def text(self) -> str:
        """For the progress line."""
        return (
            f"batch {self.point.batch}, depth {self.point.depth}: {self.it.ms:.3g} ms, all on the device "
            f"{self.reference.ms:.3g} ms"
        )


def quartiles(values: Sequence[float]) -> str:
    """Return the first and the third, as text."""
    first, _, third = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return f"{cell_text(first)} to {cell_text(third)}"


SPARE_STEPS = 2  # not timed, besides those that were looked ahead


class Line:
    """One variant at work. Each `turn` trains `steps` batches and returns the seconds of one."""

    def __init__(
        self,
        accelerator: Accelerator,
        embeddings: Embeddings,
        part: WholeStep,
        batches: Sequence[Batch],
        *,
        depth: int,
        steps: int,
    ) -> None:
        self._accelerator, self._embeddings, self._part = accelerator, embeddings, part
        self._ours = embeddings if isinstance(embeddings, Tiers) else None
        self._drained = depth + SPARE_STEPS if self._ours or isinstance(embeddings, TorchRecPipeline) else 1
        self.steps = steps
        self.phases_ms: list[list[float]] = []
        self._inputs = self._begin(batches, depth)

    def _begin(self, batches: Sequence[Batch], depth: int) -> Iterator[tuple[Any, Any]]:
        if self._ours is not None:
            self._ours.look_ahead(depth)
            return ((inputs, None) for inputs in self._ours.stream(batches))
        return ((self._embeddings.prepare(batch), self._part.prepare(batch)) for batch in batches)

    def _next(self, count: int) -> Iterator[tuple[Any, Any]]:
        """Ours arrive from the look-ahead; other inputs are on the device before the clock starts."""
        coming = islice(self._inputs, count)
        return coming if self._ours is not None else iter(list(coming))

    def turn(self) -> float:
        self.train(self._drained)
        return self.train(self.steps)

    def train(self, steps: int) -> float:
        """Train so many batches; returns the seconds of one."""
        inputs = self._next(steps)
        self._accelerator.synchronize()
        start = time.perf_counter()
        marks = self._train(inputs, steps)
        self._accelerator.synchronize()
        seconds = (time.perf_counter() - start) / steps
        between = self._accelerator.milliseconds
        self.phases_ms = [[between(*pair) for pair in pairwise(one)] for one in marks]
        return seconds

    def _train(self, inputs: Iterator[tuple[Any, Any]], steps: int) -> list[list[Any]]:
        """Return the marks of each step."""
        marks = [self._part.train(self._embeddings, *one, self._accelerator.mark) for one in inputs]
        assert len(marks) == steps, "the batches have run out"
        return marks

    def busy_ms(self) -> float | None:
        """Of a step, in a turn under the profiler; None on the CPU."""
        if not self._accelerator.is_gpu:
            return None
        self.train(self._drained)
        return self._accelerator.profile(lambda: self.train(self.steps)).busy_ms / self.steps

    def choose_steps(self, seconds: float) -> None:
        """Fewer steps a turn, at least one, so that a turn takes about as long as given."""
        self.train(self._drained)
        self.steps = max(1, min(self.steps, int(seconds / max(self.train(2), 1e-6))))

    @property
    def phases(self) -> dict[str, float]:
        """Phase -> median ms, in the work of the device's current stream, of the latest steps."""
        return {
            name: median(column)
            for name, column in zip(self._part.phases, zip(*self.phases_ms, strict=True), strict=False)
        }

    def stop(self) -> None:
        """End the look-ahead."""
        if self._ours is not None:
            self._ours.stop()


class _Ended(Exception):  # noqa: N818 (not an error: nothing is left to train)
    pass


class TrainerLine(Line):
    """`Trainer.train` with a recorder, as `adaptive-train run` calls it, in a thread that rests between turns.

    Each turn writes one record: its steps are an interval.
    """

    def _begin(self, batches: Sequence[Batch], depth: int) -> Iterator[tuple[Any, Any]]:
        assert self._ours is not None
        self._wanted, self._done = SimpleQueue[int](), SimpleQueue[BaseException | None]()
        self._left = 0
        trainer = self._part.trainer(self._ours.bag, log_every=self.steps)

        def after_step() -> None:
            self._left -= 1
            if not self._left:
                self._done.put(None)
                self._rest()

        def work() -> None:
            try:
                self._rest()
                trainer.train(batches, depth=depth, after_step=after_step)
                raise AssertionError("the batches have run out")
            except _Ended:
                pass
            except BaseException as error:
                self._done.put(error)

        self._thread = threading.Thread(target=work, name="trainer")
        self._thread.start()
        return iter(())

    def _rest(self) -> None:
        self._left = self._wanted.get()
        if not self._left:
            raise _Ended

    def _train(self, inputs: Iterator[tuple[Any, Any]], steps: int) -> list[list[Any]]:
        self._wanted.put(steps)
        if (error := self._done.get()) is not None:
            raise error
        return [[]] * steps

    def choose_steps(self, seconds: float) -> None:
        self.train(self._drained)

    def stop(self) -> None:
        self._wanted.put(0)
        self._thread.join()


class PipelineLine(Line):
    """The loop of TorchRec, which takes the next batches by itself."""

    def _begin(self, batches: Sequence[Batch], depth: int) -> Iterator[tuple[Any, Any]]:
        assert isinstance(self._embeddings, TorchRecPipeline)
        self._pipeline = self._embeddings.pipeline(self._part.model, self._part.optimizer)
        return iter([self._embeddings.prepare(batch) for batch in batches])

    def _next(self, count: int) -> Iterator[tuple[Any, Any]]:
        return self._inputs

    def _train(self, inputs: Iterator[tuple[Any, Any]], steps: int) -> list[list[Any]]:
        for _ in range(steps):
            self._pipeline.progress(inputs)
        return [[]] * steps

    def stop(self) -> None:
        self._pipeline.detach()


def batches_needed(depth: int, steps: int, turns: int) -> int:
    """For `choose_steps`, so many turns of a line, and `busy_ms`."""
    return (turns + 2) * (depth + SPARE_STEPS + max(steps, 2))
