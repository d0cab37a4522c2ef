"""Speed and tests on a GPU: `python -m benchmarks.gpu.run_all`."""
