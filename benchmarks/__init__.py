"""How fast it is, measured beside what one would use instead: `python -m benchmarks.run_all`."""
