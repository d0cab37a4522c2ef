"""Speed and tests on a GPU: `python -m benchmarks.gpu.plans`."""
