"""How fast it is on a GPU, and whether it is right there: `python -m benchmarks.gpu.run_all`; see `docs/gpu.md`."""
