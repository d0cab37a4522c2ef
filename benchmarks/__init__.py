"""Speed, measured next to the alternatives: `python -m benchmarks.run_all`."""
