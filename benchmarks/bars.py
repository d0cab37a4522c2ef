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

GPU_BARS: tuple[Bar, ...] = (
    Bar(f"{_STAGED}: speed over all rows on the device", "gpu_staged_vs_device", 0.9),
    Bar(f"{_STAGED}: over rows looked up on the host", "gpu_staged_vs_hybrid", 3),
    Bar("tests on the GPU that failed", "gpu_tests_failed", 0, at_least=False),
)
_BY_TRAINER = "lru_10pct_trainer_1"
for _precision, _over_busy in (("", 1.15), ("_tf32", 1.15), ("_bf16", 1.5)):
    _title = f"the same by Trainer{_precision.replace('_', ', ')}"
    _speed, _busy = (f"gpu_{what}_{_BY_TRAINER}{_precision}" for what in ("staged_vs_device", "step_over_busy"))
    GPU_BARS += (
        Bar(f"{_title}: speed over an own loop with all rows on the device", _speed, 0.95),
        Bar(f"{_title}: step over the time that the GPU is busy", _busy, _over_busy, at_least=False),
    )
GPU_REQUIRED = tuple(bar.name for bar in GPU_BARS)
