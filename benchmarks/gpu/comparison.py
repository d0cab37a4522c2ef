"""Variants of one workload: built, checked, filled, and timed in turns with a reference.

The reference has all rows on the device.

Each variant is first trained on a few batches; the rows these look up must come out as the reference's do: bit for
bit where both are ours, up to the order of sums otherwise. Then its device tier is filled with the most popular rows,
trained so that they have to be written back when they leave, and only then it is timed.
"""

import gc
import time
import traceback
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive.batch import Batch
from benchmarks import harness
from benchmarks.gpu.accelerator import Accelerator
from benchmarks.gpu.parts import WholeStep
from benchmarks.gpu.torchrec_pipeline import TorchRecPipeline
from benchmarks.gpu.turns import Line, Measured, PipelineLine, Point, Timing, TrainerLine, batches_needed
from benchmarks.gpu.variants import DEVICE, STORED, Spec, Tiers, open_variant
from benchmarks.gpu.workloads import Workload, covering_batches
from benchmarks.harness import Report, check_equal
from benchmarks.streams import one_each
from benchmarks.variants import Embeddings, NotAvailable

CHECK_STEPS = 3
TOLERANCE = 2e-2  # of the change; others round in another order, the dense part included
FILLING_LOOKUPS = 1 << 20  # of a batch that fills the device tier
CHECK_SEED, TIMED_SEED = 1_000, 1_000_000
REFERENCE_DEPTH = 4


@dataclass(frozen=True)
class Effort:
    """Duration of measurements."""

    rounds: int
    steps: int  # of a turn, at most
    turn_seconds: float  # of a turn, about
    check_samples: int
    warm_up: int = 1


