"""What the ratios on a GPU should at least be. No run has been judged by them yet; see `docs/gpu.md`."""

from benchmarks.bars import Bar

_STAGED = "whole step, 10% of the rows on the device, lru, look-ahead 4"

BARS = (
    Bar(f"{_STAGED}: speed over all rows on the device", "gpu_staged_vs_device", 0.9),
    Bar(f"{_STAGED}: over rows looked up on the host", "gpu_staged_vs_hybrid", 3),
    Bar("embedding part, all rows on the device: over nn.EmbeddingBag, sparse", "gpu_embedding_vs_torch_sgd", 5),
    Bar("embedding part, all rows on the device: over nn.EmbeddingBag, sparse", "gpu_embedding_vs_torch_adam", 5),
    Bar("kernels over their floor, batch >= 16384", "gpu_kernels_over_floor", 2, at_least=False),
    Bar("moving rows over a plain copy, the worst", "gpu_link_over_floor", 1.5, at_least=False),
    Bar("memory of the device tier, off what was configured", "gpu_tier_memory_off", 0.03, at_least=False),
    Bar("tests on the GPU that failed", "gpu_tests_failed", 0, at_least=False),
)
REQUIRED = tuple(bar.name for bar in BARS)
