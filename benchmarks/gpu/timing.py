"""What was measured of a variant: its times, its phases, and what its tiers did meanwhile."""

from dataclasses import dataclass
from statistics import median

from adaptive.counters import Counter
from adaptive.embeddings.engine.statistics import Statistics
from benchmarks.gpu.floors import Traffic, traffic
from benchmarks.gpu.variants import Spec
from benchmarks.gpu.workloads import NUM_TABLES, Workload
from benchmarks.harness import paired
from benchmarks.variants import hit_rate


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

    @property
    def ms(self) -> float:
        """Of a step."""
        return median(self.seconds) * 1e3

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
        row, back = 4 * (workload.dim + workload.state_width), self.per_step(Counter.BYTES_D2H)
        fetched = row * (self.per_step(Counter.FETCHED) - self.per_step(Counter.WRITTEN_BACK))
        moved = back + fetched, back  # rows and vectors: plans, which BYTES_H2D counts too, are no part of a floor
        distinct = self.per_step(Counter.UNIQUE_ROWS)
        return traffic(distinct, samples, NUM_TABLES, workload.dim, workload.state_width, moved)


@dataclass(frozen=True)
class Timing:
    """A variant beside the reference."""

    spec: Spec
    point: Point
    it: Measured
    reference: Measured

    @property
    def speed(self) -> float:
        """The reference's time over the variant's."""
        return paired(self.reference.seconds, self.it.seconds)

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
