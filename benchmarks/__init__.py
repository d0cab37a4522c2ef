"""How fast it is, measured beside what one would use instead: `python -m benchmarks.run_all`."""

import adaptive  # noqa: F401 (before torch: how long threads spin, see `adaptive.system.spin_briefly`)
