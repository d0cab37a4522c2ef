"""What the benchmarks of skipping share: our embeddings with skipping switched on, trained by a fixed gradient."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch
from adaptive.embeddings.planned_batch import Planned
from benchmarks.variants import Ours, Setup

STAGES = {"plan": "plan", "update": "row_update"}  # as reported here, as the pipeline calls it
Seen = Callable[[Planned], object]


def fixed_gradient(setup: Setup, num_samples: int) -> Tensor:
    """(B, F, D) small random numbers, the same at every call."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn((num_samples, len(setup.tables), setup.dim), generator=generator).mul_(0.01)


class Line:
    """A variant at work: the embedding part alone, fed a fixed gradient.

    Seconds of every block: `spent["plan"]` and `spent["update"]`, and of everything together `spent["step"]`.
    """

    def __init__(self, ours: Ours, gradient: Tensor) -> None:
        self.ours = ours
        self.seen: Seen | None = None  # is shown every batch once it is trained
        self.spent: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "step")}
        self._gradient = gradient
        self._stream: Iterator[Planned] = iter(())

    def start(self, batches: Sequence[Batch]) -> None:
        """Train on these from now on."""
        self._stream = self.ours.stream(batches)

    def block(self, steps: int) -> None:
        """Train the next batches."""
        before, seconds = self._total(), 0.0
        for _ in range(steps):
            start = time.perf_counter()
            planned = next(self._stream)
            torch.autograd.backward(self.ours.pool(planned), [self._gradient])
            self.ours.update()
            seconds += time.perf_counter() - start
            if self.seen is not None:
                self.seen(planned)
        self.spent["step"].append(seconds)
        for stage, spent in zip(STAGES, self._total() - before, strict=True):
            self.spent[stage].append(float(spent))

    def _total(self) -> NDArray[np.float64]:
        total = self.ours.bag._pipeline.stopwatch.total_ms()
        return np.array([total.get(stage, 0.0) for stage in STAGES.values()]) / 1e3

    def close(self) -> None:
        self.ours.close()


def close_all(lines: dict[str, Line]) -> None:
    """Give memory and files back."""
    for line in lines.values():
        line.close()
    lines.clear()
    gc.collect()


def values_of(ours: Ours, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(n, D) the weights of rows (n,), numbered through all tables, with gradients that wait applied."""
    pipeline = ours.bag._pipeline
    (lane,) = pipeline.lanes
    with pipeline.lock:
        return pipeline.values(lane, rows)[0]