class Comparison:
    """All variants of a workload against the reference; `report` lists what is missing."""

    def __init__(self, accelerator: Accelerator, workload: Workload, effort: Effort, report: Report) -> None:
        self.accelerator, self.workload, self.effort, self.report = accelerator, workload, effort, report
        self._expected: NDArray[np.float32] | None = None
        self._batches: dict[Point, list[Batch]] = {}

    def run(self, wanted: Mapping[Spec, Sequence[Point]], *, seconds: float) -> Iterator[Timing]:
        """Time every point of every variant, until the time is over.

        A variant that fails does not stop the others.
        """
        name = self.workload.title
        try:
            if seconds <= 0:
                raise NotAvailable("the time was over")
            yield from self._run(wanted, time.monotonic() + seconds)
        except NotAvailable as reason:
            self.report.absent[name] = str(reason)
        except Exception as error:  # GPU time is scarce: the other workloads continue
            self._failed(name, error)

    def _run(self, wanted: Mapping[Spec, Sequence[Point]], until: float) -> Iterator[Timing]:
        gc.collect()  # of the previous workload
        with self._open(DEVICE) as reference:
            for spec, points in wanted.items():
                yield from self._try(spec, points, reference, until)

    def _failed(self, name: str, error: Exception) -> None:
        traceback.print_exception(error)
        self.report.absent[f"bench_gpu {name}"] = f"{type(error).__name__}: {error}"

    def _try(self, spec: Spec, points: Sequence[Point], reference: Embeddings, until: float) -> Iterator[Timing]:
        name = f"{self.workload.title}: {spec.title}"
        timings = self._points(spec, points, reference)
        try:
            for number in range(len(points)):
                if time.monotonic() > until:
                    raise NotAvailable(f"the time was over before point {number + 1} of {len(points)}")
                timing = next(timings)
                print(f"  {name}, {timing.text}", flush=True)
                yield timing
        except NotAvailable as reason:
            self.report.absent[name] = str(reason)
        except Exception as error:  # the other variants continue
            self._failed(name, error)
        finally:
            timings.close()

    def _points(self, spec: Spec, points: Sequence[Point], reference: Embeddings) -> Generator[Timing, None, None]:
        if spec == DEVICE:
            for point in points:
                it = self._measure({"it": reference}, point)["it"]
                yield Timing(spec, point, it, it)
            return
        with self._open(spec) as variant:
            for point in points:
                both = self._measure({"it": variant, "reference": reference}, point)
                yield Timing(spec, point, both["it"], both["reference"])

    # --- one variant ---------------------------------------------------------------------------------------------

    @contextmanager
    def _open(self, spec: Spec) -> Iterator[Embeddings]:
        """Build, check and fill the variant."""
        embeddings = open_variant(spec, self.workload, self.accelerator)
        embeddings.by_graph = bool(spec.graph)
        try:
            self._check(spec, embeddings)
            if isinstance(embeddings, Tiers):
                fill(embeddings, self.workload, train=spec.is_staged)
            yield embeddings
        finally:
            embeddings.close()

    def _check(self, spec: Spec, embeddings: Embeddings) -> None:
        """Train a few batches and compare the rows that they look up.

        Adam counts steps per row here and per table elsewhere: it gets one batch several times, where both agree.
        """
        batches = self.workload.batches(CHECK_STEPS, self.effort.check_samples, seed=CHECK_SEED)
        if self.workload.optimizer == "adam":
            batches = batches[:1] * CHECK_STEPS
        line = self._line(embeddings, batches, depth=0)
        line.train(CHECK_STEPS)
        line.stop()
        rows = embeddings.rows(one_each(self.workload.setup().tables, batches))
        if self._expected is None:
            self._expected = rows
        name, stored = f"{self.workload.title}: {spec.title}", np.full_like(rows, STORED)
        check_equal(name, rows, self._expected, before=stored, tolerance=TOLERANCE)
        if spec.is_ours and not np.array_equal(rows, self._expected):
            self.report.notes.append(f"{name}: rows and dense part equal the reference's, but NOT bit for bit.")

    def _line(self, embeddings: Embeddings, batches: Sequence[Batch], *, depth: int) -> Line:
        kind = TrainerLine if isinstance(embeddings, Tiers) and embeddings.by_trainer else Line
        kind = PipelineLine if isinstance(embeddings, TorchRecPipeline) else kind
        part = WholeStep(self.workload, self.accelerator, graph=embeddings.by_graph)
        return kind(self.accelerator, embeddings, part, batches, depth=depth, steps=self.effort.steps)

    def _measure(self, variants: Mapping[str, Embeddings], point: Point) -> dict[str, Measured]:
        """Time variants in turns; `reference` has its usual depth."""
        effort, batches = self.effort, self._timed_batches(point)
        lines: dict[str, Line] = {}
        try:
            for name, embeddings in variants.items():
                depth = REFERENCE_DEPTH if name == "reference" else point.depth
                lines[name] = self._line(embeddings, batches, depth=depth)
                lines[name].choose_steps(effort.turn_seconds)
            ours = {name: variant for name, variant in variants.items() if isinstance(variant, Tiers)}
            for tiers in ours.values():
                tiers.statistics()
            cases = {name: line.turn for name, line in lines.items()}
            times = harness.take_turns(cases, rounds=effort.rounds, warm_up=effort.warm_up)
            phases = {name: line.phases for name, line in lines.items()}  # before the profiler slows steps
            statistics = {name: tiers.statistics() for name, tiers in ours.items()}
            busy = {name: line.busy_ms() for name, line in lines.items() if name == "it"}
        finally:
            for line in lines.values():
                line.stop()
        return {name: Measured(times[name], phases[name], statistics.get(name), busy.get(name)) for name in lines}

    def _timed_batches(self, point: Point) -> list[Batch]:
        """Return batches, equal for all variants and different at every point.

        A tier must not have trained them before.
        """
        if point not in self._batches:
            while len(self._batches) > 1:
                del self._batches[next(iter(self._batches))]
            depth = max(point.depth, REFERENCE_DEPTH)
            count = batches_needed(depth, self.effort.steps, self.effort.rounds + self.effort.warm_up)
            seed = TIMED_SEED * (1 + point.depth) + 10 * point.batch
            self._batches[point] = self.workload.batches(count, point.batch, seed=seed)
        return self._batches[point]


def fill(tiers: Tiers, workload: Workload, *, train: bool) -> None:
    """Fill the device with the most popular rows; with `train`, change them."""
    bag, slots = tiers.bag, tiers.bag.runtime.view.device_rows
    if not slots:
        return
    lookups = max(1, min(FILLING_LOOKUPS, slots // 2))
    for planned in bag.look_ahead(covering_batches(workload.setup().tables, slots, lookups), depth=0):
        if train:
            pooled = bag.stack(planned)
            pooled.backward(torch.full_like(pooled, 1e-4))  # type: ignore[no-untyped-call]
            bag.step()
    bag.statistics.take()
