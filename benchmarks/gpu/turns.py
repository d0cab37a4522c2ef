"""A variant on a stream of batches, timed in turns.

A turn begins with steps that are not timed: as many as our look-ahead may have prepared while another variant had its
turn, and some more. Otherwise planning would seem free. A turn ends when the device has done everything.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from statistics import median
from typing import Any

from adaptive.batch import Batch
from benchmarks.gpu.accelerator import Accelerator
from benchmarks.gpu.parts import WholeStep
from benchmarks.gpu.variants import Tiers
from benchmarks.variants import Embeddings

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
        self._drained = depth + SPARE_STEPS if self._ours else 1
        self._inputs = self._begin(batches, depth)
        self.steps = steps
        self.phases_ms: list[list[float]] = []

    def _begin(self, batches: Sequence[Batch], depth: int) -> Iterator[tuple[Any, Any]]:
        if self._ours is not None:
            self._ours.look_ahead(depth)
            return ((inputs, None) for inputs in self._ours.stream(batches))
        return ((self._embeddings.prepare(batch), self._part.prepare(batch)) for batch in batches)

    def _next(self, count: int) -> Iterator[tuple[Any, Any]]:
        """Ours come as the look-ahead brings them; others' inputs lie on the device before the clock starts."""
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
        marks = [self._part.train(self._embeddings, *one, self._accelerator.mark) for one in inputs]
        self._accelerator.synchronize()
        seconds = (time.perf_counter() - start) / steps
        assert len(marks) == steps, "the batches have run out"
        between = self._accelerator.milliseconds
        self.phases_ms = [[between(*pair) for pair in pairwise(one)] for one in marks]
        return seconds

    def choose_steps(self, seconds: float) -> None:
        """Fewer steps a turn, at least one, so that a turn takes about as long as given."""
        self.train(self._drained)
        self.steps = max(1, min(self.steps, int(seconds / max(self.train(2), 1e-6))))

    @property
    def phases(self) -> dict[str, float]:
        """Phase -> median ms, in the work of the device's current stream, of the latest steps."""
        return {
            name: median(column)
            for name, column in zip(self._part.phases, zip(*self.phases_ms, strict=True), strict=True)
        }

    def stop(self) -> None:
        """End the look-ahead."""
        if self._ours is not None:
            self._ours.stop()


def batches_needed(depth: int, steps: int, turns: int) -> int:
    """For `choose_steps` and so many turns of a line."""
    return (turns + 1) * (depth + SPARE_STEPS + max(steps, 2))
