"""What the ratios on a GPU should at least be. No run has been judged by them yet; see `docs/gpu.md`."""

from benchmarks.bars import Bar

_STAGED = "whole step, 10% of the rows on the device, lru, look-ahead 4"

BARS = (
    Bar(f"{_STAGED}: speed over all rows on the device", "gpu_staged_vs_device", 0.9),
    Bar(f"{_STAGED}: over rows looked up on the host", "gpu_staged_vs_hybrid", 3),
    Bar("tests on the GPU that failed", "gpu_tests_failed", 0, at_least=False),
)
REQUIRED = tuple(bar.name for bar in BARS)
