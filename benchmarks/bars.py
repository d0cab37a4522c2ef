"""Ratios that a run on a GPU should reach; values vary by 10% on a busy machine."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    title: str
    name: str
    value: float
    at_least: bool = True

    def reached(self, measured: float) -> bool:
        return measured >= self.value if self.at_least else measured <= self.value


_STAGED = "on a GPU, whole step, 10% of the rows on the device, lru, look-ahead 4"

GPU_BARS = (
    Bar(f"{_STAGED}: speed over all rows on the device", "gpu_staged_vs_device", 0.9),
    Bar(f"{_STAGED}: over rows looked up on the host", "gpu_staged_vs_hybrid", 3),
    Bar("tests on the GPU that failed", "gpu_tests_failed", 0, at_least=False),
)
GPU_REQUIRED = tuple(bar.name for bar in GPU_BARS)
